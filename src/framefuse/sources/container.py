"""A video file as a PyAV container, and the numbers of PyAV as Python's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.stream import Disposition

from framefuse.errors import DecodeError, SourceError
from framefuse.sources.decoder import size_limit

TAGS: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""Keyword arguments of `av.open` for files whose tags are not UTF-8, which PyAV 19 reads without."""
NOT_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails


def open_container(path: Path, max_pixels: int, begin: int = 0) -> Any:
    """Open the file, or what follows byte `begin`, as a PyAV container.

    Raises:
        SourceError: with the system's reason.
        DecodeError: with FFmpeg's reason.
    """
    try:
        if not path.exists() or path.is_file():
            with path.open("rb") as file:
                if not file.read(1):
                    raise DecodeError(f"{path} is empty (0 bytes)", remedy="record or copy it again")
        # The prefix keeps a file name from being read as another protocol; the list keeps playlists off the network.
        return av.open(
            f"subfile,,start,{begin},end,0,,:file:{path}" if begin else f"file:{path}",
            container_options={"protocol_whitelist": "file,crypto,data" + (",subfile" if begin else "")},
            options=size_limit(max_pixels),
            **TAGS,
        )
    except InterruptedError:  # waiting for the other end of a pipe; PyAV swallows the signal's KeyboardInterrupt
        raise KeyboardInterrupt from None
    except av.FFmpegError as error:
        raise DecodeError(
            f"cannot open {path}: {error.strerror}",
            remedy="the file is damaged, truncated before its index, or not a video",
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy="check the path and permissions") from error


def exact(value: Any) -> Fraction | None:
    """A PyAV rational (Fraction, or since PyAV 19 AVRational) as a Fraction; None if unknown (None or 0)."""
    return Fraction(value.numerator, value.denominator) if value else None


def demuxed(container: Any, *streams: Any) -> Iterator[Any]:
    """The packets of some streams, then an empty one of each, which flushes its decoder.

    Where streams appear after the container was opened, PyAV flushes those too, and fails as it does not know them.
    """
    with suppress(IndexError):
        yield from container.demux(*streams)
