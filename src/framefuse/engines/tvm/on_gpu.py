"""A slot of engine tvm on CUDA: pinned memory, and one CUDA graph that copies in, runs TVM's program and copies out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from framefuse.engines.cudnn.engine import POLL, _pinned
from framefuse.engines.cudnn.execution import capture
from framefuse.engines.tvm.engine import tensors
from framefuse.errors import EngineError
from framefuse.kernels import cuda


class Program:
    """TVM's compiled network on a stream of CuPy, as something that only launches and so may be captured.

    Its memory comes from TVM's pool. After a first run the pool has all that a run takes, so that a captured one
    allocates nothing; the results of the captured run are held, so that nothing else is given their memory.
    """

    def __init__(self, main: Any, pictures: Any, stream: Any) -> None:
        import tvm_ffi

        self._main, self.stream = main, stream
        self._device = tvm_ffi.device("cuda:0")
        stream.synchronize()  # handing an array over waits for the default stream, which capture forbids
        self._input = tvm_ffi.from_dlpack(pictures)
        self._kept = pictures
        self.results: list[Any] = []

    def start(self) -> None:
        """Launch every kernel."""
        import tvm_ffi

        self.results = []
        with tvm_ffi.use_raw_stream(self._device, self.stream.ptr), self.stream:
            self.results = tensors(self._main(self._input))


class Request:
    """One slot.

    Attributes:
        input, outputs: in pinned host memory.
    """

    def __init__(self, main: Any, shape: tuple[int, int, int, int], dtype: np.dtype[Any]) -> None:
        cp = cuda.cupy()
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.ended = cp.cuda.Event(block=True, disable_timing=True)
        self.input = _pinned(shape, dtype)
        self._pictures = cp.zeros(shape, dtype)
        self.program = Program(main, self._pictures, self.stream)
        try:
            self.program.start()
            self.stream.synchronize()
            self.outputs = tuple(_pinned(tuple(map(int, r.shape)), _dtype(r)) for r in self.program.results)
            with self.stream:
                self._graph = capture(self.stream, self._launch)
        except Exception as error:
            raise EngineError(f"TVM's program cannot be captured into a CUDA graph: {error}") from error

    def start(self) -> None:
        try:
            self._graph.launch(self.stream)
            self.ended.record(self.stream)
        except cuda.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error

    def wait(self, timeout: float | None) -> bool:
        try:
            if timeout is None:
                self.ended.synchronize()
                return True
            end = time.monotonic() + timeout
            while not self.ended.done:
                if time.monotonic() >= end:
                    return False
                time.sleep(POLL)
            return True
        except cuda.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error

    def _launch(self) -> None:
        runtime = cuda.cupy().cuda.runtime
        runtime.memcpyAsync(self._pictures.data.ptr, self.input.ctypes.data, self.input.nbytes,
                            runtime.memcpyHostToDevice, self.stream.ptr)  # fmt: skip
        self.program.start()
        for result, output in zip(self.program.results, self.outputs, strict=True):
            runtime.memcpyAsync(output.ctypes.data, address(result), output.nbytes,
                                runtime.memcpyDeviceToHost, self.stream.ptr)  # fmt: skip


def address(tensor: Any) -> int:
    """Of a tensor's first element on the GPU."""
    return int(tensor.data_ptr())


def _dtype(tensor: Any) -> np.dtype[Any]:
    return np.dtype(str(tensor.dtype))
