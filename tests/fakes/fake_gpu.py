"""A fake GPU and its decoder: CuPy's streams, events and graphs over NumPy, and PyNvVideoCodec over FFmpeg.

Launches run immediately on the CPU; captured work runs when its graph is launched. The decoder reuses the same few
surfaces, as PyNvVideoCodec does, so a late reader sees another frame. `install` replaces the real modules. Kernels are
those of the CPU or, if requested, the source of the CUDA kernels (`cuda_fibres`). A test chooses what fails: the GPU is
lost, or has little memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import av
import numpy as np
import pytest

from cuda_fibres import Fibres
from framefuse import kernels
from framefuse.cuda import device, kernel
from framefuse.cuda import driver as cuda_driver
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes.reference import Found

PITCH = 256
"""Alignment of the rows of a surface in bytes."""
SURFACES = 4
DIRECTIONS = {1: "h2d", 2: "d2h", 3: "d2d"}
"""cudaMemcpyKind."""

Work = Callable[[], Any]


NAMES = {719: "cudaErrorLaunchFailure: unspecified launch failure"}


class CudaError(RuntimeError):
    """CuPy's CUDARuntimeError."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text or NAMES.get(status, ""))
        self.status = status


class OutOfMemory(MemoryError):
    """CuPy's OutOfMemoryError."""


LAUNCH_FAILURE = CudaError(719)


class Array(np.ndarray[Any, Any]):
    """A NumPy array with the constructor and the interface of CuPy's."""

    gpu: Gpu

    def __new__(cls, shape: Any, dtype: Any, memptr: Any, strides: Any = None) -> Any:
        """An array over existing memory."""
        if strides is None:
            strides = np.empty(shape, dtype).strides
        size = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
        memory: Any = (ctypes.c_uint8 * (size + np.dtype(dtype).itemsize)).from_address(memptr.ptr)
        memory.owner = memptr  # lives as long as the array
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype, 1), shape, strides).view(cls)

    @property
    def data(self) -> Any:
        address, gpu = self.ctypes.data, Array.gpu
        return SimpleNamespace(
            ptr=address,
            mem=SimpleNamespace(ptr=address, owner=self),
            copy_from_host_async=lambda source, size, stream: gpu.copy(address, source, size, 1, stream.ptr),
            memset_async=lambda value, size, stream: gpu.do(stream.ptr, lambda: ctypes.memset(address, value, size)),
        )

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__


class Gpu:
    """The fake GPUs.

    Attributes:
        count: how many there are.
        lost: raised by whatever is done from now on, if set.
        room: bytes that `zeros` and `empty` may still hand out; None: any number.
        failing: how many allocations there are before one that fails, once; None: none does.
        launches: graphs launched.
        copied: bytes by direction.
        worked: names of threads that recorded an event, and the GPU that was theirs.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.lost: CudaError | None = None
        self.room: int | None = None
        self.failing: int | None = None
        self.launches = 0
        self.copied: Counter[str] = Counter()
        self.worked: set[tuple[str, int]] = set()
        self.graphs: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.recordings: dict[int, list[Work]] = {}
        """Pointer of a stream in capture mode -> its recorded work."""
        self._numbers = itertools.count(1)
        self._here = threading.local()

    def alive(self) -> None:
        if self.lost is not None:
            raise self.lost

    def do(self, stream: int | None, work: Work) -> None:
        """Run `work` now, or record it if the stream is being captured."""
        self.alive()
        recording = self.recordings.get(self.current_stream() if stream is None else stream)
        if recording is None:
            work()
        else:
            recording.append(work)

    def current_stream(self) -> int:
        stack = getattr(self._here, "streams", [])
        return stack[-1] if stack else 0

    def capturing(self, stream: int | None) -> bool:
        return (self.current_stream() if stream is None else stream) in self.recordings

    def current_device(self) -> int:
        return getattr(self._here, "device", 0)

    def copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        def move() -> None:
            self.copied[DIRECTIONS[kind]] += size
            ctypes.memmove(to, source, size)

        self.do(stream, move)

    def driver(self) -> Any:
        """The functions that `framefuse.cuda.driver` calls."""

        def status(work: Work) -> int:
            try:
                work()
            except CudaError as error:
                return error.status
            return 0

        def copy(to: int, source: int, size: int, stream: int) -> int:
            return status(lambda: self.copy(to, source, size, 3, stream))

        def download(to: int, source: int, size: int, stream: int) -> int:
            return status(lambda: self.copy(to, source, size, 2, stream))

        def upload(*words: ctypes.c_uint64) -> int:
            to, source, size, stream = (word.value for word in words)
            return status(lambda: self.copy(to, source, size, 1, stream))

        def order(*call: int) -> int:
            self.worked.add((threading.current_thread().name, self.current_device()))
            return status(self.alive)

        return SimpleNamespace(
            cuMemcpyDtoDAsync_v2=copy, cuMemcpyHtoDAsync_v2=upload, cuMemcpyDtoHAsync_v2=download,
            cuEventRecord=order, cuEventRecordWithFlags=order, cuStreamWaitEvent=order,
            cuEventQuery=lambda event: status(self.alive),
            cuGraphLaunch=lambda graph, stream: status(self.graphs[graph].launch),
        )  # fmt: skip

    def limited(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(shape: Any, dtype: Any = np.float64) -> Any:
            made = make(shape, dtype).view(Array)
            if self.failing is not None:
                self.failing = self.failing - 1 if self.failing else None
                if self.failing is None:
                    raise OutOfMemory(f"Out of memory allocating {made.nbytes:,} bytes")
            if self.room is not None:
                if made.nbytes > self.room:
                    raise OutOfMemory(f"Out of memory allocating {made.nbytes:,} bytes")
                self.room -= made.nbytes
            return made

        return allocate

    def cupy(self) -> Any:
        """The module CuPy."""
        gpu = self

        class Event:
            ptr = 0

            def __init__(self, block: bool = False, disable_timing: bool = False) -> None: ...
            def record(self, stream: Any = None) -> None:
                gpu.alive()
                gpu.worked.add((threading.current_thread().name, gpu.current_device()))

            def synchronize(self) -> None:
                gpu.alive()

            @property
            def done(self) -> bool:
                gpu.alive()
                return True

        class Graph:
            def __init__(self, works: list[Work]) -> None:
                self.works, self.graphExec = works, next(gpu._numbers)
                gpu.graphs[self.graphExec] = self

            def launch(self, stream: Any = None) -> None:
                gpu.alive()
                gpu.launches += 1
                for work in self.works:
                    work()

        class Stream:
            def __init__(self, non_blocking: bool = False) -> None:
                self.ptr = next(gpu._numbers)

            def __enter__(self) -> Stream:
                gpu._here.streams = [*getattr(gpu._here, "streams", []), self.ptr]
                return self

            def __exit__(self, *error: object) -> None:
                gpu._here.streams = gpu._here.streams[:-1]

            def synchronize(self) -> None:
                gpu.alive()

            def wait_event(self, event: Event) -> None:
                gpu.alive()

            def begin_capture(self, mode: int = 0) -> None:
                gpu.recordings[self.ptr] = []

            def end_capture(self) -> Graph:
                return Graph(gpu.recordings.pop(self.ptr))

        class Device:
            def __init__(self, number: int | None = None) -> None:
                self.attributes = {"Integrated": 0}
                self.id = gpu.current_device() if number is None else number
                self.before = 0

            def use(self) -> None:
                gpu._here.device = self.id

            def __enter__(self) -> Device:
                self.before = gpu.current_device()
                self.use()
                return self

            def __exit__(self, *error: object) -> None:
                gpu._here.device = self.before

        def memory() -> tuple[int, int]:
            return (10**10 if gpu.room is None else gpu.room), 10**10

        def to_host(array: Any) -> Any:
            gpu.alive()
            return np.array(array)

        def set_device(number: int) -> None:
            gpu.alive()
            gpu._here.device = number

        class Memory:
            """An allocation of its own, known to other processes by its address."""

            def __init__(self, size: int) -> None:
                self._bytes = gpu.limited(np.empty)(size, np.uint8)
                self.ptr = self._bytes.ctypes.data

        class PinnedMemory:
            """Memory of the host that kernels read where it is."""

            def __init__(self, size: int, flags: int = 0) -> None:
                self._bytes = np.empty(size, np.uint8)
                self.ptr = self._bytes.ctypes.data

        runtime = SimpleNamespace(
            ipcGetMemHandle=lambda address: b"%d" % address, ipcOpenMemHandle=int,
            ipcCloseMemHandle=lambda address: None,
            getDevice=gpu.current_device, setDevice=set_device, getDeviceCount=lambda: gpu.count, memGetInfo=memory,
            getDeviceProperties=lambda number: {"name": b"a fake GPU"},
            streamSynchronize=lambda stream: None,
            memcpyAsync=gpu.copy, memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3,
            streamCaptureModeThreadLocal=1, CUDARuntimeError=CudaError, free=lambda address: gpu.alive(),
        )  # fmt: skip
        pool = SimpleNamespace(free_all_blocks=lambda: None, free_bytes=lambda: 0)
        return SimpleNamespace(
            ndarray=Array, zeros=gpu.limited(np.zeros), empty=gpu.limited(np.empty),
            asarray=lambda array: np.ascontiguousarray(array).view(Array), asnumpy=to_host,
            get_default_memory_pool=lambda: pool, get_default_pinned_memory_pool=lambda: pool,
            cuda=SimpleNamespace(
                memory=SimpleNamespace(OutOfMemoryError=OutOfMemory),
                runtime=runtime, get_elapsed_time=lambda start, end: 0.25, Event=Event, Stream=Stream, Device=Device,
                alloc_pinned_memory=bytearray, Memory=Memory, PinnedMemory=PinnedMemory,
                UnownedMemory=lambda address, size, owner, device: SimpleNamespace(ptr=address, owner=owner),
                MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, memory=memory),
            ),
        )  # fmt: skip


class Table:
    """`PreprocessTable` on the CPU: the rows are the frames themselves."""

    nbytes = 0

    def __init__(
        self, format: Any, out: Any, *, memory_format: str, allocate: Any = None, filters: bool = False
    ) -> None:
        self.out, self.gpu = out, Table.installed
        self.rows: list[Any] = [None] * len(out)
        self.there = list(self.rows)

    installed: Gpu

    def set(self, slot: int, frame: Any, **options: Any) -> None:
        self.rows[slot] = frame, options

    def replace_frame(self, slots: int, frame: Any) -> bool:
        before = self.rows[0][0]
        if (before.format, before.matrix, before.rotation) != (frame.format, frame.matrix, frame.rotation):
            return False
        self.rows[:slots] = [(frame, options) for _, options in self.rows[:slots]]
        return True

    def clear(self, slot: int) -> None:
        self.rows[slot] = None

    def upload(self, stream: int | None = None) -> None:
        def copy() -> None:
            self.there = list(self.rows)

        self.gpu.do(stream, copy)

    def launch(self, stream: int | None = None) -> None:
        self.gpu.do(stream, self._run)

    def _run(self) -> None:
        for slot, row in enumerate(self.there):
            if row is not None:
                frame, options = row
                out = np.empty((3, *self.out.shape[1:3]), np.float32)
                here = tuple(plane.view(np.ndarray) for plane in frame.planes)
                kernels.preprocess(replace(frame, planes=here), out, **options)
                self.out[slot, :, :, :3] = out.transpose(1, 2, 0)


def _detections(gpu: Gpu) -> Callable[..., None]:
    def detections(outputs: Any, layout: str, maps: Any, *, out: Found, **options: Any) -> None:
        def run() -> None:
            found = boxes.detections(
                [one.view(np.ndarray) for one in outputs], layout, maps.view(np.ndarray), **options
            )
            for target, source in zip(out, found, strict=True):
                target[...] = source

        gpu.do(None, run)

    return detections


class DecodedFrame:
    """A decoded frame in a surface of PyNvVideoCodec."""

    def __init__(self, memory: Any, width: int, height: int, pts: int) -> None:
        self.memory, self.height, self.pts = memory, height, pts
        self.shape, self.strides = (height * 3 // 2, width), (memory.shape[1], 1)

    def getPTS(self) -> int:
        return self.pts

    def GetPtrToPlane(self, plane: int) -> int:
        start: int = self.memory.ctypes.data
        return start + plane * self.height * self.memory.shape[1]


class Decoder:
    """PyNvVideoCodec's decoder over FFmpeg: it outputs NV12, and fails if the frame size grows."""

    def __init__(self, codec: str, **options: Any) -> None:
        self.options = options
        self.context = av.CodecContext.create({"H264": "h264", "HEVC": "hevc"}[codec], "r")
        self.context.thread_count = 1
        self.largest: tuple[int, int] | None = None
        self.surfaces: Iterator[Any] = iter(())

    def Decode(self, data: Any) -> list[DecodedFrame]:
        packet = None
        if getattr(data, "bsl", 0):
            packet = av.Packet(ctypes.string_at(data.bsl_data, data.bsl))
            packet.pts = data.pts
        decoded = self.context.decode(packet)
        if packet is None:  # what comes then is decoded as if it were the beginning
            self.context.flush_buffers()
        if self.largest and (self.context.width > self.largest[0] or self.context.height > self.largest[1]):
            raise RuntimeError("HandleVideoSequence : Reconfigure Not supported when width/height > maxwidth/maxheight")
        return [self._surface(frame) for frame in decoded]

    def _surface(self, frame: Any) -> DecodedFrame:
        width, height = frame.width, frame.height
        if self.largest is None:
            self.largest = width, height
            pitch = -(-width // PITCH) * PITCH
            self.surfaces = itertools.cycle([np.zeros((height * 3 // 2, pitch), np.uint8) for _ in range(SURFACES)])
        memory = next(self.surfaces)
        planes = frame.reformat(format="nv12").to_ndarray()
        memory[: height * 3 // 2, :width] = planes
        return DecodedFrame(memory, width, height, frame.pts)


def codec(**refused: str) -> Any:
    """The module PyNvVideoCodec. `refused`: why GetDecoderCaps refuses a codec."""

    def limits(gpuid: int, codec: str, chromaformat: Any, bitdepth: int) -> dict[str, int]:
        if codec in refused:
            raise RuntimeError(refused[codec])
        return {"num_decoder_engines": 7, "width_min": 48, "width_max": 4096, "height_min": 16, "height_max": 4096,
                "mb_num_max": 65536}  # fmt: skip

    module = ModuleType("PyNvVideoCodec")
    facts = dict(
        cudaVideoCodec=SimpleNamespace(H264="H264", HEVC="HEVC", VP9="VP9", AV1="AV1"),
        cudaVideoChromaFormat=SimpleNamespace(**{"420": 1}),
        DisplayDecodeLatencyType=SimpleNamespace(NATIVE=0, LOW=1, ZERO=2),
        VideoPacketFlag=SimpleNamespace(ENDOFPICTURE=1, DISCONTINUITY=2),
        PacketData=SimpleNamespace,
        GetDecoderCaps=limits,
        CreateDecoder=Decoder,
    )
    vars(module).update(facts)
    return module


def decoding_thread() -> tuple[Any, Callable[[float], int]]:
    """A thread in the place of a decoder process, to which GPUs are no fakes."""
    from framefuse.runtime.decoder_process import Server

    here, there = multiprocessing.Pipe()

    thread = threading.Thread(target=lambda: Server(there).run(), name="decoder process")
    thread.start()

    def stop(patience: float) -> int:
        here.close()
        thread.join()
        there.close()
        return 0

    return here, stop


def install(monkeypatch: pytest.MonkeyPatch, module: Any = None, *, sources: bool = False, count: int = 1) -> Gpu:
    """Pretend that there are GPUs, CuPy and PyNvVideoCodec.

    Args:
        module: in the place of PyNvVideoCodec.
        sources: kernels are the CUDA kernels' own source, not those of the CPU.
        count: GPUs.
    """
    from framefuse.runtime import choices, decoder_process
    from framefuse.runtime.cuda import captured_batch as captured_batch
    from framefuse.runtime.cuda import device_outputs as device_outputs
    from framefuse.sources import nvdec

    gpu = Array.gpu = Table.installed = Gpu(count)
    cupy, module = gpu.cupy(), module or codec()
    monkeypatch.setattr(device, "cupy", lambda: cupy)
    monkeypatch.setattr(device, "_uploads", {})
    monkeypatch.setattr(device, "current_stream", gpu.current_stream)
    monkeypatch.setattr(device, "stream_at", contextlib.nullcontext)
    monkeypatch.setattr(device, "pinned", lambda shape, dtype: np.zeros(shape, dtype))
    monkeypatch.setattr(cuda_driver, "driver", gpu.driver)
    monkeypatch.setattr(device, "capturing", gpu.capturing)
    monkeypatch.setattr(nvdec, "load_nvdec", lambda: module)
    monkeypatch.setattr(choices, "check_driver", lambda: None)
    monkeypatch.setattr(decoder_process, "start_process", decoding_thread)
    monkeypatch.setattr(kernel, "compile_ahead", lambda symbols: None)
    if not sources:
        monkeypatch.setattr(captured_batch, "PreprocessTable", Table)
        monkeypatch.setattr(device_outputs, "detections", _detections(gpu))
        return gpu
    compiled = Fibres()
    monkeypatch.setattr(boxes_cuda, "BLOCKS", 16)  # a CPU runs one after the other
    monkeypatch.setattr(boxes_cuda, "COMPARING", 2)

    def bind(symbol: str, **arguments: Any) -> Callable[..., None]:
        return lambda stream=None: gpu.do(stream, lambda: compiled.launch(symbol, **arguments))

    monkeypatch.setattr(kernel, "prepare", lambda symbols: None)
    monkeypatch.setattr(kernel, "bind", bind)
    monkeypatch.setattr(kernel, "launch", lambda symbol, *, stream=None, **options: bind(symbol, **options)(stream))
    return gpu
