"""DeviceOutputs: the end of a captured batch: postprocessing on the GPU, and one copy of the results to the host.

Each belongs to one `CapturedBatch`. `upload` and `start` only launch, so they are captured; `place` and `read` are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from framefuse.cuda import device
from framefuse.cuda.pools import packed_allocation
from framefuse.cuda.workspace import Workspace
from framefuse.errors import CardError, NonFiniteError
from framefuse.kernels.boxes.call import detections
from framefuse.kernels.boxes.cuda import count_non_finite
from framefuse.kernels.boxes.reference import Found
from framefuse.kernels.masks import call as masks
from framefuse.models.card import Card
from framefuse.postprocess import maps
from framefuse.postprocess.plausible import BoxCheck
from framefuse.prediction import Detections, Masks
from framefuse.preprocess import Placement
from framefuse.runtime.program import Selection

FrameOutput = tuple[Detections, Masks | None]


class DeviceOutputs(Protocol):
    """Postprocessing of one captured batch."""

    uploaded_bytes: int
    """Size of the tables that `upload` copies to the GPU."""
    downloaded_bytes: int
    """Size of the results that `start` copies to the host."""

    def place(self, placements: Sequence[Placement]) -> None:
        """Set where the frames of the next launch lie in the model input."""

    def upload(self, stream: Any) -> None:
        """Start copying what `place` wrote."""

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        """Launch everything on a CuPy stream, which must be the current one."""

    def read(self, count: int) -> list[FrameOutput]:
        """Copies of the results of the first `count` frames, once the launch has ended.

        Raises:
            NonFiniteError: the model produced NaN or infinity for one of them.
        """


class BoxOutputs:
    """Boxes: confidence filter, NMS, and coordinates in source pixels.

    Args:
        layout: layout of the outputs: the card's, or "yolov8_head".
        relative: the outputs are relative to the size of the model input.
        checked: makes detections of the boxes.
    """

    def __init__(
        self, batch: int, layout: str, relative: bool, card: Card, selection: Selection, checked: BoxCheck
    ) -> None:
        self._layout, self._relative, self._card, self._selection = layout, relative, card, selection
        self._checked = checked
        self._workspace = Workspace()  # tens of megabytes at large batches; freed with the graph
        cp = device.cupy()
        self._maps = device.pinned((batch, 8), np.float32)
        self._device_maps = cp.zeros((batch, 8), np.float32)
        count = selection.max_det
        shapes = [((batch, count, 4), np.float32), ((batch, count), np.float32), ((batch, count), np.int32),
                  ((batch,), np.int32), ((batch,), np.int32)]  # fmt: skip
        self._device, self._device_bytes = packed_allocation(shapes, lambda size: cp.zeros(size, np.uint8))
        self._host, self._host_bytes = packed_allocation(shapes, lambda size: device.pinned((size,), np.uint8))
        self.uploaded_bytes, self.downloaded_bytes = self._maps.nbytes, self._host_bytes.nbytes

    def place(self, placements: Sequence[Placement]) -> None:
        self._maps[: len(placements)] = maps(tuple(placements), self._relative)

    def upload(self, stream: Any) -> None:
        runtime = device.cupy().cuda.runtime  # CuPy's copy methods refuse a stream in capture
        runtime.memcpyAsync(self._device_maps.data.ptr, self._maps.ctypes.data, self._maps.nbytes,
                            runtime.memcpyHostToDevice, stream.ptr)  # fmt: skip

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        detections(
            outputs, self._layout, self._device_maps, **vars(self._selection), activation=self._card.activation,
            out=Found(*self._device), workspace=self._workspace,
        )  # fmt: skip
        _download(self._device_bytes, self._host_bytes, stream)

    def read(self, count: int) -> list[FrameOutput]:
        boxes, scores, classes, counts, non_finite = self._host
        _check_finite(non_finite, count, "of its anchors or queries")
        return [
            (found, None) for found in self._checked(boxes[:count], scores[:count], classes[:count], counts[:count])
        ]


class MaskOutputs:
    """The class of every pixel: scores are resized to what the model saw, then the best class is taken.

    All frames, or their views, have the size that the graph is captured for.

    Args:
        shape: classes, height and width of the model's scores.
        placement: where every frame, or its view, lies in the model input.

    Raises:
        CardError: the scores have another aspect ratio than the model input.
    """

    uploaded_bytes = 0

    def __init__(self, batch: int, shape: tuple[int, int, int], placement: Placement, card: Card) -> None:
        cp = device.cupy()
        classes, height, width = shape
        wide, high = placement.size
        if height * wide != width * high:
            raise CardError(
                f"the model returns {width}x{height} scores for an input of {wide}x{high}",
                remedy="export it with scores at the size of the input, or at 1/2, 1/4, ... of it",
            )
        self._card, self._placed, self._batch = card, _place_of(placement), batch
        left, top, across, down = (side * width / wide for side in placement.content)
        self._content = left, top, across, down
        self._size = placement.shown[1], placement.shown[0]
        self._resized = cp.empty((1, classes, *self._size), np.float32)
        shapes = [((batch, *self._size), np.uint8), ((batch,), np.int32)]
        (self._labels, self._non_finite), self._device_bytes = packed_allocation(
            shapes, lambda size: cp.zeros(size, np.uint8)
        )
        self._host, self._host_bytes = packed_allocation(shapes, lambda size: device.pinned((size,), np.uint8))
        self.downloaded_bytes = self._host_bytes.nbytes

    def place(self, placements: Sequence[Placement]) -> None:
        assert all(_place_of(placement) == self._placed for placement in placements)

    def upload(self, stream: Any) -> None:
        """Nothing to do: the placement is part of the graph."""

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        (scores,) = outputs
        self._non_finite.data.memset_async(0, self._non_finite.nbytes, stream)
        count_non_finite(scores, self._non_finite, stream=stream.ptr)
        for slot in range(self._batch):
            masks.upsample(scores[slot], self._size, content=self._content, out=self._resized[0])
            masks.argmax(self._resized, out=self._labels[slot : slot + 1])
        _download(self._device_bytes, self._host_bytes, stream)

    def read(self, count: int) -> list[FrameOutput]:
        labels, bad = self._host
        _check_finite(bad, count, "of its scores")
        names = self._card.names
        return [(Detections.none(names), Masks(labels[row].copy(), names)) for row in range(count)]


def _place_of(placement: Placement) -> tuple[tuple[int, int], ...]:
    """What has to be the same for two views, wherever they lie in their frames."""
    return placement.shown, placement.size, placement.content[:2], placement.content[2:]


def _download(source: Any, target: Any, stream: Any) -> None:
    runtime = device.cupy().cuda.runtime
    runtime.memcpyAsync(target.ctypes.data, source.data.ptr, target.nbytes, runtime.memcpyDeviceToHost, stream.ptr)


def _check_finite(counts: Any, shown: int, of_what: str) -> None:
    bad = np.flatnonzero(counts[:shown])
    if len(bad):
        raise NonFiniteError(
            f"the model output has NaN or infinity in {counts[bad[0]]} {of_what} "
            f"for frame {bad[0]} of a batch of {shown}",
            remedy="use --precision fp32; if that does not help, the model file is damaged",
        )
