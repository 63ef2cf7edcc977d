"""OC-SORT: what was observed counts more than what was predicted (Cao et al., 2023, arXiv:2203.14360)."""

from __future__ import annotations

from framefuse.tracking.bytetrack import ByteTrack


class OCSort(ByteTrack):
    """See `Tracker`."""
