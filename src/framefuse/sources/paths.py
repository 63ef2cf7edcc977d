"""Paths, folders and globs: which files they name, and which reader each file gets."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from framefuse.common.names import nearby
from framefuse.common.redact import redact_source
from framefuse.errors import SourceError
from framefuse.sources.chain import Opener, chain
from framefuse.sources.source import IMAGE_FORMATS, Source, SourceOptions

IMAGE_SUFFIXES = frozenset(suffix for suffixes in IMAGE_FORMATS.values() for suffix in suffixes)
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".m2ts", ".mts", ".mpg", ".mpeg", ".m2v", ".vob", ".wmv"}
    | {".asf", ".flv", ".f4v", ".ogv", ".3gp", ".3g2", ".mxf", ".y4m", ".ivf", ".h264", ".264", ".h265", ".265"}
    | {".hevc", ".av1", ".obu", ".mjpeg", ".mjpg", ".dv", ".nut"}
)
"""Suffixes that folders and globs are searched for. A file named directly is read whatever its suffix."""


class PathList(list[str]):
    """Files of one folder or glob: unlike those of another list, images that follow one another are one source."""

    rest = False
    """Whether others are done already, so that it is no error if none of these can be read."""


def find(text: str) -> list[str]:
    """The files that a path, folder or glob names.

    Raises:
        SourceError: no such file, or it cannot be read.
    """
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
        raise SourceError(f"no such file: {redact_source(text)}", remedy=_suggestion(text, path))
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
    """The videos of a folder or glob; the path itself if it is a file, or if there are images too.

    Raises:
        SourceError: no such file, or it cannot be read.
    """
    paths = find(text)
    return [text] if any(is_image_path(path) for path in paths) else paths


def is_image_path(path: str) -> bool:
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


def _suggestion(text: str, path: Path) -> str:
    if redact_source(path) != str(path):
        return "write an address as scheme://host:port/path, with any login (name, colon, password, @) before the host"
    if "://" in text:
        return "a Pipeline reads addresses; a Model reads files, arrays and frames"
    return nearby(path, IMAGE_SUFFIXES | VIDEO_SUFFIXES)
