"""synthetic://: frames of the synthetic world as a decoder delivers them, 4:2:0 planes tagged BT.709 limited."""

from __future__ import annotations

import math
import threading
from typing import Any

import av

from framefuse.sources.ffmpeg import LIMITED, wrap
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions
from framefuse.world import World

BT709 = 1
"""ITU-T H.273, MatrixCoefficients."""


def open_synthetic(uri: str, options: SourceOptions) -> PullSource:
    """Open a synthetic world. `start` and `vid_stride` cost nothing, as no frame depends on an earlier one.

    Raises:
        UsageError: the address has an unknown scene or key, or a wrong value.
    """
    world = World.parse(uri)
    start, end = options.span
    first = math.ceil(start * world.fps)
    last = world.frames if end is None else min(world.frames, math.ceil(end * world.fps))
    numbers = range(first, last, options.vid_stride)
    info = SourceInfo(uri, "synthetic", *world.size, world.fps, len(numbers), synthetic=True)
    info.notes.append(f"synthetic world, version {world.version}")

    def frames(closed: threading.Event) -> Frames:
        for number in numbers:
            av_frame, index = to_video(world[number].image), number - first
            yield wrap(av_frame, info, index=index, source_id=uri, pts=number, time_base=1 / world.fps)

    return PullSource(info, frames)


def to_video(image: Any) -> av.VideoFrame:
    """(h, w, 3) uint8 RGB -> yuv420p, converted to and tagged as BT.709 limited range."""
    av_frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    av_frame = av_frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
    av_frame.colorspace, av_frame.color_range = BT709, LIMITED
    return av_frame
