"""Boxes of a recording under one setting: which are kept, and which of them are one track. All frames at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.config import Settings
from framefuse.prediction import Detections, FrameInfo, large_enough
from framefuse.sinks.parquet import read_boxes
from framefuse.tracking import NO_TRACK, TrackerOptions, open_tracker

Array = NDArray[Any]
Ints = NDArray[np.int64]

AGAIN_SECONDS = 2.0
"""A track that begins within this time after another has ended close by, see `Tracks.fragments`."""
SAME = 0.5
"""Overlap (IoU) of boxes that show one object, in `unmatched`."""


class Table(NamedTuple):
    """The n boxes of a source at one `iou`, in the order of its f frames, and within a frame by confidence."""

    frames: Sequence[FrameInfo]
    found: Detections
    frame: Ints
    """(n,) place of each box's frame in `frames`."""
    seconds: Array
    """(f,)"""


@lru_cache(maxsize=16)
def load(path: Path, rate: float) -> Table:
    """Read a file of `Recording.boxes`; frames without a time have that of their index at `rate` frames a second."""
    boxes = read_boxes(path)
    times = [frame.index / rate if (seconds := frame.seconds) is None else seconds for frame in boxes.frames]
    of = np.repeat(np.arange(len(boxes.frames)), np.diff(boxes.starts))
    return Table(boxes.frames, boxes.detections, of, np.array(times, np.float64))


def kept(table: Table, settings: Settings) -> Ints:
    """The rows that `classes`, `max_det` and `min_area` leave. Those above a `conf` are the first of each frame, so it
    changes nothing about the others."""
    rows = np.arange(len(table.frame))
    if settings.classes is not None:
        rows = rows[np.isin(table.found.class_id, settings.classes)]
    frame = table.frame[rows]
    rows = rows[np.arange(len(rows)) - np.searchsorted(frame, np.arange(len(table.frames)))[frame] < settings.max_det]
    if settings.min_area:
        pixels = np.array([frame.width * frame.height for frame in table.frames])[table.frame[rows]]
        rows = rows[large_enough(table.found.xyxy[rows], settings.min_area, pixels)]
    return rows


def track(table: Table, rows: Ints, settings: Settings) -> Ints:
    """The `tracker_id` of each row; NO_TRACK without a tracker."""
    ids = np.full(len(rows), NO_TRACK, np.int64)
    if settings.track is None:
        return ids
    options = {field.name: getattr(settings, f"track_{field.name}") for field in fields(TrackerOptions)}
    tracker = open_tracker(settings.track, TrackerOptions(**options))
    seen = np.flatnonzero(table.found.confidence[rows] >= np.float32(settings.track_low))
    boxes = table.found[rows[seen]]
    ends = np.searchsorted(table.frame[rows[seen]], np.arange(len(table.frames) + 1)).tolist()
    for seconds, start, end in zip(table.seconds.tolist(), ends, ends[1:], strict=False):
        ids[seen[start:end]] = np.asarray(tracker.update(boxes[start:end], seconds).tracker_id)
    return ids


@dataclass(frozen=True)
class Tracks:
    """Tracks, as far as their boxes are shown."""

    table: Table
    rows: Ints
    """Rows of the table that belong to a track, by id and then by time."""
    ids: Ints
    """Of each row."""
    starts: Ints
    """(tracks,) where each begins in `rows`."""

    @classmethod
    def of(cls, table: Table, rows: Ints, ids: Ints, conf: float) -> Tracks:
        """The tracks of `track`, where the confidence exceeds `conf`."""
        shown = (table.found.confidence[rows] > np.float32(conf)) & (ids != NO_TRACK)
        rows, ids = rows[shown], ids[shown]
        order = np.argsort(ids, kind="stable")
        return cls(table, rows[order], ids[order], np.flatnonzero(np.diff(ids[order], prepend=NO_TRACK)))

    @property
    def ends(self) -> Ints:
        return np.append(self.starts[1:], len(self.rows))[: len(self.starts)] - 1

    @property
    def begun(self) -> Array:
        """(tracks,) seconds of the first box."""
        return self.table.seconds[self.table.frame[self.rows[self.starts]]]

    @property
    def ended(self) -> Array:
        """(tracks,) seconds of the last box."""
        return self.table.seconds[self.table.frame[self.rows[self.ends]]]

    def false_starts(self, short: float) -> int:
        """Tracks that are seen for less than `short` seconds, although the source goes on for longer."""
        ends_early = self.begun + short <= self.table.seconds.max(initial=0)
        return int(((self.ended - self.begun < short) & ends_early).sum())

    def fragments(self) -> int:
        """Tracks that begin where another has just ended, so that both are probably one object.

        A heuristic: the other is of the same class and was last seen up to AGAIN_SECONDS before, and the centres of its
        last and of the new track's first box are no further apart than the longer diagonal of the two.
        """
        order = np.argsort(self.ended, kind="stable")
        low, high = (np.searchsorted(self.ended[order], self.begun - earlier) for earlier in (AGAIN_SECONDS, 0))
        new, place = spans(low, high)
        old_rows, new_rows = self.rows[self.ends[order[place]]], self.rows[self.starts[new]]
        a, b = (self.table.found.xyxy[rows].astype(np.float64) for rows in (old_rows, new_rows))
        apart = np.hypot(*((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2).T)
        reach = np.maximum(*(np.hypot(*(box[:, 2:] - box[:, :2]).T) for box in (a, b)))
        class_id = self.table.found.class_id
        return len(np.unique(new[(apart <= reach) & (class_id[old_rows] == class_id[new_rows])]))


def unmatched(one: Tracks, other: Tracks) -> Ints:
    """Which tracks of one setting another one has not: fewer than half of their boxes lie on a tracked box of it."""
    theirs = np.sort(other.rows)
    first = np.searchsorted(other.table.frame[theirs], np.arange(len(one.table.frames) + 1))
    frame = one.table.frame[one.rows]
    mine, place = spans(first[frame], first[frame + 1])
    a, b = one.table.found.xyxy[one.rows[mine]].astype(np.float64), other.table.found.xyxy[theirs[place]]
    shared = (np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])).clip(0).prod(axis=1)
    areas = (a[:, 2:] - a[:, :2]).prod(axis=1) + (b[:, 2:] - b[:, :2]).prod(axis=1)
    met = np.zeros(len(one.rows) + 1)
    met[mine[shared > SAME * (areas - shared)]] = 1
    return np.flatnonzero(np.add.reduceat(met, one.starts) < (one.ends - one.starts + 1) / 2)


def spans(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Every pair of k and a number of low[k]..high[k] - 1."""
    counts = np.maximum(high - low, 0)
    owner = np.repeat(np.arange(len(low)), counts)
    return owner, np.arange(len(owner)) + np.repeat(low - np.cumsum(counts) + counts, counts)
