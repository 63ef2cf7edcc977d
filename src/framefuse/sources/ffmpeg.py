"""FFmpeg through PyAV: a file as a container, its packets to decoded frames to `Frame`; and the decoder interface."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import av
from av.bitstream import BitStreamFilterContext
from av.stream import Disposition

from framefuse.errors import DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.sources.planes import wrap
from framefuse.sources.source import SourceInfo, SourceOptions

TAGS: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""Keyword arguments of `av.open` for files whose tags are not UTF-8, which PyAV 19 reads without."""
NOT_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails
PACKET = 188
"""Bytes of a transport packet (ISO/IEC 13818-1, 2.4.3)."""
SYNC = 0x47
PROGRAM_TABLE = 0
"""PID of the program association table, from which a reader can start."""
SEARCHED = 1 << 20
"""Bytes in which a table is searched for. Broadcasts repeat it at least every half second."""
FILTERS = {name: f"{name}_mp4toannexb" for name in ("h264", "hevc", "vvc")} | {
    "mpeg2video": "mpeg2_metadata",
    "mpeg4": "mpeg4_unpack_bframes",
    "av1": "av1_metadata",
}
"""Codec -> an FFmpeg filter that refuses every other codec."""
STARTS = {
    "h264": rb"\x00\x00\x01[\x09\x27\x67]",  # access unit delimiter or sequence parameter set (ITU-T H.264, table 7-1)
    "hevc": rb"\x00\x00\x01[\x40\x46]\x01",  # the same or a video parameter set (ITU-T H.265, table 7-1)
    "mpeg2video": rb"\x00\x00\x01\xb3",  # sequence header (ISO/IEC 13818-2, table 6-1)
}
"""Codec -> how a sequence begins; no packet of another codec contains these bytes."""


class Decoder(Protocol):
    """Decodes the packets of one stream.

    A decoded frame has pts, time_base, width, height and is_corrupt, as PyAV's frames have.
    """

    codec: str
    """FFmpeg's name of the codec that it decodes now."""

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        """Decoded frames that are ready after this packet; an empty packet flushes the decoder.

        Raises:
            EOFError: there are no more.
            av.FFmpegError: the packet is damaged.
        """

    def restart(self) -> None:
        """The next packet does not follow the last one."""

    def wrap(self, decoded: Any, info: SourceInfo, **facts: Any) -> Frame:
        """A decoded frame as a `Frame`; `facts` are the keyword arguments of `planes.wrap`."""


class HostDecoder:
    """FFmpeg on the CPU. It follows an MPEG-TS that changes its codec, which PyAV does not.

    Args:
        on_change: called with the old and the new codec.
    """

    def __init__(self, stream: Any, options: SourceOptions, on_change: Callable[[str, str], None]) -> None:
        self.codec: str = stream.codec_context.name
        self._stream, self._context, self._options = stream, stream.codec_context, options
        self._follows = stream.container.format.name in ("mpegts", "hls")
        self._on_change = on_change
        self._configure()

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        if self._follows and packet.size and (codec := changed_codec(self._stream, self.codec)):
            return self._change(packet, codec)
        decoded: Iterable[Any] = self._context.decode(packet if packet.size else None)
        return decoded

    def _change(self, packet: Any, codec: str) -> list[Any]:
        """The last frames of the old codec, and the first of the new one; FFmpeg's parser joins these in one packet."""
        old, new = _split(packet, codec)
        frames: list[Any] = []
        self._on_change(self.codec, codec)
        before, self.codec, self._context = self._context, codec, av.CodecContext.create(codec, "r")
        self._configure()
        for context, part in ((before, old), (before, None), (self._context, new)):
            with suppress(av.FFmpegError, EOFError):
                frames += context.decode(part) if part is None or part.size else []
        return frames

    def _configure(self) -> None:
        """Set the threads of the decoder. Frame threads delay a frame each, so low latency uses slice threads only."""
        context, low_latency = self._context, self._options.low_latency
        context.options = size_limit(self._options.max_pixels)
        context.thread_count = self._options.decode_threads
        context.thread_type = "SLICE" if low_latency else "AUTO"
        if low_latency:
            context.flags |= av.codec.context.Flags.low_delay

    def restart(self) -> None:
        """PyAV flushes the decoder when it seeks."""

    def wrap(self, decoded: Any, info: SourceInfo, **facts: Any) -> Frame:
        return wrap(decoded, info, **facts)


def size_limit(max_pixels: int) -> dict[str, str]:
    """The option by which FFmpeg refuses larger frames before it allocates them, also while it probes a file."""
    return {"max_pixels": str(min(max_pixels, 2**31 - 1))}


def _split(packet: Any, codec: str) -> tuple[Any, Any]:
    """What a packet holds before the first sequence of a codec, and from there on; only the first has times."""
    data = bytes(packet)
    start = re.search(STARTS[codec], data) if codec in STARTS else None
    at = start.start() if start else len(data)
    old, new = _packet(data[:at]), _packet(data[at:])
    timed = old if at else new
    timed.pts, timed.dts = packet.pts, packet.dts
    old.time_base = new.time_base = packet.time_base
    return old, new


def _packet(data: bytes) -> Any:
    """A packet with a copy of the data: to free Python's memory, a thread of the decoder needs the GIL, which PyAV may
    hold while it waits for that thread."""
    packet = av.Packet(len(data))
    packet.update(data)
    return packet


def changed_codec(stream: Any, codec: str) -> str | None:
    """The codec that a stream has changed to; None: it still is `codec`, or an unknown one.

    An MPEG-TS may change it at any time. FFmpeg's demuxer notices, but PyAV shows only the codec of the beginning. A
    filter for one codec refuses all others, which takes a few microseconds.
    """
    if codec not in FILTERS or _has_codec(stream, codec):
        return None
    return next((name for name in FILTERS if _has_codec(stream, name)), None)


def _has_codec(stream: Any, codec: str) -> bool:
    try:
        BitStreamFilterContext(FILTERS[codec], stream)
    except av.FFmpegError as error:  # any other: the codec fits, and the header of the stream is damaged or outdated
        return not isinstance(error, av.error.ArgumentError)
    return True


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
        address = f"subfile,,start,{begin},end,0,,:file:{path}" if begin else f"file:{path}"
        protocols = {"protocol_whitelist": "file,crypto,data" + (",subfile" if begin else "")}
        return av.open(address, container_options=protocols, options=size_limit(max_pixels), **TAGS)
    except InterruptedError:  # waiting for the other end of a pipe; PyAV swallows the signal's KeyboardInterrupt
        raise KeyboardInterrupt from None
    except av.FFmpegError as error:
        remedy = "the file is damaged, truncated before its index, or not a video"
        raise DecodeError(f"cannot open {path}: {error.strerror}", remedy=remedy) from error
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


def next_program_table(path: Path, position: int) -> int | None:
    """Position of the first program association table after the transport packet at `position`."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read(SEARCHED)
    for at in range(0, len(data) - 2, PACKET):
        if data[at] != SYNC:
            return None
        if (data[at + 1] & 0x1F) << 8 | data[at + 2] == PROGRAM_TABLE and at:
            return position + at
    return None
