"""Opens data with known ground truth: COCO files, synthetic worlds, or several of these."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framefuse.common.redact import brief
from framefuse.errors import SourceError, UsageError
from framefuse.lab.evaluation.coco import open_coco
from framefuse.lab.evaluation.dataset import Dataset, Key, Labels
from framefuse.lab.evaluation.mot import open_sequence, sequences_in
from framefuse.lab.evaluation.world import open_world
from framefuse.prediction import FrameInfo
from framefuse.sources import Source, SourceInfo
from framefuse.sources.source import Frames, PullSource


def open_data(data: Any, images: str | Path | None = None) -> Dataset:
    """Open data with known ground truth.

    Args:
        data: a COCO file (annotations.json); a folder with exactly one JSON file, directly or in `annotations`; a
            sequence of MOTChallenge, or a folder of these; a `synthetic://...` address; or a list of these, which are
            joined. A Dataset is returned unchanged.
        images: folder of the images that the COCO file names, or the video whose frames it numbers; default: looked
            for beside the file.

    Raises:
        SourceError: a file is missing or contradictory; a folder has no JSON file or several.
        DecodeError: the file is not a COCO file.
        UsageError: `data` is of an unknown kind.
    """
    if images is not None and not isinstance(images, str | Path):
        raise UsageError(f"images is {brief(images)}", remedy="pass the path of a folder, or of a video")
    if isinstance(data, Dataset):
        return data
    if isinstance(data, list | tuple) and data:
        parts = [open_data(part, images) for part in data]
        return parts[0] if len(parts) == 1 else join(parts)
    if isinstance(data, str) and data.lower().startswith("synthetic://"):
        if images is not None:
            raise UsageError(f"{data} draws its own images", remedy="leave --images out")
        return open_world(data)
    if not isinstance(data, str | Path) or not str(data).strip() or "://" in str(data):
        raise UsageError(f"{data!r} has no known ground truth", remedy="pass a COCO file or synthetic://street")
    if os.path.isdir(data) and (found := sequences_in(Path(data))):
        if images is not None:
            raise UsageError(f"{data} has its own images", remedy="leave --images out")
        return open_data([open_sequence(folder) for folder in found])
    return open_coco(_annotations(Path(data)), None if images is None else Path(images))


def _annotations(path: Path) -> Path:
    """The COCO file of a folder; any other path unchanged."""
    if not os.path.isdir(path):  # unlike Path.is_dir, it does not raise on an impossible file name
        return path
    found = sorted(path.glob("*.json")) or sorted((path / "annotations").glob("*.json"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(file.relative_to(path)) for file in found[:5]) + (", ..." if len(found) > 5 else "")
    raise SourceError(
        f"{path} has {f'{len(found)} JSON files ({names})' if found else 'no JSON file'}, not one with annotations",
        remedy="pass the COCO file itself; --images takes the folder of its images",
    )


def join(parts: Sequence[Dataset]) -> Dataset:
    """Several data sets as one; the key of an image is (number of the part, key in that part).

    Raises:
        UsageError: they have different classes.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.names != first.names or part.mask_names != first.mask_names:
            raise UsageError(f"{first.uri} and {part.uri} have different classes", remedy="score them separately")
    part_of: dict[str, int] = {}

    def open_all(keys: Sequence[Key]) -> Source:
        wanted: list[list[Key]] = [[] for _ in parts]
        for number, key in keys:
            wanted[number].append(key)

        def frames(closed: threading.Event) -> Frames:
            for number, (part, some) in enumerate(zip(parts, wanted, strict=True)):
                if not some:
                    continue
                source = part.open(some)
                try:
                    for frame in source:
                        if closed.is_set():
                            return
                        if part_of.setdefault(frame.source_id, number) != number:
                            raise SourceError(f"{frame.source_id} is in two of {uri}", remedy="name each image once")
                        info.parts[frame.source_id] = source.info
                        yield frame
                finally:
                    source.close()

        info = SourceInfo(uri, "synthetic", frames=len(keys), mixed=mixed)
        return PullSource(info, frames)

    def key_of(frame: FrameInfo) -> Key:
        number = part_of[frame.source_id]
        return number, parts[number].key_of(frame)

    def labels(key: Key) -> Labels:
        number, inner = key
        found: Labels = parts[number].labels(inner)
        return found

    uri = ", ".join(part.uri for part in parts)
    mixed = any(part.mixed for part in parts)
    groups = {name for part in parts for name in part.mask_groups}
    return Dataset(
        uri=uri,
        names=first.names,
        keys=[(number, key) for number, part in enumerate(parts) for key in part.keys],
        open=open_all,
        key_of=key_of,
        labels=labels,
        mask_names=first.mask_names,
        mask_groups={name: {n for part in parts for n in part.mask_groups.get(name, ())} for name in groups},
        mixed=mixed,
        no_masks=first.no_masks,
        files=[file for part in parts for file in part.files],
        notes=[note for part in parts for note in part.notes],
    )
