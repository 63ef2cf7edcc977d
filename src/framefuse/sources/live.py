"""Live streams: rtsp, http, udp, tcp, rtmp and srt addresses, with automatic reconnection; cameras (Video4Linux)."""

import logging
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import av

from framefuse.common.text import counted
from framefuse.errors import AuthenticationError, CapabilityError, DecodeError, FramefuseError, SourceError, StreamError
from framefuse.sources.address import Address
from framefuse.sources.connection import PATIENCE, Connection, Ended, Facts
from framefuse.sources.ffmpeg import exact, wrap
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions

_logger = logging.getLogger(__name__)

LOSSES_NOTED = 50
FIRST_DELAY = 0.25
TIME_BASE = Fraction(1, 90_000)
"""Time base of live frames: that of RTP video and MPEG-TS."""
LATE = 0.5
"""Seconds by which a frame of a segmented stream may be late without delaying all that follow."""
JUMP = 30
"""Seconds; a larger step between two frames means that the source's clock was set, not that time passed."""
SEGMENTED = ("hls", "dash")
"""FFmpeg's names of the protocols that bring several seconds at once."""
UNREADABLE_IN_A_ROW = 3
"""Connections without readable video, before the first frame, after which the address is given up as not a video."""
NONBLOCK = "+4"
"""AVFMT_FLAG_NONBLOCK, which has no name among FFmpeg's options. A blocking read of a device cannot be interrupted, so
`close` would have to wait for it."""
POLL = 0.002
"""Seconds between two reads of a camera that has no new frame."""


def open_live(uri: str, options: SourceOptions) -> PullSource:
    """Open a stream.

    RTSP runs over TCP; `?transport=udp` at the end of an rtsp address selects UDP (the key is not sent to the server).
    The connection is opened by the first `__next__`, so that `close` can interrupt it. Only http and https addresses
    are connected here (for at most `options.timeout` seconds), because the response decides what the source is: **a
    stream that states its duration is a file** (`info.kind` is "file"), which is read once to its end and of which no
    frame may be dropped; any other stream is live.

    A live stream that is lost, ends, or cannot be reached is retried according to `options.reconnect`, including the
    first attempt. Not retried are a refused login and, before the first frame, "not found" and other rejections of the
    request, an unusable address or protocol, and data without readable video three times in a row. With `reconnect=0`
    the stream ends when the server ends it.

    Frames carry `arrival`, and pts in 1/90000 s that increase across all connections (see `Timeline`); `start` and
    `end` count from the first frame. `info.notes` records each loss and reconnection, `info.drops["corrupt"]` counts
    damaged packets. Silences, losses and reconnections are also logged as warnings. `options.tls_verify` says
    whether the certificate of an https or rtsps server is verified; a note says so if not.

    Raises:
        UsageError: tls_verify names a file without a certificate.
        SourceError: the address is malformed, or not found (http), or its certificate is not trusted.
        AuthenticationError: the server refuses the login (http immediately, others on iteration).
        StreamError: on iteration: the stream was given up.
    """
    address = Address(uri, options.tls_verify)
    live = _Live(address, options)
    if address.verified is False:
        live.info.note("the certificate of the server is not verified")
    if address.scheme in ("http", "https"):
        live.probe()
    return PullSource(live.info, live.frames, live.interrupt, live.interrupt)


class _Live:
    """The stream across all its connections."""

    def __init__(self, address: Address, options: SourceOptions) -> None:
        self.info = SourceInfo(str(address), "live")
        self._address, self._options = address, options
        self._backoff = Backoff(options.reconnect, options.reconnect_max_delay, Random())
        self._connection: Connection | None = None
        self._delivered = False
        self._losses = self._unreadable = 0

    def interrupt(self) -> None:
        if (connection := self._connection) is not None:
            connection.abandon()

    def _connect(self) -> Connection:
        self._connection = Connection(self._address, self._options, self.info.drops, self._silent, self._tell)
        return self._connection

    def _silent(self) -> None:
        """Warn about a silent server, unless this is a retry after a loss that was already reported."""
        if not self._backoff.failures:
            what = "frame" if self._delivered or (self._connection and self._connection.facts) else "answer"
            timeout = f"{self._options.timeout:g} s (option timeout)"
            self._tell(f"no {what} for {PATIENCE:g} s; the connection counts as lost after {timeout}", noted=False)

    def probe(self) -> None:
        """Connect now to find out whether the stream is finite."""
        connection = self._connect()
        try:
            connection.wait_open(self._options.timeout)
        except BaseException:
            connection.abandon()
            raise
        if connection.facts is not None:
            self._learn(connection.facts)
        elif connection.ended is not None:
            self._check_retryable(connection.ended)

    def frames(self, closed: threading.Event) -> Frames:
        """The frames from `start` to `end`; index counts from 0, including frames skipped by the stride."""
        start, end, stride = self._options.start or 0.0, self._options.end, self._options.vid_stride
        name, index = self.info.uri, 0
        for av_frame, arrival, pts, aspect in self._timed(closed):
            seconds = float(pts * TIME_BASE)
            if end is not None and seconds >= end:
                return
            if seconds < start:
                continue
            if av_frame.is_corrupt:
                self.info.note("damaged frames are delivered as concealed by the decoder")
            if index % stride == 0:
                facts: dict[str, Any] = {"pts": pts, "time_base": TIME_BASE, "connection": self._losses}
                facts["arrival"] = arrival if self.info.live else None
                yield wrap(av_frame, self.info, index=index, source_id=name, sample_aspect_ratio=aspect, **facts)
            index += 1

    def _timed(self, closed: threading.Event) -> Iterator[tuple[Any, float, int, Fraction]]:
        """The decoded frames of all connections with arrival, pts and pixel aspect ratio."""
        timeline, pace = Timeline(), Pace()
        while not closed.is_set():
            connection = self._connection or self._connect()
            if closed.is_set():  # since the check above, before `interrupt` could see the connection
                connection.abandon()
            try:
                for number, (av_frame, arrival) in enumerate(connection.frames()):
                    assert connection.facts is not None
                    if number == 0:
                        self._began(connection.facts, av_frame, timeline)
                    unit = exact(av_frame.time_base) or TIME_BASE
                    source = None if av_frame.pts is None else av_frame.pts * unit
                    period = 1 / (connection.facts.fps or Fraction(25))
                    pts = timeline.pts(source, arrival, period)
                    if connection.facts.format in SEGMENTED and self.info.live:
                        if closed.wait(pace.wait(float(pts * TIME_BASE), monotonic())):
                            return
                        arrival = monotonic()
                    yield av_frame, arrival, pts, connection.facts.aspect
            finally:
                connection.abandon()
                self._connection = None
            if closed.is_set() or not self._try_again(connection, closed):
                return

    def _began(self, facts: Facts, av_frame: Any, timeline: "Timeline") -> None:
        """Record that the first frame of a connection has arrived."""
        self._learn(facts)
        if self._delivered or self._backoff.failures:
            video = f"{av_frame.width}x{av_frame.height} {facts.codec}"
            self._tell(f"reconnected (attempt {self._backoff.failures}): {video}")
        if self._delivered:
            timeline.reconnected()
        self._delivered = True
        self._backoff.failures = 0

    def _try_again(self, connection: Connection, closed: threading.Event) -> bool:
        """Wait for the next attempt; False: the stream has ended. FramefuseError: it is given up."""
        ended = connection.ended
        assert ended is not None
        finite = connection.facts is not None and connection.facts.seconds is not None
        if ended.error is None and self._delivered and (finite or not self._options.reconnect):
            return False
        self._unreadable += ended.error is av.error.InvalidDataError
        self._check_retryable(ended)
        if not self._backoff.failures:
            self._losses += self._delivered
            what = f"loss {self._losses}" if self._delivered else "no frame yet"
            self._tell(f"{what}: {ended.reason}", warn=False)
        delay = None if self.info.kind == "file" else self._backoff.failed()
        if delay is None:
            tried = self._backoff.failures
            raise StreamError(
                f"{self._address} {'was lost' if self._delivered else 'delivered no frame'}"
                f"{f', consecutive failures: {tried}' if tried else ''}: {ended.reason}",
                remedy="check that the server is running and reachable; reconnect=-1 retries without limit",
            )
        if self._backoff.failures == 1:
            most = self._options.reconnect
            limit = "without limit" if most < 0 else f"up to {counted(most, 'time')}"
            what = "lost" if self._delivered else "no frame yet"
            self._tell(f"{what}: {ended.reason}; retrying {limit} (option reconnect)", noted=False)
        return not closed.wait(delay)

    def _check_retryable(self, ended: Ended) -> None:
        """Raise the error that ends the stream if retrying cannot help."""
        kind, text = ended.error or EOFError, f"{self._address}: {ended.reason}"
        if issubclass(kind, (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError)):
            raise AuthenticationError(text, remedy="check the name and password in the address; it is not retried")
        if issubclass(kind, FramefuseError):
            raise SourceError(text)
        if self._delivered:
            return
        if issubclass(kind, ssl.SSLCertVerificationError):
            raise SourceError(text, remedy="set tls_verify to a PEM file with it or its authority, or to off")
        if issubclass(kind, av.error.ProtocolNotFoundError):
            raise CapabilityError(text, remedy=f"the installed FFmpeg cannot read {self._address.scheme}:// addresses")
        if issubclass(kind, av.error.HTTPClientError) and not issubclass(kind, av.error.HTTPTooManyRequestsError):
            raise SourceError(text, remedy="check the path of the address")
        if issubclass(kind, av.error.ArgumentError):
            raise SourceError(text, remedy="check the address")
        if self._unreadable >= UNREADABLE_IN_A_ROW:
            raise DecodeError(text, remedy="check that the address is that of a video stream, not of a web page")

    def _learn(self, facts: Facts) -> None:
        info, options = self.info, self._options
        info.width, info.height, info.fps = facts.width or None, facts.height or None, facts.fps
        if facts.format == "hls" and self._address.verified:
            info.note("FFmpeg verifies the certificate of the playlist only, not those of its parts")
        if facts.seconds and self._address.scheme in ("http", "https") and not self._delivered:
            info.kind = "file"
            seconds = min(options.end or facts.seconds, facts.seconds) - (options.start or 0.0)
            if facts.fps:
                info.frames = max(0, round(seconds * facts.fps / options.vid_stride))

    def _tell(self, text: str, *, warn: bool = True, noted: bool = True) -> None:
        """Add a note for the report, and log a warning."""
        few = self._losses <= LOSSES_NOTED
        if few and warn:
            _logger.warning("%s: %s", self._address, text)
        if few and noted:
            self.info.notes.append(text)
        elif noted:
            self.info.note("further losses are not noted")


@dataclass
class Backoff:
    """Delays between connection attempts: 0.25 s, doubling up to a limit, each shortened at random by up to a fifth."""

    attempts: int
    """Consecutive retries; -1: no limit."""
    max_delay: float
    random: Random
    """Spreads the attempts of many clients that lost a server at the same time."""
    failures: int = 0
    """Consecutive failures; 0 again once the stream delivers frames."""

    def failed(self) -> float | None:
        """Seconds to wait before the next attempt; None: give up."""
        self.failures += 1
        if 0 <= self.attempts < self.failures:
            return None
        doubled = FIRST_DELAY * 2.0 ** min(self.failures - 1, 99)
        return min(doubled, self.max_delay) * self.random.uniform(0.8, 1.0)


class Timeline:
    """Joins the clocks of consecutive connections into strictly increasing pts, from 0 at the first frame.

    Within a connection the source's intervals are kept exactly. Between the last frame of one connection and the first
    of the next lies the time between their arrivals. If the source's clock stands still, goes back or jumps by more
    than JUMP seconds, the interval is one frame period.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._arrival = 0.0
        self._offset: int | None = None
        self._resumed = False

    def reconnected(self) -> None:
        """The next frame is the first of a new connection."""
        self._offset, self._resumed = None, True

    def pts(self, source: Fraction | None, arrival: float, period: Fraction) -> int:
        """pts of the next frame, in units of TIME_BASE.

        Args:
            source: its time by the source's clock, in seconds; None: unknown.
            arrival: when it was received, in seconds of a monotonic clock.
            period: time between two frames in seconds.
        """
        last, step = self._last, max(1, round(period / TIME_BASE))
        waited = round((arrival - self._arrival) / TIME_BASE)
        pts = 0 if last is None else last + (max(step, waited) if self._resumed else step)
        if source is not None:
            tick = round(source / TIME_BASE)
            if last is not None and self._offset is not None:
                stated = tick + self._offset
                if last < stated <= last + max(0, waited) + JUMP / TIME_BASE:
                    pts = stated
            self._offset = pts - tick
        self._last, self._arrival, self._resumed = pts, arrival, False
        return pts


class Pace:
    """When the frames of a stream that arrives in bursts are due: at the intervals of their pts.

    A segmented stream (HLS, DASH) brings several seconds at once. Read as they arrive, nearly all of these frames would
    be superseded by the last one.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        """When pts 0 is due, by the clock that is passed in."""

    def wait(self, seconds: float, now: float) -> float:
        """Seconds until the frame with this pts is due. One that comes too late starts the clock anew."""
        if self._begin is None or now > self._begin + seconds + LATE:
            self._begin = now - seconds
        return max(0.0, self._begin + seconds - now)


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
        info.note("start and end are ignored: a camera is live")

    def frames(closed: threading.Event) -> Frames:
        for index, av_frame in enumerate(_decoded_frames(container, stream, info, options.timeout, closed)):
            if index % options.vid_stride == 0:
                unit, now = exact(av_frame.time_base) or Fraction(1, 1000), monotonic()
                yield wrap(av_frame, info, index=index, source_id=name, pts=av_frame.pts, time_base=unit, arrival=now)

    return PullSource(info, frames, container.close)


def _decoded_frames(
    container: Any, stream: Any, info: SourceInfo, timeout: float, closed: threading.Event
) -> Iterator[Any]:
    packets = container.demux(stream)
    deadline = monotonic() + timeout
    while not closed.is_set():
        try:
            packet = next(packets)
            decoded = packet.decode()
        except BlockingIOError:
            if monotonic() > deadline:
                raise StreamError(f"camera {info.uri} delivered no frame for {timeout:g} s") from None
            packets = container.demux(stream)
            closed.wait(POLL)
            continue
        except av.error.InvalidDataError:
            # The first JPEG of many webcams is truncated.
            info.drop("corrupt")
            continue
        except (StopIteration, av.FFmpegError) as error:
            raise StreamError(f"camera {info.uri} was disconnected: {error or 'end of data'}") from error
        deadline = monotonic() + timeout
        yield from decoded
