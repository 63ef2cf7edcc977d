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
"""A track that begins within this time after another has ended close by, see `Tracked.fragmentations`."""
SAME = 0.5
"""Overlap (IoU) of boxes that show one object, in `unmatched`."""


class Table(NamedTuple):
    """The boxes of a source at one `iou`, from confidence FLOOR on, in the order of the frames."""

    frames: Sequence[FrameInfo]
    found: Detections
    """All n boxes."""
    frame: Ints
    """(n,) place of each box's frame in `frames`."""
    seconds: NDArray[np.float64]
    """(f,)"""
    pixels: Ints
    """(f,) of each frame."""


@lru_cache(maxsize=16)
def load(path: Path, rate: float) -> Table:
    """Read a file of `Recording.boxes`.

    Args:
        rate: frames a second, for frames without a time.
    """
    boxes = read_boxes(path)
    frames = boxes.frames
    of = np.repeat(np.arange(len(frames)), np.diff(boxes.starts))
    times = [frame.index / rate if (seconds := frame.seconds) is None else seconds for frame in frames]
    pixels = np.array([frame.width * frame.height for frame in frames], np.int64)
    return Table(frames, boxes.detections, of, np.array(times, np.float64), pixels)


def kept(table: Table, settings: Settings) -> Ints:
    """The rows that `classes`, `max_det` and `min_area` leave, whatever `conf` is: the pipeline drops the others first.

    Boxes of a frame are in descending order, so that those above a higher `conf` are the first of these.
    """
    found = table.found
    rows = np.arange(len(table.frame))
    if settings.classes is not None:
        rows = rows[np.isin(found.class_id, settings.classes)]
    frame = table.frame[rows]
    first = np.searchsorted(frame, np.arange(len(table.seconds)))
    rows = rows[np.arange(len(rows)) - first[frame] < settings.max_det]
    if settings.min_area:
        rows = rows[large_enough(found.xyxy[rows], settings.min_area, table.pixels[table.frame[rows]])]
    return rows


def track(table: Table, rows: Ints, settings: Settings) -> Ints:
    """The `tracker_id` of each row; NO_TRACK without a tracker."""
    ids = np.full(len(rows), NO_TRACK, np.int64)
    if settings.track is None:
        return ids
    options = {field.name: getattr(settings, f"track_{field.name}") for field in fields(TrackerOptions)}
    tracker = open_tracker(settings.track, TrackerOptions(**options))
    seen = np.flatnonzero(table.found.confidence[rows] >= np.float32(settings.track_low))
    chosen = rows[seen]
    boxes = table.found[chosen]
    ends = np.searchsorted(table.frame[chosen], np.arange(len(table.seconds) + 1)).tolist()
    for seconds, start, end in zip(table.seconds.tolist(), ends, ends[1:], strict=False):
        ids[seen[start:end]] = np.asarray(tracker.update(boxes[start:end], seconds).tracker_id)
    return ids


@dataclass(frozen=True)
class ShownTracks:
    """What is shown of each track at one `conf`, as arrays of equal length in the order of the ids."""

    table: Table
    rows: Ints
    """Rows of the table that are shown and belong to a track, by id and then by time."""
    starts: Ints
    """(tracks,) where each begins in `rows`."""

    @property
    def ends(self) -> Ints:
        return np.append(self.starts[1:], len(self.rows)) - 1 if len(self.starts) else self.starts

    def false_starts(self, short: float) -> Array:
        """(tracks,) bool: seen for less than `short` seconds, although the source goes on for longer."""
        begin, end = (self._seconds(places) for places in (self.starts, self.ends))
        result: Array = (end - begin < short) & (begin + short <= self.table.seconds.max(initial=0))
        return result

    def fragmentations(self) -> int:
        """Tracks that begin where another has just ended, so that both are probably one object.

        A heuristic: the other is of the same class and was last seen up to AGAIN_SECONDS before, and the centres of its
        last and of the new track's first box are no further apart than the longer diagonal of the two.
        """
        starts, ends = self.rows[self.starts], self.rows[self.ends]
        begun, ended = (self.table.seconds[self.table.frame[rows]] for rows in (starts, ends))
        order = np.argsort(ended, kind="stable")
        low = np.searchsorted(ended[order], begun - AGAIN_SECONDS)
        high = np.searchsorted(ended[order], begun)
        new, place = spans(low, high)
        old, new_rows = ends[order[place]], starts[new]
        xyxy, class_id = self.table.found.xyxy.astype(np.float64), self.table.found.class_id
        a, b = xyxy[old], xyxy[new_rows]
        apart = np.hypot(*((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2).T)
        reach = np.maximum(*(np.hypot(*(box[:, 2:] - box[:, :2]).T) for box in (a, b)))
        return len(np.unique(new[(apart <= reach) & (class_id[old] == class_id[new_rows])]))

    def _seconds(self, places: Ints) -> Array:
        return self.table.seconds[self.table.frame[self.rows[places]]]


def shown_tracks(table: Table, rows: Ints, ids: Ints, conf: float) -> ShownTracks:
    """The tracks of `track`, as far as their boxes exceed `conf`."""
    shown = (table.found.confidence[rows] > np.float32(conf)) & (ids != NO_TRACK)
    rows, ids = rows[shown], ids[shown]
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    return ShownTracks(table, rows[order], np.flatnonzero(np.diff(ids, prepend=NO_TRACK)))


def unmatched(one: ShownTracks, other: ShownTracks) -> Ints:
    """Which tracks of one setting another one has not: fewer than half of their boxes lie on a tracked box of it."""
    frames = np.arange(len(one.table.seconds) + 1)
    theirs = np.sort(other.rows)
    first = np.searchsorted(other.table.frame[theirs], frames)
    of = one.table.frame[one.rows]
    mine, place = spans(first[of], first[of + 1])
    a, b = one.table.found.xyxy[one.rows[mine]].astype(np.float64), other.table.found.xyxy[theirs[place]]
    shared = (np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])).clip(0).prod(axis=1)
    areas = (a[:, 2:] - a[:, :2]).prod(axis=1) + (b[:, 2:] - b[:, :2]).prod(axis=1)
    met = np.zeros(len(one.rows))
    met[mine[shared > SAME * (areas - shared)]] = 1
    if not len(one.starts):
        return one.starts
    return np.flatnonzero(np.add.reduceat(met, one.starts) < (one.ends - one.starts + 1) / 2)


def spans(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Every pair of k and a number of low[k]..high[k] - 1."""
    counts = np.maximum(high - low, 0)
    owner = np.repeat(np.arange(len(low)), counts)
    return owner, np.arange(len(owner)) + np.repeat(low - np.cumsum(counts) + counts, counts)
