"""Record: what a model finds in a video from confidence FLOOR on, inferred once and kept as Parquet in the cache.

Suppression compares boxes before they are clipped to the frame, so it cannot be repeated on the boxes of a result.
Hence each file of boxes is what the pipeline itself finds at one `iou`. On the CPU, one pass makes those of COMMON too;
on a GPU, whose program returns only the boxes of one `iou`, each needs a pass.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from framefuse.common.files import user_cache, write_atomically
from framefuse.common.redact import redact_source
from framefuse.common.version import __version__
from framefuse.config import Settings, settings_from
from framefuse.engines.cache import DAMAGED, locked, model_hash
from framefuse.errors import SinkError, SourceError, UsageError
from framefuse.lab.evaluation import open_data
from framefuse.lab.evaluation.data import INI
from framefuse.lab.evaluation.dataset import Dataset
from framefuse.lab.sweep.grid import FIELDS, FLOOR
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.runtime.job import options_of
from framefuse.runtime.plan import plan_run
from framefuse.runtime.tracking import RATE, rate_of
from framefuse.sinks import SinkContext
from framefuse.sinks.parquet import ParquetSink
from framefuse.sources.paths import is_image_path
from framefuse.sources.source import is_camera
from framefuse.world import World

FORMAT = 1
ABOUT, TRUTH = "about.json", "truth.npz"
"""In the folder of a recording: facts, written last; and ground truth."""
COMMON = (0.4, 0.5, 0.6, 0.7, 0.8)
"""Values of `iou` that are recorded besides those that are asked for."""
MOST_BOXES = 3000
"""Of a frame; more than any `max_det` that makes sense, as this is applied after the classes are chosen."""
Counting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(title, frames or 0) -> what shows the number of frames done."""


@dataclass(frozen=True)
class Recording:
    """The boxes of one source, on disk."""

    source: str
    folder: Path
    frames: int = 0
    seconds: float = 0.0
    """That inference took, now or earlier."""
    rate: float = RATE
    """Frames a second, for frames without a time."""
    ious: frozenset[float] = frozenset()
    inferred: bool = False
    """Whether the model ran just now."""

    def boxes(self, iou: float) -> Path:
        """The file of the boxes at an `iou`, unless there is no frame."""
        return self.folder / f"iou-{iou}.parquet"


def record(
    source: str,
    card: Card,
    settings: Settings,
    ious: Sequence[float],
    *,
    cache: Path | None = None,
    counting: Counting = lambda title, frames: nullcontext(lambda done: None),
) -> Recording:
    """The recording of a video, a synthetic:// address or a MOTChallenge sequence, from the cache or made now.

    Args:
        settings: model and source options, which decide with the model and the file whether a recording may be used.
        ious: values of `iou` that it must have.
        cache: default: `user_cache() / "sweep"`.

    Raises:
        SourceError: the source cannot be read. UsageError: it is none of these.
        SinkError: the cache cannot be written. CapabilityError: the extra `parquet` is not installed.
    """
    ours = {*FIELDS, *(field for field in Settings.model_fields if field.startswith("save")), "events", "trail", "show"}
    plain = {field: Settings.model_fields[field].default for field in ours & settings.model_fields_set}
    settings = settings_from({**plain, "conf": FLOOR, "max_det": MOST_BOXES}, base=settings)
    key = [FORMAT, __version__, model_hash(card.path), repr(replace(card, path=Path(), origin={})), _identity(source)]
    digest = hashlib.sha256(json.dumps([*key, options_of(settings)], sort_keys=True).encode()).hexdigest()[:32]
    folder = (cache or user_cache() / "sweep") / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            found = _read(source, folder)
            if missing := sorted(set(ious) - found.ious):
                on_gpu = plan_run(card, settings, source, None).settings.on_gpu
                started = perf_counter()
                for wanted in [[iou] for iou in missing] if on_gpu else [sorted({*missing, *COMMON} - found.ious)]:
                    found = _infer(found, card, settings, wanted, on_gpu, counting)
                found = replace(found, seconds=found.seconds + perf_counter() - started, inferred=True)
                facts = {name: getattr(found, name) for name in ("frames", "seconds", "rate")}
                write_atomically(folder / ABOUT, json.dumps({**facts, "ious": sorted(found.ious)}).encode())
    except OSError as error:
        reason = f"cannot write the recording {folder}: {error.strerror or error}"
        raise SinkError(reason, remedy="free some space, or set XDG_CACHE_HOME to a writable folder") from error
    return found


def data_of(source: str, settings: Settings) -> Dataset | None:
    """The ground truth of a whole source; None: there is none."""
    if settings.start or settings.end or settings.vid_stride > 1:
        return None
    return open_data(source) if source.startswith("synthetic://") or (Path(source) / INI).is_file() else None


def _identity(source: str) -> list[Any]:
    """What changes if the frames of a source may have changed."""
    if source.startswith("synthetic://"):
        return [repr(World.parse(source)), World.version]
    sequence = (Path(source) / INI).is_file()
    if "://" in source or is_camera(source) or is_image_path(source) or (Path(source).is_dir() and not sequence):
        remedy = "sweep over video files, synthetic:// worlds or MOTChallenge sequences"
        raise UsageError(f"{redact_source(source)} is no video", remedy=remedy)
    try:
        files = sorted(path for path in Path(source).rglob("*") if path.is_file()) if sequence else [Path(source)]
        facts = [(os.path.realpath(path), path.stat()) for path in files]
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {source}: {error}", remedy="check the path") from error
    return [[path, stat.st_size, stat.st_mtime_ns] for path, stat in facts]


def _read(source: str, folder: Path) -> Recording:
    """The recording in a folder, with the values of `iou` whose boxes are there."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        found = Recording(source, folder, int(about["frames"]), float(about["seconds"]), float(about["rate"]))
        there = (float(iou) for iou in about["ious"] if not found.frames or found.boxes(iou).exists())
        return replace(found, ious=frozenset(there))
    except DAMAGED:
        return Recording(source, folder)


def _infer(
    found: Recording, card: Card, settings: Settings, ious: Sequence[float], on_gpu: bool, counting: Counting
) -> Recording:
    """The recording with the boxes for more values of `iou`, one on a GPU, from one pass."""
    sinks = {iou: ParquetSink() for iou in ious}

    def observe(frames: Sequence[FrameInfo], at: Callable[[float], Sequence[Detections]]) -> None:
        for iou, sink in sinks.items():
            for frame, detections in zip(frames, at(iou), strict=True):
                sink.write(Result(frame, detections), None)

    settings = settings_from({"iou": ious[0]}, base=settings)
    data, truth, done = data_of(found.source, settings), [np.empty((0, 8))], 0
    with TemporaryDirectory(dir=found.folder) as name, ExitStack() as opened:
        frames = data.open(data.keys) if data else found.source
        watch = None if on_gpu else observe
        pipeline = opened.enter_context(Pipeline(frames, card.path, settings=settings, observe=watch))
        info, scratch = pipeline.sources[0].info, Path(name)
        for iou, sink in sinks.items():
            sink.open(SinkContext(scratch, info, card.names, f"iou-{iou}"))
            opened.callback(sink.close)
        count = opened.enter_context(counting(found.source, info.frames or 0))
        for done, result in enumerate(pipeline, 1):
            if on_gpu:
                sinks[ious[0]].write(result, None)
            if data and (labels := data.labels(data.key_of(result.frame))).track_id is not None:
                columns = [np.full(len(labels.xyxy), done - 1), labels.class_id, labels.crowd, labels.track_id]
                truth.append(np.column_stack([*columns, labels.xyxy]))
            count(done)
        opened.close()
        if len(truth) > 1:
            np.savez_compressed(scratch / TRUTH, truth=np.concatenate(truth))
        for path in scratch.iterdir():
            os.replace(path, found.folder / path.name)
    return replace(found, frames=done, rate=rate_of(info), ious=found.ious | set(ious))
