"""Sources yield `Frame`s: passive iterators. Here: what a path, folder, glob or address opens, and lists of these.

Only live sources have threads, one per connection, because FFmpeg's network reads cannot be interrupted.
"""

import glob
import itertools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes, urlsplit

import numpy as np

from framefuse.common.names import nearby
from framefuse.common.redact import brief, redact, redact_source
from framefuse.common.text import counted
from framefuse.errors import EngineError, FramefuseError, SourceError, UsageError
from framefuse.sources.source import FORMATS, SCHEMES, Frames, PullSource, Source, SourceInfo, SourceOptions, is_image

KEY_FRAMES = 250
"""Frames between key frames, at most, in common videos: to reach frames further apart, seeking decodes less."""
Opener = tuple[str, Callable[[], Source]]
"""Name of a source, and the function that opens it."""
IMAGE_SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".m2ts", ".mts", ".mpg", ".mpeg", ".m2v", ".vob", ".wmv"}
    | {".asf", ".flv", ".f4v", ".ogv", ".3gp", ".3g2", ".mxf", ".y4m", ".ivf", ".h264", ".264", ".h265", ".265"}
    | {".hevc", ".av1", ".obu", ".mjpeg", ".mjpg", ".dv", ".nut"}
)
"""Suffixes that folders and globs are searched for. A file named directly is read whatever its suffix."""


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
        return open_chain(source, options)
    if is_image(source) or isinstance(source, Iterable):
        from framefuse.sources.images import open_arrays

        return open_arrays(source, options)
    remedy = "pass a path, a glob, an address, a camera number, arrays, or a list of these"
    raise UsageError(f"{brief(source)} is not a source of frames", remedy=remedy)


def _open_text(source: str | Path, options: SourceOptions) -> Source:
    """Open a path, glob, folder or address."""
    text = str(source)
    if not text.strip():
        raise UsageError("the source is an empty string", remedy="name a video, image, folder, camera or address")
    scheme, separator, _ = text.partition("://")
    if isinstance(source, str) and separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return _open_address(scheme.lower(), text, options)
    return open_paths(find(text), options)


def _open_address(scheme: str, uri: str, options: SourceOptions) -> Source:
    if scheme == "file":
        try:
            path = os.fsdecode(unquote_to_bytes(urlsplit(uri).path))
        except ValueError:
            path = ""
        if not path:
            raise UsageError(f"{brief(uri)} names no file", remedy="write file:///folder/name")
        return _open_text(Path(path), options)
    if scheme in SCHEMES:
        from framefuse.sources.live import open_live

        return open_live(uri, options)
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
    parts: Sequence[Any] = [source]
    if isinstance(source, list | tuple) and not all(map(is_image, source)):
        parts = source
    elif isinstance(source, str | Path) and str(source).strip() and "://" not in str(source) and not is_camera(source):
        parts = videos_in(str(source))
    if len(parts) > 1:
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
            yield from itertools.islice(opened, 1)
            opened.close()
        wanted = set(numbers)
        for number, frame in enumerate(() if starts else itertools.islice(opened, max(wanted, default=-1) + 1)):
            if number in wanted:
                yield frame
            elif frame.lease is not None:
                frame.lease.release()

    return PullSource(info, frames, lambda: opened.close(), lambda: opened.close())


def _positions(total: int, count: int) -> Sequence[int]:
    """`count` of the numbers 0..total-1, evenly spread."""
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def is_camera(source: Any) -> bool:
    """Whether this names a camera: 0, "0" or "/dev/video0". A file named 0 is "./0"."""
    if isinstance(source, (int, np.integer)):
        return not isinstance(source, bool) and abs(int(source)) < 10**9
    return isinstance(source, str) and re.fullmatch(r"(/dev/video)?[0-9]{1,9}", source) is not None


def endless(source: Any) -> bool:
    """Whether this names a camera or the address of a stream, which never ends."""
    return is_camera(source) or (isinstance(source, str) and source.partition("://")[0].lower() in SCHEMES)


class PathList(list[str]):
    """Files of one folder or glob: unlike those of another list, images that follow one another are one source."""

    rest = False
    """Whether others are done already, so that it is no error if none of these can be read."""


def find(text: str) -> list[str]:
    """The files that a path, folder or glob names; SourceError: there are none, or they cannot be read."""
    path = Path(text)
    try:
        if path.is_dir():
            return _media(text, sorted_naturally(str(item) for item in path.iterdir()))
        if path.exists():
            return [text]
        # After the check for a file, whose name may contain glob characters.
        if glob.has_magic(text):
            files = (item for item in glob.iglob(text, recursive=True) if Path(item).is_file())
            return _media(text, sorted_naturally(files))
        remedy = "a Pipeline reads addresses; a Model reads files, arrays and frames"
        if redact_source(path) != str(path):
            remedy = "write an address as scheme://host:port/path, any login (name, colon, password, @) before the host"
        elif "://" not in text:
            remedy = nearby(path, IMAGE_SUFFIXES | VIDEO_SUFFIXES)
        raise SourceError(f"no such file: {redact_source(text)}", remedy=remedy)
    except (OSError, ValueError, RecursionError) as error:  # a character that no file name has, hundreds of folders
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"cannot read {redact_source(text)}: {reason}", remedy="check the path") from error


def open_paths(paths: Sequence[str], options: SourceOptions) -> Source:
    """Open files in the order given: consecutive images as one source, each video as its own.

    FFmpeg reads every file that has no image suffix.
    """
    from framefuse.sources.files import open_file
    from framefuse.sources.images import open_images

    openers: list[Opener] = []
    for image, group in itertools.groupby(paths, key=is_image_path):
        members = [Path(item) for item in group]
        if image:
            openers.append((str(members[0]), partial(open_images, members, options)))
        else:
            openers += [(str(item), partial(open_file, item, options)) for item in members]
    rest = isinstance(paths, PathList) and paths.rest
    if len(openers) == 1 and not rest:
        return openers[0][1]()
    source = chain(openers, alone=not rest)
    source.info.files = [Path(item) for item in paths]
    return source


def videos_in(text: str) -> list[str]:
    """The videos of a folder or glob; the path itself if it is a file, or if there are images too. Raises as `find`."""
    paths = find(text)
    return [text] if any(is_image_path(path) for path in paths) else paths


def is_image_path(path: str | Path) -> bool:
    return Path(path).suffix.lower() in IMAGE_SUFFIXES


def sorted_naturally(paths: Iterable[str]) -> list[str]:
    """Sort so that frame2 comes before frame10."""

    def key(path: str) -> tuple[list[str | int], str]:
        parts = re.split(r"([0-9]+)", path.casefold())
        return [int(part) if number % 2 else part for number, part in enumerate(parts)], path

    return sorted(set(paths), key=key)


def _media(text: str, paths: Sequence[str]) -> list[str]:
    """The images and videos among the paths."""
    found = [item for item in paths if Path(item).suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES]
    if not found:
        from framefuse.world.address import SCENES

        remedy = "check the pattern; an example is 'photos/*.jpg'"
        if Path(text).is_dir():
            remedy = f"to search subfolders, use a glob: '{text.rstrip('/')}/**/*'"
        elif text.partition("?")[0] in SCENES:
            remedy = f"the address of the synthetic world is synthetic://{text}"
        raise SourceError(f"no image or video in {redact_source(text)} ({len(paths)} other files)", remedy=remedy)
    return found


def open_chain(
    sources: Sequence[Any], options: SourceOptions, open_one: Callable[[Any, SourceOptions], Source] = open_source
) -> Source:
    """Open a list of sources of any kind, each with `open_one`.

    Raises:
        SourceError: none of them can be opened.
        UsageError: a camera or stream is not the last one, so later ones would never be reached.
    """
    for item in sources[:-1]:
        if endless(item):
            problem = "a list is read one source after the other, and a live source never ends"
            raise UsageError(problem, remedy="use one pipeline per camera or stream")
    if len(sources) == 1:
        return open_one(sources[0], options)
    return chain([(_name(item), partial(open_one, item, options)) for item in sources])


def _name(item: Any) -> str:
    return redact_source(item) if isinstance(item, (str, PathLike)) else type(item).__name__


def chain(openers: Sequence[Opener], *, alone: bool = True) -> PullSource:
    """Join several sources into one. Each is opened when the previous one ends; one that raises is skipped with a note.

    Frames keep the source_id of their own source; if two sources have the same one (a file named twice), the later gets
    "#2". `info` has the size and rate of the first that opens, and `info.parts` the facts of each.

    Args:
        alone: whether it is an error if none can be read.

    Raises:
        SourceError: none can be opened (immediately), or none delivered a frame (at the end).
    """
    chained = _Chain(iter(openers), counted(len(openers), "source"), [name for name, _ in openers], alone=alone)
    if chained.open_next() is None and alone:
        raise chained.nothing()
    return chained.source()


@dataclass(frozen=True)
class SharedList:
    """A work list shared by several readers of a Pipeline: each takes the next item when it has finished one, and skips
    one that cannot be read with a note."""

    items: Iterator[Any]
    """Anything that `open_source` accepts, mostly files. Other processes may take items as well."""
    readers: int
    """Maximum number of readers; there are fewer if there are fewer items."""

    def open(self, options: SourceOptions) -> list[Source]:
        """The readers. The first has opened its first item; the others open theirs on their first frame, in parallel,
        because opening takes as long as many frames. SourceError: no item can be opened, or there is none."""
        lock, items = threading.Lock(), enumerate(self.items)

        def open_numbered(item: Any, number: int) -> Source:
            source = open_source(item, options)
            source.info.number = number
            return source

        def openers() -> Iterator[Opener]:
            while True:
                with lock:
                    number, item = next(items, (0, None))
                if item is None:
                    return
                yield _name(item), partial(open_numbered, item, number)

        chains = [_Chain(openers(), f"reader {number + 1} of a list", alone=False) for number in range(self.readers)]
        if chains[0].open_next() is None:
            raise chains[0].nothing()
        return [chained.source() for chained in chains]


class _Chain:
    """The parts in order, opened lazily; `alone`: whether it is an error if they deliver no frame at all."""

    def __init__(self, openers: Iterator[Opener], name: str, files: Sequence[str] = (), *, alone: bool = True) -> None:
        self._openers, self._alone = openers, alone
        self.failures: list[str] = []
        self._current: Source | None = None
        self._info = SourceInfo(name, "unread", files=[Path(file) for file in files if "://" not in file])

    def source(self) -> PullSource:
        """The whole chain; its first part, if not yet open, is opened on the first frame."""
        return PullSource(self._info, self._frames, self._close_current, self._close_current)

    def open_next(self) -> Source | None:
        """Open the next part that can be opened; None: there is none."""
        self._current = None
        for name, opener in self._openers:
            try:
                self._current = opener()
                break
            except Exception as error:
                self._failed(name, error)
        if self._current is not None and self._info.kind == "unread":
            facts, info = self._current.info, self._info
            info.kind, info.fps, info.width, info.height = facts.kind, facts.fps, facts.width, facts.height
            info.mixed = facts.mixed or facts.kind == "images"  # later parts may differ in size
        return self._current

    def _frames(self, closed: threading.Event) -> Frames:
        delivered = 0
        if self._info.kind == "unread" and not closed.is_set():
            self.open_next()
        while (source := self._current) is not None and not closed.is_set():
            try:
                for frame in source:
                    facts = source.info.parts.get(frame.source_id, source.info)
                    facts.number = source.info.number
                    name = self._unique(frame.source_id, facts)
                    yield frame if name == frame.source_id else frame.replace_unchecked(source_id=name)
                    delivered += 1
            except Exception as error:
                source.info.error = self._failed(source.info.uri, error)
            finally:
                source.close()
                self._info.absorb(source.info, f"{source.info.uri}: ")
            if not closed.is_set():
                self.open_next()
        if self._alone and not delivered and self.failures and not closed.is_set():
            raise self.nothing()

    def _close_current(self) -> None:
        if (current := self._current) is not None:  # read once: the reader's thread may be opening the next part
            current.close()

    def _unique(self, source_id: str, facts: SourceInfo) -> str:
        name, number = source_id, 1
        while self._info.parts.setdefault(name, facts) is not facts:
            number += 1
            name = f"{source_id}#{number}"
        return name

    def _failed(self, name: str, error: Exception) -> str:
        """Note an item that cannot be read, whatever it raises; returns why."""
        if isinstance(error, EngineError):  # the GPU that decodes has failed, which is not the item's fault
            raise error
        message = error.message if isinstance(error, FramefuseError) else redact(f"{type(error).__name__}: {error}")
        self.failures.append(message)
        self._info.drop("unreadable")
        self._info.note(f"{name} skipped: {message}")
        return message

    def nothing(self) -> SourceError:
        return SourceError(f"none of {self._info.uri} could be read: {'; '.join(self.failures) or 'it is empty'}")


__all__ = ["Source", "SourceInfo", "SourceOptions", "open_source", "open_spread"]
