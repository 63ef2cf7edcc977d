"""Batch jobs: which files of a folder, glob or list a run has to do (`shard`, `resume`), and where it writes.

A job is a list of inputs: a video is one, and so are images that follow one another, which share their outputs.
"""

import glob
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from framefuse.common.redact import brief
from framefuse.config import Settings, settings_from
from framefuse.errors import UsageError
from framefuse.models.card import Card
from framefuse.models.onnx_file import model_hash
from framefuse.runtime.requested_sinks import outputs_of
from framefuse.sinks.run_folder import Manifest
from framefuse.sources import PathList, SharedList, find, is_camera, is_image_path

ELSEWHERE = {
    *("project", "name", "exist_ok", "resume", "shard", "show", "readers", "queue", "load_timeout", "request_timeout"),
    *("max_age", "timeout", "reconnect", "tls_verify", "slots", "streams", "threads", "decode_threads"),
    *("encode_threads", "workspace_mb", "batch_timeout", "memory", "low_latency"),
}
"""Settings that change where and how fast a run works, but not its results."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Job:
    """What a run does, once the inputs of other shards and those that are complete have been left out."""

    source: Any
    settings: Settings
    """With the folder of the run: that of the shard, and an existing one to resume."""
    manifest: Manifest | None = None
    stems: Sequence[str] = ()
    """Base names of outputs that are complete: those of this job, and of others in the same folder."""
    notes: Sequence[str] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Place of each input among all of the job, by its first file, where some are left out as complete."""


def plan_job(source: Any, settings: Settings, card: Card) -> Job:
    """The job of a run.

    Raises:
        UsageError: `resume` or `shard` is asked for with a source that is no file, or without outputs.
        SourceError: no such file.
    """
    if isinstance(source, SharedList) or not (settings.resume or settings.shard):
        return Job(source, settings, manifest_of(settings, card) if _is_list(source) and outputs_of(settings) else None)
    if settings.resume and not outputs_of(settings):
        raise UsageError("resume needs outputs to complete", remedy="ask for some, such as save_jsonl, or leave it out")
    given = source if isinstance(source, list | tuple) else [source]
    lists = [_files(item) for item in given]
    count, notes = sum(map(len, lists)), []
    if settings.shard:
        chosen = share([(number, path) for number, paths in enumerate(lists) for path in paths], settings.shard)
        lists = [[path for owner, path in chosen if owner == number] for number in range(len(lists))]
        notes.append(f"shard {settings.shard}: {sum(map(len, lists)):,} of {count:,} files")
        settings = of_shard(settings)
    stems, complete, every = list[str](), False, list[list[str]]()
    manifest = manifest_of(settings, card)
    if settings.resume:
        settings = settings.model_copy(update={"exist_ok": True})
        found = [[(unit, manifest.stem(unit)) for unit in _units(paths)] for paths in lists]
        lists = [[path for unit, stem in units if stem is None for path in unit] for units in found]
        every = [unit for units in found for unit, _ in units]
        stems = [stem for units in found for _, stem in units if stem is not None]
        complete = bool(stems)
        notes.append(f"resume: {len(stems):,} of {len(every):,} inputs are complete and skipped")
        stems += manifest.of_others(every)
    left = [PathList(paths) for paths in lists if paths] or [PathList()]
    for paths in left:
        paths.rest = complete or not paths
    numbers = {os.path.abspath(unit[0]): number for number, unit in enumerate(every)}
    return Job(left[0] if len(left) == 1 else left, settings, manifest, stems, notes, numbers)


def options_of(settings: Settings) -> dict[str, Any]:
    """The settings that change results, as JSON has them."""
    return settings.model_dump(mode="json", exclude=ELSEWHERE)


def share(items: Sequence[Item], shard: str) -> list[Item]:
    """The items of a shard such as "2/4": the second, the sixth and so on."""
    number, count = map(int, shard.split("/"))
    return list(items[number - 1 :: count])


def of_shard(settings: Settings) -> Settings:
    """The settings of a run of one share, in a folder of its own: name-2of4."""
    name = f"{settings.name or 'predict'}-{(settings.shard or '').replace('/', 'of')}"
    return settings_from({"name": name, "shard": None}, base=settings)


def _units(paths: Sequence[str]) -> list[list[str]]:
    units: list[list[str]] = []
    for image, group in itertools.groupby(paths, key=is_image_path):
        members = list(group)
        units += [members] if image else [[path] for path in members]
    return units


def _files(item: Any) -> list[str]:
    text = str(item)
    if not isinstance(item, str | Path) or is_camera(item) or "://" in text:
        message = f"{brief(item)} is not a file, so a run of it has no shards and cannot be resumed"
        raise UsageError(message, remedy="name files, folders or globs, or leave resume and shard out")
    return list(find(text))


def _is_list(source: Any) -> bool:
    """Whether this may be several files."""
    if isinstance(source, str | Path):
        text = str(source)
        return "://" not in text and (os.path.isdir(text) or (glob.has_magic(text) and not os.path.isfile(text)))
    paths = isinstance(source, list | tuple) and all(isinstance(item, str | Path) for item in source)
    return paths or isinstance(source, SharedList)


def manifest_of(settings: Settings, card: Card, folder: Path | None = None) -> Manifest:
    """What lists the complete outputs of a run; `folder` is that of the run, by default that of its settings."""

    def run() -> str:
        zones = settings.zones.read_text(errors="replace") if settings.zones and settings.zones.is_file() else ""
        facts = [model_hash(card.path), repr(replace(card, path=Path(), origin={})), options_of(settings), zones]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    return Manifest(folder or settings.project / (settings.name or "predict"), run, resume=settings.resume)
