"""Record: what a model finds in a file from confidence FLOOR on, inferred once and kept as Parquet in the cache.

Suppression compares boxes before they are clipped to the frame, so it cannot be repeated on the boxes of a result.
Hence each file of boxes is what the pipeline itself finds at one `iou`. On the CPU, one pass makes those of COMMON too;
on a GPU, whose program returns only the boxes of one `iou`, each needs a pass.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from framefuse.common.files import user_cache
from framefuse.common.redact import redact_source
from framefuse.common.version import __version__
from framefuse.config import Settings, settings_from
from framefuse.engines.cache import DAMAGED, locked, model_hash, write_atomically
from framefuse.errors import SinkError, SourceError, UsageError
from framefuse.lab.sweep.grid import FIELDS, FLOOR
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.runtime.job import ELSEWHERE
from framefuse.runtime.plan import plan_run
from framefuse.runtime.tracking import RATE
from framefuse.sinks import SinkContext
from framefuse.sinks.parquet import ParquetSink
from framefuse.sources.paths import is_image_path
from framefuse.sources.source import is_camera
from framefuse.world import World
from framefuse.world.address import write

FORMAT = 1
ABOUT = "about.json"
"""What is in the folder of a recording; written last."""
COMMON = (0.4, 0.5, 0.6, 0.7, 0.8)
"""Values of `iou` that are recorded besides those that are asked for."""
MOST_BOXES = 3000
"""Of a frame; more than any `max_det` that makes sense, since boxes of a class are counted once it is chosen."""


@dataclass(frozen=True)
class Recording:
    """The boxes of one source, on disk."""

    source: str
    folder: Path
    frames: int
    seconds: float
    """That inference took, now or earlier."""
    rate: float
    """Frames a second, if frames have no times."""
    inferred: bool
    """Whether this call ran the model."""

    def boxes(self, iou: float) -> Path | None:
        """The file of the boxes at an `iou`; None: the source has no frame."""
        return _file(self.folder, iou) if self.frames else None


def record(
    source: str,
    card: Card,
    settings: Settings,
    ious: Sequence[float],
    *,
    cache: Path | None = None,
    on_frame: Callable[[int], None] = lambda done: None,
) -> Recording:
    """The recording of a video or of a synthetic:// address, from the cache or made now.

    Args:
        settings: model and source options, which decide with the model and the file whether a recording may be used.
        ious: values of `iou` that it must have.
        cache: default: `user_cache() / "sweep"`.
        on_frame: called with the number of frames done while the model runs.

    Raises:
        SourceError: the source cannot be read, or ends with an error. UsageError: it is neither file nor synthetic.
        SinkError: the cache cannot be written. CapabilityError: the extra `parquet` is not installed.
    """
    fixed = {field: Settings.model_fields[field].default for field in FIELDS if field in settings.model_fields_set}
    saves = {field: False for field in settings.model_fields_set if field == "save" or field.startswith("save_")}
    settings = settings_from(fixed | saves | {"conf": FLOOR, "max_det": MOST_BOXES}, base=settings)
    options = settings.model_dump(mode="json", exclude=ELSEWHERE | {"iou"})
    key = [FORMAT, __version__, model_hash(card.path), repr(replace(card, path=Path(), origin={})), options]
    digest = hashlib.sha256(json.dumps([*key, _identity(source)], sort_keys=True).encode()).hexdigest()[:32]
    folder = (cache or user_cache() / "sweep") / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            known, frames, seconds, rate = _read(folder)
            if missing := sorted(set(ious) - known):
                on_gpu = plan_run(card, settings, source, None).settings.on_gpu
                passes = [[iou] for iou in missing] if on_gpu else [sorted({*missing, *COMMON} - known)]
                started = perf_counter()
                for wanted in passes:
                    frames, rate = _infer(source, card, settings, wanted, folder, on_gpu, on_frame)
                    known |= set(wanted)
                seconds += perf_counter() - started
                about = {"ious": sorted(known), "frames": frames, "seconds": seconds, "rate": rate}
                write_atomically(folder / ABOUT, json.dumps(about).encode())
    except OSError as error:
        reason = f"cannot write the recording {folder}: {error.strerror or error}"
        raise SinkError(reason, remedy="free some space, or set XDG_CACHE_HOME to a writable folder") from error
    return Recording(source, folder, frames, seconds, rate, bool(missing))


def _identity(source: str) -> list[Any]:
    """What changes if the frames of a source may have changed."""
    if source.startswith("synthetic://"):
        return [write(World.parse(source)), World.version]
    if "://" in source or is_camera(source) or is_image_path(source):
        raise UsageError(f"{redact_source(source)} is no video", remedy="sweep over video files or synthetic:// worlds")
    try:
        facts = os.stat(source)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {source}: {error}", remedy="check the path") from error
    return [os.path.realpath(source), facts.st_size, facts.st_mtime_ns]


def _read(folder: Path) -> tuple[set[float], int, float, float]:
    """The values of `iou` whose boxes are there, the number of frames, the seconds that they took, and their rate."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        frames, seconds, rate = int(about["frames"]), float(about["seconds"]), float(about["rate"])
        return {iou for iou in about["ious"] if not frames or _file(folder, iou).exists()}, frames, seconds, rate
    except DAMAGED:
        return set(), 0, 0.0, RATE


def _file(folder: Path, iou: float) -> Path:
    return folder / f"iou-{iou}.parquet"


def _infer(
    source: str,
    card: Card,
    settings: Settings,
    ious: Sequence[float],
    folder: Path,
    on_gpu: bool,
    on_frame: Callable[[int], None],
) -> tuple[int, float]:
    """Write the boxes for some values of `iou`, one on a GPU, in one pass; the number and the rate of the frames."""
    sinks = {iou: ParquetSink() for iou in ious}

    def observe(frames: Sequence[FrameInfo], at: Callable[[float], Sequence[Detections]]) -> None:
        for iou, sink in sinks.items():
            for frame, found in zip(frames, at(iou), strict=True):
                sink.write(Result(frame, found), None)

    done = 0
    settings = settings_from({"iou": ious[0]}, base=settings)
    with TemporaryDirectory(dir=folder) as scratch, ExitStack() as opened:
        pipeline = opened.enter_context(
            Pipeline(source, card.path, settings=settings, observe=None if on_gpu else observe)
        )
        info = pipeline.sources[0].info
        for iou, sink in sinks.items():
            sink.open(SinkContext(Path(scratch), info, card.names, f"iou-{iou}"))
            opened.callback(sink.close)
        for done, result in enumerate(pipeline, 1):
            if on_gpu:
                sinks[ious[0]].write(result, None)
            on_frame(done)
        opened.close()
        for iou in ious if done else ():
            os.replace(_file(Path(scratch), iou), _file(folder, iou))
    return done, float(info.fps or RATE)
