"""Local cameras, through Video4Linux."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from framefuse.errors import CapabilityError, SourceError, StreamError
from framefuse.sources.ffmpeg import exact, wrap
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions, note

NONBLOCK = "+4"
"""AVFMT_FLAG_NONBLOCK, which has no name among FFmpeg's options. A blocking read of a device cannot be interrupted, so
`close` would have to wait for it."""
POLL = 0.002
"""Seconds between two reads of a camera that has no new frame."""


def open_camera(camera: str, options: SourceOptions) -> PullSource:
    """Open a camera by number or device path.

    Frames carry their arrival time. Every frame is delivered: dropping late ones is up to the pipeline.

    Raises:
        SourceError: there is no such camera, or it cannot be opened.
        CapabilityError: this system has no Video4Linux.
        StreamError: while reading: the camera delivered nothing for `timeout` seconds, or was disconnected.
    """
    if not sys.platform.startswith("linux"):
        raise CapabilityError(f"cameras are read through Video4Linux, which {sys.platform} lacks")
    device = Path(camera if camera.startswith("/") else f"/dev/video{int(camera)}")
    if not device.exists():
        found = ", ".join(sorted(str(item) for item in Path("/dev").glob("video*"))) or "none"
        raise SourceError(f"no camera {device}; present: {found}", remedy="check its connection and its number")
    return open_device(str(device), "v4l2", options)


def open_device(name: str, kind: str, options: SourceOptions) -> PullSource:
    """Read a capture device of FFmpeg; `kind` is the name of its input format."""
    try:
        container: Any = av.open(name, format=kind, options={"fflags": NONBLOCK}, timeout=(options.timeout, None))
    except PermissionError:
        raise SourceError(f"no permission to open {name}", remedy="add your user to the group 'video'") from None
    except av.FFmpegError as error:
        raise SourceError(f"cannot open {name}: {error.strerror}", remedy="close the program that uses it") from error
    stream = container.streams.video[0]
    context = stream.codec_context
    info = SourceInfo(name, "camera", context.width, context.height, exact(stream.average_rate))
    if options.start is not None or options.end is not None:
        note(info, "start and end are ignored: a camera is live")

    def frames(closed: threading.Event) -> Frames:
        for index, av_frame in enumerate(_decoded_frames(container, stream, info, options.timeout, closed)):
            if index % options.vid_stride == 0:
                unit, now = exact(av_frame.time_base) or Fraction(1, 1000), time.monotonic()
                yield wrap(av_frame, info, index=index, source_id=name, pts=av_frame.pts, time_base=unit, arrival=now)

    return PullSource(info, frames, container.close)


def _decoded_frames(
    container: Any, stream: Any, info: SourceInfo, timeout: float, closed: threading.Event
) -> Iterator[Any]:
    packets = container.demux(stream)
    deadline = time.monotonic() + timeout
    while not closed.is_set():
        try:
            packet = next(packets)
            decoded = packet.decode()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StreamError(f"camera {info.uri} delivered no frame for {timeout:g} s") from None
            packets = container.demux(stream)
            closed.wait(POLL)
            continue
        except av.error.InvalidDataError:
            # The first JPEG of many webcams is truncated.
            info.drops["corrupt"] = info.drops.get("corrupt", 0) + 1
            continue
        except (StopIteration, av.FFmpegError) as error:
            raise StreamError(f"camera {info.uri} was disconnected: {error or 'end of data'}") from error
        deadline = time.monotonic() + timeout
        yield from decoded
