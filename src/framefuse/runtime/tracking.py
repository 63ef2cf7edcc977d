"""Tracking in a run: a tracker for each source, between inference and the sinks.

The model answers with every box from `track_low` on. The tracker sees all of them; what goes on are those above `conf`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from framefuse.config import Settings
from framefuse.prediction import FrameInfo
from framefuse.runtime.program import FrameResult
from framefuse.sources import SourceInfo
from framefuse.tracking import Tracker, TrackerOptions, open_tracker
from framefuse.tracking.stereo import Partners

IDS = 1_000_000
"""Ids of each source of a run: those of the n-th, from 0, begin at 1 + n * IDS."""
RATE = 30
"""Frames per second of a source that has neither times nor a rate."""


def least_confidence(settings: Settings) -> float:
    """The confidence from which on the model's boxes are needed."""
    return min(settings.conf, settings.track_low) if settings.track else settings.conf


def tracks_for(settings: Settings, info_of: Callable[[str], SourceInfo]) -> Tracks | None:
    """What follows the objects of a run; None: nothing does.

    Args:
        info_of: facts of the source that a frame comes from.

    Raises:
        UsageError: a setting is out of its range.
    """
    return Tracks(settings, info_of) if settings.track else None


def seconds_of(frame: FrameInfo, info: SourceInfo) -> float:
    """The time of a frame; without one, by the frame rate of its source."""
    return frame.index / float(info.fps or RATE) if frame.seconds is None else frame.seconds


class Tracks:
    """The trackers of a run. The results of each source come in its order; sources may alternate.

    A file, address or camera is a source; so are all images of a folder or list together. Frames without a time have
    that of their number at the source's frame rate.
    """

    def __init__(self, settings: Settings, info_of: Callable[[str], SourceInfo]) -> None:
        assert settings.track is not None
        names = "high", "low", "new", "buffer", "match", "confirm", "agnostic"
        self._name, self._info_of = settings.track, info_of
        self._options = TrackerOptions(**{name: getattr(settings, f"track_{name}") for name in names})
        self._least = None if settings.conf <= settings.track_low else np.float32(settings.conf)
        self._sources: dict[int, tuple[SourceInfo, int]] = {}
        """The source that each tracker follows, and its connection, by the tracker's number."""
        self._trackers: dict[int, Tracker] = {}
        self._partners: defaultdict[int, Partners] = defaultdict(Partners)
        self._numbers: dict[int, int] = {}
        """Number of each source that has none of its own, by its identity."""

    @property
    def count(self) -> int:
        """Tracks so far."""
        return sum(tracker.count for tracker in self._trackers.values())

    def follow(self, found: FrameResult) -> FrameResult:
        """A result with ids, without the boxes that only the tracker needs."""
        result, frame, _ = found
        info = self._info_of(result.frame.source_id)
        number = self._number(info, result.frame.connection)
        tracked = self._trackers[number].update(result.detections, seconds_of(result.frame, info))
        if len(result.views) > 1:
            tracked = replace(tracked, pair_id=self._partners[number].link(tracked, result.views))
        shown = tracked if self._least is None else tracked[tracked.confidence > self._least]
        return FrameResult(replace(result, detections=shown), frame, tracked)

    def _number(self, info: SourceInfo, connection: int) -> int:
        """Number of a source's tracker. One that had another source or connection before goes on with its ids."""
        number = info.number
        if number is None:
            number = self._numbers.setdefault(id(info), len(self._numbers))
        if number not in self._trackers:
            self._trackers[number] = open_tracker(self._name, self._options, first_id=1 + number * IDS)
        elif self._sources[number][0] is not info or self._sources[number][1] != connection:
            self._trackers[number].reset()
        self._sources[number] = info, connection
        return number
