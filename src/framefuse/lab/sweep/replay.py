"""Replay: what every choice of a grid makes of the recorded boxes. Choices with the same tracks share one tracking.

Boxes and tracks are counted for all frames of a source at once, and so are zones entered and lines crossed: as
`tracking.events` counts them, except that a box that jumps counts here.
"""

import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from framefuse.common.machine import available_cores
from framefuse.config import Settings
from framefuse.errors import UsageError
from framefuse.lab.evaluation.counters import TrackCounter
from framefuse.lab.evaluation.dataset import BoxClasses, Labels
from framefuse.lab.sweep.record import TRUTH, Choice, Recording, data_of
from framefuse.models.card import Card
from framefuse.prediction import Detections, FrameInfo, large_enough
from framefuse.runtime.choices import class_number
from framefuse.runtime.tracking import seconds_of, tracker_options
from framefuse.sinks.parquet import read_boxes
from framefuse.tracking import NO_TRACK, events, open_tracker
from framefuse.tracking.zones import Line, Places, Zone, load_places

Array = NDArray[Any]
Ints = NDArray[np.int64]

AGAIN_SECONDS = 2.0
"""A track that begins within this time after another has ended close by, see `Tracks.fragments`."""
SAME = 0.5
"""Overlap (IoU) of boxes that show one object, in `unmatched`."""
SMALL = 3000
"""Frames to track, of all trackings together, below which other processes would take longer to start."""
Numbers = Mapping[str, float]


class Table(NamedTuple):
    """The n boxes of a source at one `iou`, in the order of its f frames, and within a frame by confidence."""

    frames: Sequence[FrameInfo]
    found: Detections
    frame: Ints
    """(n,) place of each box's frame in `frames`."""
    seconds: Array
    """(f,)"""


class Tracks(NamedTuple):
    """Tracks, as far as their boxes are shown."""

    table: Table
    rows: Ints
    """Rows of the table that belong to a track, by id and then by time."""
    ids: Ints
    """Of each row."""
    starts: Ints
    """(tracks,) where each begins in `rows`."""

    @classmethod
    def of(cls, table: Table, rows: Ints, ids: Ints, conf: float) -> Self:
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


def replay(
    recordings: Sequence[Recording],
    choices: Sequence[Choice],
    card: Card,
    *,
    short: float = 0.5,
    on_choice: Callable[[int], None] = lambda done: None,
) -> tuple[list[Numbers], list[float]]:
    """The numbers of each choice, and the seconds that each tracking took; raises what `places_of` raises.

    Args:
        short: seconds; a track that lasts less is a false start.
        on_choice: called with the number of choices done.
    """
    places = places_of(choices, card)
    groups = defaultdict(list)
    for choice in choices:
        groups[choice.key].append(choice)
    work = partial(_group, [one for one in recordings if one.frames], card, places, short)
    found: dict[int, Numbers] = {}
    trackings: list[float] = []
    tracked = sum(members[0].settings.track is not None for members in groups.values())
    count = min(available_cores(), tracked)
    with ExitStack() as opened:
        results: Iterator[tuple[list[Numbers], float]] = map(work, groups.values())
        if count > 1 and sum(one.frames for one in recordings) * tracked >= SMALL:
            spawn = multiprocessing.get_context("spawn")  # threads of an engine do not survive a fork
            pool = ProcessPoolExecutor(count, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
            opened.callback(pool.shutdown, cancel_futures=True)
            results = pool.map(work, groups.values())
        for members, (numbers, seconds) in zip(groups.values(), results, strict=True):
            found.update(zip((choice.number for choice in members), numbers, strict=True))
            trackings += [seconds] if members[0].settings.track else []
            on_choice(len(found))
    return [found[choice.number] for choice in choices], trackings


def places_of(choices: Sequence[Choice], card: Card) -> dict[Any, Places]:
    """The zones and lines of each file of a choice; ConfigError, UsageError: a wrong one, or no tracker."""
    for choice in choices:
        if choice.settings.zones and not choice.settings.track:
            why = f"zones is {choice.settings.zones}, but nothing is tracked"
            raise UsageError(why, remedy="add --track bytetrack")
    files = {choice.settings.zones for choice in choices} - {None}
    return {zones: load_places(zones, partial(class_number, card)) for zones in files if zones}


def _group(
    recordings: Sequence[Recording], card: Card, places: Mapping[Any, Places], short: float, members: Sequence[Choice]
) -> tuple[list[Numbers], float]:
    """The numbers of choices that share their tracks, and the seconds that tracking took."""
    settings = members[0].settings
    boxes = [kept(one, settings) for one in recordings]
    started = perf_counter()
    sources = [(table, rows, track(table, rows, settings)) for table, rows in boxes]
    seconds = perf_counter() - started
    every = [Tracks.of(*one, 0) for one in sources]
    visited = {
        zones: [visits(one, places[zones], settings.track_buffer) for one in every]
        for zones in {choice.settings.zones for choice in members} - {None}
    }
    known: dict[float, dict[str, float]] = {}
    numbers: list[Numbers] = []
    for choice in members:
        conf, zones = choice.settings.conf, choice.settings.zones
        if conf not in known:
            shown = (table.found.confidence[rows] > np.float32(conf) for table, rows in boxes)
            known[conf] = {"boxes": sum(map(int, map(np.count_nonzero, shown)))}
            if settings.track:
                found = [Tracks.of(*one, conf) for one in sources]
                known[conf]["tracks"] = sum(len(one.starts) for one in found)
                known[conf]["false_starts"] = sum(one.false_starts(short) for one in found)
                known[conf]["fragments"] = sum(one.fragments() for one in found)
                known[conf] |= _scores(recordings, found, settings, card)
        names = ("entered", "crossed") if zones else ()
        did = {name: sum(int(d[k][d[0] >= conf].sum()) for d in visited[zones]) for k, name in enumerate(names, 1)}
        numbers.append(known[conf] | did)
    return numbers, seconds


def _scores(recordings: Sequence[Recording], found: Sequence[Tracks], settings: Settings, card: Card) -> Numbers:
    """HOTA and IDF1 in percent, if the truth of all sources is known; of the classes that the setting asks for."""
    data = [data_of(one.source, settings) for one in recordings if (one.folder / TRUTH).exists()]
    names = [one.names for one in data if one]
    if not names or len(names) < len(recordings) or any(one != names[0] for one in names):
        return {}
    assert data[0] is not None
    classes = BoxClasses(data[0], card, settings.classes)
    counter = TrackCounter(classes.names)
    for recording, one in zip(recordings, found, strict=True):
        truth, frames = np.load(recording.folder / TRUTH)["truth"], np.arange(len(one.table.frames) + 1)
        order = np.argsort(one.table.frame[one.rows], kind="stable")
        boxes = one.table.found[one.rows[order]]
        boxes.tracker_id = one.ids[order]
        ends = np.searchsorted(one.table.frame[one.rows[order]], frames)
        places = pairwise(ends), pairwise(np.searchsorted(truth[:, 0], frames)), one.table.frames
        for (start, end), (first, last), frame in zip(*places, strict=True):
            part = truth[first:last]
            class_id, crowd, number = part[:, 1].astype(np.int64), part[:, 2] > 0, part[:, 3].astype(np.int64)
            size = frame.width, frame.height
            labels = Labels(part[:, 4:], class_id, crowd, np.zeros(len(part)), size, track_id=number)
            counter.add(recording.source, classes.labels(labels), classes.shared(boxes[start:end]))
    scores = counter.scores()
    return {"hota": 100 * scores.hota, "idf1": 100 * scores.idf1}


def tracks_of(recordings: Sequence[Recording], choice: Choice) -> list[Tracks]:
    """The tracks of one choice in each source."""
    settings = choice.settings
    boxes = [kept(one, settings) for one in recordings]
    return [Tracks.of(table, rows, track(table, rows, settings), settings.conf) for table, rows in boxes]


@lru_cache(maxsize=16)
def load(path: Path, rate: float) -> Table:
    """Read a file of `Recording.boxes`; frames without a time have that of their index at `rate` frames a second."""
    boxes = read_boxes(path)
    times = [seconds_of(frame, rate) for frame in boxes.frames]
    of = np.repeat(np.arange(len(boxes.frames)), np.diff(boxes.starts))
    return Table(boxes.frames, boxes.detections, of, np.array(times, np.float64))


def kept(recording: Recording, settings: Settings) -> tuple[Table, Ints]:
    """The boxes of a recording, and the rows that `classes`, `max_det` and `min_area` leave. Those above a `conf` are
    the first of each frame, so it changes nothing about the others."""
    table = load(recording.boxes(settings.iou), recording.rate)
    rows = np.arange(len(table.frame))
    if settings.classes is not None:
        rows = rows[np.isin(table.found.class_id, settings.classes)]
    frame = table.frame[rows]
    rows = rows[np.arange(len(rows)) - np.searchsorted(frame, np.arange(len(table.frames)))[frame] < settings.max_det]
    if settings.min_area:
        pixels = np.array([frame.width * frame.height for frame in table.frames])[table.frame[rows]]
        rows = rows[large_enough(table.found.xyxy[rows], settings.min_area, pixels)]
    return table, rows


def track(table: Table, rows: Ints, settings: Settings) -> Ints:
    """The `tracker_id` of each row; NO_TRACK without a tracker."""
    ids = np.full(len(rows), NO_TRACK, np.int64)
    if settings.track is None:
        return ids
    tracker = open_tracker(settings.track, tracker_options(settings))
    seen = np.flatnonzero(table.found.confidence[rows] >= np.float32(settings.track_low))
    boxes = table.found[rows[seen]]
    ends = np.searchsorted(table.frame[rows[seen]], np.arange(len(table.frames) + 1)).tolist()
    for seconds, start, end in zip(table.seconds.tolist(), ends, ends[1:], strict=False):
        ids[seen[start:end]] = np.asarray(tracker.update(boxes[start:end], seconds).tracker_id)
    return ids


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


def visits(tracks: Tracks, places: Places, buffer: float) -> tuple[Array, Array, Array]:
    """What each appearance of a track, which ends when it has not been seen for `buffer` seconds, has done.

    Returns (n,) the highest confidence of its boxes, also of those that are not shown, zones entered and lines crossed.
    """
    table, rows = tracks.table, tracks.rows
    frame = table.frame[rows]
    first = np.zeros(len(rows), np.bool_)
    first[1:] = table.seconds[np.maximum(frame[1:] - 1, 0)] - table.seconds[frame[:-1]] > buffer
    first[tracks.starts] = True
    of = np.cumsum(first) - 1
    several = np.bincount(of)[of] > 1  # seen once: no event
    rows, frame, first = rows[several], frame[several], first[several]
    of, class_id = np.cumsum(first) - 1, table.found.class_id[rows]
    sizes = np.array([(one.width, one.height) for one in table.frames]).reshape(-1, 2)[frame]
    boxes = np.clip(table.found.xyxy[rows].astype(np.float64), 0, np.tile(sizes, 2))
    diagonals = np.hypot(*(boxes[:, 2:] - boxes[:, :2]).T)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    feet = np.stack((centres[:, 0], boxes[:, 3]), 1).clip(0.01, sizes - 0.01)
    best, done = np.zeros(int(first.sum())), np.zeros((2, int(first.sum())), np.int64)
    np.maximum.at(best, of, table.found.confidence[rows])
    for size in {(one.width, one.height) for one in table.frames}:
        at, _ = places.at(*size)
        for place in (*at.zones, *at.lines):
            here = (sizes == size).all(axis=1)
            here &= np.isin(class_id, list(place.classes)) if place.classes else True
            points, diagonal = (centres if place.anchor == "centre" else feet)[here], diagonals[here]
            if isinstance(place, Line):
                np.add.at(done[1], of[here][_crossings(place, points, diagonal, of[here])], 1)
            elif isinstance(place, Zone):
                np.add.at(done[0], of[here][_entries(place, points, diagonal, of[here])], 1)
    return best, *done


def _entries(zone: Zone, points: Array, diagonals: Array, of: Array) -> Array:
    """At which boxes a zone is entered: inside by a margin, except for the first, and before that outside."""
    depth, first = zone.depth(points), np.diff(of, prepend=-1) > 0
    margin = np.where(first, 0, np.minimum(events.MARGIN * diagonals, events.SMALL * zone.span))
    clear = np.flatnonzero(first | (np.abs(depth) > margin))
    inside = depth[clear] > margin[clear]
    return np.asarray(clear[inside & (first[clear] | ~np.roll(inside, 1))])


def _crossings(line: Line, points: Array, diagonals: Array, of: Array) -> Array:
    """At which boxes a line has been crossed since the last one that is clearly on a side of it."""
    side = line.side(points)
    clear = np.flatnonzero(np.abs(side) > events.MARGIN * diagonals)
    old, new = clear[:-1], clear[1:]
    turned = ((side[old] > 0) != (side[new] > 0)) & (of[old] == of[new])
    crossed = [line.crossed(tuple(points[a]), tuple(points[b])) for a, b in zip(old[turned], new[turned], strict=True)]
    return np.asarray(new[turned][np.array(crossed, np.bool_)])
