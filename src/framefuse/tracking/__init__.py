"""Tracking: identities for the objects of successive frames. Policy only: no thread, no clock, no pixels."""

from framefuse.common.names import nearest
from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.tracking.bytetrack import NO_TRACK, ByteTrack, OCSort, Tracker, TrackerOptions

__all__ = ["NO_TRACK", "TRACKERS", "ByteTrack", "OCSort", "Tracker", "TrackerOptions", "open_tracker"]

TRACKERS: dict[str, type[Tracker]] = {"bytetrack": ByteTrack, "ocsort": OCSort}
"""Trackers by name."""


def open_tracker(name: str = "bytetrack", options: TrackerOptions | None = None, *, first_id: int = 1) -> Tracker:
    """A tracker for one source, which numbers its tracks from `first_id` on. UsageError: there is no such tracker."""
    if name not in TRACKERS:
        near = nearest(str(name), TRACKERS)
        remedy = f"did you mean {near[0]}?" if near else f"choose {' or '.join(TRACKERS)}"
        raise UsageError(f"there is no tracker {brief(name)}", remedy=remedy)
    return TRACKERS[name](options or TrackerOptions(), first_id=first_id)
