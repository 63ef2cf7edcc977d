"""Every engine of this machine against the reference, stage by stage."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.choices import CUDA_ENGINES, choose_preprocess
from framefuse.config import Settings, settings_from
from framefuse.engines import ENGINES
from framefuse.errors import CapabilityError, FramefuseError, UsageError
from framefuse.frame import Frame
from framefuse.models import find_model
from framefuse.models.card import Card, read_card
from framefuse.parity import report
from framefuse.parity.chain import Chain, Picture, Raw, Selection, Stage, decoded, on_host, reference_stage
from framefuse.parity.compare import (
    GRID,
    LIMITS,
    BoxDifference,
    Boxes,
    Check,
    Limits,
    PixelDifference,
    Verdict,
    box_check,
    pixel_check,
    worst,
)
from framefuse.parity.peer import Peer, compare, run_ours, run_peer
from framefuse.pipeline import Pipeline
from framefuse.preprocess import Placement
from framefuse.sources import open_source

KERNEL = 0.5
"""Grey levels that our float32 kernels may be off the float64 reference: half a step of 8 bits."""
EXACT = Limits(0.999, 0.0001)
"""Post-processing of the same raw outputs."""
CLIP_FRAMES = 6
BOTH_DEVICES = ("onnxruntime", "torch")
PEER_LAYOUTS = ("yolov8", "end2end")
"""Layouts that ultralytics' own post-processing reads."""


@dataclass
class EngineResult:
    """One engine in one precision."""

    name: str
    device: str
    asked: str
    """Precision that was asked for."""
    precision: str = ""
    """What ran."""
    checks: list[Check] = field(default_factory=list)
    """Each stage alone, on the reference's input of that stage."""
    steps: list[Check] = field(default_factory=list)
    """Boxes when the reference's stages are replaced by ours one after the other."""
    absent: str = ""
    """Why it was not run here; empty where it was."""
    peer: list[Check] = field(default_factory=list)
    """Each stage against ultralytics."""

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in (*self.checks, *self.steps))

    def same_as(self, other: EngineResult) -> bool:
        """Whether two precisions that were asked for came to the same."""
        mine, others = ((one.name, one.device, one.precision, one.absent) for one in (self, other))
        return mine == others

    @property
    def starts(self) -> str:
        """Where a difference starts, and where it becomes too large, in one sentence."""
        first = next((check for check in self.steps if check.verdict in ("within", "outside")), None)
        wrong = next((check for check in (*self.checks, *self.steps) if check.verdict == "outside"), None)
        if wrong is not None:
            return f"outside the limits from {wrong.stage} on: {wrong.found}"
        if first is None:
            return "no difference beyond rounding at any stage"
        return f"the first difference comes with {first.stage}, within the limits: {first.found}"


@dataclass
class Certificate:
    """What was compared, and what came of it."""

    model: str
    layout: str
    video: str
    size: tuple[int, int]
    """Width and height of the pictures."""
    input: tuple[int, int]
    """Width and height of the model's input."""
    frames: int
    boxes: int
    """That the reference found in all frames."""
    selection: Selection
    pixels: list[Check]
    """Decoding and colour: the same for every engine."""
    engines: list[EngineResult]
    peer: str = ""
    """Name and version of the other implementation; why there is none, where one was asked for."""
    picture: NDArray[np.uint8] | None = field(default=None, repr=False)
    """(height, width, 3) RGB: the first frame."""
    shown: tuple[Boxes, Boxes] | None = field(default=None, repr=False)
    """On it: boxes of the reference, and of the first engine's whole pipeline."""

    @property
    def ok(self) -> bool:
        """No stage of any engine that ran is outside its limits, and one ran at least."""
        ran = [engine for engine in self.engines if not engine.absent]
        checks = [*self.pixels, *(check for engine in ran for check in (*engine.checks, *engine.steps, *engine.peer))]
        return bool(ran) and worst(check.verdict for check in checks) != "outside"

    def table(self) -> list[Sequence[str]]:
        """Rows for `print_table`; a row of one cell is a title."""
        return report.table(self)

    def summary(self) -> list[str]:
        """A line for each engine."""
        return report.summary(self)

    def markdown(self) -> str:
        return report.markdown(self)

    def html(self) -> str:
        return report.html(self)

    def to_json(self) -> str:
        return report.to_json(self)


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
        source: a video file, or anything else that `open_source` takes; default: a clip of the synthetic world (for
            the model squares: of squares), encoded as H.264 for this.
        engines: default: all but null; those that this machine lacks are told with the reason.
        precisions: tried with every engine.
        frames: the first of the source.
        peer_python: a Python that has ultralytics.
        settings, options: as `Pipeline`.

    Raises:
        UsageError: the model finds no boxes, or an engine has no such name.
        CapabilityError: ONNX Runtime, which is the reference, is not installed.
        SourceError: the source shows nothing.
    """
    if frames < 1:
        raise UsageError(f"frames is {frames}", remedy="use 1 or more")
    names = [name for name in ENGINES if name != "null"] if engines is None else list(engines)
    if unknown := [name for name in names if name not in ENGINES]:
        raise UsageError(f"no engine is called {unknown[0]!r}", remedy=f"choose from {', '.join(ENGINES)}")
    settings = settings_from(options, base=settings)
    card = read_card(find_model(model))
    if card.task == "semantic":
        raise UsageError(f"{card.path.name} finds no boxes", remedy="give a detector")
    spec, _ = choose_preprocess(card, settings)
    chain = Chain(card, spec, Selection(settings.conf, settings.iou, settings.max_det))
    with tempfile.TemporaryDirectory() as folder:
        video = source if source is not None else default_clip(card, Path(folder), max(frames, CLIP_FRAMES))
        say(f"reference: {frames} frames of {video}")
        with closing(_Work(chain, video, frames, settings)) as work:
            peer, why = _peer(work, peer_python, say)
            results: list[EngineResult] = []
            for name in names:
                for device, precision in product(_devices(name), precisions):
                    say(f"engine {name} on {device}, precision {precision}")
                    result = work.engine(name, device, precision, peer)
                    if not any(result.same_as(other) for other in results):
                        results.append(result)
            first = work.frames[0]
            return Certificate(
                model=card.path.stem,
                layout=card.layout,
                video="a clip made for this" if source is None else str(source),
                size=(first.width, first.height),
                input=work.placements[0].size,
                frames=len(work.frames),
                boxes=sum(len(boxes.scores) for boxes in work.expected),
                selection=chain.selection,
                pixels=work.pixel_checks(),
                engines=results,
                peer=peer.name if peer else why,
                picture=np.clip(chain.colour(first, ours=False) + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0),
                shown=(work.expected[0], work.shown) if work.shown else None,
            )


class _Work:
    """The reference of every stage, computed once."""

    def __init__(self, chain: Chain, video: Any, frames: int, settings: Settings) -> None:
        self.chain, self._video, self.settings = chain, video, settings
        self.shown: Boxes | None = None
        with closing(open_source(video)) as source:
            self._file = source.info.path if source.info.kind == "file" else None
            self._decoded = [on_host(frame) for frame in islice(source, frames)]
        self.frames = self._decoded
        if self._file is not None and len(found := decoded(self._file, self._decoded)) == len(self._decoded):
            self.frames = found
        made = [chain.pixels(frame) for frame in self.frames]
        self.pixels: list[Picture] = [picture for picture, _ in made]
        self.placements: list[Placement] = [placement for _, placement in made]
        self._quantised = b"QuantizeLinear" in chain.card.path.read_bytes()
        self._reference = reference_stage(chain.card)
        self.raw: list[Raw] = [self._reference.run(picture) for picture in self.pixels]
        self._raw_of_ours = [
            raw if _same(ours, theirs) else self._reference.run(chain.pixels(ours)[0])
            for raw, ours, theirs in zip(self.raw, self._decoded, self.frames, strict=True)
        ]
        pairs = zip(self.raw, self.placements, strict=True)
        self.expected = [chain.boxes(raw, placement, ours=False) for raw, placement in pairs]

    def close(self) -> None:
        self._reference.close()
        self._reference.engine.close()

    @property
    def file(self) -> Path | None:
        """The video, where it is a file."""
        return self._file

    def pixel_checks(self) -> list[Check]:
        decode, colour = PixelDifference(), PixelDifference()
        for ours, theirs in zip(self._decoded, self.frames, strict=True):
            for one, other in zip(ours.planes, theirs.planes, strict=True):
                decode.add(one, other)
            colour.add(self.chain.colour(theirs, ours=True), self.chain.colour(theirs, ours=False))
        checks = [pixel_check("decode", decode, 0.0, "planes as we read them, against FFmpeg's")]
        if self.frames is self._decoded:
            checks = [Check("decode", "", "", "not compared", "the source is no video file")]
        return [*checks, pixel_check("colour", colour, KERNEL, "at the picture's own size, against float64")]

    def engine(self, name: str, device: str, precision: str, peer: Peer | None) -> EngineResult:
        """One engine through all stages."""
        result = EngineResult(name, device, precision)
        chosen = settings_from({"precision": precision, "device": device}, base=self.settings)
        try:
            pipeline = Pipeline(self._video, self.chain.card.path, settings=chosen, engine=name)
        except CapabilityError as error:
            result.absent = error.message
            return result
        except FramefuseError as error:
            result.absent = f"{type(error).__name__}: {error.message}"
            return result
        with closing(pipeline):
            result.precision = pipeline.engine.precision
            try:
                with closing(Stage(pipeline.engine, self.chain.card)) as stage:
                    self._stages(result, stage, pipeline, peer)
            except Exception as error:  # an engine that breaks down is what a certificate has to say
                why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                result.checks.append(Check(f"engine {name} {result.precision}", why[:200], "it runs", "outside"))
        return result

    def _stages(self, result: EngineResult, stage: Stage, pipeline: Pipeline, peer: Peer | None) -> None:
        chain, limits = self.chain, self._limits(result.precision)
        chosen = chain.selection
        resize, alone, post = PixelDifference(), BoxDifference(), BoxDifference()
        steps = {name: BoxDifference() for name in ("decode", "pixels", "engine", "post-process", "the whole pipeline")}
        number_format = "float32"
        for row, (ours, at) in enumerate(zip(self._decoded, self.placements, strict=True)):

            def add(difference: BoxDifference, found: Raw, mine: bool, row: int = row, at: Placement = at) -> None:
                boxes = chain.boxes(found, at, ours=mine)
                difference.add(self.expected[row], boxes, limits, conf=chosen.conf, iou=chosen.iou)

            pixels, number_format = stage.preprocess(chain.spec, self.frames[row])
            resize.add(self._grey(pixels), self._grey(self.pixels[row]))
            if self.frames is not self._decoded:
                pixels, _ = stage.preprocess(chain.spec, ours)
            add(alone, stage.run(self.pixels[row]), False)
            add(post, self.raw[row], True)
            add(steps["decode"], self._raw_of_ours[row], False)
            add(steps["pixels"], self._reference.run(pixels), False)
            raw = stage.run(pixels)
            add(steps["engine"], raw, False)
            add(steps["post-process"], raw, True)
        theirs = run_ours(chain, peer, stage) if peer else []
        # Last: a pipeline that has come to the end of its source has closed its engine.
        whole = [_boxes(found) for found in islice(pipeline, len(self.frames))]
        for expected, boxes in zip(self.expected, whole, strict=True):
            steps["the whole pipeline"].add(expected, boxes, limits, conf=chosen.conf, iou=chosen.iou)
        self.shown = self.shown or whole[0]
        kernel = pixel_check(
            "resize and padding", resize, KERNEL + GRID[number_format] * self._scale(),
            f"as {'bfloat16' if number_format == 'uint16' else number_format}, which is what the engine reads",
        )  # fmt: skip
        if result.device == "cuda":
            kernel = Check(kernel.stage, "", "", "not compared", "inside the CUDA graph: see the whole pipeline")
        result.checks = [
            kernel,
            box_check(f"engine {result.name} {result.precision}", alone, limits, "on the reference's pixels"),
            box_check("post-process", post, EXACT, "on the reference's raw outputs"),
        ]
        result.steps = [box_check(name, difference, limits) for name, difference in steps.items()]
        if peer is not None:
            result.peer = compare(chain, peer, self.frames, whole, theirs, f"{result.name} {result.precision}", limits)

    def _limits(self, precision: str) -> Limits:
        return LIMITS["int8" if self._quantised and precision != "fp8" else precision]

    def _grey(self, values: Picture) -> Picture:
        return values * np.asarray(self.chain.spec.std, np.float32)[:, None, None]

    def _scale(self) -> float:
        """Largest number of the model's input over that of 0..1, in which GRID is stated."""
        spec = self.chain.spec
        highest = max(max(abs(0 - mean), abs(255 - mean)) / std for mean, std in zip(spec.mean, spec.std, strict=True))
        return highest * max(spec.std) / 255


def default_clip(card: Card, folder: Path, frames: int) -> Path:
    """A short H.264 clip that has something in it for most detectors."""
    path = folder / "clip.mp4"
    if card.path.stem == "squares":
        from framefuse.models.clip import squares_clip

        squares_clip(path, frames=frames, seed=1)
        return path
    import av

    from framefuse.synthetic import World

    world = World.parse(f"synthetic://street?seed=3&complexity=0.6&frames={frames}")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(world.fps), options={"crf": "20"})
        stream.width, stream.height = world.size
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = 1  # BT.709
        context.color_range = 1
        for snapshot in world:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(snapshot.picture), format="rgb24")
            picture = picture.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
            picture.pts, picture.time_base = snapshot.index, 1 / Fraction(world.fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def _peer(work: _Work, python: Path | None, say: Callable[[str], None]) -> tuple[Peer | None, str]:
    if python is None:
        return None, ""
    chain, settings = work.chain, work.settings
    if work.file is None:
        return None, "ultralytics was not compared: the source is no video file"
    if chain.card.layout not in PEER_LAYOUTS:
        return None, f"ultralytics was not compared: it does not read the layout {chain.card.layout}"
    say("ultralytics")
    spec = chain.spec
    options = {
        "imgsz": [spec.height, spec.width], "conf": settings.conf, "iou": settings.iou, "max_det": settings.max_det,
        "rect": spec.rectangular,
    }  # fmt: skip
    return run_peer(python, chain.card.path, work.file, len(work.frames), options), ""


def _devices(name: str) -> list[str]:
    """Where an engine is tried: engines of both devices on the GPU only where there is one."""
    if name not in CUDA_ENGINES:
        return ["cpu"]
    if name not in BOTH_DEVICES:
        return ["cuda"]
    from framefuse.kernels import cuda

    with suppress(CapabilityError):
        cuda.cupy()
        return ["cpu", "cuda"]
    return ["cpu"]


def _same(one: Frame, other: Frame) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one.planes, other.planes, strict=True))


def _boxes(result: Any) -> Boxes:
    found = result.detections
    return Boxes(found.xyxy, found.confidence, found.class_id)


__all__ = ["Certificate", "EngineResult", "certify", "default_clip"]
