"""Frames spread evenly over a whole source, for tools that look at a few of many."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

from framefuse.sources import open_source
from framefuse.sources.arrays import is_image
from framefuse.sources.chain import open_chain
from framefuse.sources.paths import videos_in
from framefuse.sources.pull import Frames, PullSource
from framefuse.sources.source import Source, SourceOptions, is_camera

KEY_FRAMES = 250
"""Frames between key frames, at most, in common videos: to reach frames further apart, seeking decodes less."""


def open_spread(source: Any, count: int, options: SourceOptions | None = None) -> Source:
    """Open a source that yields at most `count` frames, in order and evenly spread from its start to its end; of a live
    source or an iterator, which have no known length, the first ones. Of several videos each yields its share.

    Raises:
        SourceError, UsageError: as `open_source`.
    """
    options = options or SourceOptions()
    if len(parts := _parts(source)) > 1:
        chosen = sorted(Counter(_positions(len(parts), count)).items())
        shares = iter(share for _, share in chosen)
        return open_chain(
            [parts[number] for number, _ in chosen], options, lambda part, how: open_spread(part, next(shares), how)
        )
    opened = open_source(source, options)
    again = isinstance(source, str | Path | list | tuple) and not opened.info.live
    if again and opened.info.frames is None:
        opened.info.frames = sum(1 for _ in open_source(source, replace(options, device="cpu")))
    total = opened.info.frames
    info = replace(opened.info, frames=count if total is None else min(count, total))
    numbers: Sequence[int] = range(count) if total is None else _positions(total, min(count, total))
    starts: Sequence[float] = ()
    if again and total and info.fps and (info.kind == "synthetic" or total > KEY_FRAMES * count):
        opened.close()
        starts = [float(options.span[0] + max(Fraction(0), number - Fraction(1, 2)) / info.fps) for number in numbers]
    elif again and total and (step := total // (4 * count)) > 1:
        opened.close()
        opened = open_source(source, replace(options, vid_stride=step))
        numbers = [round(number / step) for number in numbers]

    def frames(closed: threading.Event) -> Frames:
        nonlocal opened
        for start in starts:
            if closed.is_set():
                return
            opened = open_source(source, replace(options, start=start))
            yield from islice(opened, 1)
            opened.close()
        wanted = set(numbers)
        for number, frame in enumerate(() if starts else islice(opened, max(wanted, default=-1) + 1)):
            if number in wanted:
                yield frame
            elif frame.lease is not None:
                frame.lease.release()

    return PullSource(info, frames, lambda: opened.close(), lambda: opened.close())


def _positions(total: int, count: int) -> Sequence[int]:
    """`count` of the numbers 0..total-1, evenly spread."""
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def _parts(source: Any) -> Sequence[Any]:
    if isinstance(source, list | tuple) and not all(map(is_image, source)):
        return source
    if isinstance(source, str | Path) and str(source).strip() and "://" not in str(source) and not is_camera(source):
        return videos_in(str(source))
    return [source]
