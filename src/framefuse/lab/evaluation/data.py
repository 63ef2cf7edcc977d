"""Opens data with known ground truth: COCO files, MOTChallenge folders, synthetic worlds, or several of these.

MOTChallenge: seqinfo.ini, the images, and gt/gt.txt with the identity of each object. The truth of a synthetic world is
exact, so only the model can be wrong.
"""

import os
import threading
from collections.abc import Sequence
from configparser import ConfigParser
from configparser import Error as IniError
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.files import os_errors_as
from framefuse.common.redact import brief
from framefuse.errors import DecodeError, SourceError, UsageError
from framefuse.kernels.masks.instances import Runs, mask_runs
from framefuse.lab.evaluation.coco import open_coco
from framefuse.lab.evaluation.dataset import UNKNOWN, Dataset, Key, Labels
from framefuse.prediction import FrameInfo
from framefuse.sources import Source, SourceInfo, SourceOptions, is_image_path
from framefuse.sources.ffmpeg import wrap
from framefuse.sources.images import open_images, to_video
from framefuse.sources.source import Frames, PullSource
from framefuse.world import Truth, World
from framefuse.world.coco import shapes_of

INI = "seqinfo.ini"
COUNTED = 1, -1
"""Classes of gt.txt that are scored: pedestrians, and -1, as the first challenge has them."""
UNCOUNTED = 2, 7, 8, 12
"""People on vehicles, people who stand still, distractors and reflections, in MOT20 also 6, vehicles without a motor:
who finds them is neither right nor wrong. Other classes are not read."""


def open_data(data: Any, images: str | Path | None = None) -> Dataset:
    """Open data with known ground truth.

    Args:
        data: a COCO file (annotations.json); a folder with exactly one JSON file, directly or in `annotations`; for
            classifiers, a folder with a folder of images for each class; a sequence of MOTChallenge, or a folder of
            these; a `synthetic://...` address; or a list of these, which are joined. A Dataset is returned unchanged.
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
    if folders := _class_folders(Path(data)):
        return _open_folders(Path(data), folders)
    return open_coco(_annotations(Path(data)), None if images is None else Path(images))


def _class_folders(path: Path) -> list[Path]:
    """The folders of images in a folder without annotations, one for each class."""
    if not os.path.isdir(path) or any(path.glob("*.json")) or (path / "annotations").is_dir():
        return []
    return [
        folder for folder in sorted(path.iterdir()) if folder.is_dir() and any(map(is_image_path, folder.iterdir()))
    ]


def _open_folders(path: Path, folders: Sequence[Path]) -> Dataset:
    """Images whose class is the name of their folder."""
    number_of = {str(file): number for number, folder in enumerate(folders)
                 for file in sorted(filter(is_image_path, folder.iterdir()))}  # fmt: skip

    def labels(key: Key) -> Labels:
        one = np.ones(1, np.bool_)
        return Labels(np.zeros((1, 4)), np.array([number_of[str(key)]]), ~one, np.zeros(1), UNKNOWN)

    names = {number: folder.name for number, folder in enumerate(folders)}
    files = [Path(key) for key in number_of]
    return Dataset(str(path), names, list(number_of), lambda keys: open_images([*map(Path, keys)], SourceOptions()),
                   attrgetter("source_id"), labels, mixed=True, whole=True, files=files)  # fmt: skip


def _annotations(path: Path) -> Path:
    """The COCO file of a folder; any other path unchanged."""
    if not os.path.isdir(path):  # unlike Path.is_dir, it does not raise on an impossible file name
        return path
    found = sorted(path.glob("*.json")) or sorted((path / "annotations").glob("*.json"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(file.relative_to(path)) for file in found[:5]) + (", ..." if len(found) > 5 else "")
    why = f"{path} has {f'{len(found)} JSON files ({names})' if found else 'no JSON file'}, not one with annotations"
    raise SourceError(why, remedy="pass the COCO file itself; --images takes the folder of its images")


def join(parts: Sequence[Dataset]) -> Dataset:
    """Several data sets, of the same classes, as one; the key of an image is (number of the part, key in that part)."""
    first = parts[0]
    for part in parts[1:]:
        if part.names != first.names or part.mask_names != first.mask_names:
            raise UsageError(f"{first.uri} and {part.uri} have different classes", remedy="score them separately")
    part_of: dict[str, int] = {}

    def open_all(keys: Sequence[Key]) -> Source:
        def frames(closed: threading.Event) -> Frames:
            for number, part in enumerate(parts):
                if not (some := [key for owner, key in keys if owner == number]):
                    continue
                with closing(part.open(some)) as source:
                    for frame in source:
                        if closed.is_set():
                            return
                        if part_of.setdefault(frame.source_id, number) != number:
                            raise SourceError(f"{frame.source_id} is in two of {uri}", remedy="name each image once")
                        info.parts[frame.source_id] = source.info
                        yield frame

        info = SourceInfo(uri, "synthetic", frames=len(keys), mixed=mixed)
        return PullSource(info, frames)

    def key_of(frame: FrameInfo) -> Key:
        number = part_of[frame.source_id]
        return number, parts[number].key_of(frame)

    uri, mixed = ", ".join(part.uri for part in parts), any(part.mixed for part in parts)
    names = {name for part in parts for name in part.mask_groups}
    groups = {name: {n for part in parts for n in part.mask_groups.get(name, ())} for name in names}
    keys = [(number, key) for number, part in enumerate(parts) for key in part.keys]
    files, notes = ([item for part in parts for item in getattr(part, field)] for field in ("files", "notes"))
    one = replace(first, uri=uri, keys=keys, open=open_all, key_of=key_of, mixed=mixed, files=files, notes=notes)
    return replace(one, labels=lambda key: parts[key[0]].labels(key[1]), mask_groups=groups)


def sequences_in(folder: Path) -> list[Path]:
    """The sequence that a folder is, or the sequences in it."""
    return [folder] if (folder / INI).is_file() else sorted(path.parent for path in folder.glob(f"*/{INI}"))


def open_sequence(folder: Path) -> Dataset:
    """One sequence, whose objects have the class "person". Coordinates are taken as they are, as trackeval does.

    Raises:
        SourceError: images or gt.txt are missing.
        DecodeError: seqinfo.ini or gt.txt cannot be read, or contradict each other.
    """
    ini = ConfigParser()
    try:
        ini.read_string((folder / INI).read_text())
        facts = ini["Sequence"]
        rate, length = Fraction(facts["frameRate"]), int(facts["seqLength"])
        size = int(facts["imWidth"]), int(facts["imHeight"])
        place, suffix = facts.get("imDir", "img1"), facts.get("imExt", ".jpg")
        if rate <= 0 or min(length, *size) <= 0:
            raise ValueError(f"{facts['frameRate']}, {length}, {size}")
    except (IniError, KeyError, ValueError, ZeroDivisionError, OSError) as error:
        wanted = "frameRate, seqLength, imWidth and imHeight above 0 under [Sequence]"
        raise DecodeError(f"{folder / INI} cannot be used: {error}", remedy=f"it needs {wanted}") from error
    images = sorted((folder / place).glob(f"*{suffix}"))
    if len(images) != length:
        have = f"{folder / place} has {len(images)} images ({suffix}), and {INI} says {length}"
        raise SourceError(have, remedy="complete the images, or correct seqLength, imDir and imExt")
    uncounted = (*UNCOUNTED, 6) if facts.get("name", folder.name).startswith("MOT20") else UNCOUNTED
    rows = _truth(folder / "gt" / "gt.txt", length, uncounted)
    position = {str(path): number for number, path in enumerate(images)}
    name = str(folder)

    def open_frames(keys: Sequence[Key]) -> Source:
        """The images as the frames of a video."""
        inner = open_images([images[int(key)] for key in keys], SourceOptions())
        info = SourceInfo(name, "file", *size, rate, len(keys))
        numbered = ((position[frame.source_id], frame) for frame in inner)
        frames = (one.replace_unchecked(index=k, source_id=name, pts=k, time_base=1 / rate) for k, one in numbered)
        return PullSource(info, lambda closed: frames, inner.close, inner.close)

    def labels(key: Key) -> Labels:
        own = rows[rows[:, 0] == int(key) + 1]
        boxes, area = np.hstack([own[:, 2:4], own[:, 2:4] + own[:, 4:6]]), own[:, 4] * own[:, 5]
        class_id, crowd = np.zeros(len(own), np.int64), ~np.isin(own[:, 7], COUNTED)
        return Labels(boxes, class_id, crowd, area, size, track_id=own[:, 1].astype(np.int64))

    key_of, files = attrgetter("index"), [*images, folder / INI]
    return Dataset(name, {0: "person"}, range(length), open_frames, key_of, labels, files=files)


def _truth(path: Path, length: int, uncounted: Sequence[int]) -> NDArray[np.float64]:
    """Rows of frame, id, left, top, width, height, mark and class, without those that are not scored."""
    remedy = "use a sequence for training"
    try:
        with os_errors_as(SourceError, f"cannot read {path}", remedy), path.open() as file:
            lines = [line for line in file if line.strip()]
        rows = np.loadtxt(lines, np.float64, delimiter=",", ndmin=2) if lines else np.empty((0, 8))
        if rows.shape[1] < 7 or not np.isfinite(rows).all():
            raise ValueError("a row has fewer than 7 numbers, or one that is none")
        rows = np.column_stack([rows[:, :7], rows[:, 7] if rows.shape[1] > 7 else np.ones(len(rows))])
        if not np.isin(rows[:, 0], np.arange(1, length + 1)).all():
            raise ValueError(f"a frame is not in 1..{length}")
        if len(np.unique(rows[:, :2], axis=0)) < len(rows):
            raise ValueError("an id occurs twice in a frame")
    except ValueError as error:
        wanted = "frame, id, left, top, width, height, 1 if it counts, class, visibility"
        raise DecodeError(f"{path} cannot be used: {error}", remedy=f"its rows are {wanted}") from error
    counted = np.isin(rows[:, 7], COUNTED) & (rows[:, 6] != 0)
    return np.asarray(rows[(counted | np.isin(rows[:, 7], uncounted)) & (rows[:, 4:6] > 0).all(axis=1)])


def open_world(uri: str) -> Dataset:
    """The world of an address, see `World.parse`; ignored objects count as crowd regions."""
    world = World.parse(uri)
    shift = 0 if world.scene == "bodies" else 1
    truths: dict[Key, Truth] = {}
    """Each frame is drawn once: kept from the source's yield until `labels` is called."""

    def opened(keys: Sequence[Key]) -> Source:
        truths.clear()
        info = SourceInfo(uri, "synthetic", *world.size, world.fps, len(keys))

        def frames(closed: threading.Event) -> Frames:
            for key in keys:
                if closed.is_set():
                    return
                snapshot, index = world[int(key)], int(key)
                truths[key] = snapshot.truth
                image = to_video(snapshot.image)
                yield wrap(image, info, index=index, source_id=uri, pts=index, time_base=1 / world.fps)

        return PullSource(info, frames)

    def labels(key: Key) -> Labels:
        truth = truths.pop(key, None) or world[int(key)].truth
        boxes = truth.boxes.astype(np.float64)
        area = np.bincount(truth.instances.ravel(), minlength=len(boxes) + 1)[1:].astype(np.float64)
        facts = (lambda: truth.class_mask), truth.complexity, truth.track_id, partial(_shapes, truth)
        return Labels(boxes, truth.class_id, truth.ignored, area, world.size, *facts)

    groups = {"person": range(1, len(world.names))} if world.scene == "bodies" else {}
    names = {0: "background"} | {number + shift: name for number, name in world.names.items()}
    frames, key_of = range(world.frames), attrgetter("index")
    return Dataset(uri, world.object_names, frames, opened, key_of, labels, mask_names=names, mask_groups=groups)


def _shapes(truth: Truth) -> list[dict[str, Any]]:
    """Masks, keypoints and oriented boxes of the objects of the synthetic world."""
    found = mask_runs(truth.instances == np.arange(1, len(truth.boxes) + 1)[:, None, None])
    assert isinstance(found, Runs)
    return [{"segmentation": mask, **shape} for mask, shape in zip(found.to_json(), shapes_of(truth), strict=True)]
