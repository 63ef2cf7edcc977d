"""A PyTorch model on a GPU, captured in framefuse's CUDA graphs.

PyTorch's allocator reuses memory while a model runs. Captured memory must stay valid, so each execution has its own
pool, filled by a first run.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from framefuse.common.text import first_line
from framefuse.cuda import device
from framefuse.engines.requests import DeviceExecution, Shape, capture
from framefuse.errors import EngineError, FramefuseError, GpuMemoryError


class _Pools:
    """PyTorch ends the process if a memory pool is freed while a thread allocates from another one. So unused pools,
    which the garbage collector may find at any time, are kept until no pool is in use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may run in a thread that holds it
        self._used = 0
        self.unused: list[Any] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        with self._lock:
            self._used += 1
        try:
            yield
        finally:
            with self._lock:
                self._used -= 1
            self.free()

    def free(self) -> None:
        """Free unused pools if none is in use."""
        with self._lock:
            if not self._used:
                self.unused.clear()


_pools = _Pools()


class Execution(DeviceExecution):
    """A model of one input shape, (batch, height, width, 3), with its own memory on the GPU; its results are float32.
    `how` says whether it can be captured, and why not, for the report."""

    def __init__(self, network: Callable[[Any], Sequence[Any]], shape: Shape, dtype: np.dtype[Any]) -> None:
        cp = device.cupy()
        self._network = network
        self._pool = torch.cuda.MemPool()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = cp.cuda.Stream(non_blocking=True)
        self.input = cp.zeros(shape, dtype)
        # By DLPack: each call of `as_tensor` leaks the shape and the strides of the array (PyTorch 2.11).
        self._image = torch.from_dlpack(self.input).permute(0, 3, 1, 2)
        cp.cuda.get_current_stream().synchronize()
        with self._on(self._stream):
            outputs = self._run()
        self.results = [cp.zeros(tuple(output.shape), np.float32) for output in outputs]
        self._targets = [torch.from_dlpack(result) for result in self.results]
        del outputs
        cp.cuda.get_current_stream().synchronize()
        for _ in range(2):
            self.start(self._stream)
        self._stream.synchronize()
        self.capturable, self.how = True, "captured"
        try:
            capture(self._stream, lambda: self.start(self._stream))
        except Exception as error:  # PyTorch's, or CUDA's
            self.capturable, self.how = False, f"a graph of its own between two of ours ({first_line(error, 200)})"
            graph = torch.cuda.CUDAGraph()
            mode = "thread_local"  # other threads may allocate
            with _pools.used(), torch.inference_mode(), torch.cuda.graph(graph, capture_error_mode=mode):
                self._copy(self._run())
            self._graph = graph

    def start(self, stream: Any) -> None:
        with self._on(stream):
            if self._graph is not None:
                self._graph.replay()
            else:
                self._copy(self._run())

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            _pools.unused.append(self.__dict__.pop("_pool"))
            _pools.free()

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        """Run PyTorch on a stream of CuPy, with this execution's memory and the fastest kernels."""
        with (
            _pools.used(),
            torch.inference_mode(),
            torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)),
            torch.cuda.use_mem_pool(self._pool),
            torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False),
        ):
            yield

    def _run(self) -> Sequence[Any]:
        try:
            return self._network(self._image)
        except FramefuseError:
            raise
        except torch.cuda.OutOfMemoryError as error:
            message = f"the GPU has no room for PyTorch at input {tuple(self.input.shape)}: {error}"
            raise GpuMemoryError(message, remedy="use a smaller batch, or close what else uses the GPU") from error
        except Exception as error:  # whatever the model's own code raises
            raise EngineError(f"PyTorch failed at input {tuple(self.input.shape)}: {error}") from error

    def _copy(self, outputs: Sequence[Any]) -> None:
        for target, output in zip(self._targets, outputs, strict=True):
            target.copy_(output)
