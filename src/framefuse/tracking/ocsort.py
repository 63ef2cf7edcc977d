"""OC-SORT: what was observed counts more than what was predicted (Cao et al., 2023, arXiv:2203.14360).

The steps of ByteTrack, with three additions:

- momentum: a box is worth more to a track if it lies in the direction in which the track has moved (OCM);
- recovery: tracks that are left are compared with boxes by where they were last seen (OCR);
- re-update: when a track is found again, its filter runs again from where it was lost, along a straight line to where
  it was found, as if it had been seen all the time (ORU).
"""

from __future__ import annotations

from framefuse.kernels.tracking.call import ALL_ROWS
from framefuse.tracking.bytetrack import ByteTrack


class OCSort(ByteTrack):
    """See `Tracker`."""

    rows = ALL_ROWS
