"""Every engine of this machine against the reference, stage by stage."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.config import Settings, settings_from
from framefuse.cuda import device as gpus
from framefuse.engines import ENGINES, find_backend
from framefuse.errors import CapabilityError, EngineError, FramefuseError, GpuMemoryError, HostMemoryError, UsageError
from framefuse.frame import Frame
from framefuse.lab.parity.chain import (
    Chain,
    Image,
    Raw,
    Selection,
    Stage,
    colours,
    decoded,
    on_host,
    preprocessed,
    reference_stage,
    require_reference,
    seconds_in,
)  # fmt: skip
from framefuse.lab.parity.clip import default_clip
from framefuse.lab.parity.compare import GRID, LIMITS, BoxDifference, Boxes, Check, Limits, PixelDifference
from framefuse.lab.parity.peer import Peer, compare, run_ours, run_peer
from framefuse.lab.parity.report import Certificate, EngineResult
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.pipeline import Pipeline
from framefuse.prediction import FrameInfo
from framefuse.preprocess import Placement
from framefuse.runtime.choices import check_cuda, choose_preprocess
from framefuse.sources import Source, SourceOptions
from framefuse.sources.spread import open_spread

KERNEL = 0.5
"""Grey levels that our float32 kernels may differ from the float64 reference: half a step of 8 bits."""
EXACT = Limits(0.999, 0.0001)
"""Limits for post-processing of the same raw outputs."""
CLIP_FRAMES = 6
PEER_LAYOUTS = ("yolov8", "end2end")
"""Layouts that ultralytics' own post-processing supports."""


def certify(
    model: str | Path,
    source: Any = None,
    *,
    engines: Iterable[str] | None = None,
    precisions: Sequence[str] = ("auto",),
    frames: int = 4,
    peer_python: Path | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Certificate:
    """Compare every engine with the reference, and ultralytics with every engine.

    Args:
        source: a video file, or anything else that `open_source` takes; default: an H.264 clip of the synthetic world.
        engines: default: all but null; engines that this machine lacks are listed with the reason.
        precisions: tried with every engine.
        frames: number of frames, evenly spread over the source; `start` and `end` limit where.
        peer_python: a Python interpreter with ultralytics.
        settings, options: as for `Pipeline`.

    Raises:
        UsageError: the model gives no boxes, or an engine is unknown.
        CapabilityError: ONNX Runtime, which is the reference, is not installed.
        SourceError: the source has no frames.
    """
    if frames < 1:
        raise UsageError(f"frames is {frames}", remedy="use 1 or more")
    names = [name for name in ENGINES if name != "null"] if engines is None else list(engines)
    if unknown := [name for name in names if name not in ENGINES]:
        raise UsageError(f"no engine is called {unknown[0]!r}", remedy=f"choose from {', '.join(ENGINES)}")
    settings = settings_from(options, base=settings)
    require_reference()
    if settings.gpu is not None:
        check_cuda(settings.gpu)
    card = read_card(find_model(model))
    if card.task == "semantic":
        raise UsageError(f"{card.path.name} finds no boxes", remedy="pass a detector")
    spec, _ = choose_preprocess(card, settings)
    chain = Chain(card, spec, Selection(settings.conf, settings.iou, settings.max_det))
    with gpus.current(settings.gpu), tempfile.TemporaryDirectory() as folder:
        video = source if source is not None else default_clip(Path(folder), max(frames, CLIP_FRAMES))
        say(f"reference: {frames} frames of {video}")
        with closing(_Work(chain, video, frames, settings)) as work:
            peer, why = _peer(work, peer_python, say)
            results: list[EngineResult] = []
            for name in names:
                for device, precision in product(_devices(name, settings.device), precisions):
                    result = work.engine(name, device, precision, peer, say)
                    if not any(result.same_as(other) for other in results):
                        results.append(result)
            first = work.frames[0]
            return Certificate(
                model=card.path.stem,
                layout=card.layout,
                video="the default clip" if source is None else str(source),
                size=(first.width, first.height),
                input=work.placements[0].size,
                frames=[(frame.source_id, frame.index, frame.seconds) for frame in work.infos],
                boxes=sum(len(boxes.scores) for boxes in work.expected),
                selection=chain.selection,
                pixels=work.pixel_checks(),
                engines=results,
                peer=peer.name if peer else why,
                image=np.clip(colours(first) + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0),
                shown=(work.expected[0], work.shown) if work.shown else None,
            )


class _Work:
    """The reference results of every stage, computed once."""

    def __init__(self, chain: Chain, video: Any, frames: int, settings: Settings) -> None:
        self.chain, self._video, self._count, self.settings = chain, video, frames, settings
        self.shown: Boxes | None = None
        with closing(self._open("cpu")) as source:
            self._file = source.info.path if source.info.kind == "file" else None
            self._decoded = [on_host(frame) for frame in islice(source, frames)]
        self.infos = [FrameInfo.of(frame) for frame in self._decoded]
        self.frames = self._again(self._decoded)
        made = [preprocessed(chain.spec, frame) for frame in self.frames]
        self.pixels: list[Image] = [image for image, _ in made]
        self.placements: list[Placement] = [placement for _, placement in made]
        self._quantised = b"QuantizeLinear" in chain.card.path.read_bytes()
        self._reference = reference_stage(chain.card)
        self.raw: list[Raw] = [self._reference.run(image) for image in self.pixels]
        self._raw_of_ours = self._raw_of(self._decoded, self.frames)
        pairs = zip(self.raw, self.placements, strict=True)
        self.expected = [chain.boxes(raw, placement, ours=False) for raw, placement in pairs]

    def close(self) -> None:
        self._reference.close()
        self._reference.engine.close()

    def _open(self, device: str) -> Source:
        """The frames to compare, as the decoder of this device delivers them."""
        asked = self.settings
        options = SourceOptions(
            start=asked.start, end=asked.end, max_pixels=asked.max_pixels, decode_threads=asked.decode_threads,
            device="cuda" if device == "cuda" else "cpu", held=3 * asked.batch + asked.queue,
        )  # fmt: skip
        return open_spread(self._video, self._count, options)

    @property
    def file(self) -> Path | None:
        """The path of the source if it is a video file."""
        return self._file

    def pixel(self, row: int) -> float:
        """Size of a pixel of the model input in frame pixels."""
        return self.frames[row].width / self.placements[row].content[2]

    def pixel_checks(self) -> list[Check]:
        colour = PixelDifference()
        for frame in self.frames:
            colour.add(colours(frame, ours=True), colours(frame))
        decode = self._decode_check("decode", self._decoded, self.frames)
        return [decode, colour.check("colour", KERNEL, "at the frame's own size, against float64")]

    def _again(self, like: list[Frame]) -> list[Frame]:
        """The same frames by FFmpeg's decoder on the CPU; `like` itself if the source is not a video file."""
        found = decoded(self._file, like) if self._file is not None else []
        return found if len(found) == len(like) else like

    def _decode_check(self, stage: str, ours: list[Frame], theirs: list[Frame]) -> Check:
        if ours is theirs:
            return Check(stage, "", "", "not compared", "the source is not a video file")
        difference = PixelDifference()
        for mine, other in zip(ours, theirs, strict=True):
            for one, two in zip(mine.planes, other.planes, strict=True):
                difference.add(one, two)
        return difference.check(stage, 0.0, "planes as we read them, against FFmpeg's")

    def _raw_of(self, ours: list[Frame], theirs: list[Frame]) -> list[Raw]:
        """Raw outputs of the reference on frames of our decoder; recomputed only for frames that differ."""
        return [
            raw if _same(mine, other) else self._reference.run(preprocessed(self.chain.spec, mine)[0])
            for raw, mine, other in zip(self.raw, ours, theirs, strict=True)
        ]

    def _by_gpu(self) -> tuple[list[Frame], list[Raw], Check]:
        """Frames of the GPU's decoder on the host, the reference's raw outputs on them, and a check against FFmpeg."""
        with closing(self._open("cuda")) as source:
            ours = [on_host(frame) for frame in islice(source, len(self.frames))]
        theirs = self._again(ours)
        return ours, self._raw_of(ours, theirs), self._decode_check("decode on the GPU", ours, theirs)

    def engine(
        self, name: str, device: str, precision: str, peer: Peer | None, say: Callable[[str], None]
    ) -> EngineResult:
        """One engine through all stages."""
        result = EngineResult(name, device, precision)
        chosen = settings_from({"precision": precision, "device": device}, base=self.settings)
        source = self._open(device)
        try:
            pipeline = Pipeline(source, self.chain.card.path, settings=chosen, engine=name)
        except Exception as error:
            source.close()
            result.absent = _absent(error)
            if not result.absent:
                result.checks.append(_broken(name, error))
            return result
        with closing(pipeline):
            result.precision = pipeline.engine.precision
            say(f"engine {name} {result.precision} on {device}")
            try:
                with closing(Stage(pipeline.engine, self.chain.card)) as stage:
                    self._stages(result, stage, pipeline, peer)
            except Exception as error:  # an engine that fails is a finding
                result.checks.append(_broken(name, error))
        return result

    def _stages(self, result: EngineResult, stage: Stage, pipeline: Pipeline, peer: Peer | None) -> None:
        chain, limits = self.chain, self._limits(result.precision)
        resize, alone, post = PixelDifference(), chain.difference(limits), chain.difference(EXACT)
        names = ("decode", "pixels", "engine", "post-process", "the whole pipeline")
        steps = {name: chain.difference(limits) for name in names}
        number_format = "float32"
        own, raw_of_own, checks = self._decoded, self._raw_of_ours, list[Check]()
        if result.device == "cuda":
            own, raw_of_own, check = self._by_gpu()
            checks.append(check)
        for row, (ours, at) in enumerate(zip(own, self.placements, strict=True)):

            def add(difference: BoxDifference, found: Raw, mine: bool, row: int = row, at: Placement = at) -> None:
                difference.add(self.expected[row], chain.boxes(found, at, ours=mine), self.pixel(row))

            pixels, number_format = stage.preprocess(chain.spec, self.frames[row])
            resize.add(chain.grey(pixels), chain.grey(self.pixels[row]))
            if self.frames is not own:
                pixels, _ = stage.preprocess(chain.spec, ours)
            add(alone, stage.run(self.pixels[row]), False)
            add(post, self.raw[row], True)
            add(steps["decode"], raw_of_own[row], False)
            add(steps["pixels"], self._reference.run(pixels), False)
            raw = stage.run(pixels)
            add(steps["engine"], raw, False)
            add(steps["post-process"], raw, True)
        theirs = run_ours(chain, peer, stage) if peer else []
        # Last, because a pipeline closes its engine at the end of its source.
        whole = [_boxes(found) for found in islice(pipeline, len(self.frames))]
        for row, (expected, boxes) in enumerate(zip(self.expected, whole, strict=True)):
            steps["the whole pipeline"].add(expected, boxes, self.pixel(row))
        self.shown = self.shown or whole[0]
        called, kernel = f"{result.name} {result.precision}", "resize and padding"
        if result.device == "cuda":
            where = "part of the CUDA graph: see the whole pipeline"
            checks.append(Check(kernel, "", "", "not compared", where))
        else:
            format_note = f"as {'bfloat16' if number_format == 'uint16' else number_format}, which the engine reads"
            checks.append(resize.check(kernel, KERNEL + GRID[number_format] * self._scale(), format_note))
        checks.append(alone.check(f"engine {called}", "on the reference's pixels"))
        checks.append(post.check("post-process", "on the reference's raw outputs"))
        result.checks, result.steps = checks, [difference.check(name) for name, difference in steps.items()]
        if peer is not None:
            result.peer = compare(chain, peer, self.frames, whole, theirs, called, limits)

    def _limits(self, precision: str) -> Limits:
        return LIMITS["int8" if self._quantised and precision != "fp8" else precision]

    def _scale(self) -> float:
        """Range of the model input relative to 0..1, for which GRID is stated."""
        spec = self.chain.spec
        highest = max(max(abs(0 - mean), abs(255 - mean)) / std for mean, std in zip(spec.mean, spec.std, strict=True))
        return highest * max(spec.std) / 255


def _peer(work: _Work, python: Path | None, say: Callable[[str], None]) -> tuple[Peer | None, str]:
    if python is None:
        return None, ""
    chain, settings = work.chain, work.settings
    if work.file is None:
        return None, "ultralytics was not compared: the source is not a video file"
    if chain.card.layout not in PEER_LAYOUTS:
        return None, f"ultralytics was not compared: it does not support the layout {chain.card.layout}"
    say("ultralytics")
    spec = chain.spec
    options = {
        "imgsz": [spec.height, spec.width], "conf": settings.conf, "iou": settings.iou, "max_det": settings.max_det,
        "rect": spec.rectangular,
    }  # fmt: skip
    seconds = seconds_in(work.file, work.frames)
    return run_peer(python, chain.card.path, work.file, seconds, options), ""


def _devices(name: str, asked: str) -> list[str]:
    """Devices to try an engine on; engines of both devices run on the GPU only if there is one."""
    if asked != "auto":
        return [asked.partition(":")[0]]
    devices = list(find_backend(name).capabilities.devices)
    if len(devices) == 1:
        return devices
    with suppress(CapabilityError):
        gpus.cupy()
        return ["cpu", "cuda"]
    return ["cpu"]


def _absent(error: Exception) -> str:
    """Why an engine does not run on this machine; empty if it failed, which is a finding."""
    if isinstance(error, CapabilityError):
        return error.message
    if isinstance(error, EngineError) and not isinstance(error, (GpuMemoryError, HostMemoryError)):
        return ""
    return f"{type(error).__name__}: {error.message}" if isinstance(error, FramefuseError) else ""


def _broken(name: str, error: Exception) -> Check:
    why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return Check(f"engine {name}", why[:200], "it runs", "outside")


def _same(one: Frame, other: Frame) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one.planes, other.planes, strict=True))


def _boxes(result: Any) -> Boxes:
    found = result.detections
    return Boxes(found.xyxy, found.confidence, found.class_id)
