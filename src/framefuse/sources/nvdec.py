"""NVDEC: packets of FFmpeg's demuxer, decoded by the GPU into its own memory; nothing of the picture crosses the bus.

Title: one surface again and again
    PyNvVideoCodec hands out three or four surfaces in turn: what `Decode` returned is overwritten by a later `Decode`.
    So each Frame carries a lease, and the next packet is not fed before every lease of the last one was released. The
    decoder itself works ahead (it holds back the pictures that reordering needs), so this costs no throughput as long
    as readers release as soon as their first kernel has run: `Lease.release(after=event)`. Readers that hold several
    frames at once, as a batch of one stream does, get copies in a ring instead, made on the GPU; the notes say so.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np

from framefuse.cuda import device
from framefuse.cuda import driver as cuda_queue
from framefuse.cuda.errors import LESS_MEMORY
from framefuse.errors import EngineError, GpuMemoryError
from framefuse.frame import PIXEL_FORMATS, Frame, PixelFormat
from framefuse.sources.annexb import KINDS, AnnexB, Kinds
from framefuse.sources.nvdec_support import CODECS, ROOM, SURFACES, free_memory
from framefuse.sources.source import SourceInfo

NO_PTS = -(2**63)
"""A packet without pts, as FFmpeg marks it."""
POLL_SECONDS = 0.2

HEADER_BYTES = 4096
"""In which the parameter sets of a key frame are looked for."""

_started: set[int] = set()
"""GPUs on which this process has had a decoder: the context that takes the room is there."""


@dataclass(slots=True)
class Surface:
    """One picture in a surface of the decoder."""

    pts: int | None
    luma: int
    """Device address."""
    chroma: int
    pitch: int
    """Bytes from row to row, of both planes."""
    width: int
    height: int
    ready: Any
    decoder: Any
    """It frees its surfaces when it goes."""
    time_base: Fraction | None = None
    is_corrupt: bool = False


def _sequence(data: bytearray, kinds: Kinds) -> bytes:
    """The sequence parameter set at the beginning of a packet; empty where it has none."""
    units = bytes(data[:HEADER_BYTES]).split(b"\0\0\1")
    return next((unit.rstrip(b"\0") for unit in units[1:] if unit and kinds.of(unit[0]) == kinds.sequence), b"")


class SurfaceLease:
    """The lease of a surface."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._after: Any = None

    def release(self, after: Any = None) -> None:
        if self._lock.locked():
            self._after = after
            self._lock.release()

    def wait(self, closed: threading.Event, queue: Any) -> None:
        """Until the surface may be overwritten by what is put on `queue` from now on, or the source was closed."""
        while not self._lock.acquire(timeout=POLL_SECONDS):
            if closed.is_set():
                return
        if self._after is not None:
            cuda_queue.wait(self._after, queue)


@dataclass(slots=True)
class _Copy:
    """A part of the ring."""

    memory: Any
    planes: tuple[Any, Any]
    ready: Any
    turn: SurfaceLease


class NvDecoder:
    """NVDEC over one stream.

    Args:
        sample: the first picture, decoded on the host: its colours and rotation are those of all.
        held: frames that readers hold at the same time.
    """

    def __init__(self, module: Any, stream: Any, sample: Frame, *, low_latency: bool, held: int = 1) -> None:
        self._module, self._stream, self._low_latency = module, stream, low_latency
        name = stream.codec_context.name
        self._codec = CODECS[name]
        self._meaning: dict[str, Any] = {
            "matrix": sample.matrix,
            "full_range": sample.full_range,
            "rotation": sample.rotation,
        }
        self._format: PixelFormat = PIXEL_FORMATS[SURFACES[sample.format.name]]
        self._cupy = device.cupy()
        self._device = device.current_gpu()
        # Not null: a frame's DLPack export synchronises with the legacy stream, ours need not.
        self._queue = self._cupy.cuda.Stream(non_blocking=True)
        self._kinds = KINDS.get(name)
        self._start_codes = AnnexB(name, stream.codec_context.extradata or b"") if self._kinds else None
        self._sequence = b""
        self._thread = 0
        self._held = held
        self._leases: deque[SurfaceLease] = deque()
        self._ring: deque[_Copy] = deque()
        self._unused: list[Any] = []
        self._geometry = (0, 0, 0)
        """Of the picture before: bytes of a row, width, height."""
        self._first: Frame | None = None
        """Of this geometry."""
        self._closed = threading.Event()
        self._planes: dict[tuple[int, int, int, int, int], tuple[Any, Any]] = {}
        self.restart()

    def restart(self) -> None:
        self._decoder: Any = None

    def decode(self, packet: Any, closed: threading.Event) -> Iterator[Surface]:
        """Every picture is to be wrapped or dropped before the next is asked for."""
        self._closed = closed
        if not packet.size:
            if self._decoder is not None:
                yield from self._decode(self._module.PacketData())
            return
        data = None if self._start_codes is None else self._start_codes(packet)
        if data is not None and not data:  # padding alone; an empty packet would mean the end
            return
        if self._changed(packet, data) and self._decoder is not None:
            # A decoder that is set up anew gives up what it holds back.
            yield from self._decode(self._module.PacketData())
            self._decoder = None
        fed = self._module.PacketData()
        fed.bsl_data = packet.buffer_ptr if data is None else ctypes.addressof(ctypes.c_char.from_buffer(data))
        fed.bsl = packet.size if data is None else len(data)
        fed.pts = NO_PTS if packet.pts is None else packet.pts
        if self._low_latency:
            fed.decode_flag = self._module.VideoPacketFlag.ENDOFPICTURE
        yield from self._decode(fed)

    def _changed(self, packet: Any, data: bytearray | None) -> bool:
        """Whether a packet begins a sequence that the decoder is not set up for, as of pictures of another size."""
        if self._kinds is None or data is None or not packet.is_keyframe:
            return False
        before, self._sequence = self._sequence, _sequence(data, self._kinds) or self._sequence
        return bool(before) and before != self._sequence

    def _decode(self, data: Any) -> Iterator[Surface]:
        if self._thread != threading.get_ident():  # CUDA's current device is the thread's
            self._cupy.cuda.Device(self._device).use()
            self._thread = threading.get_ident()
        while self._leases:
            self._leases.popleft().wait(self._closed, self._queue)
        if self._closed.is_set():
            return
        if self._decoder is None:
            self._open()
        try:
            pictures = self._decoder.Decode(data)
        except Exception as error:  # PyNvVCException
            self.restart()
            raise av.error.InvalidDataError(0, f"NVDEC: {str(error).splitlines()[0][:200]}") from error
        if not pictures:
            return
        ready = None
        if self._held == 1:  # else the copies are what readers wait for
            ready = self._cupy.cuda.Event(disable_timing=True)
            cuda_queue.record(ready, self._queue)
        for picture in pictures:
            rows, width = picture.shape
            pts = picture.getPTS()
            yield Surface(
                None if pts == NO_PTS else pts,
                picture.GetPtrToPlane(0),
                picture.GetPtrToPlane(1),
                picture.strides[0],
                width,
                rows * 2 // 3,
                ready,
                (self._decoder, picture),
            )

    def _open(self) -> None:
        """
        Raises:
            GpuMemoryError: the model has taken the memory that was there when NVDEC was chosen.
            EngineError: NVDEC does not start.
        """
        if self._device not in _started and (room := free_memory()) < ROOM:
            raise GpuMemoryError(
                f"the GPU has no room to start NVDEC: {room / 1e6:.0f} MB are free, and it wants {ROOM / 1e6:.0f}",
                remedy=LESS_MEMORY,
            )
        latency = self._module.DisplayDecodeLatencyType
        try:
            self._decoder = self._module.CreateDecoder(
                gpuid=self._device,
                codec=getattr(self._module.cudaVideoCodec, self._codec),
                cudacontext=0,
                cudastream=self._queue.ptr,
                usedevicememory=True,
                latency=latency.LOW if self._low_latency else latency.NATIVE,
            )
        except Exception as error:  # PyNvVCException, and plain RuntimeError
            raise EngineError(f"NVDEC does not start: {(str(error).splitlines() or [''])[0][:200]}") from error
        _started.add(self._device)

    def wrap(self, picture: Surface, info: SourceInfo, **facts: Any) -> Frame:
        """The surface as a Frame; it is lent, so release it."""
        turn = SurfaceLease()
        geometry = picture.pitch, picture.width, picture.height
        size = picture.pitch * picture.height * 3 // 2
        info.copied += size  # by PyNvVideoCodec, from the hardware's surface to one of its own
        if self._held > 1:
            info.copied += size
            copy = self._copy(picture, geometry, size, turn)
            planes, ready, owner = copy.planes, copy.ready, copy.memory
        else:
            self._leases.append(turn)
            planes, ready, owner = self._surface_planes(picture), picture.ready, picture.decoder
        if self._first is None or geometry != self._geometry:
            self._geometry = geometry
            self._first = Frame(planes, self._format, **self._meaning)
        return self._first.replace_unchecked(planes=planes, ready=ready, lease=turn, owner=owner, **facts)

    def _copy(self, surface: Surface, geometry: tuple[int, int, int], size: int, turn: SurfaceLease) -> _Copy:
        """The surface in the oldest part of the ring, once its lease has ended."""
        if geometry != self._geometry:  # frames of the old size stay with those who hold them
            self._ring.clear()
            # At once: an allocation stops the GPU's other threads.
            block = self._cupy.empty((self._held + 1, size), np.uint8)
            self._unused = [block[number] for number in range(self._held + 1)]
        luma = surface.pitch * surface.height
        if self._unused:
            memory = self._unused.pop()
            start = memory.data.ptr
            planes = self._arrays(start, start + luma, surface)
            copy = _Copy(memory, planes, self._cupy.cuda.Event(disable_timing=True), turn)
        else:
            copy = self._ring.popleft()
            copy.turn.wait(self._closed, self._queue)
            copy.turn = turn
        self._ring.append(copy)
        start = copy.memory.data.ptr
        if surface.chroma == surface.luma + luma:
            cuda_queue.copy(start, surface.luma, size, self._queue)
        else:
            cuda_queue.copy(start, surface.luma, luma, self._queue)
            cuda_queue.copy(start + luma, surface.chroma, size - luma, self._queue)
        cuda_queue.record(copy.ready, self._queue)
        return copy

    def _surface_planes(self, surface: Surface) -> tuple[Any, Any]:
        """Luma and chroma of a surface; made once for each address."""
        key = surface.luma, surface.chroma, surface.pitch, surface.width, surface.height
        found = self._planes.get(key)
        if found is None:
            found = self._planes[key] = self._arrays(surface.luma, surface.chroma, surface)
        return found

    def _arrays(self, luma: int, chroma: int, surface: Surface) -> tuple[Any, Any]:
        """CuPy arrays over planes with the geometry of a surface, at these addresses."""
        shapes = self._format.plane_shapes(surface.width, surface.height)
        item = self._format.dtype.itemsize
        arrays = []
        for address, shape in zip((luma, chroma), shapes, strict=True):
            strides = (surface.pitch, *(() if len(shape) == 2 else (2 * item,)), item)
            memory = self._cupy.cuda.UnownedMemory(address, surface.pitch * shape[0], None, self._device)
            pointer = self._cupy.cuda.MemoryPointer(memory, 0)
            arrays.append(self._cupy.ndarray(shape, np.dtype(self._format.dtype), pointer, strides))
        return arrays[0], arrays[1]
