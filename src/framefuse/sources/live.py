"""Live streams: rtsp, http, udp, tcp, rtmp and srt addresses, read by FFmpeg through PyAV, reconnected when they are lost.

Why a thread a connection
    FFmpeg looks at no flag of ours while it resolves a name, shakes hands or waits for data, and after a read that was cut
    short by a time-out its I/O context refuses to go on. So the blocking calls of a connection run in a thread that may be
    left behind: `close` returns at once, and the thread frees the connection when its call ends, after the time-out at most
    (name resolution: when the resolver gives up). Whoever iterates only waits, and that wait can be ended.

Why not `fflags=nobuffer`
    It throws away what was read to find the streams, the first key frame among it, so the first picture comes a whole
    key-frame distance later. Those few frames are kept, decoded faster than real time, and leave no lag.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import av

from framefuse.errors import AuthenticationError, CapabilityError, DecodeError, FramefuseError, SourceError, StreamError
from framefuse.sources import SCHEMES, SourceInfo, SourceOptions
from framefuse.sources.files import NOT_VIDEO, exact
from framefuse.sources.planes import note, wrap
from framefuse.sources.pull import Frames, PullSource
from framefuse.sources.redact import redact
from framefuse.sources.resume import TIME_BASE, Backoff, Timeline

FFMPEG_OPTIONS = {
    "rtsp_transport": "tcp",
    "allowed_media_types": "video",
    "max_delay": "200000",  # RTP over UDP: microseconds to wait for a datagram that is out of order
    "overrun_nonfatal": "1",  # UDP: a full receive buffer costs frames, not the connection
    "fpsprobesize": "3",  # frames read to find the frame rate; FFmpeg's default of 20 delays the first picture
    "analyzeduration": "2000000",  # microseconds at most to find the streams; ends as soon as they are found
}
TRANSPORTS = ("tcp", "udp", "udp_multicast", "http", "https")
LOSSES_NOTED = 50
UNREADABLE_IN_A_ROW = 3
"""Connections whose data is no video, before the first frame, after which the address is taken for something else."""


def open_live(uri: str, options: SourceOptions, *, random: Random | None = None) -> PullSource:
    """Open a stream.

    RTSP runs over TCP; `?transport=udp` at the end of an rtsp address chooses UDP (the key is not sent to the server).
    Connecting begins with the first `__next__`, so that `close` can end it; only http and https addresses are connected here
    (for `options.timeout` seconds at most), because what comes back decides what the source is: **a stream that states its
    duration is a file** (`info.kind` is "file"): it ends when it ends and no frame of it is dropped; one without is live.

    A live stream that is lost, ends, or cannot be reached is tried again as `options.reconnect` says, from the very first
    attempt on. Final at once are a refused login, and before the first frame: "not found" and other refusals of the request,
    an address or protocol that cannot work, and data that is no video three times in a row. With `reconnect=0` the end that the
    server makes is the end of the stream.

    Frames carry `arrival`, and pts in 1/90000 s that rise through all connections (see resume.Timeline); `start` and `end` count
    from the first frame. `info.notes` tells each loss and return, `info.drops["corrupt"]` counts damaged packets. The
    certificate of an https or rtsps server is not verified, as is usual for cameras.

    Raises:
        SourceError: the address is malformed, or not found (http).
        AuthenticationError: the server refuses the login (http at once, others on iteration).
        StreamError: on iteration: the stream was given up.
    """
    address = Address.parse(uri)
    live = _Live(address, options, random or Random())
    if address.scheme in ("http", "https"):
        live.probe()
    return PullSource(live.info, live.frames, live.interrupt, live.interrupt)


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
                remedy="write scheme://name:password@host:port/path, with / ? # @ and blanks in a password as %2F %3F %23 %40 %20",
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
class _Facts:
    """What an opened connection says of its video."""

    codec: str
    width: int
    height: int
    fps: Fraction | None
    seconds: float | None
    """Duration; None: a live stream."""
    aspect: Fraction


class _Ended(NamedTuple):
    """Why a connection ended."""

    reason: str
    error: type[BaseException] | None = None
    """Only the type of the error: its text may hold the address. None: the server ended the stream."""


THE_END = _Ended("the server ended it")


class _Picture(NamedTuple):
    picture: Any
    arrival: float


class _Connection:
    """One connection, read and decoded in a thread of its own (see the top of this file)."""

    def __init__(self, address: Address, options: SourceOptions, drops: dict[str, int]) -> None:
        self.facts: _Facts | None = None
        """Set once it is open."""
        self.ended: _Ended | None = None
        """Set at last."""
        self._address, self._options, self._drops = address, options, drops
        self._pictures: deque[_Picture] = deque()
        self._abandoned = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="framefuse live connection", daemon=True).start()

    def wait_open(self, timeout: float) -> None:
        """Wait until the connection is open or has ended, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.facts or self.ended or self._abandoned, timeout)

    def pictures(self) -> Iterator[_Picture]:
        """What arrives, until the connection ends or is abandoned."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pictures or self.ended or self._abandoned)
                if self._abandoned or not self._pictures:
                    return
                item = self._pictures.popleft()
                self._changed.notify_all()
            yield item

    def abandon(self) -> None:
        """Leave the connection to itself: any thread, any number of times. It frees itself as soon as its call returns."""
        with self._changed:
            self._abandoned = True
            self._pictures.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            ended = self._read()
        except Exception as error:
            # FFmpeg calls the end of an HTTP answer without a stated length an I/O error.
            over = isinstance(error, av.error.OSError) and error.errno == errno.EIO and self.facts and not self.facts.seconds
            ended = THE_END if over else _Ended(self._reason(error), type(error))
        with self._changed:
            self.ended = ended
            self._changed.notify_all()

    def _reason(self, error: Exception) -> str:
        if isinstance(error, (av.error.ExitError, TimeoutError)):
            return f"no data for {self._options.timeout:g} s"
        if isinstance(error, av.FFmpegError):
            return str(error.strerror)  # str(error) holds the address
        if isinstance(error, FramefuseError):
            return error.message
        return redact(f"{type(error).__name__}: {error}")

    def _read(self) -> _Ended:
        timeout = self._options.timeout
        options = self._address.ffmpeg_options
        with av.open(self._address.url, container_options=options, timeout=(timeout, timeout)) as container:
            videos = [stream for stream in container.streams.video if not stream.disposition & NOT_VIDEO]
            if not videos or videos[0].codec_context is None:
                raise SourceError("there is no video that can be decoded in it")
            stream = videos[0]
            for other in container.streams:
                if other is not stream:
                    other.discard = "all"  # else every rendition of an HLS stream is downloaded
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
                    # Before the first picture the decoder lacks its key frame: that is joining, not damage.
                    self._drops["corrupt"] = self._drops.get("corrupt", 0) + decoded
                    pictures = []
                for picture in pictures:
                    decoded = True
                    if not self._deliver(_Picture(picture, arrival)):
                        return _Ended("closed")
                # FFmpeg answers a time-out with what its parser still held, and waits once more.
                if arrival - last >= timeout:
                    raise TimeoutError
                last = time.monotonic()
        return THE_END

    def _deliver(self, item: _Picture) -> bool:
        """Hand a picture over; False: nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or len(self._pictures) < 2)
            if not self._abandoned:
                self._pictures.append(item)
                self._changed.notify_all()
            return not self._abandoned


def _facts(container: Any, stream: Any) -> _Facts:
    context = stream.codec_context
    return _Facts(
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


class _Live:
    """The stream through all its connections."""

    def __init__(self, address: Address, options: SourceOptions, random: Random) -> None:
        self.info = SourceInfo(address.shown, "live")
        self._address, self._options = address, options
        self._backoff = Backoff(options.reconnect, options.reconnect_max_delay, random)
        self._connection: _Connection | None = None
        self._probed = False
        self._delivered = False
        self._losses = 0
        self._unreadable = 0

    def interrupt(self) -> None:
        if self._connection is not None:
            self._connection.abandon()

    def _connect(self) -> _Connection:
        self._connection = _Connection(self._address, self._options, self.info.drops)
        return self._connection

    def probe(self) -> None:
        """Make the first connection now, and learn from it whether the stream is finite."""
        connection = self._connect()
        self._probed = True
        try:
            connection.wait_open(self._options.timeout)
        except BaseException:
            connection.abandon()
            raise
        if connection.facts is not None:
            self._learn(connection.facts)
        elif connection.ended is not None:
            error = self._final(connection.ended)
            if error is not None:
                raise error

    def frames(self, closed: threading.Event) -> Frames:
        """The frames from `start` to `end`; index counts them from 0, those that the stride passes over included."""
        start, end, stride = self._options.start or 0.0, self._options.end, self._options.vid_stride
        index = 0
        for picture, arrival, pts, aspect in self._timed(closed):
            seconds = float(pts * TIME_BASE)
            if end is not None and seconds >= end:
                return
            if seconds < start:
                continue
            if picture.is_corrupt:
                note(self.info, "damaged frames are delivered as the decoder repaired them")
            if index % stride == 0:
                yield wrap(
                    picture,
                    self.info,
                    index=index,
                    source_id=self.info.uri,
                    pts=pts,
                    time_base=TIME_BASE,
                    sample_aspect_ratio=aspect,
                    arrival=None if self.info.kind == "file" else arrival,
                )
            index += 1

    def _timed(self, closed: threading.Event) -> Iterator[tuple[Any, float, int, Fraction]]:
        """The pictures of all connections with arrival, pts and pixel aspect."""
        timeline = Timeline()
        while not closed.is_set():
            connection = self._connection if self._probed and self._connection else self._connect()
            self._probed = False
            if closed.is_set():  # between the look above and the connection, where `interrupt` could not see it
                connection.abandon()
            try:
                first = True
                for picture, arrival in connection.pictures():
                    assert connection.facts is not None
                    if first:
                        self._began(connection.facts, picture, timeline)
                        first = False
                    unit = exact(picture.time_base) or TIME_BASE
                    source = None if picture.pts is None else picture.pts * unit
                    period = 1 / (connection.facts.fps or Fraction(25))
                    yield picture, arrival, timeline.pts(source, arrival, period), connection.facts.aspect
            finally:
                connection.abandon()
            if closed.is_set() or not self._try_again(connection, closed):
                return

    def _began(self, facts: _Facts, picture: Any, timeline: Timeline) -> None:
        """The first picture of a connection is here."""
        self._learn(facts)
        if self._delivered or self._backoff.failures:
            attempts = self._backoff.failures
            self._say(f"connected again (attempt {attempts}): {picture.width}x{picture.height} {facts.codec}")
        if self._delivered:
            timeline.reconnected()
        self._delivered = True
        self._backoff.succeeded()

    def _try_again(self, connection: _Connection, closed: threading.Event) -> bool:
        """Wait for the next attempt; False: the stream is over.

        Raises:
            FramefuseError: it cannot be had, or is given up.
        """
        ended = connection.ended
        assert ended is not None
        finite = connection.facts is not None and connection.facts.seconds is not None
        if ended.error is None and (finite or not self._options.reconnect):
            return False
        self._unreadable += ended.error is av.error.InvalidDataError
        error = self._final(ended)
        if error is not None:
            raise error
        if not self._backoff.failures:
            self._losses += 1
            self._say(f"loss {self._losses}: {ended.reason}" if self._delivered else f"cannot connect: {ended.reason}")
        delay = None if self.info.kind == "file" else self._backoff.failed()
        if delay is None:
            tried = self._backoff.failures
            raise StreamError(
                f"{self._address} {'was lost' if self._delivered else 'cannot be reached'}"
                f"{f' and given up after {tried} attempts' if tried else ''}: {ended.reason}",
                remedy="check that the server runs and is reachable; reconnect=-1 tries for ever",
            )
        return not closed.wait(delay)

    def _final(self, ended: _Ended) -> FramefuseError | None:
        """The error to raise where no further attempt can help."""
        kind, text = ended.error or EOFError, f"{self._address}: {ended.reason}"
        if issubclass(kind, (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError)):
            return AuthenticationError(text, remedy="check name and password in the address; a refused login is not repeated")
        if issubclass(kind, FramefuseError):
            return SourceError(text)
        if self._delivered:
            return None
        if issubclass(kind, av.error.ProtocolNotFoundError):
            return CapabilityError(text, remedy=f"the installed FFmpeg cannot read {self._address.scheme}:// addresses")
        if issubclass(kind, av.error.HTTPClientError) and not issubclass(kind, av.error.HTTPTooManyRequestsError):
            return SourceError(text, remedy="check the path of the address")
        if issubclass(kind, av.error.ArgumentError):
            return SourceError(text, remedy="check the address")
        if self._unreadable >= UNREADABLE_IN_A_ROW:
            return DecodeError(text, remedy="check that a video stream, not a web page, is at this address")
        return None

    def _learn(self, facts: _Facts) -> None:
        info, options = self.info, self._options
        info.width, info.height, info.fps = facts.width or None, facts.height or None, facts.fps
        if facts.seconds and self._address.scheme in ("http", "https") and not self._delivered:
            info.kind = "file"
            seconds = min(options.end or facts.seconds, facts.seconds) - (options.start or 0.0)
            if facts.fps:
                info.frames = max(0, round(seconds * facts.fps / options.vid_stride))

    def _say(self, text: str) -> None:
        if self._losses <= LOSSES_NOTED:
            self.info.notes.append(text)
            if self._losses == LOSSES_NOTED:
                self.info.notes.append("further losses are not noted")
