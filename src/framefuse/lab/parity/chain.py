"""The reference path from compressed video to boxes, and our stages in place of its own.

The reference: FFmpeg's decoder on the CPU, read plane by plane; the float64 preprocessing kernel; ONNX Runtime in FP32,
or in the precision of the file; the plain NumPy post-processing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from framefuse.engines import Engine, EngineOptions, RequestPool, Slot, open_engine
from framefuse.errors import CapabilityError, EngineError
from framefuse.frame import Frame
from framefuse.kernels import reference
from framefuse.kernels.boxes.reference import floats
from framefuse.kernels.masks.instances import Runs, mask_runs
from framefuse.lab.parity.compare import BoxDifference, Limits
from framefuse.models.card import Card
from framefuse.postprocess import BoxCheck, maps, postprocess
from framefuse.postprocess.decoders import DECODERS
from framefuse.postprocess.decoders import decoded as unpacked
from framefuse.postprocess.heads import Heads, content_of
from framefuse.prediction import Detections
from framefuse.preprocess import Placement, Preprocess
from framefuse.runtime.program import heads_of

Image = NDArray[np.float32]


@dataclass(frozen=True)
class Selection:
    """Thresholds that decide which boxes are kept."""

    conf: float
    iou: float
    max_det: int


class Raw(NamedTuple):
    """Raw outputs of an engine for one image."""

    outputs: tuple[NDArray[Any], ...]
    layout: str | None
    """None: the layout of the model."""


class Chain:
    """The stages of the reference for one model and its preprocessing."""

    def __init__(self, card: Card, spec: Preprocess, selection: Selection) -> None:
        self.card, self.spec, self.selection = card, spec, selection
        self._checked = BoxCheck(card.names, card.path.name)
        self._heads = heads_of(card, self._checked)

    def difference(self, limits: Limits) -> BoxDifference:
        """A count of differences between boxes, which starts at none."""
        return BoxDifference(limits, self.selection.conf, self.selection.iou)

    def grey(self, values: Image) -> Image:
        """A model input in grey levels, except for an offset."""
        return values * np.asarray(self.spec.std, np.float32)[:, None, None]

    def boxes(self, raw: Raw, placement: Placement, *, ours: bool) -> Detections:
        """Post-processing by the NumPy reference, or by our kernels; boxes without area are left out."""
        card, layout, outputs = self.card, raw.layout or self.card.layout, raw.outputs
        units = "relative" if raw.layout is not None else card.box_units
        if card.layout in DECODERS:
            layout, size = "yolov5", placement.size[::-1]
            outputs = (unpacked(card.layout, outputs[: len(card.outputs)], size, self.selection.conf),)
        options = {**vars(self.selection), "activation": card.activation}
        if self._heads is not None:
            if ours:
                return self._heads(outputs, [placement], **vars(self.selection))[0]
            return self._objects(self._heads, outputs, layout, placement)
        if ours:
            found: tuple[Any, ...] = postprocess(outputs, layout, [placement], box_units=units, **options)
        else:
            found = reference.detections(outputs, layout, maps((placement,), units == "relative"), **options)
        boxes, scores, classes, (count, *_) = found[:4]
        return with_area(boxes[0, :count], scores[0, :count], classes[0, :count])

    def _objects(self, heads: Heads, outputs: Sequence[NDArray[Any]], layout: str, placement: Placement) -> Detections:
        """Masks, keypoints or oriented boxes by the NumPy reference."""
        card, table = self.card, maps((placement,), False)
        output, *planes = (np.asarray(output, np.float32) for output in outputs)
        anchors = output.transpose(0, 2, 1) if layout == "yolov8" else output
        options = {"extra": card.extra, "oriented": card.task == "obb", **vars(self.selection)}
        found = reference.detections([output], layout, table, **options)
        values = anchors[0][found.anchors[0, : found.counts[0]], -card.extra :]
        if card.task != "segment":
            return heads.objects(found, 0, values, (), placement, table[0])
        size, content = placement.source[::-1], content_of(planes[0].shape[1:], placement)
        boxes = found.boxes[0, : len(values)]
        runs = mask_runs(reference.instance_masks(planes[0][0], values, boxes, size, content=content))
        assert isinstance(runs, Runs)
        return heads.objects(found, 0, values, (), placement, table[0], runs)


def with_area(xyxy: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> Detections:
    """The boxes with an area inside the frame; the pipeline drops the others (`BoxCheck`), such as boxes in padding."""
    return Detections(xyxy, scores, classes)[np.flatnonzero((xyxy[:, 2:] > xyxy[:, :2]).all(axis=1))]


def preprocessed(spec: Preprocess, frame: Frame, *, ours: bool = False) -> tuple[Image, Placement]:
    """The model input as (3, height, width) float32, by our kernel or in float64; and its placement."""
    placement = spec.place(frame.width, frame.height)
    out = np.empty((3, *placement.size[::-1]), np.float32)
    if ours:
        spec(frame, out, placement)
    else:
        reference.preprocess(frame, out, **spec.arguments(placement))
    return out, placement


def colours(frame: Frame, *, ours: bool = False) -> Image:
    """The frame at its own size as RGB in 0..255, (3, height, width), without resizing or padding."""
    plain = Preprocess(frame.width, frame.height, fit="stretch", mean=(0.0,) * 3, std=(1.0,) * 3)
    return preprocessed(plain, frame, ours=ours)[0]


class Stage:
    """An engine alone: an image in, raw outputs out."""

    def __init__(self, engine: Engine, card: Card) -> None:
        self.engine, self._card = engine, card
        self._pools: dict[tuple[int, int], RequestPool] = {}

    def preprocess(self, spec: Preprocess, frame: Frame) -> tuple[Image, str]:
        """Our kernel's pixels in the engine's number format, as float32 (3, height, width); and that format."""
        pool, slot = self._slot(*spec.place(frame.width, frame.height).size[::-1])
        spec(frame, slot.input[0], memory_format=slot.memory_format)
        found = read_input(slot), str(slot.input.dtype)
        pool.release(slot)
        return found

    def run(self, image: Image) -> Raw:
        """Raw outputs of one image; EngineError if the engine has no free slot."""
        pool, slot = self._slot(*image.shape[1:])
        write_input(slot, image)
        pool.submit(slot)
        pool.wait(slot)
        outputs: Sequence[Any] = slot.outputs
        if slot.layout is None:
            outputs = [outputs[index] for index in self._card.output_indices]
        raw = Raw(tuple(np.array(output[:1]) for output in outputs), slot.layout)
        pool.release(slot)
        return raw

    def rerun(self, raw: Sequence[Raw], spec: Preprocess, ours: Sequence[Frame], theirs: Sequence[Frame]) -> list[Raw]:
        """Raw outputs on our frames; those of `theirs`, where they are equal."""
        return [
            known if all(map(np.array_equal, one.planes, two.planes)) else self.run(preprocessed(spec, one)[0])
            for known, one, two in zip(raw, ours, theirs, strict=True)
        ]

    def close(self) -> None:
        """Free the request pools; the engine stays open."""
        while self._pools:
            self._pools.popitem()[1].close()

    def _slot(self, height: int, width: int) -> tuple[RequestPool, Slot]:
        if (height, width) not in self._pools:
            batch = 1 if self._card.dynamic_batch else self._card.batch
            self._pools[height, width] = self.engine.request_pool(batch, height, width, 1)
        pool = self._pools[height, width]
        if (slot := pool.acquire()) is None:
            raise EngineError(f"engine {self.engine.name} has no free slot")
        return pool, slot


def reference_stage(card: Card) -> Stage:
    """ONNX Runtime on the CPU; CapabilityError if it is not installed."""
    if find_spec("onnxruntime") is None:
        raise CapabilityError("onnxruntime, the reference, is not installed", remedy="pip install 'framefuse[ort]'")
    return Stage(open_engine("onnxruntime", card.path, EngineOptions(device="cpu")), card)


def write_input(slot: Slot, image: Image) -> None:
    """Write a float32 image into a slot, in the slot's number format and memory order."""
    if slot.input.dtype == np.uint8:  # the image has grey levels, where `Slot.write` takes 0..1
        image = np.clip(np.floor(image + 0.5), 0, 255) / np.float32(255)
    slot.write(image[None])


def read_input(slot: Slot) -> Image:
    """The first image of a slot as float32."""
    values = slot.input[0].transpose(2, 0, 1) if slot.memory_format == "nhwc" else slot.input[0]
    return floats(values)


def decoded(path: Path | None, like: list[Frame]) -> list[Frame]:
    """The same frames by FFmpeg's decoder on the CPU; `like` itself without a file, or if it lacks some."""
    images = [_image(path, frame) for frame in like] if path is not None else [None]
    if None in images:
        return like
    return [
        replace(frame, planes=_planes(image, frame), owner=None, lease=None, ready=None)
        for frame, image in zip(like, images, strict=True)
    ]


def _image(path: Path, frame: Frame) -> Any:
    """FFmpeg's image with the pts of the frame; with its number, if no pts is stated."""
    for seek in (True, False):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if seek and frame.pts is not None and stream.duration:
                container.seek(frame.pts, stream=stream)
            for number, image in enumerate(container.decode(stream)):
                if image.pts == frame.pts or (image.pts is None and number == frame.index):
                    return image
                if image.pts is not None and frame.pts is not None and image.pts > frame.pts:
                    break
    return None


def on_host(frame: Frame) -> Frame:
    """A copy of the frame in host memory, independent of the decoder."""
    if frame.ready is not None:
        frame.ready.synchronize()
    planes = tuple(plane.copy() if isinstance(plane, np.ndarray) else plane.get() for plane in frame.planes)
    if frame.lease is not None:
        frame.lease.release()
    return replace(frame, planes=planes, owner=None, lease=None, ready=None)


def _planes(image: Any, frame: Frame) -> tuple[NDArray[Any], ...]:
    """Planes in the format of the frame, without row padding."""
    planes = []
    if image.format.name != frame.format.name:
        image = image.reformat(format=frame.format.name)
    for plane, ours in zip(image.planes, frame.planes, strict=True):
        rows, width = ours.shape[0], int(np.prod(ours.shape[1:])) * ours.dtype.itemsize
        lines = np.frombuffer(plane, np.uint8)[: rows * plane.line_size].reshape(rows, plane.line_size)[:, :width]
        planes.append(np.ascontiguousarray(lines).view(ours.dtype).reshape(ours.shape))
    return tuple(planes)
