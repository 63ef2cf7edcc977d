"""FFmpeg through PyAV: a file as a container, its packets to decoded frames to `Frame`.

A `Frame` has the planes of a decoded frame in place, and what their samples mean.
"""

import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.stream import Disposition
from numpy.typing import NDArray

from framefuse.errors import DecodeError, SourceError
from framefuse.frame import PIXEL_FORMATS, Frame, Matrix, PixelFormat, Rotation
from framefuse.sources.source import SourceInfo, SourceOptions

TAGS: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""Keyword arguments of `av.open` for files whose tags are not UTF-8, which PyAV 19 reads without."""
NOT_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails
FILTERS = {name: f"{name}_mp4toannexb" for name in ("h264", "hevc", "vvc")}
FILTERS |= {"mpeg2video": "mpeg2_metadata", "mpeg4": "mpeg4_unpack_bframes", "av1": "av1_metadata"}
"""Codec -> an FFmpeg filter that refuses every other codec."""
STARTS = {
    "h264": rb"\x00\x00\x01[\x09\x27\x67]",  # access unit delimiter or sequence parameter set (ITU-T H.264, table 7-1)
    "hevc": rb"\x00\x00\x01[\x40\x46]\x01",  # the same or a video parameter set (ITU-T H.265, table 7-1)
    "mpeg2video": rb"\x00\x00\x01\xb3",  # sequence header (ISO/IEC 13818-2, table 6-1)
}
"""Codec -> how a sequence begins; no packet of another codec contains these bytes."""
MAX_SIDE = 16384
"""Pixels; a larger side is treated as a damaged header."""
# AVColorSpace, AVColorRange and AVColorTransferCharacteristic of FFmpeg; the numbers are those of ITU-T H.273.
MATRICES: dict[int, tuple[Matrix, str]] = {
    1: ("bt709", ""),
    2: ("bt601", "colour matrix not stated: BT.601 assumed"),
    4: ("bt601", "colour matrix FCC is read as bt601"),
    5: ("bt601", ""),
    6: ("bt601", ""),
    7: ("bt709", "colour matrix SMPTE 240M is read as bt709"),
    9: ("bt2020", ""),
    10: ("bt2020", "colour matrix BT.2020 constant luminance is read as bt2020"),
}
"""Colour matrix, and what the user should know about it."""
SWS_MATRIX = {"bt601": "ITU601", "bt709": "ITU709", "rgb": "ITU709", "bt2020": "BT2020"}
"""Colour matrix -> that of swscale; RGB is converted to and from BT.709."""
LIMITED, FULL = 1, 2
HDR_TRANSFER = {16: "PQ", 18: "HLG"}
CONVERSIONS = {"yuyv422": "yuv422p", "uyvy422": "yuv422p", "yvyu422": "yuv422p", "ya8": "gray"}
"""Formats outside PIXEL_FORMATS with a lossless equivalent in it, besides big-endian ones; all others become rgb24."""


class DecoderUnavailable(Exception):
    """A decoder cannot begin, for want of memory for instance. Another one can take over.

    Args:
        reason: why, for the user.
        packets: what the decoder was given, and made no frame of.
    """

    def __init__(self, reason: str, packets: list[Any]) -> None:
        super().__init__(reason)
        self.reason, self.packets = reason, packets


class HostDecoder:
    """FFmpeg on the CPU. It follows an MPEG-TS that changes its codec (and tells `on_change`), which PyAV does not.

    A decoded frame has pts, time_base, width, height and is_corrupt, as PyAV's frames have.
    """

    notes: Sequence[str] = ()
    """What the user should know about how it decodes."""

    def __init__(self, stream: Any, options: SourceOptions, on_change: Callable[[str], None]) -> None:
        self.codec: str = stream.codec_context.name
        self._stream, self._context, self._options = stream, stream.codec_context, options
        self._follows = stream.container.format.name in ("mpegts", "hls")
        self._on_change = on_change
        self._configure()

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        """Decoded frames that are ready after this packet; an empty packet flushes the decoder.

        Raises:
            EOFError: there are no more.
            av.FFmpegError: the packet is damaged.
        """
        if self._follows and packet.size and (codec := changed_codec(self._stream, self.codec)):
            return self._change(packet, codec)
        decoded: Iterable[Any] = self._context.decode(packet if packet.size else None)
        return decoded

    def _change(self, packet: Any, codec: str) -> list[Any]:
        """The last frames of the old codec, and the first of the new one; FFmpeg's parser joins these in one packet."""
        old, new = _split(packet, codec)
        frames: list[Any] = []
        self._on_change(f"the codec changes from {self.codec} to {codec}")
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

    def restart(self, closed: threading.Event) -> None:
        """The next packet does not follow the last one: PyAV flushes the decoder when it seeks."""

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
    """The file, or what follows byte `begin`, open; SourceError has the system's reason, DecodeError FFmpeg's."""
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
    """The packets of some streams, then an empty one of each, which flushes its decoder."""
    with suppress(IndexError):  # PyAV also flushes streams that appeared since it opened the container, and fails
        yield from container.demux(*streams)


def wrap(
    av_frame: av.VideoFrame, info: SourceInfo, *, index: int, sample_aspect_ratio: Fraction = Fraction(1), **facts: Any
) -> Frame:
    """A Frame over the planes of a decoded frame, without a copy if the pixel format is in PIXEL_FORMATS.

    The arrays are writable because DLPack demands it, yet the decoder may still read them: never draw into them.
    Assumptions and conversions are added to `info.notes`. `facts` are further fields of the Frame.

    Raises:
        SourceError: the frame has no pixels, or a side longer than MAX_SIDE.
    """
    check_size(av_frame.width, av_frame.height, info.uri)
    colour = av_frame.colorspace, av_frame.color_range, av_frame.color_trc
    meaning = _meaning(av_frame.format.name, *colour, av_frame.interlaced_frame, sample_aspect_ratio)
    format, convert, matrix, full_range, notes = meaning
    for text in notes:
        info.note(text)
    packed = format.layout == "packed"
    if convert:
        # As in the kernels, an unspecified matrix means BT.601.
        av_frame = av_frame.reformat(
            format=format.name,
            src_colorspace=None if matrix == "rgb" else SWS_MATRIX[matrix],
            src_color_range=FULL if full_range else LIMITED,
            dst_color_range=FULL if packed or full_range else LIMITED,
        )
    pairs = zip(av_frame.planes, format.plane_shapes(av_frame.width, av_frame.height), strict=False)
    planes = tuple(_plane(plane, shape, format.dtype, info) for plane, shape in pairs)
    facts |= {"matrix": "rgb" if packed else matrix, "full_range": packed or full_range}
    facts |= {"rotation": _rotation(av_frame, info, first=index == 0), "sample_aspect_ratio": sample_aspect_ratio}
    return Frame(planes, format, index, owner=av_frame, **facts)


def check_size(width: int, height: int, source_id: str, max_pixels: int | None = None) -> None:
    """SourceError: a side is zero or larger than MAX_SIDE, or there are more pixels than the option `max_pixels`."""
    size, remedy = f"{width}x{height}", "check that the file is not damaged"
    if min(width, height) < 1:
        raise SourceError(f"{source_id}: the frame size is {size}", remedy="check that the file is complete")
    if max(width, height) > MAX_SIDE:
        problem = f"{source_id}: the frame size {size} exceeds {MAX_SIDE} pixels per side"
        raise SourceError(problem, remedy=f"{remedy}, or scale it down first")
    if max_pixels is not None and width * height > max_pixels:
        problem = f"{source_id}: the frame size {size} ({width * height} pixels) exceeds max_pixels ({max_pixels})"
        raise SourceError(problem, remedy=f"{remedy}, scale it down first, or raise the option max_pixels")


@lru_cache(maxsize=64)
def _meaning(
    name: str, colorspace: int, color_range: int, transfer: int, interlaced: bool, aspect: Fraction
) -> tuple[PixelFormat, bool, Matrix, bool, tuple[str, ...]]:
    """The format of a frame's samples, whether FFmpeg has to convert them to it first, their matrix, whether their
    range is full, and what the user should know about all this."""
    notes = []
    plain = name.removesuffix("le")
    full_range = color_range == FULL
    if plain.startswith("yuvj"):
        plain, full_range = "yuv" + plain.removeprefix("yuvj"), True
    if plain.startswith(("yuva", "gbrap")):
        # The colour planes come first and are those of the format without alpha.
        plain = plain.replace("yuva", "yuv", 1).replace("gbrap", "gbrp", 1)
        notes.append("transparency is ignored")
    if plain == "p012":
        plain = "p016"  # same code values: both use the high bits of the sample
    convert = plain not in PIXEL_FORMATS
    target = CONVERSIONS.get(plain, plain.removesuffix("be"))
    found = PIXEL_FORMATS.get(target, PIXEL_FORMATS["rgb24"])
    if convert:
        notes.append(f"pixel format {name} is converted to {found.name} by FFmpeg, one copy per frame")

    if av.VideoFormat(name).is_rgb:
        matrix: Matrix = "rgb"
        full_range = True
    elif plain.startswith(("gray", "ya")):
        # As in swscale, untagged gray is full range: it mostly comes from cameras and images.
        matrix, full_range = "bt601", color_range != LIMITED
    else:
        unsupported = f"colour matrix {colorspace} (H.273) is not supported: read as BT.601, colours are wrong"
        matrix, remark = MATRICES.get(colorspace, ("bt601", unsupported))
        notes += [remark] if remark else []
        if color_range not in (LIMITED, FULL) and not full_range:
            notes.append("colour range not stated: limited (16-235) assumed")
    if transfer in HDR_TRANSFER:
        notes.append(f"HDR video ({HDR_TRANSFER[transfer]}): used as coded, without tone mapping")
    if interlaced:
        notes.append("interlaced video: used as coded, not deinterlaced")
    if aspect != 1:
        notes.append(f"anamorphic video (pixel aspect {aspect}): used as coded, boxes are in coded pixels")
    return found, convert, matrix, full_range, tuple(notes)


def _plane(plane: Any, shape: tuple[int, ...], dtype: np.dtype[Any], info: SourceInfo) -> NDArray[Any]:
    pitch = plane.line_size
    samples = (dtype.itemsize,) if len(shape) == 2 else (shape[2] * dtype.itemsize, dtype.itemsize)
    if pitch > 0:
        return np.ndarray(shape, dtype, plane, 0, (pitch, *samples))
    info.note("rows are stored bottom-up: one copy per frame")
    return np.ndarray(shape, dtype, plane, -pitch * (shape[0] - 1), (pitch, *samples)).copy()


_MIRRORED = "the display matrix mirrors the video: ignored, used as coded"


def _rotation(av_frame: av.VideoFrame, info: SourceInfo, first: bool) -> Rotation:
    """Clockwise rotation in the display matrix."""
    # Only of the first frame: PyAV's side data create cycles that keep a frame until the garbage collector runs.
    side_data: Any = av_frame.side_data.get("DISPLAYMATRIX") if first else None
    if side_data is not None:
        # It maps (1, 0) to (a, b) and (0, 1) to (c, d), with y downwards.
        a, b, _, c, d = struct.unpack_from("=5i", side_data)
        if a * d - b * c < 0:
            info.note(_MIRRORED)
    degrees = -av_frame.rotation
    if not degrees or _MIRRORED in info.notes:
        return 0
    quarter = round(degrees / 90) % 4
    if degrees % 90 not in (0, 1, 89):
        info.note(f"the display matrix rotates by {degrees} degrees: {90 * quarter} used")
    rotations: tuple[Rotation, ...] = (0, 90, 180, 270)
    return rotations[quarter]
