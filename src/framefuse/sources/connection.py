"""One connection to a live stream, read by FFmpeg through PyAV.

Why a thread
    FFmpeg looks at no flag of ours while it resolves a name, shakes hands or waits for data, and after a read that was
    cut short by a time-out its I/O context refuses to go on. So the blocking calls of a connection run in a thread that
    may be left behind: `abandon` returns at once, and the thread frees the connection when its call ends, after the
    time-out at most (name resolution: when the resolver gives up). Whoever iterates only waits, and that wait can be
    ended.

Why not `fflags=nobuffer`
    It throws away what was read to find the streams, the first key frame among it, so the first picture comes a whole
    key-frame distance later. Those few frames are kept, decoded faster than real time, and leave no lag.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import av
from av.stream import Discard

from framefuse.common.redact import redact
from framefuse.errors import FramefuseError, SourceError
from framefuse.sources.files import NOT_VIDEO, exact
from framefuse.sources.source import SCHEMES, SourceOptions

FFMPEG_OPTIONS = {
    "rtsp_transport": "tcp",
    "allowed_media_types": "video",
    "max_delay": "200000",  # RTP over UDP: microseconds to wait for a datagram that is out of order
    "tls_verify": "0",  # the default differs between FFmpeg 8 and 9, and cameras have certificates signed by nobody
    "overrun_nonfatal": "1",  # UDP: a full receive buffer costs frames, not the connection
    "fpsprobesize": "3",  # frames read to find the frame rate; FFmpeg's default of 20 delays the first picture
    "analyzeduration": "2000000",  # microseconds at most to find the streams; ends as soon as they are found
}
PATIENCE = 3.0
"""Seconds without anything from a server, after which whoever waits is told what for."""
TRANSPORTS = ("tcp", "udp", "udp_multicast", "http", "https")


class Address:
    """Where a stream is. Its repr and `shown` hold no secret."""

    def __init__(self, url: str, scheme: str, ffmpeg_options: dict[str, str]) -> None:
        self.url = url
        """With the login: for FFmpeg only."""
        self.shown = redact(url)
        self.scheme = scheme
        self.ffmpeg_options = ffmpeg_options

    def __repr__(self) -> str:
        return self.shown

    @classmethod
    def parse(cls, uri: str) -> Address:
        """Check an address and take `?transport=` out of it.

        Raises:
            SourceError: unknown scheme, no host or port where one is needed, blanks, or an unknown transport.
        """
        scheme = uri.partition("://")[0].lower()
        problem = _problem(uri, scheme)
        if problem:
            raise SourceError(
                f"malformed {scheme if scheme in SCHEMES else 'stream'} address: {problem}",
                remedy="write scheme://host:port/path, a login (name, colon, password, @) before the host, and %2F %3F "
                "%23 %40 for / ? # @ in a password",
            )
        options = dict(FFMPEG_OPTIONS)
        if scheme in ("rtsp", "rtsps"):
            base, mark, query = uri.partition("?")
            items = query.split("&")
            for item in [item for item in items if item.startswith("transport=")]:
                items.remove(item)
                options["rtsp_transport"] = item.removeprefix("transport=")
                if options["rtsp_transport"] not in TRANSPORTS:
                    raise SourceError(f"{redact(uri)}: unknown transport", remedy=f"use one of {', '.join(TRANSPORTS)}")
            uri = base + mark + "&".join(items) if items else base
        return cls(uri, scheme, options)


def _problem(uri: str, scheme: str) -> str:
    """What is wrong with an address, in words that hold nothing of it."""
    if scheme not in SCHEMES:
        return "unknown scheme"
    if any(character.isspace() or not character.isprintable() for character in uri):
        return "blanks or control characters"
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "host or port cannot be read"
    if not host and scheme not in ("udp", "rtp"):
        return "no host"
    if port is None and scheme in ("udp", "rtp", "tcp", "srt"):
        return "no port"
    return ""


@dataclass(frozen=True)
class Facts:
    """What an opened connection says of its video."""

    codec: str
    width: int
    height: int
    fps: Fraction | None
    seconds: float | None
    """Duration; None: a live stream."""
    aspect: Fraction


class Ended(NamedTuple):
    """Why a connection ended."""

    reason: str
    error: type[BaseException] | None = None
    """Only the type of the error: its text may hold the address. None: the server ended the stream."""


THE_END = Ended("the server ended it")


class Picture(NamedTuple):
    picture: Any
    arrival: float


class Connection:
    """One connection, read and decoded in a thread of its own (see the top of this file).

    Args:
        drops: damaged packets are counted here.
        on_silence: called once, by whoever waits, when nothing has come for PATIENCE seconds.
    """

    def __init__(
        self, address: Address, options: SourceOptions, drops: dict[str, int], on_silence: Callable[[], None]
    ) -> None:
        self.facts: Facts | None = None
        """Set once it is open."""
        self.ended: Ended | None = None
        """Set at last."""
        self._address, self._options, self._drops = address, options, drops
        self._pictures: deque[Picture] = deque()
        self._abandoned = False
        self._on_silence, self._told = on_silence, False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="framefuse live connection", daemon=True).start()

    def wait_open(self, timeout: float) -> None:
        """Wait until the connection is open or has ended, or the time is over."""
        self._wait_for(lambda: bool(self.facts or self.ended) or self._abandoned, timeout)

    def pictures(self) -> Iterator[Picture]:
        """What arrives, until the connection ends or is abandoned."""
        while True:
            self._wait_for(lambda: bool(self._pictures or self.ended) or self._abandoned)
            with self._changed:
                if self._abandoned or not self._pictures:
                    return
                item = self._pictures.popleft()
                self._changed.notify_all()
            yield item

    def _wait_for(self, condition: Callable[[], bool], timeout: float = threading.TIMEOUT_MAX) -> None:
        with self._changed:
            if not self._told and timeout > PATIENCE and not self._changed.wait_for(condition, PATIENCE):
                self._told = True
                self._on_silence()
                timeout -= PATIENCE
            self._changed.wait_for(condition, timeout)

    def abandon(self) -> None:
        """Leave the connection to itself: any thread, any number of times. It frees itself when its call returns."""
        with self._changed:
            self._abandoned = True
            self._pictures.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            ended = self._read()
        except Exception as error:
            # FFmpeg calls an RTSP handshake that was cut short invalid data.
            silent = self.facts is None and time.monotonic() - started >= self._options.timeout
            ended = self._failure(TimeoutError() if silent else error)
        with self._changed:
            self.ended = ended
            self._changed.notify_all()

    def _failure(self, error: Exception) -> Ended:
        reason = redact(f"{type(error).__name__}: {error}")
        if isinstance(error, (av.error.ExitError, TimeoutError)):
            reason = f"no data for {self._options.timeout:g} s"
        elif isinstance(error, av.FFmpegError):
            if error.errno == errno.EIO and self.facts and self.facts.seconds is None:
                return THE_END  # so FFmpeg reports the end of an HTTP answer of unknown length
            reason = str(error.strerror)  # str(error) holds the address
            if error.errno == errno.EIO and self.facts is None:
                reason += self._unresolved()
        elif isinstance(error, FramefuseError):
            reason = error.message
        return Ended(reason, type(error))

    def _unresolved(self) -> str:
        """What FFmpeg does not say: that the name of the host is not known."""
        parts = urlsplit(self._address.url)
        try:
            socket.getaddrinfo(parts.hostname, parts.port)
        except OSError as error:
            return f" (the host {parts.hostname} cannot be found: {error.strerror})"
        return ""

    def _read(self) -> Ended:
        timeout = self._options.timeout
        options = self._address.ffmpeg_options
        with av.open(self._address.url, container_options=options, timeout=(timeout, timeout)) as container:
            videos = [stream for stream in container.streams.video if not stream.disposition & NOT_VIDEO]
            if not videos or videos[0].codec_context is None:
                raise SourceError("there is no video that can be decoded in it")
            stream = videos[0]
            for other in container.streams:
                if other is not stream:
                    other.discard = Discard.all  # else every rendition of an HLS stream is downloaded
            facts = _facts(container, stream)
            _set_up(stream.codec_context, self._options, live=facts.seconds is None)
            with self._changed:
                self.facts = facts
                self._changed.notify_all()

            last, decoded = time.monotonic(), False
            for packet in container.demux(stream):
                arrival = time.monotonic()
                try:
                    pictures = packet.decode()
                except av.FFmpegError:
                    pictures = []
                    if decoded:  # before the first picture the decoder lacks its key frame: that is joining, not damage
                        self._drops["corrupt"] = self._drops.get("corrupt", 0) + 1
                for picture in pictures:
                    decoded = True
                    if not self._deliver(Picture(picture, arrival)):
                        return Ended("closed")
                # FFmpeg answers a time-out with what its parser still held, and waits once more.
                if arrival - last >= timeout:
                    raise TimeoutError
                last = time.monotonic()
        return THE_END

    def _deliver(self, item: Picture) -> bool:
        """Hand a picture over; False: nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or len(self._pictures) < 2)
            if not self._abandoned:
                self._pictures.append(item)
                self._changed.notify_all()
            return not self._abandoned


def _facts(container: Any, stream: Any) -> Facts:
    context = stream.codec_context
    return Facts(
        context.name,
        context.width,
        context.height,
        exact(stream.average_rate),
        container.duration / 1_000_000 if container.duration else None,
        exact(stream.sample_aspect_ratio) or Fraction(1),
    )


def _set_up(context: Any, options: SourceOptions, *, live: bool) -> None:
    """Frame threads would hold back a frame each: a live stream is decoded with slices only."""
    fast = live or options.low_latency
    context.thread_count = options.decode_threads
    context.thread_type = "SLICE" if fast else "AUTO"
    if fast:
        context.flags |= av.codec.context.Flags.low_delay
