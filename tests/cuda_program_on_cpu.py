"""`program_cuda` without a GPU: streams, events and graphs that run at once, and CUDA errors where a test wants them.

What is launched while a stream is being captured is kept by the graph, and runs at each of its launches.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuda_on_cpu
from cuda_fibres import Fibres
from framefuse.kernels import cuda

Work = Callable[[], Any]


class CudaError(RuntimeError):
    """CuPy's CUDARuntimeError."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OutOfMemory(MemoryError):
    """CuPy's OutOfMemoryError."""


LAUNCH_FAILURE = CudaError(719, "cudaErrorLaunchFailure: unspecified launch failure")


class Kept(Fibres):
    """Compiles a kernel once for all tests that share a folder."""

    def _compile(self, symbol: str) -> Any:
        library = self.folder / f"{symbol}.so"
        return ctypes.CDLL(str(library)) if library.exists() else super()._compile(symbol)


class Gpu:
    """The pretended GPU.

    Attributes:
        lost: raised by whatever is done from now on, if set.
        room: bytes that `zeros` and `empty` may still hand out; None: any number.
        launches: graphs launched.
        copied: bytes by direction.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.compiled = cuda_on_cpu.install(monkeypatch, folder, Kept)
        self.lost: CudaError | None = None
        self.room: int | None = None
        self.launches = 0
        self.copied: Counter[str] = Counter()
        self.graph: list[Work] | None = None
        module = cuda.cupy()
        gpu = self

        class Stream:
            ptr = 0

            def __init__(self, non_blocking: bool = False) -> None: ...
            def __enter__(self) -> Stream:
                return self

            def __exit__(self, *error: object) -> None: ...
            def synchronize(self) -> None:
                gpu.alive()

            def wait_event(self, event: Any) -> None:
                gpu.alive()

            def begin_capture(self, mode: int = 0) -> None:
                gpu.graph = []

            def end_capture(self) -> Any:
                works, gpu.graph = gpu.graph or [], None

                def launch(stream: Any) -> None:
                    gpu.alive()
                    gpu.launches += 1
                    for work in works:
                        work()

                return SimpleNamespace(launch=launch)

        class Event:
            def __init__(self, block: bool = False, disable_timing: bool = False) -> None: ...
            def record(self, stream: Any = None) -> None:
                gpu.alive()

            def synchronize(self) -> None:
                gpu.alive()

            @property
            def done(self) -> bool:
                gpu.alive()
                return True

        module.cuda.Stream, module.cuda.Event = Stream, Event
        module.cuda.memory = SimpleNamespace(OutOfMemoryError=OutOfMemory)
        runtime = module.cuda.runtime
        runtime.CUDARuntimeError = CudaError
        runtime.streamCaptureModeThreadLocal = 0
        runtime.memcpyDeviceToHost = 2
        runtime.memGetInfo = lambda: (self.room or 0, 10**9)
        runtime.memcpyAsync = lambda to, source, size, kind, stream: self.do(self._copy(to, source, size, kind))
        for name in ("zeros", "empty"):
            monkeypatch.setattr(module, name, self._limited(getattr(module, name)))
        pool = SimpleNamespace(free_all_blocks=lambda: None)
        module.get_default_memory_pool = module.get_default_pinned_memory_pool = lambda: pool
        monkeypatch.setattr(cuda, "pinned", lambda shape, dtype: np.zeros(shape, dtype))
        monkeypatch.setattr(cuda, "launch", lambda symbol, **options: self.do(self._launch(symbol, options)))
        monkeypatch.setattr(cuda, "bind", lambda symbol, **arguments: lambda stream=None: self.do(
            self._launch(symbol, arguments)))  # fmt: skip
        monkeypatch.setattr(cuda_on_cpu.HostArray, "data", property(self._pointer))

    def alive(self) -> None:
        if self.lost is not None:
            raise self.lost

    def do(self, work: Work) -> None:
        """Now, or whenever the graph that is being captured is launched."""
        self.alive()
        if self.graph is not None:
            self.graph.append(work)
        else:
            work()

    def _copy(self, to: int, source: int, size: int, kind: int) -> Work:
        def copy() -> None:
            self.copied[{1: "h2d", 2: "d2h"}[kind]] += size
            ctypes.memmove(to, source, size)

        return copy

    def _launch(self, symbol: str, options: dict[str, Any]) -> Work:
        return lambda: self.compiled.launch(symbol, **options)

    def _limited(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(shape: Any, dtype: Any = np.float64) -> Any:
            made = make(shape, dtype)
            if self.room is not None:
                if made.nbytes > self.room:
                    raise OutOfMemory(f"Out of memory allocating {made.nbytes:,} bytes")
                self.room -= made.nbytes
            return made

        return allocate

    def _pointer(self, array: Any) -> Any:
        address, size = array.ctypes.data, array.nbytes
        return SimpleNamespace(
            ptr=address,
            copy_from_host_async=lambda source, count, stream: self.do(self._copy(address, source, count, 1)),
            memset_async=lambda value, count, stream: self.do(lambda: ctypes.memset(address, value, min(count, size))),
        )
