"""The `Source` interface, a source made of a generator, the facts about one, and the options for reading it."""

import math
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.frame import Frame

SCHEMES = frozenset({"rtsp", "rtsps", "http", "https", "udp", "tcp", "rtp", "rtmp", "srt"})
"""Schemes of addresses that `live.open_live(uri, options)` reads. Entry points of the group `framefuse.sources` add
others: the name is the scheme, the value a function of the same signature."""

FORMATS: dict[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "JPEG2000": (".jp2", ".j2k"),
    **{name: (f".{name.lower()}",) for name in ("BMP", "DIB", "GIF", "WEBP", "AVIF", "ICO")},
    "TGA": (".tga",),  # last, because it has no signature
}
"""Name in Pillow -> suffixes. No other format is opened, whatever a file is called: Pillow reads some by running other
programs (EPS by Ghostscript)."""


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read."""

    vid_stride: int = 1
    """Deliver every n-th frame."""
    start: float | Fraction | None = None
    """Seconds from the beginning of the video; earlier frames are skipped (by seeking if the format allows)."""
    end: float | Fraction | None = None
    """Seconds from the beginning of the video; reading stops before the first frame at or after it."""
    decode_threads: int = 2
    """Threads of the video decoder."""
    low_latency: bool = False
    """Decode without frame threads and, if the codec allows, without reordering delay."""
    max_age: float = 1.0
    """Live sources: frames older than this many seconds are dropped."""
    timeout: float = 10.0
    """Live sources: seconds without data after which a connection counts as lost."""
    reconnect: int = -1
    """Live sources: consecutive attempts before giving up; -1: no limit."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda: NVDEC decodes files whose codec it supports, and their planes are in GPU memory."""
    held: int = 1
    """Number of frames that readers hold at the same time, for example as a batch. A decoder that reuses its memory
    keeps this many."""
    lasting: bool = False
    """Whether `held` counts frames until their results are written, so that nobody has to copy them before that."""
    ring: Callable[[int, int], Sequence[Any]] | None = None
    """Memory of the GPU for the frames that `held` counts: given their number and the bytes of each, one-dimensional
    arrays of bytes. None: the decoder allocates it. MemoryError: it is not free."""
    reconnect_max_delay: float = 10.0
    """Live sources: the delay between attempts doubles from 0.25 s up to this many seconds."""
    tls_verify: str = "auto"
    """Certificates of https and rtsps servers: on: they must be signed by an authority that the system trusts; off: any
    is accepted; a path: that of a PEM file of trusted certificates; auto: on for https, where every public server has
    such a signature, and off for rtsps, where hardly any camera has one."""
    max_pixels: int = 160_000_000
    """Images and videos with larger frames are refused before they are decoded, as a file of half a megabyte may unpack
    to gigabytes. The default admits the largest video (16K, 15360x8640) and the stills of every common sensor up to 150
    megapixels; an image needs about ten bytes a pixel while it is read."""

    def __post_init__(self) -> None:
        for name in ("vid_stride", "decode_threads", "held", "max_pixels", "reconnect"):
            value, least = getattr(self, name), -1 if name == "reconnect" else 1
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise UsageError(f"{name} is {brief(value)}", remedy=f"{name} takes a whole number from {least}")
        for name in ("max_age", "timeout", "reconnect_max_delay"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < math.inf:
                raise UsageError(f"{name} is {brief(value)}", remedy=f"{name} takes a number of seconds above 0")
        if not isinstance(self.low_latency, bool | np.bool_):
            raise UsageError(f"low_latency is {brief(self.low_latency)}", remedy="low_latency takes True or False")
        if not isinstance(self.tls_verify, str) or not self.tls_verify:
            remedy = "tls_verify takes auto, on, off, or the path of a file of certificates to trust"
            raise UsageError(f"tls_verify is {brief(self.tls_verify)}", remedy=remedy)
        if self.device not in ("cpu", "cuda"):
            raise UsageError(f"device is {brief(self.device)}", remedy="device takes cpu or cuda")
        start, end = self.span
        if start < 0 or (end is not None and end <= start):
            raise UsageError(f"start {self.start} and end {self.end} are not a valid range", remedy=SPAN)

    @property
    def span(self) -> tuple[Fraction, Fraction | None]:
        """`start` (0 by default) and `end`, with the decimal value they were written with: 0.92 is exactly 23/25."""
        span = self.start, self.end
        if not all(value is None or (is_number(value) and math.isfinite(value)) for value in span):
            what = f"start {brief(self.start)} or end {brief(self.end)} is not a number of seconds"
            raise UsageError(what, remedy=SPAN)
        start, end = (None if value is None else Fraction(str(value)) for value in span)
        return start or Fraction(0), end


SPAN = "start takes a number of seconds from 0, and end one above it"


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_timeout(timeout: Any) -> None:
    """UsageError unless this is None, or seconds for which a thread can wait."""
    if timeout is not None and not (is_number(timeout) and 0 <= timeout <= threading.TIMEOUT_MAX):
        raise UsageError(f"timeout is {brief(timeout)}", remedy="give a number of seconds from 0, or None")


FEWER = "the header states {} frames, {} could be decoded"
SYNTHETIC_TITLE = "The synthetic world of framefuse"
"""Title of its videos."""


@dataclass
class SourceInfo:
    """Facts known before the first frame; None if unknown."""

    uri: str
    """As given, without the password."""
    kind: str
    """file | images | array | camera | live | synthetic; for a chain that of its first part, or "unread" before that
    is open."""
    width: int | None = None
    height: int | None = None
    fps: Fraction | None = None
    """Average frame rate."""
    frames: int | None = None
    """Estimated number of frames to be delivered, for the progress bar."""
    path: Path | None = None
    """The local file, if there is one: a sink copies its audio."""
    notes: list[str] = field(default_factory=list)
    """Assumptions and anomalies, such as "colour matrix not stated: BT.601 assumed" or "damaged packets skipped: 3".
    Grows while reading."""
    drops: dict[str, int] = field(default_factory=dict)
    """Frames not delivered, by cause: "stale", "superseded", "corrupt", ..."""
    parts: "dict[str, SourceInfo]" = field(default_factory=dict)
    """Chains of several sources: the facts of each part by its `Frame.source_id`, from its first frame on."""
    copied: int = 0
    """Bytes of frames copied within GPU memory while decoding. Grows while reading."""
    synthetic: bool = False
    """Whether its frames are those of the synthetic world."""
    mixed: bool = False
    """Whether frames may differ in size, as the images of a folder do."""
    error: str | None = None
    """Why it ended early, if it did and others follow."""
    number: int | None = None
    """Its place, from 0, among sources that are read at the same time."""
    files: Sequence[Path] = ()
    """All known local files that it reads or will read, so that no sink overwrites one."""

    @property
    def live(self) -> bool:
        return self.kind in ("camera", "live")

    @property
    def awaited(self) -> bool:
        """Whether the next frame may take any time: it is live, or the caller's own code makes one at a time."""
        return self.live or (self.kind == "array" and self.frames is None)

    def note(self, text: str) -> None:
        """Add a note unless it is already there."""
        if text not in self.notes:
            self.notes.append(text)

    def drop(self, cause: str, count: int = 1) -> None:
        """Count frames that are not delivered."""
        self.drops[cause] = self.drops.get(cause, 0) + count

    def absorb(self, part: "SourceInfo", prefix: str = "") -> None:
        """Add what happened in a source that this one reads: its notes, each after a prefix, and its drops."""
        for text in part.notes:
            self.note(prefix + text)
        for cause, count in part.drops.items():
            self.drop(cause, count)

    def unit_of(self, source_id: str) -> str:
        """What has outputs and tracks of its own: the file or address of a frame; all images of a source are one."""
        return self.uri if self.kind == "images" else source_id


class Source(Protocol):
    """An iterator over frames in presentation order; it cannot be restarted.

    `Frame.source_id` names the file or stream of a frame. `Frame.index` counts its frames from 0, including those
    skipped by `vid_stride` but not those before `start`. `close` may be called from any thread, at any time, any number
    of times; a running `__next__` then soon raises StopIteration.
    """

    info: SourceInfo

    def __iter__(self) -> Iterator[Frame]: ...
    def close(self) -> None: ...


Frames = Generator[Frame, None, None]


class PullSource:
    """Runs a generator in the iterating thread, and ends it safely when another thread calls `close`.

    Freeing a decoder during a call into it would crash, so whichever of `__next__` and `close` returns last frees it.

    Args:
        frames: called with the event that `close` sets; the generator checks it wherever it may take long.
        release: frees the source's resources; called once, never while the generator runs.
        interrupt: called by `close` immediately, from any thread, to end a wait inside the generator.
    """

    def __init__(
        self,
        info: SourceInfo,
        frames: Callable[[threading.Event], Frames],
        release: Callable[[], None] = lambda: None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.info = info
        self._closed = threading.Event()
        self._frames = frames(self._closed)
        self._release, self._interrupt = release, interrupt
        self._running = threading.Lock()

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        try:
            with self._running:
                if self._closed.is_set():
                    raise StopIteration
                return next(self._frames)
        except BaseException:
            self._closed.set()
            raise
        finally:
            if self._closed.is_set():
                self._finish()

    def close(self) -> None:
        """End the source, from any thread, at any time, any number of times. Delivered frames stay valid."""
        self._closed.set()
        self._interrupt()
        self._finish()

    def _finish(self) -> None:
        """Free everything, unless a `__next__` is running: it then does so when it returns."""
        if self._running.acquire(blocking=False):
            try:
                self._frames.close()
                release, self._release = self._release, lambda: None
                release()
            finally:
                self._running.release()


def is_image(item: object) -> bool:
    """Whether this is a NumPy array or a PIL image."""
    pillow = sys.modules.get("PIL.Image")
    return isinstance(item, np.ndarray) or (pillow is not None and isinstance(item, pillow.Image))
