"""Dataset: pictures whose truth is known, in the order in which the pipeline will see them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import SourceError, UsageError
from framefuse.prediction import FrameInfo
from framefuse.redact import brief
from framefuse.sources import Source, SourceInfo
from framefuse.sources.pull import Frames, PullSource

Key = Any
"""What names a picture: the path of a file, the index of a frame, or (number of the part, key) in joined data."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The truth of one picture: n objects, in pixels of the picture as it is shown."""

    xyxy: NDArray[np.float64]
    """(n, 4): x1, y1, x2, y2."""
    class_id: NDArray[np.int64]
    """(n,) numbers of `Dataset.names`."""
    crowd: NDArray[np.bool_]
    """(n,): a region that holds an unknown number of objects; what is found in it counts neither way."""
    area: NDArray[np.float64]
    """(n,) pixels; it decides whether an object is small, medium or large."""
    size: tuple[int, int]
    """Width and height of the picture."""
    class_mask: Callable[[], NDArray[np.uint8]] | None = None
    """Gives (height, width): the class of each pixel, a value of `Dataset.mask_names`, for data with masks."""
    complexity: float | None = None
    """How crowded the scene is, 0..1, where the data say it."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pictures and their truth. Nothing is read before it is asked for."""

    uri: str
    names: Mapping[int, str]
    """Class names of the objects, by class number."""
    keys: Sequence[Key]
    """One for each picture."""
    open: Callable[[Sequence[Key]], Source]
    """A source that shows the pictures of these keys, in this order."""
    key_of: Callable[[FrameInfo], Key]
    """The key of a frame that such a source has shown."""
    labels: Callable[[Key], Labels]
    """The truth of a picture; asked for once a frame, after the source has shown it."""
    mask_names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the values of `Labels.class_mask`; empty for data without masks."""
    mask_groups: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Values of `Labels.class_mask` that a model may know under one name: {"person": head, torso, ...}."""
    mixed: bool = False
    """Whether the pictures may be of many sizes."""
    no_masks: str = "no masks"
    """What data without masks have."""
    notes: Sequence[str] = ()
    """What was found odd, or left out."""

    def __len__(self) -> int:
        return len(self.keys)

    def spread(self, limit: int | None) -> Sequence[Key]:
        """At most `limit` keys, evenly spread over all of them, so that every part of a video is seen.

        Raises:
            UsageError: the limit is no whole number from 1.
        """
        if limit is not None and (not isinstance(limit, Integral) or isinstance(limit, bool) or limit < 1):
            raise UsageError(f"limit is {limit!r}", remedy="limit takes a whole number from 1")
        if limit is None or limit >= len(self.keys):
            return self.keys
        return [self.keys[(2 * number + 1) * len(self.keys) // (2 * limit)] for number in range(limit)]


NOTHING = "background"
"""What pixels of no class are called."""


def plain(name: str) -> str:
    """A name as it is compared with others."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def open_data(data: Any, images: str | Path | None = None) -> Dataset:
    """Open data whose truth is known.

    Args:
        data: a COCO file (annotations.json), a folder with one JSON file in it, or in its folder `annotations`, a
            `synthetic://...` address, or a list of these, whose pictures follow each other; a Dataset is returned as
            it is.
        images: folder of the images that the COCO file names, or the video whose frames it numbers; looked for beside
            the file when left out.

    Raises:
        SourceError: a file is missing, or says something that cannot be; a folder has none, or several.
        DecodeError: it is no COCO file.
        UsageError: `data` is of no known kind.
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
            raise UsageError(f"{data} draws its own pictures", remedy="leave --images out")
        from framefuse.evaluation.world import open_world

        return open_world(data)
    if not isinstance(data, str | Path) or not str(data).strip() or "://" in str(data):
        raise UsageError(
            f"{data!r} is no data with known truth", remedy="pass a COCO file (annotations.json) or synthetic://street"
        )
    from framefuse.evaluation.coco import open_coco

    return open_coco(_annotations(Path(data)), None if images is None else Path(images))


def _annotations(path: Path) -> Path:
    """The COCO file of a folder; any other path as it is."""
    if not os.path.isdir(path):  # Path.is_dir raises where no file can have the name
        return path
    found = sorted(path.glob("*.json")) or sorted((path / "annotations").glob("*.json"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(file.relative_to(path)) for file in found[:5]) + (", ..." if len(found) > 5 else "")
    raise SourceError(
        f"{path} has {f'{len(found)} JSON files ({names})' if found else 'no JSON file'}, not one with annotations",
        remedy="name the COCO file itself; --images takes the folder of its images",
    )


def join(parts: Sequence[Dataset]) -> Dataset:
    """Several data sets as one; a picture's key is (number of the part, key in it).

    Raises:
        UsageError: they have different classes.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.names != first.names or part.mask_names != first.mask_names:
            raise UsageError(
                f"{first.uri} and {part.uri} have different classes", remedy="score them one after the other"
            )
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
                            raise SourceError(
                                f"{frame.source_id} is in two of the data: {uri}", remedy="name each picture once"
                            )
                        yield frame
                finally:
                    source.close()

        return PullSource(SourceInfo(uri, "synthetic", frames=len(keys), mixed=mixed), frames)

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
        notes=[note for part in parts for note in part.notes],
    )
