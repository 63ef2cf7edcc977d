"""What a sweep replays: the settings of a grid, every combination of the values given for some fields; and what
a model finds in a video from confidence FLOOR on, inferred once and kept as Parquet in the cache.

Suppression compares boxes before they are clipped to the frame, so it cannot be repeated on the boxes of a result.
Hence each file of boxes is what the pipeline itself finds at one `iou`. On the CPU, one pass makes those of COMMON too;
on a GPU, whose program returns only the boxes of one `iou`, each needs a pass.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from framefuse.common.files import os_errors_as, user_cache, write_atomically
from framefuse.common.plain_yaml import read_mapping
from framefuse.common.redact import brief, redact_source
from framefuse.common.version import __version__
from framefuse.config import Settings, load_settings, settings_from
from framefuse.engines.cache import DAMAGED, locked, model_hash
from framefuse.errors import ConfigError, SinkError, SourceError, UsageError
from framefuse.kernels.boxes.cuda import LISTED
from framefuse.lab.evaluation import open_data
from framefuse.lab.evaluation.data import INI
from framefuse.lab.evaluation.dataset import Dataset
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.runtime.choices import choose_classes
from framefuse.runtime.job import options_of
from framefuse.runtime.plan import plan_run
from framefuse.runtime.tracking import RATE, rate_of
from framefuse.sinks import SinkContext
from framefuse.sinks.parquet import ParquetSink
from framefuse.sources import is_camera, is_image_path
from framefuse.world import World

FLOOR = 0.01
"""Confidence from which boxes are recorded."""
MOST_SETTINGS = 100_000
AFTER = "conf", "zones"
"""Fields that change nothing about the tracks."""
FIELDS = ("iou", "max_det", "classes", "min_area", *(f for f in Settings.model_fields if f.startswith("track")), *AFTER)
"""Fields that a grid may hold; every other setting is the same for all."""
FORMAT = 1
ABOUT, TRUTH = "about.json", "truth.npz"
"""In the folder of a recording: facts, written last; and ground truth."""
COMMON = (0.4, 0.5, 0.6, 0.7, 0.8)
"""Values of `iou` that are recorded besides those that are asked for."""
MOST_BOXES = 3000
"""Of a frame; more than any `max_det` that makes sense, as this is applied after the classes are chosen."""
Counting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(title, frames or 0) -> what shows the number of frames done."""


class Choice(NamedTuple):
    """One setting of a grid."""

    number: int
    """From 1, in the order of the grid."""
    values: Mapping[str, Any]
    """What the grid says of it."""
    settings: Settings
    """All of it, with class numbers."""

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for choices that have the same tracks."""
        return tuple(str(getattr(self.settings, field)) for field in FIELDS if field not in AFTER)


def read_grid(file: Path | None, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each field, in the order of the file and then of the command line, which wins. `given` has the text
    of options: values between commas, for `classes` between semicolons. ConfigError, UsageError: an unknown field, or a
    wrong value.
    """
    remedy = "write lines of field: [a, b]"
    with os_errors_as(ConfigError, f"cannot use the grid {file}", remedy, (OSError, ValueError)):
        lines = read_mapping(file.read_bytes()) if file else {}
    found = {}
    for field, (value, line) in lines.items():
        where = f"file {file}, line {line}"
        if field not in FIELDS:
            raise ConfigError(f"{field} is no field of a grid ({where})", remedy=f"use {', '.join(FIELDS)}")
        found[field] = _values(field, value if isinstance(value, list) else [value], where)
    split = {field: str(text).split(";" if field == "classes" else ",") for field, text in given.items()}
    return found | {field: _values(field, values) for field, values in split.items()}


def _values(field: str, values: Sequence[Any], where: str = "") -> list[Any]:
    """The values as a setting has them, each once; "none" and "all" are None where that is the default."""
    checked: list[Any] = []
    for value in values:
        value = value.strip() if isinstance(value, str) else value
        if value in ("none", "all") and Settings.model_fields[field].default is None:
            value = None
        try:
            value = getattr(load_settings(None, None, {field: value}).settings, field)
            if field == "conf" and value < FLOOR:
                raise UsageError(f"conf is {value:g}", remedy=f"boxes are recorded from {FLOOR} on: use {FLOOR} to 1")
        except UsageError as error:
            raise ConfigError(f"{error.message} ({where})", remedy=error.remedy) if where else error from None
        checked += [] if value in checked else [value]
    if not checked:
        raise ConfigError(f"{field} is {brief(values)} ({where})", remedy=f"give {field} one value or more")
    return checked


def choices(grid: Mapping[str, Sequence[Any]], base: Settings, card: Card) -> list[Choice]:
    """Every combination, the last field changing fastest; UsageError for too many, or what cannot be swept over."""
    count = prod(map(len, grid.values()))
    wrong = {
        f"the grid has {count:,} settings": (count > MOST_SETTINGS, f"use at most {MOST_SETTINGS:,}"),
        f"conf is {base.conf:g}": (base.conf < FLOOR, f"boxes are recorded from {FLOOR} on: use {FLOOR} to 1"),
        f"{card.path.name} finds no boxes": (card.task != "detect", "sweep with a detector"),
        "tiles, roi or stereo was asked for": (
            bool(base.tiles or base.roi or base.stereo),
            "leave it out: boxes of several views are joined by confidence, so that each conf needs its own run",
        ),
        f"iou was asked for, and {card.path.name} needs no NMS": (
            len(grid.get("iou", ())) > 1 and card.layout in LISTED, "leave iou out of the grid"
        ),
        "agnostic_nms and classes were asked for": (
            base.agnostic_nms and (base.classes is not None or any(grid.get("classes", ()))),
            "leave one of them out: a class that is left out would still have suppressed others",
        ),
    }  # fmt: skip
    for message, (applies, remedy) in wrong.items():
        if applies:
            raise UsageError(message, remedy=remedy)
    combinations = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
    return [
        Choice(number, values, choose_classes(card, settings_from(values, base=base)))
        for number, values in enumerate(combinations, 1)
    ]


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
    remedy = "free some space, or set XDG_CACHE_HOME to a writable folder"
    with os_errors_as(SinkError, f"cannot write the recording {folder}", remedy):
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
