"""Readers: how many sources of a run are read at the same time.

Cameras and live addresses are read side by side, since none of them ends. Videos of a list, a folder or a glob are
read one after the other on the CPU, where one decoder keeps the cores busy. On CUDA they are read side by side: a
decoder of the GPU gives 500 frames a second of 1080p, and a GPU has up to seven. Results of different files then come
mixed, those of each file in their order. `readers` overrules both; processes that share a GPU read fewer each
(`fleet`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from framefuse.config import Settings
from framefuse.sources import Source, SourceOptions, open_source
from framefuse.sources.chain import SharedList
from framefuse.sources.paths import videos_in
from framefuse.sources.source import SCHEMES, is_camera

READERS = 8
"""On CUDA. Eight keep the decoders of an H200 busy; with more, threads wait for each other."""


def plan(source: Any, settings: Settings) -> Any:
    """The source, as a `SharedList` where several of its videos are to be read at the same time.

    Raises:
        SourceError: a folder or glob has nothing in it.
    """
    if isinstance(source, SharedList) or is_camera(source):
        return source
    count = settings.readers or (READERS if settings.on_gpu else 1)
    if isinstance(source, (str, Path)):
        items: Sequence[Any] = [source] if "://" in str(source) or count == 1 else videos_in(str(source))
    else:
        items = source if isinstance(source, (list, tuple)) else [source]
    finite = all(isinstance(item, (str, Path)) and not _live(item) for item in items)
    if min(count, len(items)) < 2 or not finite or len(set(map(str, items))) < len(items):
        return source
    return SharedList(iter(items), open_source, min(count, len(items)))


def count(source: Any) -> int:
    """Sources that will be read at the same time, at most."""
    if isinstance(source, SharedList):
        return source.readers
    return len(source) if _all_live(source) else 1


def open_sources(source: Any, settings: Settings, batch: int) -> list[Source]:
    """What a run reads at the same time: the readers of a shared list, a list of cameras and addresses, or one source.

    Raises:
        SourceError: nothing can be read there.
        UsageError: the kind of source is not known.
    """
    options = SourceOptions(
        vid_stride=settings.vid_stride,
        start=settings.start,
        end=settings.end,
        decode_threads=settings.decode_threads,
        low_latency=settings.low_latency,
        max_age=settings.max_age,
        timeout=settings.timeout,
        reconnect=settings.reconnect,
        device="cuda" if settings.on_gpu else "cpu",
        held=1 if batch == 1 else batch * 3 + settings.queue,  # in the batcher, two in flight
    )
    if isinstance(source, SharedList):
        return source.open(options)
    if not _all_live(source):
        return [open_source(source, options)]
    with ExitStack() as opened:
        sources = []
        for item in source:
            sources.append(open_source(item, options))
            opened.callback(sources[-1].close)
        opened.pop_all()
    return sources


def _all_live(source: Any) -> bool:
    return isinstance(source, (list, tuple)) and len(source) > 1 and all(map(_live, source))


def _live(item: Any) -> bool:
    """Whether this never ends by itself, as far as its name tells: a plug-in's address counts as such."""
    scheme, separator, _ = str(item).partition("://")
    return is_camera(item) or (bool(separator) and (scheme.lower() in SCHEMES or scheme not in ("file", "synthetic")))
