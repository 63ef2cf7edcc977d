"""Video files, decoded by FFmpeg through PyAV."""

import itertools
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from fractions import Fraction
from functools import partial
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import av

from framefuse.errors import CapabilityError, DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.sources.ffmpeg import (
    NOT_VIDEO,
    DecoderUnavailable,
    HostDecoder,
    changed_codec,
    check_size,
    demuxed,
    exact,
    open_container,
)
from framefuse.sources.source import FEWER, SYNTHETIC_TITLE, Frames, PullSource, SourceInfo, SourceOptions

if TYPE_CHECKING:
    from framefuse.sources.nvdec import NvDecoder

READ_ERRORS_IN_A_ROW = 16
"""Consecutive failed reads after which the rest of the file is given up."""
ENDS_EARLY = 0.5
"""Seconds by which a video may be shorter than its header states without a note."""
UNDECODED_PACKETS = 48
"""MPEG-TS: packets without a frame after which another codec is looked for; more than decoders hold back."""
TABLES = 8
"""Number of program tables at which it is looked for."""
PACKET, SYNC = 188, 0x47
"""Bytes of a transport packet, and the first of them (ISO/IEC 13818-1, 2.4.3)."""
SEARCHED = 1 << 20
"""Bytes in which a table is searched for. Broadcasts repeat it at least every half second."""
SEEK_AFTER = 1
"""Seconds; an earlier start is reached by decoding, because indexes are least reliable there (negative pts)."""
SEEK_MARGINS = (0, 5, 30)
"""Seconds before the start to which seeks are tried, until one lands at or before the start."""


def open_file(path: Path, options: SourceOptions) -> PullSource:
    """Open a video file.

    Frames carry the exact pts of the file. A missing pts is filled from the frame rate; negative and decreasing ones
    are kept.

    Raises:
        SourceError: no such file, no permission, no video in it, or an absurd frame size.
        DecodeError: FFmpeg does not know the format, or the file is too damaged to read.
    """
    video = open_video(path, options)
    return PullSource(video.info, video.frames, video.close)


def open_video(path: Path, options: SourceOptions, samples: list[Frame] | None = None) -> "Video":
    """What `open_file` reads.

    Args:
        samples: of several readers of the file: the first frame, decoded on the host, once one of them has needed it.
    """
    container = open_container(path, options.max_pixels)
    try:
        video = Video(container, str(path), options)
        if options.device == "cuda":
            from framefuse.sources.nvdec import choose_decoder

            known = [] if samples is None else samples
            first_frame = partial(_first_frame, path, video.info, options.max_pixels, known)
            chosen = choose_decoder(video.stream, options, video.info, first_frame)
            if isinstance(chosen, str):
                video.info.note(f"decoded by FFmpeg on the host: {chosen}")
            else:
                video.decoder = chosen
    except BaseException:
        container.close()
        raise
    return video


def _first_frame(path: Path, info: SourceInfo, max_pixels: int, samples: list[Frame]) -> Frame:
    """The first frame, decoded on the host, and added to the samples, and its notes to `info`, unless it is there."""
    if samples:
        return samples[0]
    with closing(open_file(path, SourceOptions(max_pixels=max_pixels))) as source:
        frame = next(source, None)
        notes = [*source.info.notes]  # before `close` adds counts of frames, which are counted again
    if frame is None:
        raise CapabilityError("the video has no frames")
    for text in notes:
        info.note(text)
    samples.append(frame)
    return frame


class Video:
    """One video stream of an open container, with its decoder and facts; SourceError as in `open_file`."""

    def __init__(self, container: Any, uri: str, options: SourceOptions) -> None:
        every = container.streams.video
        streams = [stream for stream in every if not stream.disposition & NOT_VIDEO]
        if not streams:
            found = ", ".join(f"{it.type} ({it.codec_context.name})" for it in container.streams if it.codec_context)
            kind = "only cover art" if every else "no video"
            raise SourceError(f"{uri} has {kind}; streams: {found or 'none'}", remedy="choose a file with a video")
        best = container.streams.best("video")
        stream = next((one for one in streams if best is not None and one.index == best.index), streams[0])
        context = stream.codec_context
        if context is None:
            raise SourceError(f"{uri}: this build of FFmpeg has no decoder for its video")
        if context.width and context.height:  # else the header comes later, such as in a stream that was cut
            check_size(context.width, context.height, uri, options.max_pixels)

        self.container, self.stream, self.options = container, stream, options
        self.time_base = exact(stream.time_base) or Fraction(1, 1000)
        self.origin: int = stream.start_time or 0
        """First pts of the stream, from which `start` and `end` count."""
        rate = exact(stream.average_rate) or exact(stream.guessed_rate)
        self.info = SourceInfo(uri, "file", context.width or None, context.height or None, rate, path=Path(uri))
        self.info.synthetic = container.metadata.get("title") == SYNTHETIC_TITLE
        self.info.frames = self._expected()
        if len(streams) > 1:
            self.info.note(f"{len(streams)} video streams: stream {stream.index} is read")
        self.decoder: HostDecoder | NvDecoder = self._host_decoder()
        self.decoded = 0
        self.sizes = set[tuple[int, int]]()
        self.hidden = 0
        """Packets that an edit list excludes from the presentation."""
        self.anomalies: Counter[str] = Counter()
        """Number of frames by what is unusual about them."""
        self.end = Fraction(0)
        """End of the last frame read, in units of time_base from the origin."""
        self.reason = "it has no packets"
        self.begin = 0
        """Position in the file from which the container reads."""
        self.shared = False
        """Whether several readers share the file. Each counts what is in its own segments."""
        self.cut: int | None = None
        """Pts of the key frame with which the segment of another reader begins."""
        self.beyond = 0
        """Packets from there on that the decoder was given before it gave the last frame."""
        self.own: int | None = None
        """First pts of the segment, if another reader counts what is before."""
        self.early = False
        """Whether the decoder is given what is before."""
        self.position = -1
        """MPEG-TS: that of the last packet that has become a frame, or of the first packet."""
        self.undecoded: dict[int | None, int] = {}
        """MPEG-TS: pts and position of the packets behind it."""

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU decodes."""
        return not isinstance(self.decoder, HostDecoder)

    def _seconds(self) -> Fraction | None:
        """Duration of the video from its first frame."""
        if self.stream.duration:
            return Fraction(self.stream.duration) * self.time_base
        if self.container.duration:
            # The container's duration counts from 0 even if pts start below.
            return Fraction(self.container.duration, 1_000_000) - min(self.origin, 0) * self.time_base
        return None

    def _expected(self) -> int | None:
        """Expected number of delivered frames according to the header."""
        seconds, rate, options = self._seconds(), self.info.fps, self.options
        if options.start is None and options.end is None and self.stream.frames:
            count: int = self.stream.frames
        elif seconds and rate:
            start, end = options.span
            if start >= seconds:
                problem = f"start {options.start} s is beyond the end of {self.info.uri} ({float(seconds):.3f} s)"
                raise SourceError(problem, remedy="choose an earlier start")
            count = max(1, round((min(end or seconds, seconds) - start) * rate))
        else:
            return None
        return -(-count // options.vid_stride)

    def frames(self, closed: threading.Event) -> Frames:
        """The frames from `start` to `end`; index counts from 0, including frames skipped by the stride."""
        ended = False
        try:
            ended = yield from self.between(*self.options.span, closed)
            self.check_decoded(ended)
        finally:
            self.note_counts(ended)

    def check_decoded(self, ended: bool) -> None:
        """DecodeError: the file has been read to its end, and no frame was found."""
        if ended and not self.decoded:
            remedy = "the file is damaged or truncated, or its frames exceed max_pixels; try to play it with ffplay"
            raise DecodeError(f"nothing in {self.info.uri} could be decoded: {self.reason}", remedy=remedy)

    def between(
        self, begin: Fraction, until: Fraction | None, closed: threading.Event, *, cut: bool = False
    ) -> Generator[Frame, None, bool]:
        """The frames between two times, as `frames` counts them. Returns whether the file has ended. It may be called
        again for a later time.

        Args:
            cut: `until` is that of one of `Cuts`.
        """
        options, index = self.options, 0
        start = ceil(self.origin + begin / self.time_base)  # a comparison of integers takes a tenth of the time
        end = None if until is None else ceil(self.origin + until / self.time_base)
        self.cut, self.beyond = end if cut else None, 0
        self.own, self.early = start if self.shared and begin > options.span[0] else None, False
        aspect = exact(self.stream.sample_aspect_ratio) or Fraction(1)
        for decoded, pts in self._timed(self._decoded_from(start, closed), start):
            if end is not None and pts is not None and pts >= end:
                return False
            if begin and pts is not None and pts < start:
                continue
            if index % options.vid_stride == 0:
                self.sizes.add((decoded.width, decoded.height))
                if len(self.sizes) > 1:
                    self.info.note("the frame size changes in the video")
                unit = exact(decoded.time_base) or self.time_base
                facts = {"pts": pts, "time_base": unit, "sample_aspect_ratio": aspect, "arrival": monotonic()}
                yield self.decoder.wrap(decoded, self.info, index=index, source_id=self.info.uri, **facts)
            index += 1
        return not closed.is_set()

    def close(self) -> None:
        self.container.close()

    def _decoded_from(self, start: int, closed: threading.Event) -> Iterator[Any]:
        """Decoded frames from the key frame at or before `start`."""
        if (start - self.origin) * self.time_base <= SEEK_AFTER and not self.decoded:
            return self._decoded_frames(closed)
        if self._seconds() is None:
            self.info.note("the file has no duration and so no index: read from its beginning")
            return self._decoded_frames(closed)
        counts, drops = (self.decoded, self.hidden, self.reason), dict(self.info.drops)
        for margin in SEEK_MARGINS:
            self._seek(start - margin / self.time_base, closed)
            frames = self._decoded_frames(closed)
            first = next(frames, None)
            # Indexes store decoding times: with reordered frames, the pts of the key frame found may be after `start`.
            # Of a damaged one, what is before conceals the damage.
            damaged = self.shared and first is not None and first.is_corrupt
            if first is not None and first.pts is not None and first.pts <= start and not damaged:
                return itertools.chain([first], frames)
            (self.decoded, self.hidden, self.reason), self.info.drops = counts, dict(drops)  # it is all read again
        self._seek(Fraction(self.origin), closed)
        return self._decoded_frames(closed)

    def _seek(self, pts: Fraction, closed: threading.Event) -> None:
        self.decoder.restart(closed)
        self.position = -1
        self.undecoded.clear()
        self.beyond, self.early = 0, self.own is not None
        try:
            self.container.seek(max(int(pts), self.origin), stream=self.stream, backward=True)
        except av.FFmpegError as error:
            reason = f"cannot seek in {self.info.uri}: {error.strerror}"
            raise SourceError(reason, remedy="omit start, or remux") from error

    def _decoded_frames(self, closed: threading.Event) -> Iterator[Any]:
        """All frames that decode. Damaged packets are counted and skipped."""
        packets = demuxed(self.container, self.stream)
        transport = self.container.format.name == "mpegts"
        failures = 0
        while not closed.is_set():
            try:
                packet = next(packets, None)
                failures = 0
            except av.FFmpegError as error:
                self._damaged(error, late=1)
                failures += 1
                packets = demuxed(self.container, self.stream) if failures < READ_ERRORS_IN_A_ROW else iter(())
                continue
            ended = packet is None and transport
            if (ended or len(self.undecoded) > UNDECODED_PACKETS) and self._open_what_follows():
                packets = demuxed(self.container, self.stream)
                continue
            if packet is None:
                return
            if self.cut is not None and (self.beyond or (packet.is_keyframe and (packet.pts or 0) >= self.cut)):
                self.beyond += 1
            self.early = self.early and self.own is not None and (packet.pts is None or packet.pts < self.own)
            self.hidden += packet.is_discard and not (self.beyond or self.early)
            if transport:
                if packet.size:
                    at = self.undecoded[packet.pts] = self.begin + (packet.pos or 0)
                    self.position = at if self.position < 0 else self.position
                if self.on_gpu and changed_codec(self.stream, self.decoder.codec):
                    with suppress(EOFError):
                        yield from self._decode(av.Packet(), closed)
                    self.decoder = self._host_decoder()
                    self.info.note("FFmpeg decodes on the host where the codec changes")
            try:
                yield from self._decode(packet, closed)
            except EOFError:
                return

    def _decode(self, packet: Any, closed: threading.Event) -> Iterator[Any]:
        """The frames of a packet; EOFError: there are no more."""
        try:
            for decoded in self.decoder.decode(packet, closed):
                self.decoded += 1
                if decoded.pts in self.undecoded:
                    self.position = max(self.position, self.undecoded[decoded.pts])
                    self.undecoded = {pts: at for pts, at in self.undecoded.items() if at > self.position}
                yield decoded
        except DecoderUnavailable as error:
            self.info.notes = [text for text in self.info.notes if text not in self.decoder.notes]
            self.info.note(f"decoded by FFmpeg on the host: {error.reason}")
            self.decoder = self._host_decoder()
            for given in error.packets:
                yield from self._decode(given, closed)
        except av.FFmpegError as error:
            if isinstance(error, EOFError):
                raise
            self._damaged(error, late=self.options.decode_threads)

    def _open_what_follows(self) -> bool:
        """Open the MPEG-TS after the last packet that became a frame, if its video has another PID or codec there."""
        path, undecoded = Path(self.info.uri), len(self.undecoded)
        self.undecoded.clear()
        begin = None if self.position < 0 else self.position
        for _ in range(TABLES):
            if begin is None or (begin := next_program_table(path, begin)) is None:
                return False
            with suppress(SourceError):
                container = open_container(path, self.options.max_pixels, begin)
                stream = next((one for one in container.streams.video if one.codec_context), None)
                if stream is not None and self._is_another(stream):
                    self.container.close()
                    self.container, self.stream = container, stream
                    self.begin = self.position = begin
                    if (corrupt := self.info.drops.pop("corrupt", 0) - undecoded) > 0:  # those are read again
                        self.info.drops["corrupt"] = corrupt
                    self.decoder = self._host_decoder()
                    return True
                container.close()
        return False

    def _is_another(self, stream: Any) -> bool:
        """Whether a stream has another PID or codec, with a note about it."""
        before, after = self.decoder.codec, stream.codec_context.name
        if not stream.codec_context.width or (stream.id, after) == (self.stream.id, before):
            return False
        if before == after:
            self.info.note(f"the PID of the video changes from {self.stream.id} to {stream.id}")
        else:
            self.info.note(f"the codec changes from {before} to {after}")
        return True

    def _host_decoder(self) -> HostDecoder:
        # Without a reference to this object: a cycle would keep the threads of a decoder after the end.
        return HostDecoder(self.stream, self.options, self.info.note)

    def _damaged(self, error: av.FFmpegError, *, late: int) -> None:
        """Count a packet of the segment, which was read up to `late` packets ago and so may be beyond it, or not."""
        if self.beyond < late and not self.early:
            self.info.drop("corrupt")
            self.reason = str(error.strerror)

    def _timed(self, frames: Iterator[Any], start: int) -> Iterator[tuple[Any, int | None]]:
        """Each decoded frame with its pts; a missing one continues from the last known pts at the average rate."""
        step = None if self.info.fps is None else 1 / (self.info.fps * self.time_base)
        how = "kept as they are, because the frame rate is unknown" if step is None else "filled from the frame rate"
        last: int | None = None
        known, after = self.origin, 0  # the last pts in the file, and the number of frames since
        for decoded in frames:
            pts: int | None = decoded.pts
            if self.shared and pts is not None and (pts < start or (self.cut is not None and pts >= self.cut)):
                self.decoded -= 1
                if pts < start:
                    continue
                break
            if pts is None:
                self.anomalies[f"frames without pts, {how}"] += 1
                pts = None if step is None else round(known + after * step)
            else:
                if pts < 0:
                    self.anomalies["frames with a negative pts, kept"] += 1
                if last is not None and pts <= last:
                    self.anomalies["frames whose pts does not increase, kept"] += 1
                known, after = pts, 0
            after += 1
            last = pts
            if decoded.is_corrupt:
                self.anomalies["damaged frames, delivered as concealed by the decoder"] += 1
            yield decoded, pts
        self.end = max(self.end, known + after * (step or Fraction(0)) - self.origin)  # nothing may decode any more

    def add(self, other: "Video") -> None:
        """Count what another reader of the file has found as if this one had."""
        self.info.absorb(other.info)
        self.info.copied += other.info.copied
        self.reason = other.reason if "corrupt" in other.info.drops else self.reason
        self.sizes |= other.sizes
        if len(self.sizes) > 1:
            self.info.note("the frame size changes in the video")
        self.anomalies.update(other.anomalies)
        self.decoded, self.hidden = self.decoded + other.decoded, self.hidden + other.hidden
        self.end = max(self.end, other.end)

    def note_counts(self, ended: bool, *, whole: bool = True) -> None:
        """Note what was unusual.

        Args:
            ended: the file has been read to its end.
            whole: no other process has read parts of it: what their frames are compared with is known elsewhere.
        """
        if corrupt := self.info.drops.get("corrupt"):
            self.info.note(f"damaged packets skipped: {corrupt} ({self.reason})")
        for anomaly, count in self.anomalies.items():
            self.info.note(f"{anomaly}: {count}")
        if not ended:
            return
        # Compare what was read with the header, because a truncated file often ends without an error.
        frames, seconds = self.stream.frames, self._seconds()
        if frames and not self.options.start:
            if whole and self.decoded + self.hidden < frames:
                self.info.note(FEWER.format(frames, self.decoded))
        elif seconds and seconds - self.end * self.time_base > ENDS_EARLY:
            read = float(self.end * self.time_base)
            self.info.note(f"the header states {float(seconds):.2f} s, the video ends after {read:.2f} s")


def next_program_table(path: Path, position: int) -> int | None:
    """Position of the first program association table after the transport packet at `position`."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read(SEARCHED)
    for at in range(0, len(data) - 2, PACKET):
        if data[at] != SYNC:
            return None
        if at and data[at + 1] & 0x1F == data[at + 2] == 0:  # its PID; a reader can start there
            return position + at
    return None
