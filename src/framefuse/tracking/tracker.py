"""Tracker: what gives the objects of successive frames of one source their identities, and its options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from framefuse.errors import UsageError
from framefuse.prediction import Detections

NO_TRACK = -1
"""`tracker_id` of an object without a track: too weak, too new, or not a box."""


@dataclass(frozen=True)
class TrackerOptions:
    """When a box continues a track, begins one, and how long a track is remembered.

    Raises:
        UsageError: a value is out of its range.
    """

    high: float = 0.4
    """Boxes with this confidence or more are matched first."""
    low: float = 0.1
    """Boxes with this confidence or more can continue a track."""
    new: float = 0.5
    """Boxes with this confidence or more, matched with no track, begin a new one."""
    buffer: float = 1.0
    """Seconds for which a lost track is remembered."""
    match: float = 0.2
    """Overlap (IoU) that a box needs at least with the predicted box of its track."""
    confirm: int = 2
    """Frames in a row in which a new track must be found before it counts; in the first frame it counts at once."""
    agnostic: bool = False
    """Whether a box may continue a track of another class."""

    def __post_init__(self) -> None:
        for name in ("high", "low", "new", "match"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} of a tracker is {getattr(self, name)}", remedy="use a number from 0 to 1")
        if not 0 <= self.buffer < math.inf or not self.confirm >= 1:
            raise UsageError(
                f"buffer and confirm of a tracker are {self.buffer} and {self.confirm}",
                remedy="use seconds from 0 on, and a number of frames from 1 on",
            )


class Tracker(Protocol):
    """Follows the objects of one source. It has no clock: every call says its time.

    Times are presentation times in seconds and may be any distance apart. One that stands still is another look at the
    same moment. One that goes back, or that comes more than `buffer` and a second after the last, starts anew, as
    `reset`. One that is None or not finite counts as one step after the last, as long as the step before it.
    """

    @property
    def count(self) -> int:
        """Tracks that have got an id so far."""
        ...

    def update(self, detections: Detections, seconds: float | None) -> Detections:
        """The same rows in the same order with `tracker_id`, (n,) int64; nothing else is changed or copied.

        Rows that are not boxes (NaN, infinite, no area) get NO_TRACK, as do rows below `low`.
        """
        ...

    def predict(self, seconds: float) -> Detections:
        """Where the tracks that the last frame showed are at a later time, with ids and the confidence, by which they
        are ordered, of that frame. Boxes may reach beyond the frame."""
        ...

    def reset(self) -> None:
        """Forget all tracks. Ids go on, so that none repeats."""
        ...
