"""Tracking and events in a run: a tracker and a `Watch` for each source, between inference and the sinks.

The model answers with every box from `track_low` on. The tracker sees all of them; what goes on are those above `conf`.
Events are made in the thread that writes.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from framefuse.common.polygons import Point
from framefuse.config import Settings
from framefuse.models.card import Card
from framefuse.prediction import Event, FrameInfo
from framefuse.runtime.choices import class_number
from framefuse.runtime.program import FrameResult
from framefuse.sinks import Sink, open_sink
from framefuse.sources import SourceInfo
from framefuse.tracking import Tracker, TrackerOptions, open_tracker
from framefuse.tracking.events import EventOptions, Watch
from framefuse.tracking.stereo import Partners, seen_once
from framefuse.tracking.tally import Tally
from framefuse.tracking.zones import Places, load_places

IDS = 1_000_000
"""Ids of each source of a run: those of the n-th, from 0, begin at 1 + n * IDS."""
MOST_NOTES = 100
"""Notes of a run, the first ones: many sources may come and go."""
RATE = 30
"""Frames per second of a source that has neither times nor a rate."""


def least_confidence(settings: Settings) -> float:
    """The confidence from which on the model's boxes are needed."""
    return min(settings.conf, settings.track_low) if settings.track else settings.conf


def seconds_of(frame: FrameInfo, rate: float) -> float:
    """The time of a frame; without one, that of its index at `rate` frames a second."""
    return frame.index / rate if (seconds := frame.seconds) is None else seconds


def rate_of(info: SourceInfo) -> float:
    """Frames per second of a source; RATE if it does not tell."""
    return float(info.fps or RATE)


def tracker_options(settings: Settings) -> TrackerOptions:
    """What the settings ask of a tracker; UsageError: one is out of its range."""
    return TrackerOptions(**{field.name: getattr(settings, f"track_{field.name}") for field in fields(TrackerOptions)})


class Tracks:
    """The trackers of a run. The results of each source come in its order; sources may alternate.

    A file, address or camera is a source; so are all images of a folder or list together. Frames without a time have
    that of their number at the source's frame rate.

    Args:
        info_of: facts of the source that a frame comes from.
        given: numbers of sources by their first files: those that they have in a job of which this run does the rest.

    Raises:
        UsageError: a setting is out of its range.
    """

    def __init__(
        self, settings: Settings, info_of: Callable[[str], SourceInfo], given: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        assert settings.track is not None
        self._name, self._info_of = settings.track, info_of
        self._options = tracker_options(settings)
        self._least = None if settings.conf <= settings.track_low else np.float32(settings.conf)
        self._sources: dict[int, tuple[SourceInfo, int]] = {}
        """The source that each tracker follows, and its connection, by the tracker's number."""
        self._trackers: dict[int, Tracker] = {}
        self._partners: defaultdict[int, Partners] = defaultdict(Partners)
        self._left = 0
        """Tracks of sources that have ended."""
        self._numbers: dict[int, int] = {}
        """Number of each source that has none of its own and has not left, by its identity."""
        self._given, self._unused = given, itertools.count(len(given))

    @property
    def count(self) -> int:
        """Tracks so far."""
        return self._left + sum(tracker.count for tracker in list(self._trackers.values()))

    def follow(self, found: FrameResult) -> FrameResult:
        """A result with ids, without the boxes that only the tracker needs."""
        result, frame, _ = found
        info = self._info_of(result.frame.source_id)
        number = self._number(info, result.frame.connection)
        tracked = self._trackers[number].update(result.detections, seconds_of(result.frame, rate_of(info)))
        if len(result.views) > 1:
            tracked = replace(tracked, pair_id=self._partners[number].link(tracked, result.views))
        shown = tracked if self._least is None else tracked[tracked.confidence > self._least]
        return FrameResult(replace(result, detections=shown), frame, tracked)

    def leave(self, info: SourceInfo) -> None:
        """Forget a source that has ended."""
        number = self._numbers.pop(id(info), None) if info.number is None else info.number
        if number is not None and (tracker := self._trackers.pop(number, None)):
            self._left += tracker.count
            del self._sources[number]
            self._partners.pop(number, None)

    def _number(self, info: SourceInfo, connection: int) -> int:
        """Number of a source's tracker. One that had another source or connection before goes on with its ids."""
        number = info.number
        if number is None:
            if id(info) not in self._numbers:
                first = info.path or next(iter(info.files), None)
                known = self._given.get(os.path.abspath(first)) if first else None
                self._numbers[id(info)] = next(self._unused) if known is None else known
            number = self._numbers[id(info)]
        if number not in self._trackers:
            self._trackers[number] = open_tracker(self._name, self._options, first_id=1 + number * IDS)
        elif self._sources[number][0] is not info or self._sources[number][1] != connection:
            self._trackers[number].reset()
        self._sources[number] = info, connection
        return number


def events_for(settings: Settings, card: Card, info_of: Callable[[str], SourceInfo]) -> "Events | None":
    """What makes the events of a run; None: nobody wants any.

    Raises:
        ConfigError, UsageError: the zones file cannot be used.
    """
    if not settings.needs_tracks:
        return None
    places = load_places(settings.zones, partial(class_number, card)) if settings.zones else Places()
    return Events(places, settings, info_of)


class Events:
    """The events of a run. The results of each source come in its order; sources may alternate.

    Attributes:
        ended: the last events of tracks that were there when their source ended, which no result carries.
        notes: what was unusual, each once, the first MOST_NOTES.
        tally: what the events so far add up to.
    """

    def __init__(self, places: Places, settings: Settings, info_of: Callable[[str], SourceInfo]) -> None:
        self._places, self._info_of = places, info_of
        self._options = EventOptions(settings.stationary, settings.recheck, settings.track_buffer, least=settings.conf)
        self._saves, self._thumbnails = settings.save_events, settings.save_events and settings.thumbnails
        self._watches: dict[str, Watch] = {}
        self._rest: dict[str, list[Event]] = {}
        self.notes: dict[str, None] = {}
        self.tally = Tally(places)
        self.ended: list[Event] = []

    @property
    def outlines(self) -> list[tuple[str, tuple[Point, ...]]]:
        """Name, and corners or ends, of each zone and line."""
        return [(place.name, place.points) for place in (*self._places.zones, *self._places.lines)]

    def sink(self) -> Sink:
        """A sink that writes the events of one source."""
        return open_sink("events", needs_frame=self._thumbnails, rest=self._take_rest, saved=self.tally.saved)

    def follow(
        self, results: Iterable[FrameResult], completed: Callable[[str], str | None], stopped: Callable[[], bool]
    ) -> Iterator[FrameResult]:
        """The results with their events. `completed` and `stopped` are those of `stages.write`."""
        from framefuse.sinks.images import FrameConverter
        from framefuse.sinks.records import thumbnail

        converter, why = FrameConverter(), "stopped"
        try:
            for found in results:
                result, info = found.result, self._info_of(found.result.frame.source_id)
                key = info.unit_of(result.frame.source_id)
                if (before := completed(result.frame.source_id)) is not None:
                    self._end(before, "source ended")
                watch = self._watches.setdefault(key, Watch(self._places, self._options))
                seen = result.detections if found.tracked is None else found.tracked
                if len(result.views) > 1:
                    seen = seen_once(seen, result.views)
                events = watch.update(seen, result.frame, seconds_of(result.frame, rate_of(info)))
                if result.frame.seconds is None:
                    self._note(f"{key}: frames have no time, so events count them as equally far apart")
                if self._thumbnails and found.frame is not None and watch.improved:
                    image = converter.rgb(found.frame)
                    for track, box in watch.improved.items():
                        watch.keep(track, thumbnail(image, box))
                self._count(key, watch, events)
                yield found._replace(result=replace(result, events=tuple(events)))
            why = "stopped" if stopped() else "source ended"
        finally:
            for key in list(self._watches):
                self._end(key, why)

    def leave(self, key: str) -> None:
        """A source has ended."""
        self._end(key, "source ended")

    def _take_rest(self, key: str) -> list[Event]:
        self._end(key, "stopped")
        return self._rest.pop(key, [])

    def _end(self, key: str, why: str) -> None:
        """End the tracks of a source; nothing if that has been done."""
        if (watch := self._watches.pop(key, None)) is not None:
            events = watch.end(why)
            self._count(key, watch, events)
            if self._saves:
                self._rest[key] = events
            self.ended += [replace(event, thumbnail=None) for event in events]

    def _count(self, key: str, watch: Watch, events: list[Event]) -> None:
        for event in events:
            self.tally.add(event, watch.size, watch.places)
        for note in watch.notes:
            self._note(f"{key}: {note}")

    def _note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes[text] = None
