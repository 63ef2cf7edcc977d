"""NVDEC through PyNvVideoCodec: FFmpeg demuxes, the GPU decodes into its own memory, and no pixel crosses the bus.

What it does not support or has no memory for, FFmpeg decodes on the host.

Copies on the GPU
    PyNvVideoCodec copies each frame from the hardware's surface to a surface of its own, device to device. If readers
    hold several frames at once (`held` > 1), as a batch of one stream does, this module copies it a second time, into a
    ring of its own. Both copies are counted in `SourceInfo.copied`, and the notes name them.

Surfaces are reused
    PyNvVideoCodec returns the same three or four surfaces in turn: a later `Decode` overwrites what an earlier one
    returned. So each Frame carries a lease, and no packet is decoded before all leases of the previous one are
    released. The decoder works ahead (it holds back the frames that reordering needs), so this costs no throughput as
    long as readers release right after their first kernel: `lease.release(after=event)`.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np

from framefuse.common.text import first_line
from framefuse.cuda import device, driver
from framefuse.errors import CapabilityError, FramefuseError
from framefuse.frame import PIXEL_FORMATS, Frame, PixelFormat
from framefuse.sources.annexb import NAL_TYPES, AnnexB
from framefuse.sources.ffmpeg import DecoderUnavailable
from framefuse.sources.source import SourceInfo, SourceOptions

CODECS = {name: name.upper() for name in ("h264", "hevc", "av1", "vp9", "vp8", "mpeg4")} | {"mpeg2video": "MPEG2"}
"""FFmpeg's name of a codec -> PyNvVideoCodec's."""
SURFACES = {"yuv420p": "nv12", "nv12": "nv12", "yuv420p10": "p010", "p010": "p010", "yuv420p12": "p016"}
"""Pixel format of FFmpeg's decoder -> that of NVDEC's surface for the same stream."""
MEMORY_NEEDED = 600_000_000
"""Free bytes on the GPU that NVDEC needs. It creates a CUDA context of its own, and PyNvVideoCodec 2.2 crashes the
process if there is no memory for it."""
NO_PTS = -(2**63)
"""FFmpeg's AV_NOPTS_VALUE."""
POLL_SECONDS = 0.2
_started: set[int] = set()
"""GPUs on which this process has created a decoder, and with it the CUDA context that needs the memory."""
_querying = threading.Lock()


def choose_decoder(
    stream: Any, options: SourceOptions, info: SourceInfo, first_frame: Callable[[], Frame]
) -> "NvDecoder | str":
    """NVDEC if it can decode this stream, else why not: FFmpeg then decodes it on the host.

    Args:
        first_frame: decodes the first frame on the host; it tells what the header does not (colours, rotation).
    """
    try:
        module = load_nvdec()
    except CapabilityError as error:
        return error.message
    name = stream.codec_context.name
    if name not in CODECS:
        return f"NVDEC has no {name}"
    try:
        sample = first_frame()
    except FramefuseError as error:
        return f"the first frame cannot be decoded ({error.message})"
    if reason := refusal(module, CODECS[name], sample):
        return reason
    try:
        decoder = NvDecoder(module, stream, sample, low_latency=options.low_latency, held=options.held,
                            lasting=options.lasting, ring=options.ring)  # fmt: skip
    except av.FFmpegError as error:
        return str(error.strerror)
    for text in decoder.notes:
        info.note(text)
    return decoder


def load_nvdec() -> Any:
    """PyNvVideoCodec, imported; CapabilityError: it is not installed, or finds no driver."""
    try:
        import PyNvVideoCodec
    except ImportError as error:
        raise CapabilityError(f"PyNvVideoCodec fails: {error}", remedy="pip install 'framefuse[cuda13]'") from error
    except Exception as error:  # RuntimeError from its own check of the driver
        remedy = "check the NVIDIA driver; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        raise CapabilityError(f"PyNvVideoCodec cannot be used: {first_line(error)}", remedy=remedy) from error
    return PyNvVideoCodec


def refusal(module: Any, codec: str, sample: Frame) -> str | None:
    """Why NVDEC on this GPU cannot decode the stream; None if it can."""
    width, height, format = sample.coded_width, sample.coded_height, sample.format
    if format.name not in SURFACES:
        return f"NVDEC has no surface for {format.name}"
    if width % 2 or height % 2:
        return f"NVDEC would round the odd size {width}x{height} up"
    known = getattr(module.cudaVideoCodec, codec, None)
    if known is None:
        return f"this PyNvVideoCodec has no {codec}"
    if (free := free_memory()) < MEMORY_NEEDED:
        return f"NVDEC {_lacking(free)}"
    lacking = f"NVDEC on this GPU has no {format.bits}-bit {codec}"
    try:
        with _querying:
            limits = _limits(module, device.current_gpu(), known, format.bits)
    except Exception as error:  # PyNvVCException, and plain RuntimeError if the driver refuses
        return f"{lacking} ({first_line(error, 120)})"
    if not limits.get("num_decoder_engines"):
        return lacking
    for name, side in (("width", width), ("height", height)):
        least, most = limits[f"{name}_min"], limits[f"{name}_max"]
        if not least <= side <= most:
            return f"{name} {side} is outside NVDEC's range {least}..{most}"
    if width * height > limits["mb_num_max"] * 256:
        return f"{width}x{height} is more than {limits['mb_num_max']} macroblocks"
    return None


@cache
def _limits(module: Any, gpu: int, codec: Any, bits: int) -> Any:
    """The decoder's capabilities. A query takes 0.2 s."""
    chroma = getattr(module.cudaVideoChromaFormat, "420")
    return module.GetDecoderCaps(gpuid=gpu, codec=codec, chromaformat=chroma, bitdepth=bits)


def _lacking(free: int) -> str:
    return f"needs {MEMORY_NEEDED / 1e6:.0f} MB of GPU memory, and {free / 1e6:.0f} MB are free"


def free_memory() -> int:
    """Free bytes of GPU memory; if they are fewer than MEMORY_NEEDED, CuPy's unused blocks are freed first."""
    module = device.cupy()
    if module.cuda.runtime.memGetInfo()[0] < MEMORY_NEEDED:
        device.free_pools()
    return int(module.cuda.runtime.memGetInfo()[0])


@dataclass(slots=True)
class Surface:
    """A decoded frame in a surface of PyNvVideoCodec."""

    pts: int | None
    luma: int
    """Device address."""
    chroma: int
    pitch: int
    """Bytes from row to row, of both planes."""
    width: int
    height: int
    ready: Any
    owner: Any
    """Keeps the decoder alive, which frees its surfaces when it is collected."""
    time_base: Fraction | None = None
    is_corrupt: bool = False


class SurfaceLease:
    """A `Lease` that the decoder waits for before it overwrites the surface.

    Attributes:
        lasting: see `SourceOptions`.
    """

    def __init__(self, lasting: bool = False) -> None:
        self.lasting = lasting
        self._lock = threading.Lock()
        self._lock.acquire()
        self._after: Any = None

    def release(self, after: Any = None) -> None:
        if self._lock.locked():
            self._after = after
            self._lock.release()

    @property
    def released(self) -> bool:
        """Whether `wait` does not wait for a reader."""
        return not self._lock.locked()

    def wait(self, closed: threading.Event, stream: Any) -> None:
        """Wait until work enqueued on `stream` from now on may overwrite the surface, or the source is closed."""
        while not self._lock.acquire(timeout=POLL_SECONDS):
            if closed.is_set():
                return
        if self._after is not None:
            driver.wait(self._after, stream)


class NvDecoder:
    """NVDEC for one stream, with the methods of `HostDecoder`.

    Args:
        sample: the first frame, decoded on the host: all frames have its colours and rotation.
        held: number of frames that readers hold at the same time.
        lasting, ring: see `SourceOptions`.
    """

    def __init__(self, module: Any, stream: Any, sample: Frame, *, low_latency: bool, held: int = 1,
                 lasting: bool = False, ring: Callable[[int, int], Sequence[Any]] | None = None) -> None:  # fmt: skip
        self._module, self._low_latency, self._held, self._lasting = module, low_latency, held, lasting
        self.codec = name = stream.codec_context.name
        twice = f"twice on the GPU, as readers hold up to {held} frames at a time"
        copied = f"each frame is copied {twice if held > 1 else 'once on the GPU, by PyNvVideoCodec'}"
        self.notes: Sequence[str] = [copied, f"decoded by NVDEC ({name})"]
        self._colour = {name: getattr(sample, name) for name in ("matrix", "full_range", "rotation")}
        self._format: PixelFormat = PIXEL_FORMATS[SURFACES[sample.format.name]]
        self._cupy, self._device, self._thread = device.cupy(), device.current_gpu(), 0
        self._ring_memory = ring or (lambda count, size: list(self._cupy.empty((count, size), np.uint8)))
        # Not the null stream: a frame's DLPack export synchronises with the legacy stream, ours need not.
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._annexb = AnnexB(name, stream.codec_context.extradata or b"") if name in NAL_TYPES else None
        self._sps = b""
        self._leases: deque[SurfaceLease] = deque()
        self._ring: deque[tuple[Any, tuple[Any, Any], Any, SurfaceLease]] = deque()
        """Copies of surfaces, oldest first: the memory, the planes in it, the event after the copy, the lease."""
        self._unused: list[Any] = []
        """Memory of the ring that no frame has used yet."""
        self._geometry = self._ring_geometry = (0, 0, 0)
        """Pitch, width and height of the previous frame, and of those in the ring."""
        self._template: Frame | None = None
        """A validated frame of this geometry, from which the others are made."""
        self._closed = threading.Event()
        self._planes: dict[tuple[int, ...], tuple[Any, Any]] = {}
        """Luma and chroma of a surface, by its addresses and geometry."""
        self._begun = False
        """Whether the decoder has returned a surface of what it decodes now."""
        self._forget()

    def restart(self, closed: threading.Event) -> None:
        """Drop what the decoder holds back: what comes is from elsewhere in the video. A new decoder would take longer
        than many frames, and hold up those of other readers."""
        if not self._begun or self._annexb is None:  # of other codecs nothing tells whether the frame size has changed
            self._forget()
            return
        self._closed = closed
        with suppress(av.FFmpegError):  # there is no decoder any more then
            deque(self._decode(self._module.PacketData()), maxlen=0)
        self._begun = False

    def _forget(self) -> None:
        self._decoder: Any = None
        self._begun = False
        self._fed: list[Any] = []
        """The packets that it was given until then."""

    def decode(self, packet: Any, closed: threading.Event) -> Iterator[Surface]:
        """Wrap or drop each surface before asking for the next.

        Raises:
            DecoderUnavailable: NVDEC does not start, or has not returned a surface yet and fails.
            av.FFmpegError: the packet is damaged.
        """
        self._closed = closed
        if not packet.size:
            if self._decoder is not None:
                self._feed(packet)
                yield from self._decode(self._module.PacketData())
            return
        data = None if self._annexb is None else self._annexb(packet)
        if data is not None and not data:  # only padding; an empty packet would mean the end
            return
        if self._annexb is not None and packet.is_keyframe:
            before, self._sps = self._sps, self._annexb.sps or self._sps
            if before and before != self._sps and self._decoder is not None:  # such as another frame size
                # Flush first: a new decoder loses the frames that the old one holds back.
                yield from self._decode(self._module.PacketData())
                self._forget()
        self._feed(packet)
        fed = self._module.PacketData()
        fed.bsl_data = packet.buffer_ptr if data is None else ctypes.addressof(ctypes.c_char.from_buffer(data))
        fed.bsl = packet.size if data is None else len(data)
        fed.pts = NO_PTS if packet.pts is None else packet.pts
        if self._low_latency:
            fed.decode_flag = self._module.VideoPacketFlag.ENDOFPICTURE
        yield from self._decode(fed)

    def _feed(self, packet: Any) -> None:
        if not self._begun:
            self._fed.append(packet)

    def _decode(self, data: Any) -> Iterator[Surface]:
        if self._thread != threading.get_ident():  # CUDA's current device belongs to the thread
            self._cupy.cuda.Device(self._device).use()
            self._thread = threading.get_ident()
        while self._leases:
            self._leases.popleft().wait(self._closed, self._stream)
        if self._closed.is_set():
            return
        try:
            if self._decoder is None:
                self._open()
            decoded = self._decoder.Decode(data)
            if decoded and self._held > 1:
                self._make_ring(decoded[0])
        except Exception as error:  # PyNvVCException, plain RuntimeError, OutOfMemoryError of CuPy
            packets, begun, reason = self._fed, self._begun, f"NVDEC: {first_line(error, 200)}"
            self._forget()
            if begun:
                raise av.error.InvalidDataError(0, reason) from error
            raise DecoderUnavailable(reason, packets) from error
        if not decoded:
            return
        self._begun = True
        self._fed.clear()
        ready = None
        if self._held == 1:  # otherwise readers wait for the copies
            ready = self._cupy.cuda.Event(disable_timing=True)
            driver.record(ready, self._stream)
        for surface in decoded:
            rows, width = surface.shape
            pts = None if surface.getPTS() == NO_PTS else surface.getPTS()
            planes = surface.GetPtrToPlane(0), surface.GetPtrToPlane(1)
            yield Surface(pts, *planes, surface.strides[0], width, rows * 2 // 3, ready, (self._decoder, surface))

    def _open(self) -> None:
        # Memory that was free when NVDEC was chosen may now be in use, by the model for instance.
        if self._device not in _started and (free := free_memory()) < MEMORY_NEEDED:
            raise MemoryError(_lacking(free))
        latency = self._module.DisplayDecodeLatencyType
        codec = getattr(self._module.cudaVideoCodec, CODECS[self.codec])
        how = {"codec": codec, "latency": latency.LOW if self._low_latency else latency.NATIVE}
        where = {"gpuid": self._device, "cudacontext": 0, "cudastream": self._stream.ptr, "usedevicememory": True}
        self._decoder = self._module.CreateDecoder(**where, **how)
        _started.add(self._device)

    def wrap(self, decoded: Surface, info: SourceInfo, **facts: Any) -> Frame:
        """The surface, or a copy of it if `held` > 1, as a Frame with a lease."""
        lease = SurfaceLease(self._lasting)
        geometry = decoded.pitch, decoded.width, decoded.height
        size = decoded.pitch * decoded.height * 3 // 2
        info.copied += size  # by PyNvVideoCodec, from the hardware's surface to its own
        if self._held > 1:
            info.copied += size
            owner, planes, ready = self._copy(decoded, lease)
        else:
            self._leases.append(lease)
            key = decoded.luma, decoded.chroma, *geometry
            if key not in self._planes:
                self._planes[key] = self._arrays(decoded.luma, decoded.chroma, decoded)
            planes, ready, owner = self._planes[key], decoded.ready, decoded.owner
        if self._template is None or geometry != self._geometry:
            self._geometry = geometry
            self._template = Frame(planes, self._format, **self._colour)
        return self._template.replace_unchecked(planes=planes, ready=ready, lease=lease, owner=owner, **facts)

    def _make_ring(self, decoded: Any) -> None:
        """Memory for the copies of surfaces like this one; that of another geometry lives as long as its frames."""
        geometry = decoded.strides[0], decoded.shape[1], decoded.shape[0]
        if geometry == self._ring_geometry:
            return
        self._ring.clear()
        self._unused.clear()
        # One allocation for all: each stalls the GPU's other threads.
        self._unused = list(self._ring_memory(self._held + 1, geometry[0] * geometry[2]))
        self._ring_geometry = geometry

    def _copy(self, surface: Surface, lease: SurfaceLease) -> tuple[Any, ...]:
        """Copy the surface into the oldest entry of the ring whose lease is released; memory, planes and event."""
        luma = surface.pitch * surface.height
        size = luma * 3 // 2
        if self._unused:
            memory = self._unused.pop()
            planes = self._arrays(memory.data.ptr, memory.data.ptr + luma, surface)
            ready = self._cupy.cuda.Event(disable_timing=True)
        else:
            at = next((at for at, entry in enumerate(self._ring) if entry[-1].released), 0)  # mostly the first
            memory, planes, ready, previous = self._ring[at]
            del self._ring[at]
            previous.wait(self._closed, self._stream)
        self._ring.append((memory, planes, ready, lease))
        start = memory.data.ptr
        if surface.chroma == surface.luma + luma:
            driver.copy(start, surface.luma, size, self._stream)
        else:
            driver.copy(start, surface.luma, luma, self._stream)
            driver.copy(start + luma, surface.chroma, size - luma, self._stream)
        driver.record(ready, self._stream)
        return memory, planes, ready

    def _arrays(self, luma: int, chroma: int, surface: Surface) -> tuple[Any, Any]:
        """CuPy arrays over planes with the geometry of a surface at these addresses."""
        shapes = self._format.plane_shapes(surface.width, surface.height)
        item = self._format.dtype.itemsize
        arrays = []
        for address, shape in zip((luma, chroma), shapes, strict=True):
            strides = (surface.pitch, *(() if len(shape) == 2 else (2 * item,)), item)
            memory = self._cupy.cuda.UnownedMemory(address, surface.pitch * shape[0], None, self._device)
            arrays.append(device.array_in(memory, 0, shape, self._format.dtype, strides))
        return arrays[0], arrays[1]
