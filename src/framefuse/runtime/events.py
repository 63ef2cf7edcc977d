"""Events in a run: a `Watch` for each source, between the tracker and the sinks, in the thread that writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from framefuse.config import Settings
from framefuse.models.card import Card
from framefuse.prediction import Event
from framefuse.runtime.choices import class_number
from framefuse.runtime.program import FrameResult
from framefuse.runtime.tracking import seconds_of
from framefuse.sinks import Sink, open_sink
from framefuse.sources import SourceInfo
from framefuse.tracking.events import EventOptions, Watch
from framefuse.tracking.tally import EventFacts, Tally
from framefuse.tracking.zones import Places, load_places


def events_for(settings: Settings, card: Card, info_of: Callable[[str], SourceInfo]) -> Events | None:
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
    """

    def __init__(self, places: Places, settings: Settings, info_of: Callable[[str], SourceInfo]) -> None:
        self._places, self._info_of = places, info_of
        self._options = EventOptions(settings.stationary, settings.recheck, settings.track_buffer, least=settings.conf)
        self._thumbnails = settings.save_events and settings.thumbnails
        self._watches: dict[str, Watch] = {}
        self._rest: dict[str, list[Event]] = {}
        self._notes: dict[str, None] = {}
        self._tally = Tally(places)
        self.ended: list[Event] = []

    @property
    def notes(self) -> list[str]:
        """What was unusual."""
        return list(self._notes)

    def facts(self) -> EventFacts:
        """What the events so far add up to."""
        return self._tally.facts()

    def sink(self) -> Sink:
        """A sink that writes the events of one source."""
        return open_sink("events", needs_frame=self._thumbnails, rest=self._take_rest, saved=self._tally.saved)

    def follow(
        self, results: Iterable[FrameResult], reader_of: Callable[[str], int], stopped: Callable[[], bool]
    ) -> Iterator[FrameResult]:
        """The results with their events. `reader_of` and `stopped` are those of `stages.write`."""
        from framefuse.sinks.canvas import FrameConverter
        from framefuse.sinks.events import thumbnail

        converter, previous, why = FrameConverter(), dict[int, str](), "stopped"
        try:
            for found in results:
                result, info = found.result, self._info_of(found.result.frame.source_id)
                key = info.uri if info.kind == "images" else result.frame.source_id
                reader = reader_of(result.frame.source_id)
                if previous.setdefault(reader, key) != key:
                    self._end(previous[reader], "source ended")
                    previous[reader] = key
                watch = self._watches.setdefault(key, Watch(self._places, self._options))
                seen = result.detections if found.tracked is None else found.tracked
                events = watch.update(seen, result.frame, seconds_of(result.frame, info))
                if result.frame.seconds is None:
                    self._notes[f"{key}: frames have no time, so events count them as equally far apart"] = None
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

    def _take_rest(self, key: str) -> list[Event]:
        self._end(key, "stopped")
        return self._rest.pop(key, [])

    def _end(self, key: str, why: str) -> None:
        """End the tracks of a source; nothing if that has been done."""
        if (watch := self._watches.pop(key, None)) is not None:
            events = watch.end(why)
            self._count(key, watch, events)
            self._rest[key] = events
            self.ended += [replace(event, thumbnail=None) for event in events]

    def _count(self, key: str, watch: Watch, events: list[Event]) -> None:
        for event in events:
            self._tally.add(event, watch.size, watch.places)
        for note in watch.notes:
            self._notes[f"{key}: {note}"] = None
