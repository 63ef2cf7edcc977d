"""A GPU and its decoder, pretended: CuPy's streams, events and graphs over NumPy, and PyNvVideoCodec over FFmpeg.

What is launched runs at once, on the CPU; what is captured runs when its graph is launched. The decoder hands out the
same few surfaces again and again, as NVDEC does, so a reader that is late sees another picture. `install` puts both in
the place of the real ones. Whether kernels and models are right is not the question here (`cuda_on_cpu` asks it): the
kernels of the CPU take the place of those of the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from framefuse import kernels
from framefuse.kernels import boxes, cuda
from framefuse.kernels.reference.boxes import Found

PITCH = 256
"""Rows of a surface begin at multiples of so many bytes."""
SURFACES = 4


class Array(np.ndarray[Any, Any]):
    """A NumPy array that passes for one of CuPy."""

    @property
    def data(self) -> Any:
        def copy_from_host_async(source: int, size: int, stream: Any) -> None:
            ctypes.memmove(self.ctypes.data, source, size)

        return SimpleNamespace(ptr=self.ctypes.data, copy_from_host_async=copy_from_host_async)

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__


def _array(array: np.ndarray[Any, Any]) -> Array:
    return array.view(Array)


def _at(shape: Any, dtype: Any, pointer: Any, strides: Any) -> Array:
    """An array over memory that lies somewhere."""
    size = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True)) + np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(pointer.ptr)
    return _array(np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype, 1), shape, strides))


class Gpu:
    """Streams by their pointer, and which of them is recorded."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.recordings: dict[int, list[Callable[[], None]]] = {}
        self.current = threading.local()
        self.launches = 0
        """Graphs launched."""

    def do(self, stream: int | None, work: Callable[[], None]) -> None:
        recording = self.recordings.get(self.current_stream() if stream is None else stream)
        if recording is None:
            work()
        else:
            recording.append(work)

    def current_stream(self) -> int:
        stack = getattr(self.current, "stack", [])
        return stack[-1] if stack else 0

    def memcpy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self.do(stream, lambda: ctypes.memmove(to, source, size) and None)

    def cupy(self) -> Any:
        """The module."""
        gpu = self

        class CudaError(Exception):
            pass

        pool = SimpleNamespace(free_all_blocks=lambda: None)

        class Event:
            done = True

            def __init__(self, **options: Any) -> None:
                pass

            def record(self, stream: Any = None) -> None:
                pass

            def synchronize(self) -> None:
                pass

        class Graph:
            def __init__(self, work: list[Callable[[], None]]) -> None:
                self.work = work

            def launch(self, stream: Any = None) -> None:
                gpu.launches += 1
                for one in self.work:
                    one()

        class Stream:
            def __init__(self, non_blocking: bool = False) -> None:
                self.ptr = next(gpu.numbers)

            def __enter__(self) -> Stream:
                gpu.current.stack = [*getattr(gpu.current, "stack", []), self.ptr]
                return self

            def __exit__(self, *error: object) -> None:
                gpu.current.stack = gpu.current.stack[:-1]

            def synchronize(self) -> None:
                pass

            def wait_event(self, event: Event) -> None:
                pass

            def begin_capture(self, mode: int = 0) -> None:
                gpu.recordings[self.ptr] = []

            def end_capture(self) -> Graph:
                return Graph(gpu.recordings.pop(self.ptr))

        runtime = SimpleNamespace(
            getDevice=lambda: 0, getDeviceCount=lambda: 1, memGetInfo=lambda: (10**10, 10**10),
            streamSynchronize=lambda stream: None,
            streamIsCapturing=lambda stream: stream in gpu.recordings, memcpyAsync=gpu.memcpy,
            memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3, streamCaptureModeThreadLocal=1,
            CUDARuntimeError=CudaError,
        )  # fmt: skip
        return SimpleNamespace(
            ndarray=_at,
            zeros=lambda shape, dtype: _array(np.zeros(shape, dtype)),
            empty=lambda shape, dtype: _array(np.empty(shape, dtype)),
            asarray=lambda array: _array(np.ascontiguousarray(array)),
            asnumpy=lambda array: np.array(array),
            get_default_memory_pool=lambda: pool,
            get_default_pinned_memory_pool=lambda: pool,
            cuda=SimpleNamespace(
                memory=SimpleNamespace(OutOfMemoryError=MemoryError),
                runtime=runtime, Event=Event, Stream=Stream,
                Device=lambda number=0: SimpleNamespace(use=lambda: None, id=number, attributes={"Integrated": 0}),
                UnownedMemory=lambda address, size, owner, device: address,
                MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory + offset),
            ),
        )  # fmt: skip


class Table:
    """`PreprocessTable` on the CPU: the rows are the frames themselves."""

    nbytes = 0

    def __init__(self, format: Any, out: Any, *, memory_format: str, allocate: Any = None) -> None:
        self.out, self.gpu = out, Table.installed
        self.rows: list[Any] = [None] * len(out)
        self.there = list(self.rows)

    installed: Gpu

    def set(self, slot: int, frame: Any, **options: Any) -> None:
        self.rows[slot] = frame, options

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


class Picture:
    """A decoded picture in a surface."""

    def __init__(self, memory: Any, width: int, height: int, pts: int) -> None:
        self.memory, self.height, self.pts = memory, height, pts
        self.shape, self.strides = (height * 3 // 2, width), (memory.shape[1], 1)

    def getPTS(self) -> int:
        return self.pts

    def GetPtrToPlane(self, plane: int) -> int:
        start: int = self.memory.ctypes.data
        return start + plane * self.height * self.memory.shape[1]


class Decoder:
    """PyNvVideoCodec's, over FFmpeg: it gives NV12, and refuses to grow."""

    def __init__(self, codec: str, **options: Any) -> None:
        self.options = options
        self.context = av.CodecContext.create({"H264": "h264", "HEVC": "hevc"}[codec], "r")
        self.context.thread_count = 1
        self.largest: tuple[int, int] | None = None
        self.surfaces: Iterator[Any] = iter(())

    def Decode(self, data: Any) -> list[Picture]:
        packet = None
        if getattr(data, "bsl", 0):
            packet = av.Packet(ctypes.string_at(data.bsl_data, data.bsl))
            packet.pts = data.pts
        decoded = self.context.decode(packet)
        if self.largest and (self.context.width > self.largest[0] or self.context.height > self.largest[1]):
            raise RuntimeError("HandleVideoSequence : Reconfigure Not supported when width/height > maxwidth/maxheight")
        return [self._picture(frame) for frame in decoded]

    def _picture(self, frame: Any) -> Picture:
        width, height = frame.width, frame.height
        if self.largest is None:
            self.largest = width, height
            pitch = -(-width // PITCH) * PITCH
            self.surfaces = itertools.cycle([np.zeros((height * 3 // 2, pitch), np.uint8) for _ in range(SURFACES)])
        memory = next(self.surfaces)
        planes = frame.reformat(format="nv12").to_ndarray()
        memory[: height * 3 // 2, :width] = planes
        return Picture(memory, width, height, frame.pts)


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


def install(monkeypatch: pytest.MonkeyPatch, module: Any = None) -> Gpu:
    """Pretend that there is a GPU, CuPy and PyNvVideoCodec."""
    from framefuse import choices, outlets_cuda, program_cuda
    from framefuse.sources import decoders

    gpu = Gpu()
    cupy, module = gpu.cupy(), module or codec()
    Table.installed = gpu
    monkeypatch.setattr(cuda, "cupy", lambda: cupy)
    monkeypatch.setattr(cuda, "current_stream", gpu.current_stream)
    monkeypatch.setattr(cuda, "stream_at", contextlib.nullcontext)
    monkeypatch.setattr(cuda, "pinned", lambda shape, dtype: np.zeros(shape, dtype))
    monkeypatch.setattr(program_cuda, "PreprocessTable", Table)
    monkeypatch.setattr(outlets_cuda, "detections", _detections(gpu))
    monkeypatch.setattr(decoders, "load", lambda: module)
    monkeypatch.setattr(choices, "check_cuda", lambda: None)
    return gpu
