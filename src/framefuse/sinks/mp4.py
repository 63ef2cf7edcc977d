"""Encoding of one MP4 file, and the audio of the source, copied into it packet by packet. Or of a WebM.

While it is written, the file is a fragmented MP4 called <name>.part, which stays playable after an error, on a full
disk, or if the process is killed; only the last second is lost: a fragment, and the frames still in the encoder.
`close` remuxes it into a plain MP4 with the index in front (faststart), which replaces it; if that fails, for example
on a full disk, the fragmented file gets the name. A WebM is playable at any time, and only renamed.
"""

import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer, OutputContainer
from av.stream import Discard
from av.video.frame import PictureType
from av.video.reformatter import ColorRange, VideoReformatter
from numpy.typing import NDArray

from framefuse.common.text import counted
from framefuse.errors import SinkError
from framefuse.frame import Matrix
from framefuse.sinks import WEBM
from framefuse.sinks.images import planes_of
from framefuse.sinks.run_folder import check_unmoved, make_durable, open_output, part_of, write_error
from framefuse.sinks.webm import add_vr
from framefuse.sources.ffmpeg import TAGS, demuxed
from framefuse.sources.stereo import ENTRIES, box, boxes_in, boxes_of

UNFINISHED, MOST_BOXES = "being written by framefuse", 1 << 14
"""Comment in a file that is not complete, by which `repair` knows it. After it come the boxes about VR of the complete
one, unless they have more bytes: FFmpeg allows 64 KiB of text in a .mov."""
UNSAID = "what its source says about VR could not be carried over"
HEADER_BYTES = 1 << 16
FRAGMENT_SECONDS = 0.2
ENCODER_SECONDS = 0.7
"""Seconds of video that x264 may hold back; with a fragment, less than a second."""
MATRIX_CODE = {"bt601": 6, "bt709": 1, "bt2020": 9, "rgb": 1}
"""ITU-T H.273, MatrixCoefficients; RGB is converted to BT.709 before it is encoded."""
MP4_AUDIO = frozenset({"aac", "ac3", "alac", "eac3", "flac", "mp2", "mp3", "opus"})
"""Codecs that players expect in an MP4. FFmpeg accepts more (PCM), but few programs can play them."""
WEBM_AUDIO, OPUS, OPUS_RATE = frozenset({"opus", "vorbis"}), "libopus", 48000
"""Codecs that a WebM may have; the encoder of what has another, and its samples a second."""


@dataclass(frozen=True)
class Encoding:
    """How the frames of one file are encoded."""

    encoder: str
    options: Mapping[str, str]
    threads: int
    """0: the encoder's default."""
    time_base: Fraction
    rate: Fraction
    """Average frames per second, a hint for players and rate control; each frame has its own pts."""
    width: int
    height: int
    """Even numbers."""
    matrix: Matrix
    full_range: bool
    sample_aspect_ratio: Fraction
    pixels: str = "yuv420p"
    """Pixel format of the frames, 8 bits and planar."""
    stored: str = "yuv420p"
    """Pixel format of what is encoded."""
    slices: bool = False
    """Whether threads share each frame. Frame threads are faster, and hold back a frame each."""


class Mp4File:
    """An MP4 of one frame size, optionally with the audio of another file.

    For each frame, fill the planes from `planes()`, then call `encode`.

    Args:
        title: written into the file.
        boxes: what it says about VR, see `Stereo`.
        part: call the file <name>.part until `close`.

    Raises:
        SinkError: the encoder cannot be opened, or the file cannot be written.
    """

    def __init__(
        self, path: Path, encoding: Encoding, title: str | None = None, *, boxes: bytes = b"", part: bool = True
    ) -> None:
        self.path, self._written, self._encoding = path, part_of(path) if part else path, encoding
        self._boxes = boxes
        self._failed = False
        self._opened: os.stat_result | None = None
        self._audio: AudioCopy | None = None
        # Without skip_trailer, FFmpeg does not report a full disk while it writes the end of the file.
        flags = {"movflags": "+empty_moov+delay_moov+default_base_moof+skip_trailer", "flush_packets": "1"}
        scale = {"movie_timescale": str(encoding.time_base.denominator)}
        options = {**flags, **scale, "frag_duration": str(round(FRAGMENT_SECONDS * 1e6))}
        self._web = path.suffix == WEBM
        if self._web:
            options = {"flush_packets": "1"}
        self._container = av.open(f"file:{self._written}", "w", format=path.suffix[1:], options=options)
        if not self._web:
            kept = b64encode(boxes).decode() if len(boxes) <= MOST_BOXES else ""
            self._container.metadata["comment"] = f"{UNFINISHED} {kept}".strip()
        if title is not None:
            self._container.metadata["title"] = title
        self._scaler = VideoReformatter()
        self._av_frame = av.VideoFrame(encoding.width, encoding.height, encoding.pixels)
        encoder, width, height = encoding.encoder, encoding.width, encoding.height
        try:
            stream: Any = self._container.add_stream(encoder, rate=encoding.rate, options=dict(encoding.options))
            stream.width, stream.height, stream.pix_fmt = width, height, encoding.stored
            self._stream, context = stream, stream.codec_context
            context.time_base = encoding.time_base
            context.color_range = ColorRange.JPEG if encoding.full_range else ColorRange.MPEG
            context.colorspace = MATRIX_CODE[encoding.matrix]
            context.sample_aspect_ratio = encoding.sample_aspect_ratio
            context.thread_type = "SLICE" if encoding.slices else "AUTO"
            context.thread_count = encoding.threads
            context.open()
        except (av.FFmpegError, ValueError) as error:
            reason = error.strerror if isinstance(error, av.FFmpegError) else error
            wanted = " ".join(f"{name}={value}" for name, value in encoding.options.items())
            remedy = "choose other options or another encoder with --encoder, such as libx264 or mpeg4"
            problem = f"the encoder {encoder} rejects {width}x{height} with {wanted}: {reason}"
            raise SinkError(problem, remedy=remedy) from error

    def add_audio(self, path: Path, *, start: Fraction, offset: Fraction, notes: list[str]) -> None:
        """Also copy the audio of a file, see AudioCopy; to be called before the first `encode`."""
        self._audio = AudioCopy(path, self._container, start=start, offset=offset, notes=notes)

    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        """Writable planes Y, U, V of the next frame; they still hold the previous one."""
        self._av_frame.make_writable()  # reallocates if the encoder still reads the previous frame
        return planes_of(self._av_frame)

    def encode(self, pts: int, source_end: Fraction, *, alone: bool = False) -> None:
        """Encode the frame with this pts, and copy the audio before `source_end` (seconds of the source's own time);
        alone: without reference to other frames, and in their order."""
        frame = self._av_frame
        if self._encoding.stored != self._encoding.pixels:
            frame = self._scaler.reformat(frame, format=self._encoding.stored)
            # reformat forgets it, and ProRes stores that of frames.
            frame.colorspace = MATRIX_CODE[self._encoding.matrix]
        frame.pts, frame.time_base = pts, self._encoding.time_base
        frame.pict_type = PictureType.I if alone else PictureType.NONE
        try:
            if self._opened is None:
                descriptor = open_output(self._written)  # an invalid path fails before any work
                self._opened = os.fstat(descriptor)
                os.close(descriptor)
                self._container.start_encoding()
            self._container.mux(self._stream.encode(frame))
            if self._audio is not None:
                self._audio.copy_until(source_end)
        except (av.FFmpegError, OSError) as error:
            self._failed = True
            raise self._error(error) from error

    def close(self, source_end: Fraction) -> list[str]:
        """Write the remaining packets, then move the index to the front, and say there what is said about VR. Returns
        what could not be done. SinkError: the rest cannot be written and no error was raised before, or the file was
        deleted."""
        error: av.FFmpegError | OSError | None = None
        try:
            with self._container, nullcontext() if self._audio is None else closing(self._audio):
                if not self._failed:
                    self._container.mux(self._stream.encode(None))
                    if self._audio is not None:
                        self._audio.copy_until(source_end, last=True)
        except (av.FFmpegError, OSError) as caught:
            error = caught
        if self._opened is None:
            return []
        check_unmoved(self._written, self._opened)
        problem = None
        if self._failed or error is not None:
            with suppress(OSError):  # the first error is the one to report
                if not self._web:
                    cut_to_whole_boxes(self._written)
                os.replace(self._written, self.path)
            if error is not None and not self._failed:
                raise self._error(error) from error
        elif self._web:
            make_durable(self._written)
            os.replace(self._written, self.path)
        else:
            problem = move_index_to_front(self._written, self.path, self._encoding.time_base.denominator)
        said = not self._boxes or (add_vr if self._web else add_boxes)(self.path, self._boxes)
        return [*([problem] if problem else []), *([] if said else [f"{self.path.name}: {UNSAID}"])]

    def _error(self, error: av.FFmpegError | OSError) -> SinkError:
        return write_error(self.path, OSError(error.errno or 0, error.strerror or str(error)))


def move_index_to_front(written: Path, path: Path, movie_timescale: int) -> str | None:
    """Make a plain MP4 that begins with its index of a fragmented one, which goes; the reason if that fails."""
    plain = path.with_name(path.name + ".index.part")
    try:
        os.close(open_output(plain))
        remux(written, plain, movie_timescale)
        make_durable(plain)
        os.replace(plain, path)
        if written != path:
            written.unlink()
        make_durable(path)
    except (av.FFmpegError, OSError) as error:
        with suppress(OSError):
            os.replace(written, path)
            written = path
        return f"{written.name} remains a fragmented MP4: {error.strerror}"
    finally:
        with suppress(OSError):
            plain.unlink()
    return None


def finish_unfinished(path: Path) -> str:
    """Make a plain MP4 of <stem>.mp4.part, or <stem>.mp4 of a live source, which a killed run left; what was done.

    "": it is another file. SinkError: it cannot be rewritten. OSError: it cannot be read.
    """
    if not path.stat().st_size:
        path.unlink()
        return "removed: it is empty"
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
    if header[4:8] != b"ftyp" or UNFINISHED.encode() not in header:
        return ""
    cut_to_whole_boxes(path)
    if not path.exists():
        return "removed: it held no complete fragment"
    with av.open(f"file:{path}") as container:
        timescale, comment = container.streams.video[0].time_base, container.metadata.get("comment", "")
    target = path.with_suffix("") if path.suffix == ".part" else path
    if problem := move_index_to_front(path, target, 1000 if timescale is None else timescale.denominator):
        raise SinkError(problem, remedy="free some space and try again")
    boxes = b""
    with suppress(ValueError):  # it is not as we wrote it
        boxes = b64decode(comment.removeprefix(UNFINISHED).strip(), validate=True)
    unsaid = f"; {UNSAID}" if boxes and not add_boxes(target, boxes) else ""
    with av.open(f"file:{target}") as container:
        return f"completed as {target.name}, {counted(container.streams.video[0].frames, 'frame')}{unsaid}"


def remux(source: Path, target: Path, movie_timescale: int) -> None:
    """Copy all packets and the title of an MP4 into a plain MP4 with its index in front."""
    options = {"movflags": "+faststart", "movie_timescale": str(movie_timescale)}
    kind = "mov" if target.name.endswith(".mov.index.part") else "mp4"
    with av.open(f"file:{source}") as reader, av.open(f"file:{target}", "w", format=kind, options=options) as writer:
        writer.metadata.update({key: text for key, text in reader.metadata.items() if key == "title"})
        streams: dict[int, Any] = {one.index: writer.add_stream_from_template(one) for one in reader.streams}
        for stream in reader.streams:
            streams[stream.index].time_base = stream.time_base
        for stream in reader.streams.video:  # FFmpeg would call every ProRes 422
            streams[stream.index].codec_context.codec_tag = stream.codec_context.codec_tag
        for packet in reader.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream_index]
                writer.mux(packet)


def cut_to_whole_boxes(path: Path) -> None:
    """Truncate an unfinished fragmented MP4 after its last complete fragment; remove it if there is none."""
    whole = fragments = 0
    with open(path, "rb") as file:
        for kind, length in boxes_in(file):
            if kind != b"moof" and (end := file.tell() + length) <= path.stat().st_size:
                whole = end
                fragments += kind == b"mdat"
    os.truncate(path, whole)
    if not fragments:
        path.unlink()


def add_boxes(path: Path, boxes: bytes) -> bool:
    """Add boxes to the description of the video of a plain MP4 whose index comes first; whether it is one, and could
    be rewritten."""
    changed, described = path.with_name(path.name + ".index.part"), False
    try:
        with open(path, "rb") as source, os.fdopen(open_output(changed), "wb") as target:
            while len(header := source.read(8)) == 8 and header[4:] != b"mdat":
                body = source.read(max(0, int.from_bytes(header[:4], "big") - 8))
                if header[4:] == b"moov":
                    grown = len(_described(body, boxes, 0)) - len(body)
                    body = _described(body, boxes, grown)
                    described = grown > 0
                target.write(box(header[4:], body))
            target.write(header)
            shutil.copyfileobj(source, target)
        if described:
            os.replace(changed, path)
            make_durable(path)
    except OSError:
        described = False
    with suppress(OSError):
        changed.unlink()
    return described


def _described(data: bytes, boxes: bytes, shift: int) -> bytes:
    """The boxes in `data`, those of the index, with others in the entries of videos, and offsets that are greater by
    `shift`."""
    written = []
    for kind, body in boxes_of(data):
        if kind in (b"trak", b"mdia", b"minf", b"stbl"):
            body = _described(body, boxes, shift)
        elif kind == b"stsd":
            body = body[:8] + b"".join(
                box(name, entry + boxes if name in ENTRIES else entry) for name, entry in boxes_of(body[8:])
            )
        elif kind in (b"stco", b"co64"):
            values = np.frombuffer(body[8:], ">u4" if kind == b"stco" else ">u8")
            body = body[:8] + (values + shift).astype(values.dtype).tobytes()
        written.append(box(kind, body))
    return b"".join(written)


class AudioCopy:
    """Copies the audio packets of `path` that belong to the time range of the video, without re-encoding, unless it is
    for a WebM, which may have no such audio.

    All of this is best effort: audio that cannot be read or stored is omitted with a note, never an error.

    Args:
        start: time of the first video frame in seconds of the source. Audio is copied from there on, or from its own
            beginning if this is where the source's video begins.
        offset: seconds added to every timestamp.
        notes: omissions are appended here.
    """

    def __init__(
        self, path: Path, output: OutputContainer, *, start: Fraction, offset: Fraction, notes: list[str]
    ) -> None:
        self._output, self._offset, self._notes = output, offset, notes
        self._start: Fraction | None = None
        self._source_end: Fraction | None = None
        self._input: InputContainer | None = None
        self._targets: dict[int, Any] = {}
        self._encoded: set[int] = set()
        """Streams whose audio is encoded anew."""
        self._last: dict[int, int] = {}
        self._packets: Iterator[Any] = iter(())
        self._waiting: tuple[Any, ...] = ()
        """The next packet, if it has been read."""
        self._disorder = 0
        try:
            self._open(path, start)
        except (av.FFmpegError, OSError, ValueError) as error:
            self._give_up(error)

    def _open(self, path: Path, start: Fraction) -> None:
        # As in sources/files.py: no other protocols, and no playlist reaches the network.
        self._input = av.open(f"file:{path}", container_options={"protocol_whitelist": "file,crypto,data"}, **TAGS)
        web = self._output.format.name == WEBM[1:]
        for stream in self._input.streams:
            reason = _unfit(stream, anew=web) if stream.type == "audio" else ""
            if reason is None:
                if web and stream.codec_context.codec.canonical_name not in WEBM_AUDIO:
                    self._targets[stream.index] = self._opus(stream)
                else:
                    self._targets[stream.index] = self._output.add_stream_from_template(stream)
                continue
            stream.discard = Discard.all
            self._notes += [f"audio stream {stream.index} omitted: {reason}"] if reason else []
        begins = Fraction(0)
        for video in self._input.streams.video[:1]:
            tick: Any = video.time_base
            begins = (video.start_time or 0) * tick
            if video.duration:
                self._source_end = begins + video.duration * tick
        if not self._targets:
            return self.close()
        if start > begins:
            self._start = start
            self._input.seek(int(start * av.time_base))
        self._packets = self._demux(self._input)

    def _opus(self, stream: Any) -> Any:
        """A stream in which the audio of another is encoded anew."""
        target: Any = self._output.add_stream(OPUS, rate=OPUS_RATE)
        target.layout = "mono" if stream.layout.nb_channels == 1 else "stereo"
        self._encoded.add(stream.index)
        name = stream.codec_context.codec.canonical_name
        self._notes.append(f"audio stream {stream.index} encoded as Opus: a WebM may not have {name}")
        return target

    def _demux(self, reader: InputContainer) -> Iterator[Any]:
        streams = [reader.streams[index] for index in self._targets]
        # MPEG-TS has an ADTS header before each AAC packet, which MP4 must not have. FFmpeg removes it for plain MP4,
        # but not for fragmented MP4.
        filters = {
            stream.index: BitStreamFilterContext("aac_adtstoasc", stream)
            for stream in streams
            if stream.codec_context.name == "aac" and not stream.codec_context.extradata
        }
        try:
            for packet in demuxed(reader, streams):
                if packet.dts is not None:
                    adts = filters.get(packet.stream_index)
                    yield from [packet] if adts is None else adts.filter(packet)
        except (av.FFmpegError, OSError) as error:
            self._give_up(error)

    def copy_until(self, end: Fraction, *, last: bool = False) -> None:
        """Write the packets that begin before `end` seconds of the source's time, and all that remain if it is the
        `last` call and `end` is the end of the source's video."""
        everything = last and self._source_end is not None and end >= self._source_end
        for packet in chain(self._waiting, self._packets):
            begins = packet.dts * packet.time_base
            self._waiting = (packet,) if begins >= end and not everything else ()
            if self._waiting:
                return
            if self._start is not None and begins + (packet.duration or 0) * packet.time_base <= self._start:
                continue
            shift = round(self._offset / packet.time_base)
            dts, index = packet.dts + shift, packet.stream_index
            if dts <= self._last.get(index, dts - 1):
                self._disorder += 1
                continue
            self._last[index] = dts
            if index in self._encoded:
                self._encode(packet, self._targets[index])
                continue
            packet.pts = dts if packet.pts is None else max(dts, packet.pts + shift)
            packet.dts = dts
            packet.stream = self._targets[index]
            self._output.mux(packet)
        for index in self._encoded if last else ():
            self._output.mux(self._targets[index].encode(None))

    def _encode(self, packet: Any, target: Any) -> None:
        try:
            frames = packet.decode()
        except av.FFmpegError:  # one damaged packet is a gap
            return
        for frame in frames:
            frame.pts += round(self._offset / frame.time_base)
            self._output.mux(target.encode(frame))

    def close(self) -> None:
        if self._disorder:
            self._notes.append(f"audio packets out of order, omitted: {self._disorder}")
            self._disorder = 0
        self._packets, self._waiting = iter(()), ()
        if self._input is not None:
            self._input.close()

    def _give_up(self, error: Exception) -> None:
        self._notes.append(f"audio omitted from here on: {getattr(error, 'strerror', None) or error}")
        self.close()


def _unfit(stream: Any, *, anew: bool = False) -> str | None:
    """Why an audio stream cannot be copied into an MP4, or encoded `anew`; None if it can."""
    context = stream.codec_context
    if context is None or not context.sample_rate:
        return "its description is missing or damaged"  # as in a truncated file
    codec = context.codec.canonical_name
    return None if anew or codec in MP4_AUDIO else f"MP4 players do not support {codec}"
