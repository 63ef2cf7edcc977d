"""synthetic://: frames of the synthetic world, as 4:2:0 planes tagged BT.709 limited, as a decoder would give them."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import Any

import av

from framefuse.sources.planes import LIMITED, wrap
from framefuse.sources.pull import Frames, PullSource
from framefuse.sources.source import SourceInfo, SourceOptions
from framefuse.world import World

BT709 = 1
"""ITU-T H.273, MatrixCoefficients."""


def open_synthetic(uri: str, options: SourceOptions) -> PullSource:
    """Frames of a world; `start` and `vid_stride` cost nothing, as no frame needs an earlier one.

    Raises:
        UsageError: the address has an unknown scene or key, or a wrong value.
    """
    world = World.parse(uri)
    start, end = options.span
    first = math.ceil(start * world.fps)
    last = world.frames if end is None else min(world.frames, math.ceil(end * world.fps))
    numbers = range(first, last, options.vid_stride)
    info = SourceInfo(uri, "synthetic", *world.size, world.fps, len(numbers))
    info.notes.append(f"synthetic world, version {world.version}")
    return PullSource(info, lambda closed: _frames(world, info, numbers, closed))


def _frames(world: World, info: SourceInfo, numbers: range, closed: threading.Event) -> Frames:
    for number in numbers:
        if closed.is_set():
            return
        picture = to_video(world[number].image)
        index = number - numbers.start
        yield wrap(picture, info, index=index, source_id=info.uri, pts=number, time_base=Fraction(1, 1) / world.fps)


def to_video(picture: Any) -> av.VideoFrame:
    """(h, w, 3) uint8 RGB -> yuv420p, BT.709 limited and tagged so."""
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
    frame.colorspace, frame.color_range = BT709, LIMITED
    return frame
