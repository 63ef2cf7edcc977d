"""MOTChallenge folders as data sets: seqinfo.ini, the images, and gt/gt.txt with the identity of each object."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from configparser import ConfigParser
from configparser import Error as IniError
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import DecodeError, SourceError
from framefuse.lab.evaluation.dataset import Dataset, Key, Labels
from framefuse.prediction import FrameInfo
from framefuse.sources import Source, SourceInfo, SourceOptions
from framefuse.sources.images import open_images
from framefuse.sources.source import Frames, PullSource

INI = "seqinfo.ini"
COUNTED = 1, -1
"""Classes of gt.txt that are scored: pedestrians, and -1, as the first challenge has them."""
UNCOUNTED = 2, 7, 8, 12
"""People on vehicles, people who stand still, distractors and reflections, in MOT20 also 6, vehicles without a motor:
who finds them is neither right nor wrong. Other classes are not read."""


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

        def frames(closed: threading.Event) -> Frames:
            for frame in inner:
                number = position[frame.source_id]
                time = {"pts": number, "time_base": 1 / rate}
                yield frame.replace_unchecked(index=number, source_id=name, **time)

        return PullSource(info, frames, release=inner.close, interrupt=inner.close)

    def labels(key: Key) -> Labels:
        own = rows[rows[:, 0] == int(key) + 1]
        boxes = own[:, 2:6].copy()
        boxes[:, 2:] += boxes[:, :2]
        return Labels(
            xyxy=boxes,
            class_id=np.zeros(len(own), np.int64),
            crowd=~np.isin(own[:, 7], COUNTED),
            area=own[:, 4] * own[:, 5],
            size=size,
            track_id=own[:, 1].astype(np.int64),
        )

    return Dataset(name, {0: "person"}, range(length), open_frames, _index_of, labels, files=[*images, folder / INI])


def _index_of(frame: FrameInfo) -> Key:
    return frame.index


def _truth(path: Path, length: int, uncounted: Sequence[int]) -> NDArray[np.float64]:
    """Rows of frame, id, left, top, width, height, mark and class, without those that are not scored."""
    try:
        with path.open() as file:
            lines = [line for line in file if line.strip()]
        rows = np.loadtxt(lines, np.float64, delimiter=",", ndmin=2) if lines else np.empty((0, 8))
        if rows.shape[1] < 7 or not np.isfinite(rows).all():
            raise ValueError("a row has fewer than 7 numbers, or one that is none")
        rows = np.column_stack([rows[:, :7], rows[:, 7] if rows.shape[1] > 7 else np.ones(len(rows))])
        frames, identities = rows[:, 0], rows[:, :2]
        if not np.isin(frames, np.arange(1, length + 1)).all():
            raise ValueError(f"a frame is not in 1..{length}")
        if len(np.unique(identities, axis=0)) < len(rows):
            raise ValueError("an id occurs twice in a frame")
    except OSError as error:
        raise SourceError(
            f"cannot read {path}: {error.strerror or error}", remedy="use a sequence for training"
        ) from error
    except ValueError as error:
        wanted = "frame, id, left, top, width, height, 1 if it counts, class, visibility"
        raise DecodeError(f"{path} cannot be used: {error}", remedy=f"its rows are {wanted}") from error
    counted = np.isin(rows[:, 7], COUNTED) & (rows[:, 6] != 0)
    kept: NDArray[np.float64] = rows[(counted | np.isin(rows[:, 7], uncounted)) & (rows[:, 4:6] > 0).all(axis=1)]
    return kept
