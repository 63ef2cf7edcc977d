"""NVDEC: packets of FFmpeg's demuxer, decoded by the GPU into its own memory; nothing of the picture crosses the bus.

Title: one surface again and again
    PyNvVideoCodec hands out three or four surfaces in turn: what `Decode` returned is overwritten by a later `Decode`.
    So each Frame carries a lease, and the next packet is not fed before every lease of the last one was released. The
    decoder itself works ahead (it holds back the pictures that reordering needs), so this costs no throughput as long
    as readers release as soon as their first kernel has run: `Lease.release(after=event)`. Readers that hold several
    frames at once, as a batch of one stream does, get copies in a ring instead, made on the GPU; the notes say so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import av
import numpy as np

from framefuse.frame import PIXEL_FORMATS, Frame, PixelFormat
from framefuse.sources import SourceInfo
from framefuse.sources.decoders import CODECS, SURFACES, device

SEQUENCES: dict[str, Callable[[int], bool]] = {
    "h264": lambda first: first & 31 == 7,
    "hevc": lambda first: first >> 1 & 63 == 33,
}
"""Codec -> whether a unit of its stream, by the first byte, is a sequence parameter set: it states the picture size."""

NO_PTS = -(2**63)
"""A packet without pts, as FFmpeg marks it."""
POLL_SECONDS = 0.2

HEADER_BYTES = 4096
"""In which the parameter sets of a key frame are looked for."""


@dataclass(frozen=True)
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
    owner: Any
    time_base: Fraction | None = None
    is_corrupt: bool = False


def wait_for(event: Any, queue: Any) -> None:
    """What is put on a stream from now on waits for an event; the host does not.

    Raises:
        GpuLostError: the GPU is lost.
    """
    from framefuse.kernels import cuda
    from framefuse.kernels.cuda_errors import in_words

    try:
        queue.wait_event(event)
    except cuda.cupy().cuda.runtime.CUDARuntimeError as error:
        raise in_words(error, "wait for the readers of a surface") from error


def _sequence(packet: Any, is_sequence: Callable[[int], bool]) -> bytes:
    """The sequence parameter set at the beginning of a packet; empty where it has none."""
    units = bytes(memoryview(packet)[:HEADER_BYTES]).split(b"\0\0\1")
    return next((unit.rstrip(b"\0") for unit in units[1:] if unit and is_sequence(unit[0])), b"")


class Turn:
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
            wait_for(self._after, queue)


@dataclass
class _Copied:
    """A part of the ring."""

    memory: Any
    ready: Any
    turn: Turn


class NvDecoder:
    """NVDEC over one stream.

    Args:
        sample: the first picture, decoded on the host: its colours and rotation are those of all.
        held: frames that readers hold at the same time.
    """

    def __init__(self, module: Any, stream: Any, sample: Frame, *, low_latency: bool, held: int = 1) -> None:
        from framefuse.kernels import cuda

        self._module, self._stream, self._low_latency = module, stream, low_latency
        self._codec, self._filter_name = CODECS[stream.codec_context.name]
        self._meaning: dict[str, Any] = {
            "matrix": sample.matrix,
            "full_range": sample.full_range,
            "rotation": sample.rotation,
        }
        self._format: PixelFormat = PIXEL_FORMATS[SURFACES[sample.format.name]]
        self._cupy = cuda.cupy()
        self._device = device()
        # Not null: a frame's DLPack export synchronises with the legacy stream, ours need not.
        self._queue = self._cupy.cuda.Stream(non_blocking=True)
        self._is_sequence = SEQUENCES.get(stream.codec_context.name)
        self._sequence = b""
        self._thread = 0
        self._held = held
        self._turns: deque[Turn] = deque()
        self._ring: deque[_Copied] = deque()
        self._unused: list[Any] = []
        self._closed = threading.Event()
        self._planes: dict[tuple[int, int, int, int, int], tuple[Any, Any]] = {}
        self.restart()

    def restart(self) -> None:
        self._decoder: Any = None
        name = self._filter_name
        self._filter = None if name is None else av.BitStreamFilterContext(name, self._stream)

    def decode(self, packet: Any, closed: threading.Event) -> Iterator[Surface]:
        """Every picture is to be wrapped or dropped before the next is asked for."""
        self._closed = closed
        last = packet if packet.size else None
        filtered = self._filter.filter(last) if self._filter is not None else filter(None, [last])
        for one in filtered:
            yield from self._feed(one, closed)
        if last is None and self._decoder is not None:
            yield from self._feed(None, closed)

    def _changed(self, packet: Any) -> bool:
        """Whether a packet begins a sequence that the decoder is not set up for, as of pictures of another size."""
        if self._is_sequence is None or packet is None or not packet.is_keyframe:
            return False
        before, self._sequence = self._sequence, _sequence(packet, self._is_sequence) or self._sequence
        return bool(before) and before != self._sequence

    def _feed(self, packet: Any, closed: threading.Event) -> Iterator[Surface]:
        if self._changed(packet) and self._decoder is not None:
            yield from self._decode(None, closed)  # a decoder that is set up anew gives up what it holds back
            self._decoder = None
        yield from self._decode(packet, closed)

    def _decode(self, packet: Any, closed: threading.Event) -> Iterator[Surface]:
        while self._turns:
            self._turns.popleft().wait(closed, self._queue)
        if closed.is_set():
            return
        if self._thread != threading.get_ident():  # CUDA's current device is the thread's
            self._cupy.cuda.Device(self._device).use()
            self._thread = threading.get_ident()
        if self._decoder is None:
            self._open()
        data = self._module.PacketData()
        if packet is not None:
            data.bsl_data, data.bsl = packet.buffer_ptr, packet.size
            data.pts = NO_PTS if packet.pts is None else packet.pts
            if self._low_latency:
                data.decode_flag = self._module.VideoPacketFlag.ENDOFPICTURE
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
            ready.record(self._queue)
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
                (self._decoder, picture),  # the decoder frees its surfaces when it goes
            )

    def _open(self) -> None:
        latency = self._module.DisplayDecodeLatencyType
        self._decoder = self._module.CreateDecoder(
            gpuid=self._device,
            codec=getattr(self._module.cudaVideoCodec, self._codec),
            cudacontext=0,
            cudastream=self._queue.ptr,
            usedevicememory=True,
            latency=latency.LOW if self._low_latency else latency.NATIVE,
        )

    def wrap(self, picture: Surface, info: SourceInfo, **facts: Any) -> Frame:
        """The surface as a Frame; it is lent, so release it."""
        turn = Turn()
        size = picture.pitch * picture.height * 3 // 2
        info.copied += size  # by PyNvVideoCodec, from the hardware's surface to one of its own
        if self._held > 1:
            info.copied += size
            picture = self._copy(picture, turn)
        else:
            self._turns.append(turn)
        return Frame(
            self._arrays(picture),
            self._format,
            ready=picture.ready,
            lease=turn,
            owner=picture.owner,
            **self._meaning,
            **facts,
        )

    def _copy(self, surface: Surface, turn: Turn) -> Surface:
        """The surface in the oldest part of the ring, once its lease has ended."""
        size = surface.pitch * surface.height * 3 // 2
        if self._ring and self._ring[0].memory.size != size:  # frames of the old size stay with those who hold them
            self._ring.clear()
            self._unused.clear()
        if not self._ring:  # at once: an allocation stops the GPU's other threads
            block = self._cupy.empty((self._held + 1, size), np.uint8)
            self._unused = [block[number] for number in range(self._held + 1)]
        if self._unused:
            part = _Copied(self._unused.pop(), self._cupy.cuda.Event(disable_timing=True), turn)
        else:
            part = self._ring.popleft()
            part.turn.wait(self._closed, self._queue)
            part.turn = turn
        self._ring.append(part)
        start, luma = part.memory.data.ptr, surface.pitch * surface.height
        copies = [(surface.luma, start, size)]
        if surface.chroma != surface.luma + luma:
            copies = [(surface.luma, start, luma), (surface.chroma, start + luma, size - luma)]
        runtime = self._cupy.cuda.runtime
        for source, target, count in copies:
            runtime.memcpyAsync(target, source, count, runtime.memcpyDeviceToDevice, self._queue.ptr)
        part.ready.record(self._queue)
        return replace(surface, luma=start, chroma=start + luma, ready=part.ready, owner=part.memory)

    def _arrays(self, surface: Surface) -> tuple[Any, Any]:
        """Luma and chroma as CuPy arrays over the surface; made once for each address."""
        key = surface.luma, surface.chroma, surface.pitch, surface.width, surface.height
        found = self._planes.get(key)
        if found is None:
            shapes = self._format.plane_shapes(surface.width, surface.height)
            item = self._format.dtype.itemsize
            arrays = []
            for address, shape in zip((surface.luma, surface.chroma), shapes, strict=True):
                strides = (surface.pitch, *(() if len(shape) == 2 else (2 * item,)), item)
                memory = self._cupy.cuda.UnownedMemory(address, surface.pitch * shape[0], None, self._device)
                pointer = self._cupy.cuda.MemoryPointer(memory, 0)
                arrays.append(self._cupy.ndarray(shape, np.dtype(self._format.dtype), pointer, strides))
            found = self._planes[key] = (arrays[0], arrays[1])
        return found
