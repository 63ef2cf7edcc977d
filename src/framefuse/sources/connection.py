"""One connection to a live stream, read by FFmpeg through PyAV.

Why a thread
    FFmpeg cannot be interrupted while it resolves a name, shakes hands or waits for data, and its I/O context cannot be
    used again after a read that timed out. So the blocking calls of a connection run in a thread that can be abandoned:
    `abandon` returns immediately, and the thread frees the connection when its call ends, within the timeout (name
    resolution: when the resolver gives up). The consumer waits on a condition variable, which can be interrupted.

Why not `fflags=nobuffer`
    It discards the data that was read to find the streams, including the first key frame, which delays the first frame
    by a whole key-frame interval. Those few frames are decoded faster than real time and cause no lag.
"""

import atexit
import errno
import math
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple
from weakref import WeakSet

import av
import av.container.core
from av.stream import Discard

from framefuse.common.machine import trim_heap
from framefuse.common.redact import redact
from framefuse.errors import FramefuseError, SourceError
from framefuse.sources.address import Address
from framefuse.sources.ffmpeg import NOT_VIDEO, TAGS, HostDecoder, demuxed, exact, size_limit
from framefuse.sources.source import SourceOptions

PATIENCE = 3.0
"""Seconds of silence from a server after which the user is told what is being waited for."""
UNDECODED_SECONDS, UNDECODED_PACKETS = 2.0, 10
"""A connection is opened anew when so many packets over so many seconds give no clean frame."""
FIRST_FRAME_SECONDS = 30.0
"""How long packets may arrive before the first frame: key frames can be that far apart."""
ABSENT_SECONDS = 1.0
"""Seconds beyond the timeout after which FFmpeg, which reads on, gets no packet of the video, only of other streams."""
EXIT_SECONDS = 1.0
"""How long the end of the program waits for the thread of a connection."""


@dataclass(frozen=True)
class Facts:
    """Facts about the video of an open connection."""

    codec: str
    width: int
    height: int
    fps: Fraction | None
    seconds: float | None
    """Duration; None: a live stream."""
    aspect: Fraction
    format: str
    """FFmpeg's name of the container or protocol."""


class Ended(NamedTuple):
    """Why a connection ended."""

    reason: str
    error: type[BaseException] | None = None
    """The type only, because the message may contain the address. None: the server ended the stream."""


SERVER_ENDED = Ended("the server ended the stream")
ArrivedFrame = tuple[Any, float]
"""A decoded frame, and when its packet arrived."""


class Watch:
    """Which frames of a connection are clean, and whether its packets still give any. The clock is passed in.

    Args:
        patience: seconds to wait for the first frame; infinite for a file, which need not be opened anew.
    """

    def __init__(self, now: float, patience: float) -> None:
        self._clean = False
        """Whether every packet since the last clean frame could be decoded."""
        self._begun, self._patience = False, patience
        self._since, self._packets = now, 0  # of the last clean frame

    def frame(self, damaged: bool, now: float) -> bool:
        """Whether to deliver a frame: not the damaged ones before the first clean frame, and after a lost packet."""
        if damaged and not self._clean:
            return False
        self._clean = self._begun = True
        if not damaged:
            self._since, self._packets = now, 0
        return True

    def packet(self, decoded: bool, now: float) -> bool:
        """Whether a packet is damage, not just of a stream joined midway; Undecodable: no clean frame for too long."""
        self._packets += 1
        self._clean &= decoded
        seconds = now - self._since
        limit = UNDECODED_SECONDS if self._begun and self._patience < math.inf else self._patience
        if self._packets >= UNDECODED_PACKETS and seconds >= limit:
            raise Undecodable(f"{self._packets} packets in {seconds:.1f} s gave no clean frame")
        return self._begun and not decoded


class Undecodable(Exception):
    """Packets arrive, but the decoder makes no frames of them."""


class Connection:
    """One connection, read and decoded in its own thread (see the module docstring).

    Args:
        drops: damaged packets, and damaged frames that are not delivered, are counted here.
        on_silence: called once, in the waiting thread, after PATIENCE seconds without data.
        on_change: called in the connection's thread with a text about the new codec.
    """

    def __init__(
        self,
        address: Address,
        options: SourceOptions,
        drops: dict[str, int],
        on_silence: Callable[[], None],
        on_change: Callable[[str], None],
    ) -> None:
        self.facts: Facts | None = None  # until the connection is open
        self.ended: Ended | None = None  # until it has ended
        self._address, self._options, self._drops = address, options, drops
        self._frames: deque[ArrivedFrame] = deque()
        self.abandoned = False
        """Nobody waits for the connection any more."""
        self._last_packet = math.inf
        """When the last packet of the video arrived, or the connection was opened; infinite before."""
        self._on_silence, self._on_change, self._silence_reported = on_silence, on_change, False
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="framefuse live connection", daemon=True)
        _connections.add(self)
        self.thread.start()

    def wait_open(self, timeout: float) -> None:
        """Wait until the connection is open or has ended, or `timeout` seconds have passed."""
        self._wait_for(lambda: bool(self.facts or self.ended) or self.abandoned, timeout)

    def frames(self) -> Iterator[ArrivedFrame]:
        """Decoded frames, until the connection ends or is abandoned."""
        while True:
            while not self._wait_for(lambda: bool(self._frames or self.ended) or self.abandoned, self._left()):
                if self._left() <= 0:
                    self._end(Ended(f"no video for {self._options.timeout:g} s", TimeoutError))
            with self._changed:
                if self.abandoned or not self._frames:
                    return
                item = self._frames.popleft()
                self._changed.notify_all()
            yield item

    def _left(self) -> float:
        """Seconds that the consumer still waits for a packet of the video."""
        left = self._last_packet + self._options.timeout + ABSENT_SECONDS - time.monotonic()
        return min(left, threading.TIMEOUT_MAX)

    def _wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        with self._changed:
            if not self._silence_reported and timeout > PATIENCE and not self._changed.wait_for(condition, PATIENCE):
                self._silence_reported = True
                self._on_silence()
                timeout -= PATIENCE
            return self._changed.wait_for(condition, timeout)

    def abandon(self) -> None:
        """Stop using the connection: from any thread, any number of times. Its own thread frees it."""
        with self._changed:
            self.abandoned = True
            self._frames.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        started = time.monotonic()
        _reading.connection = self
        try:
            ended = self._read()
        except Exception as error:
            # FFmpeg reports an RTSP handshake that timed out as invalid data.
            silent = self.facts is None and time.monotonic() - started >= self._options.timeout
            ended = self._failure(TimeoutError() if silent else error)
        self._end(ended)
        trim_heap()  # else the buffers of every connection leave holes, and a camera that comes and goes fills memory

    def _end(self, ended: Ended) -> None:
        with self._changed:
            self.ended = self.ended or ended
            self._changed.notify_all()

    def _failure(self, error: Exception) -> Ended:
        reason = redact(f"{type(error).__name__}: {error}")
        if isinstance(error, (av.error.ExitError, TimeoutError)):
            reason = f"no data for {self._options.timeout:g} s"
        elif isinstance(error, av.FFmpegError):
            if error.errno == errno.EIO and self.facts and self.facts.seconds is None:
                return SERVER_ENDED  # how FFmpeg reports the end of an HTTP response of unknown length
            reason = str(error.strerror)  # str(error) contains the address
            if error.errno == errno.EIO and self.facts is None:
                reason += self._address.why_unresolved()
                if untrusted := self._address.why_untrusted(self._options.timeout):
                    return Ended(untrusted, ssl.SSLCertVerificationError)
        elif isinstance(error, FramefuseError | Undecodable):
            reason = str(error.args[0])
        return Ended(reason, type(error))

    def _read(self) -> Ended:
        timeout = self._options.timeout
        how = {"container_options": self._address.ffmpeg_options, "timeout": (timeout, timeout), **TAGS}
        with av.open(self._address.url, options=size_limit(self._options.max_pixels), **how) as container:
            videos = [stream for stream in container.streams.video if not stream.disposition & NOT_VIDEO]
            if not videos or videos[0].codec_context is None:
                raise SourceError("it contains no video that can be decoded")
            stream = videos[0]
            for other in container.streams:
                if other is not stream:
                    other.discard = Discard.all  # otherwise every rendition of an HLS stream is downloaded
            context = stream.codec_context
            seconds = container.duration / 1_000_000 if container.duration else None
            rate, aspect = exact(stream.average_rate), exact(stream.sample_aspect_ratio) or Fraction(1)
            facts = Facts(context.name, context.width, context.height, rate, seconds, aspect, container.format.name)
            low_latency = self._options.low_latency or seconds is None
            last = self._last_packet = time.monotonic()
            with self._changed:
                self.facts = facts
                self._changed.notify_all()

            patience = math.inf if facts.seconds else max(timeout, FIRST_FRAME_SECONDS)
            watch, closed = Watch(last, patience), threading.Event()

            def changed(text: str) -> None:
                nonlocal watch
                watch = Watch(time.monotonic(), patience)
                self._on_change(text)

            decoder = HostDecoder(stream, replace(self._options, low_latency=low_latency), changed)
            for packet in demuxed(container, stream):
                arrival = self._last_packet = time.monotonic()
                try:
                    decoded, good = decoder.decode(packet, closed), True
                except av.FFmpegError:
                    decoded, good = [], False
                corrupt = int(watch.packet(good, arrival))
                for av_frame in decoded:
                    if not watch.frame(av_frame.is_corrupt, arrival):
                        corrupt += 1
                    elif not self._deliver((av_frame, arrival)):
                        return Ended("closed")
                if corrupt:
                    self._drops["corrupt"] = self._drops.get("corrupt", 0) + corrupt
                # On a timeout, FFmpeg returns what its parser still held and waits once more.
                if arrival - last >= timeout:
                    raise TimeoutError
                last = time.monotonic()
        return SERVER_ENDED

    def _deliver(self, item: ArrivedFrame) -> bool:
        """Queue a frame for the consumer; False: the connection was abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self.abandoned or len(self._frames) < 2)
            if not self.abandoned:
                self._frames.append(item)
                self._changed.notify_all()
            return not self.abandoned


class _Clock:
    """The module `time` where PyAV asks during a call of FFmpeg whether it takes too long, its only way to interrupt.
    Time flies for a connection that was abandoned."""

    @staticmethod
    def monotonic() -> float:
        now = time.monotonic()
        connection = getattr(_reading, "connection", None)
        return now * 1e9 if connection is not None and connection.abandoned else now


_reading = threading.local()
"""Its `connection`: the one that the current thread reads."""
_connections: WeakSet[Connection] = WeakSet()
setattr(av.container.core, "time", _Clock)  # noqa: B010  (it is no public name)


@atexit.register
def _abandon_all() -> None:
    """End the threads before the interpreter, which PyAV would ask for the time when it is gone: a crash."""
    connections = list(_connections)
    for connection in connections:
        connection.abandon()
    for connection in connections:
        connection.thread.join(EXIT_SECONDS)
