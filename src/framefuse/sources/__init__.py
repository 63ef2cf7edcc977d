"""Sources yield `Frame`s. A source is a passive iterator.

Only live sources have threads, one per connection, because FFmpeg's network reads cannot be interrupted.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes, urlsplit

from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.sources.paths import PathList, find, open_chain, open_paths, videos_in
from framefuse.sources.source import SCHEMES, Frames, PullSource, Source, SourceInfo, SourceOptions, is_camera, is_image

KEY_FRAMES = 250
"""Frames between key frames, at most, in common videos: to reach frames further apart, seeking decodes less."""


def open_source(source: Any, options: SourceOptions | None = None) -> Source:
    """Open a source of frames.

    Args:
        source: path, glob, folder, camera (0, "0", "/dev/video0"), rtsp:// http:// udp:// tcp:// address,
            synthetic://street?seed=7 (see `framefuse.world`), NumPy array or PIL image or iterable of them, a `Source`,
            or a list of any of these, which are read one after the other.

    Raises:
        SourceError: nothing can be read there.
        UsageError: the kind of source is unknown, the string is empty, or `options` is not a SourceOptions.
    """
    if options is None:
        options = SourceOptions()
    elif not isinstance(options, SourceOptions):
        raise UsageError(f"options is {brief(options)}", remedy="pass framefuse.SourceOptions(...)")
    if is_camera(source):
        from framefuse.sources.live import open_camera

        return open_camera(str(source), options)
    if isinstance(source, (str, Path)):
        return _open_text(source, options)
    if isinstance(getattr(source, "info", None), SourceInfo) and hasattr(source, "close"):
        return cast("Source", source)
    if isinstance(source, PathList):
        return open_paths(source, options)
    if isinstance(source, (list, tuple)) and not all(is_image(item) for item in source):
        return open_chain(source, options, open_source)
    if is_image(source) or isinstance(source, Iterable):
        from framefuse.sources.images import open_arrays

        return open_arrays(source, options)
    remedy = "pass a path, a glob, an address, a camera number, arrays, or a list of these"
    raise UsageError(f"a {type(source).__name__} is not a source of frames", remedy=remedy)


def _open_text(source: str | Path, options: SourceOptions) -> Source:
    """Open a path, glob, folder or address."""
    text = str(source)
    if not text.strip():
        raise UsageError("the source is an empty string", remedy="name a video, image, folder, camera or address")
    scheme, separator, _ = text.partition("://")
    if isinstance(source, str) and separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        if scheme.lower() == "file":
            try:
                path = os.fsdecode(unquote_to_bytes(urlsplit(text).path))
            except ValueError:
                path = ""
            if not path:
                raise UsageError(f"{brief(text)} names no file", remedy="write file:///folder/name")
            return _open_text(Path(path), options)
        return _open_address(scheme.lower(), text, options)
    return open_paths(find(text), options)


def _open_address(scheme: str, uri: str, options: SourceOptions) -> Source:
    if scheme in SCHEMES:
        return cast("Source", importlib.import_module(SCHEMES[scheme]).open_live(uri, options))
    if scheme == "synthetic":
        from framefuse.sources.images import open_synthetic

        return open_synthetic(uri, options)
    from importlib.metadata import entry_points

    plugins = {point.name: point for point in entry_points(group="framefuse.sources")}
    if scheme not in plugins:
        known = ", ".join(sorted({"file", "synthetic", *SCHEMES, *plugins}))
        raise UsageError(f"no source reads {scheme}:// addresses", remedy=f"choose one of {known}")
    return cast("Source", plugins[scheme].load()(uri, options))


def open_spread(source: Any, count: int, options: SourceOptions | None = None) -> Source:
    """Open a source that yields at most `count` frames, in order and evenly spread from its start to its end; of a live
    source or an iterator, which have no known length, the first ones. Of several videos each yields its share.

    Raises:
        SourceError, UsageError: as `open_source`.
    """
    options = options or SourceOptions()
    if len(parts := _parts(source)) > 1:
        chosen = sorted(Counter(_positions(len(parts), count)).items())
        shares, parts = iter(share for _, share in chosen), [parts[number] for number, _ in chosen]
        return open_chain(parts, options, lambda part, how: open_spread(part, next(shares), how))
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


__all__ = ["Source", "SourceInfo", "SourceOptions", "open_source", "open_spread"]
