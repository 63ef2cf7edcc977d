"""Parity: does this installation give the right pixels and boxes, and if not, at which stage does it go wrong?

    certificate = certify("yolov8n.onnx", "video.mp4")
    print(certificate.markdown())

Here: every engine of this machine against the reference, stage by stage. compare.py has the differences and their
limits; chain.py the stages of the reference, and ours in their place; peer.py the same against ultralytics, in a
separate Python (which runs peer_script.py); report.py the results as text, Markdown, HTML, JSON.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from fractions import Fraction
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np

from framefuse.common.text import first_line
from framefuse.config import Settings, settings_from
from framefuse.cuda import device as gpus
from framefuse.engines import ENGINES, find_backend
from framefuse.errors import CapabilityError, EngineError, FramefuseError, GpuMemoryError, HostMemoryError, UsageError
from framefuse.frame import Frame
from framefuse.lab.loading import usable_device
from framefuse.lab.parity.chain import Chain, Selection, Stage, colours, decoded, on_host, preprocessed, reference_stage
from framefuse.lab.parity.compare import GRID, LIMITS, BoxDifference, Check, Limits, PixelDifference
from framefuse.lab.parity.peer import Peer, compare, run_ours, run_peer
from framefuse.lab.parity.report import Certificate, EngineResult
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.models.layouts import WHOLE
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections, FrameInfo
from framefuse.runtime.choices import check_cuda, choose_preprocess
from framefuse.sources import Source, SourceOptions, open_spread
from framefuse.sources.images import to_video
from framefuse.world import World

__all__ = ["BoxDifference", "Certificate", "Check", "EngineResult", "PixelDifference", "certify"]

KERNEL = 0.5
"""Grey levels that our float32 kernels may differ from the float64 reference: half a step of 8 bits."""
EXACT = Limits(0.999, 0.0001, mask=0.999, points=0.05)
"""Limits for post-processing of the same raw outputs."""
Say = Callable[[str], None]
CLIP_FRAMES = 6
PEER_LAYOUTS = ("yolov8", "end2end")
"""Layouts of boxes that ultralytics' own post-processing supports."""


def certify(
    model: str | Path,
    source: Any = None,
    *,
    engines: Iterable[str] | None = None,
    precisions: Sequence[str] = ("auto",),
    frames: int = 4,
    peer_python: Path | None = None,
    settings: Settings | None = None,
    say: Say = lambda line: None,
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
        UsageError: the model finds no objects, or an engine is unknown.
        CapabilityError: ONNX Runtime, which is the reference, is not installed.
        SourceError: the source has no frames.
    """
    if frames < 1:
        raise UsageError(f"frames is {frames}", remedy="use 1 or more")
    names = [name for name in ENGINES if name != "null"] if engines is None else list(engines)
    if unknown := [name for name in names if name not in ENGINES]:
        raise UsageError(f"no engine is called {unknown[0]!r}", remedy=f"choose from {', '.join(ENGINES)}")
    settings = settings_from(options, base=settings)
    if settings.gpu is not None:
        check_cuda(settings.gpu)
    card = read_card(find_model(model))
    if card.task in WHOLE:
        what = f"{card.path.name} has the task {card.task}"
        raise UsageError(f"{what}; certificates are of objects", remedy="pass a model that finds objects")
    spec, _ = choose_preprocess(card, settings)
    chain = Chain(card, spec, Selection(settings.conf, settings.iou, settings.max_det))
    reference = reference_stage(card)
    with closing(reference.engine), closing(reference), gpus.current(settings.gpu), TemporaryDirectory() as folder:
        video = source if source is not None else default_clip(Path(folder), max(frames, CLIP_FRAMES))
        say(f"reference: {frames} frames of {video}")
        work = _Work(chain, reference, video, frames, settings)
        peer, why = _peer(work, peer_python, say)
        results: dict[tuple[str, ...], EngineResult] = {}
        for name in names:
            for device, precision in product(_devices(name, settings.device), precisions):
                result = work.engine(name, device, precision, peer, say)
                results.setdefault((result.name, result.device, result.precision, result.absent), result)
        first = work.frames[0]
        image = np.clip(colours(first) + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0)
        frames_read = [(frame.source_id, frame.index, frame.seconds) for frame in map(FrameInfo.of, work.frames)]
        return Certificate(
            card.path.stem, card.layout, "the default clip" if source is None else str(source),
            (first.width, first.height), work.placements[0].size, frames_read, sum(map(len, work.expected)),
            chain.selection, work.pixel_checks(), list(results.values()), peer.name if peer else why,
            (image, work.expected[0], work.shown) if work.shown else None,
        )  # fmt: skip


class _Work:
    """The reference results of every stage, computed once."""

    def __init__(self, chain: Chain, reference: Stage, video: Any, frames: int, settings: Settings) -> None:
        self.chain, self._reference, self.settings = chain, reference, settings
        self._video, self._count = video, frames
        self.shown: Detections | None = None
        with closing(self._open("cpu")) as source:
            self.file = source.info.path if source.info.kind == "file" else None
            """The path of the source if it is a video file."""
            self._decoded = [on_host(frame) for frame in islice(source, frames)]
        self.frames = decoded(self.file, self._decoded)
        self.pixels, self.placements = zip(*(preprocessed(chain.spec, frame) for frame in self.frames), strict=True)
        self._quantised = b"QuantizeLinear" in chain.card.path.read_bytes()
        self.raw = [reference.run(image) for image in self.pixels]
        self._raw_of_ours = reference.rerun(self.raw, chain.spec, self._decoded, self.frames)
        pairs = zip(self.raw, self.placements, strict=True)
        self.expected = [chain.boxes(raw, placement, ours=False) for raw, placement in pairs]

    def _open(self, device: str) -> Source:
        """The frames to compare, as the decoder of this device delivers them."""
        asked = self.settings
        same: dict[str, Any] = {name: getattr(asked, name) for name in ("start", "end", "max_pixels", "decode_threads")}
        same |= {"device": "cuda" if device == "cuda" else "cpu", "held": 3 * asked.batch + asked.queue}
        return open_spread(self._video, self._count, SourceOptions(**same))

    def pixel(self, row: int) -> float:
        """Size of a pixel of the model input in frame pixels."""
        return float(self.frames[row].width / self.placements[row].content[2])

    def pixel_checks(self) -> list[Check]:
        colour = PixelDifference()
        for frame in self.frames:
            colour.add(colours(frame, ours=True), colours(frame))
        decode = self._decode_check("decode", self._decoded, self.frames)
        return [decode, colour.check("colour", KERNEL, "at the frame's own size, against float64")]

    def _decode_check(self, stage: str, ours: list[Frame], theirs: list[Frame]) -> Check:
        if ours is theirs:
            return Check(stage, "", "", "not compared", "the source is not a video file")
        difference = PixelDifference()
        for mine, other in zip(ours, theirs, strict=True):
            for one, two in zip(mine.planes, other.planes, strict=True):
                difference.add(one, two)
        return difference.check(stage, 0.0, "planes as we read them, against FFmpeg's")

    def engine(self, name: str, device: str, precision: str, peer: Peer | None, say: Say) -> EngineResult:
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
        chain = self.chain
        limits = LIMITS["int8" if self._quantised and result.precision != "fp8" else result.precision]
        resize, alone, post = PixelDifference(), chain.difference(limits), chain.difference(EXACT)
        names = ("decode", "pixels", "engine", "post-process", "the whole pipeline")
        steps = {name: chain.difference(limits) for name in names}
        number_format = "float32"
        own, raw_of_own, checks = self._decoded, self._raw_of_ours, list[Check]()
        if result.device == "cuda":
            with closing(self._open("cuda")) as source:
                own = [on_host(frame) for frame in islice(source, len(self.frames))]
            theirs = decoded(self.file, own)
            raw_of_own = self._reference.rerun(self.raw, chain.spec, own, theirs)
            checks.append(self._decode_check("decode on the GPU", own, theirs))
        for row, (ours, at, expected) in enumerate(zip(own, self.placements, self.expected, strict=True)):
            pixels, number_format = stage.preprocess(chain.spec, self.frames[row])
            resize.add(chain.grey(pixels), chain.grey(self.pixels[row]))
            if self.frames is not own:
                pixels, _ = stage.preprocess(chain.spec, ours)
            raw = stage.run(pixels)
            for difference, found, by_us in (
                (alone, stage.run(self.pixels[row]), False),
                (post, self.raw[row], True),
                (steps["decode"], raw_of_own[row], False),
                (steps["pixels"], self._reference.run(pixels), False),
                (steps["engine"], raw, False),
                (steps["post-process"], raw, True),
            ):
                difference.add(expected, chain.boxes(found, at, ours=by_us), self.pixel(row))
        of_peer = run_ours(chain, peer, stage) if peer else []
        # Last, because a pipeline closes its engine at the end of its source.
        whole = [result.detections for result in islice(pipeline, len(self.frames))]
        for row, (expected, boxes) in enumerate(zip(self.expected, whole, strict=True)):
            steps["the whole pipeline"].add(expected, boxes, self.pixel(row))
        self.shown = self.shown or whole[0]
        called, kernel = f"{result.name} {result.precision}", "resize and padding"
        if result.device == "cuda":
            checks.append(Check(kernel, "", "", "not compared", "part of the CUDA graph: see the whole pipeline"))
        else:
            format_note = f"as {'bfloat16' if number_format == 'uint16' else number_format}, which the engine reads"
            spec = chain.spec
            highest = (max(abs(0 - mean), abs(255 - mean)) / std for mean, std in zip(spec.mean, spec.std, strict=True))
            scale = max(highest) * max(spec.std) / 255  # of the model input, relative to 0..1, which GRID is for
            checks.append(resize.check(kernel, KERNEL + GRID[number_format] * scale, format_note))
        checks.append(alone.check(f"engine {called}", "on the reference's pixels"))
        checks.append(post.check("post-process", "on the reference's raw outputs"))
        result.checks, result.steps = checks, [difference.check(name) for name, difference in steps.items()]
        if peer is not None:
            result.peer = compare(chain, peer, self.frames, whole, of_peer, called, limits)


def default_clip(folder: Path, frames: int) -> Path:
    """A short H.264 clip with objects for most detectors."""
    path = folder / "clip.mp4"
    world = World.parse(f"synthetic://street?seed=3&complexity=0.6&frames={frames}")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(world.fps), options={"crf": "20"})
        (stream.width, stream.height), stream.pix_fmt = world.size, "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = 1  # BT.709
        context.color_range = 1
        for snapshot in world:
            image = to_video(snapshot.image)
            image.pts, image.time_base = snapshot.index, 1 / Fraction(world.fps)
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path


def _peer(work: _Work, python: Path | None, say: Say) -> tuple[Peer | None, str]:
    if python is None:
        return None, ""
    chain = work.chain
    if work.file is None:
        return None, "ultralytics was not compared: the source is not a video file"
    if chain.card.layout not in PEER_LAYOUTS or chain.card.extra:
        what = f"task {chain.card.task}" if chain.card.extra else f"layout {chain.card.layout}"
        return None, f"ultralytics was not compared: only its boxes are, and this is {what}"
    say("ultralytics")
    spec = chain.spec
    options = {"imgsz": [spec.height, spec.width], "rect": spec.rectangular, **vars(chain.selection)}
    with av.open(str(work.file)) as container:
        origin = container.streams.video[0].start_time or 0
    seconds = [float(((frame.pts or 0) - origin) * frame.time_base) for frame in work.frames]
    return run_peer(python, chain.card.path, work.file, seconds, options), ""


def _devices(name: str, asked: str) -> list[str]:
    """Devices to try an engine on; engines of both devices run on the GPU only if there is one."""
    if asked != "auto":
        return [asked.partition(":")[0]]
    devices: list[str] = list(find_backend(name).capabilities.devices)
    return devices if len(devices) == 1 or usable_device() == "cuda" else ["cpu"]


def _absent(error: Exception) -> str:
    """Why an engine does not run on this machine; empty if it failed, which is a finding."""
    if isinstance(error, CapabilityError):
        return error.message
    if isinstance(error, EngineError) and not isinstance(error, (GpuMemoryError, HostMemoryError)):
        return ""
    return f"{type(error).__name__}: {error.message}" if isinstance(error, FramefuseError) else ""


def _broken(name: str, error: Exception) -> Check:
    return Check(f"engine {name}", f"{type(error).__name__}: {first_line(error, 160)}", "it runs", "outside")
