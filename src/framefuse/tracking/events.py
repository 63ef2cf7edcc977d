"""Events: what happens to the tracks of one source. Policy only: the time is passed in, and a track is a number.

A track becomes `new` with its second plausible box, so that what was seen once makes no event. After that it has
updates until its end. A box that is too far from the last one jumps: it counts only if the next box is near it, and the
way there crosses no line.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from framefuse.common.polygons import Point
from framefuse.prediction import Best, Change, Crossing, Detections, Event, FrameInfo, Visit
from framefuse.tracking.zones import Places

Box = tuple[float, float, float, float]
Step = tuple[float, float, float]
"""Seconds, x, y."""

MARGIN = 0.05
"""Diagonals of the box by which it must pass a border to be on its other side, as boxes tremble."""
SMALL = 0.1
"""Sides of a zone that this margin has at most."""
STILL = 0.15
"""Diagonals within which an object is stationary."""
BETTER = 1.2
"""How much better than the best frame so far a frame must be to take its place."""
AT_EDGE = 0.25
"""Factor of the score of a frame in which the object touches the edge."""
OFF_PATH = 0.05
"""Diagonals by which a path may be simplified."""
STORED, MOST = 256, 64
"""Points of a path in memory, and in an event."""
NOTHING = Best(0, 0.0, (), 0.0, 0.0)


@dataclass(frozen=True)
class EventOptions:
    """When something is an event. Times are seconds."""

    stationary: float = 10.0
    """An object that has not moved for so long is stationary."""
    recheck: float = 60.0
    """Interval of the updates of a stationary object; 0: none."""
    buffer: float = 1.0
    """A track that has not been seen for longer has ended: that of the tracker."""
    better: float = 5.0
    """Minimum interval of updates that report nothing but a better best frame."""
    fastest: float = 20.0
    """Diagonals of the box a second above which it jumps."""
    least: float = 0.0
    """Confidence that one box of a track must have before it is new."""


@dataclass(eq=False)
class _Track:
    """What is known about a track; times are seconds."""

    id: int
    first: float
    box: Box
    confidence: float = 0.0
    last: float = 0.0
    """When it was last where `box` is."""
    seen: float = 0.0
    """When it was last seen at all."""
    turn: int = 0
    """Frame of the source in which it was seen last."""
    votes: dict[int, float] = field(default_factory=dict)
    """Class -> sum of its confidences."""
    count: int = 0
    """Boxes that counted."""
    sure: bool = False
    doubt: tuple[Box, float] | None = None
    """A box that was too far away, and its time."""
    jumps: int = 0
    changes: list[Change] = field(default_factory=list)
    """Not reported yet."""
    still_at: Point = (0.0, 0.0)
    since: float = 0.0
    away: int = 0
    """Boxes in a row that were not where it stood still."""
    state: Literal["active", "stationary"] = "active"
    checked: float = 0.0
    rested: float = 0.0
    best: Best = NOTHING
    reported: tuple[float, Best] | None = None
    """The last event and its best frame; None: there was no event."""
    path: list[Step] = field(default_factory=list)
    inside: dict[str, int] = field(default_factory=dict)
    """Zone -> the number of its visit."""
    visits: list[Visit] = field(default_factory=list)
    clear: dict[str, tuple[bool, Point]] = field(default_factory=dict)
    """Line -> whether it was last clearly to the right of it, and where."""
    crossings: list[Crossing] = field(default_factory=list)
    thumbnail: bytes | None = None

    @property
    def class_id(self) -> int:
        return max(self.votes, key=self.votes.__getitem__)


class Watch:
    """Makes events of the tracks of one source.

    Times are those of `Tracker`: one that is missing counts as one step after the last, one that stands still is
    another look at the same moment, and one that goes back ends all tracks, as a new connection to the source does.

    Attributes:
        size, places: of the frame; the zones and lines in its pixels.
        improved: track -> its box, for those that this frame shows best so far.
        notes: what was unusual, each once.
    """

    def __init__(self, places: Places | None = None, options: EventOptions | None = None) -> None:
        self._wanted, self._options = places or Places(), options or EventOptions()
        self.places, self.size = self._wanted, (0, 0)
        self._tracks: dict[int, _Track] = {}
        self._now, self._step, self._turn = 0.0, 1 / 30, 0
        self._frame: FrameInfo | None = None
        self._names: Any = {}
        self.improved: dict[int, Box] = {}
        self.notes: dict[str, None] = {}

    def update(self, found: Detections, frame: FrameInfo, seconds: float | None) -> list[Event]:
        """The events of a frame and its time, from its objects with `tracker_id`; -1 and None: no track."""
        events = self._advance(frame, seconds)
        self._frame, self._names, self._turn = frame, found.names, self._turn + 1
        self.improved = {}
        if (size := (frame.width, frame.height)) != self.size:
            self.places, notes = self._wanted.at(*size)
            self.size, self.notes = size, self.notes | dict.fromkeys(notes)
        ids = np.full(len(found), -1) if found.tracker_id is None else found.tracker_id
        rows = np.flatnonzero(ids >= 0)
        boxes = found.xyxy[rows].astype(np.float64)
        good = np.isfinite(boxes).all(1)
        boxes = boxes.clip(0, (*size, *size)).round(2)
        good &= (boxes[:, 2:] > boxes[:, :2]).all(1)
        if not good.all():
            self.notes["tracked boxes that are not finite or have no area in the frame were left out"] = None
        rows, boxes = rows[good], boxes[good]
        if len(rows):
            centres = (boxes[:, :2] + boxes[:, 2:]) / 2
            feet = np.stack((centres[:, 0], boxes[:, 3]), 1).clip(0.01, np.subtract(size, 0.01))
            anchors = {"centre": centres, "bottom": feet}
            depths = np.array([zone.depth(anchors[zone.anchor]) for zone in self.places.zones]).reshape(-1, len(rows))
            sides = np.array([line.side(anchors[line.anchor]) for line in self.places.lines]).reshape(-1, len(rows))
            for place, row in enumerate(rows.tolist()):
                track = self._seen(int(ids[row]), tuple(boxes[place].tolist()))
                if track is not None:
                    class_id, track.confidence = int(found.class_id[row]), float(found.confidence[row])
                    track.sure |= track.confidence >= self._options.least
                    track.votes[class_id] = track.votes.get(class_id, 0.0) + track.confidence
                    points = {name: tuple(points[place].tolist()) for name, points in anchors.items()}
                    self._moved(track, points, depths[:, place].tolist(), sides[:, place].tolist())
        for track in list(self._tracks.values()):
            if self._now - track.seen > self._options.buffer:
                events += self._end(track, "not seen")
            elif track.turn == self._turn:
                events += self._report(track)
        return events

    def end(self, why: str) -> list[Event]:
        """End all tracks; the events of those that were announced."""
        return [event for track in list(self._tracks.values()) for event in self._end(track, why)]

    def keep(self, track_id: int, thumbnail: bytes) -> None:
        """The picture of a track in `improved`, for its last event."""
        self._tracks[track_id].thumbnail = thumbnail

    def _advance(self, frame: FrameInfo, known: float | None) -> list[Event]:
        """Move to the time of a frame; the events of the tracks that this ends."""
        before = self._frame
        if known is None or not math.isfinite(known):
            known = self._now + self._step if before else 0.0
        events: list[Event] = []
        if before and frame.connection != before.connection:
            events = self.end("reconnected")
            self.notes["tracks ended where the source was reconnected, and new ones began"] = None
        elif before and known < self._now:
            events = self.end("time went back")
            self.notes["tracks ended where the time of frames went back, and new ones began"] = None
        elif before and known > self._now:
            self._step = known - self._now
        self._now = known
        return events

    def _seen(self, number: int, box: Box) -> _Track | None:
        """The track with a new box; None if the box does not count, as it jumps or is the second of its frame."""
        track = self._tracks.get(number)
        if track is None:
            track = self._tracks[number] = _Track(number, self._now, box, last=self._now)
        elif track.turn == self._turn:
            return None
        track.seen, track.turn = self._now, self._turn
        if not self._near(box, track.box, track.last):
            if track.doubt is None or not self._near(box, *track.doubt):
                track.doubt, track.jumps = (box, self._now), track.jumps + 1
                track.changes += [Change("jumped")] if track.jumps == 1 else []
                return None
            track.clear.clear()
        track.doubt, track.box, track.last, track.count = None, box, self._now, track.count + 1
        return track

    def _near(self, box: Box, other: Box, seconds: float) -> bool:
        """Whether an object can have moved from the other box, at that time, to this one."""
        moved = math.dist((box[0] + box[2], box[1] + box[3]), (other[0] + other[2], other[1] + other[3])) / 2
        size = (_diagonal(box) + _diagonal(other)) / 2
        return moved <= self._options.fastest * size * max(self._now - seconds, self._step)

    def _moved(self, track: _Track, points: dict[str, Any], depths: Sequence[float], sides: Sequence[float]) -> None:
        """Bring a track up to date with a box that counts: its points by anchor, how they lie to zones and lines."""
        assert self._frame is not None
        now, size, diagonal = self._now, self.size, _diagonal(track.box)
        for zone, depth in zip(self.places.zones, depths, strict=True):
            margin = min(MARGIN * diagonal, SMALL * zone.span) if track.count > 1 else 0.0
            number = track.inside.get(zone.name)
            if number is None and depth > margin and zone.counts(track.class_id):
                track.inside[zone.name] = len(track.visits)
                track.visits.append(Visit(zone.name, now, None))
                track.changes.append(Change("entered", zone.name))
            elif number is not None and (depth < -margin or not zone.counts(track.class_id)):
                del track.inside[zone.name]
                track.visits[number] = track.visits[number]._replace(left=now)
                track.changes.append(Change("left", zone.name))
        for line, side in zip(self.places.lines, sides, strict=True):
            if abs(side) > MARGIN * diagonal:
                point, right = points[line.anchor], side > 0
                before, start = track.clear.get(line.name, (right, point))
                track.clear[line.name] = right, point
                if before != right and line.counts(track.class_id) and line.crossed(start, point):
                    track.crossings.append(Crossing(line.name, "in" if right else "out", now))
                    track.changes.append(Change("crossed", line.name, track.crossings[-1].direction))
        self._rest(track, points["centre"], STILL * diagonal)
        x1, y1, x2, y2 = track.box
        at_edge = min(x1, y1) < 1 or x2 > size[0] - 1 or y2 > size[1] - 1
        score = (x2 - x1) * (y2 - y1) / (size[0] * size[1]) * track.confidence * (AT_EDGE if at_edge else 1)
        if score > BETTER * track.best.score:
            track.best = Best(self._frame.index, now, track.box, track.confidence, score)
            self.improved[track.id] = track.box
        foot = (now, *points["bottom"])
        if not track.path or math.dist(foot[1:], track.path[-1][1:]) > OFF_PATH / 2 * diagonal:
            track.path.append(foot)
            if len(track.path) > STORED:
                track.path = simplified(track.path, OFF_PATH * diagonal, STORED // 2)

    def _rest(self, track: _Track, centre: Point, reach: float) -> None:
        """Find out whether the object stands still."""
        now, options = self._now, self._options
        track.away = track.away + 1 if math.dist(centre, track.still_at) > reach else 0
        if track.count == 1 or track.away > 1:
            if track.state == "stationary":
                track.rested += now - track.since
                track.changes.append(Change("active"))
            track.state, track.still_at, track.since, track.away = "active", centre, now, 0
        elif track.state == "active" and now - track.since >= options.stationary:
            track.state, track.checked = "stationary", now
            track.changes.append(Change("stationary"))
        elif track.state == "stationary" and options.recheck and now - track.checked >= options.recheck:
            track.checked = now
            track.changes.append(Change("recheck"))

    def _report(self, track: _Track) -> list[Event]:
        """The event of a track that has been seen, if there is one."""
        if track.reported is None:
            return [self._event("new", track)] if track.count > 1 and track.sure else []
        last, best = track.reported
        if not track.changes and track.best is not best and self._now - last >= self._options.better:
            track.changes.append(Change("better"))
        return [self._event("update", track)] if track.changes else []

    def _end(self, track: _Track, why: str) -> list[Event]:
        del self._tracks[track.id]
        track.changes.append(Change(why))
        return [self._event("end", track)] if track.reported else []

    def _event(self, kind: Literal["new", "update", "end"], track: _Track) -> Event:
        assert self._frame is not None
        changes, track.changes, track.reported = tuple(track.changes), [], (self._now, track.best)
        x1, _, x2, y2 = track.box
        step = (track.last, (x1 + x2) / 2, y2)
        track.path = simplified([*track.path, step], OFF_PATH * _diagonal(track.box), MOST)
        who = self._frame.source_id, track.id, track.class_id, self._names.get(track.class_id, str(track.class_id))
        what = self._frame.index, self._now, changes, track.box, track.confidence, track.first, track.last
        rested = track.rested + (track.last - track.since if track.state == "stationary" else 0.0)
        been = tuple(track.path), tuple(track.visits), tuple(track.crossings), track.jumps
        picture = track.thumbnail if kind == "end" else None
        return Event(*(kind, *who, *what, track.state, rested, track.best, *been, picture))


def simplified(path: Sequence[Step], tolerance: float, most: int) -> list[Step]:
    """The points of a path that lie more than the tolerance from where straight steps between the others are at their
    time (Douglas and Peucker, 1973), the furthest first and at most `most`."""
    points, kept, spans = np.array(path), {0, len(path) - 1}, list[tuple[float, int, int, int]]()

    def divide(first: int, last: int) -> None:
        if last - first > 1:
            begin, end, between = points[first], points[last], points[first + 1 : last]
            share = (between[:, :1] - begin[0]) / max(end[0] - begin[0], 1e-9)
            off = np.hypot(*(between[:, 1:] - begin[1:] - share * (end[1:] - begin[1:])).T)
            worst = int(off.argmax())
            if off[worst] > tolerance:
                heapq.heappush(spans, (-float(off[worst]), first, first + 1 + worst, last))

    divide(0, len(path) - 1)
    while spans and len(kept) < most:
        _, first, middle, last = heapq.heappop(spans)
        kept.add(middle)
        divide(first, middle)
        divide(middle, last)
    return [path[number] for number in sorted(kept)]


def _diagonal(box: Box) -> float:
    return math.hypot(box[2] - box[0], box[3] - box[1])
