"""Device executions of engine tvm: TVM's program with its own memory, which can be captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from framefuse.cuda import device
from framefuse.engines.device_requests import DeviceExecution
from framefuse.engines.tvm import memory
from framefuse.engines.tvm.package import address, tensors
from framefuse.errors import EngineError

if TYPE_CHECKING:
    from framefuse.engines.tvm.cudnn_convolution import ConvolutionRunner


class TvmExecution(DeviceExecution):
    """A compiled network of one shape on the GPU.

    It owns its memory (`memory.py`), and a warm-up run compiles and loads all kernels. So a captured run allocates
    nothing, and executions can run concurrently.

    Attributes:
        input: (batch, 3, height, width).
        results: the model's outputs.
    """

    memory_format = "nchw"

    def __init__(
        self,
        machine: Any,
        shape: tuple[int, int, int, int],
        dtype: np.dtype[Any],
        runner: ConvolutionRunner | None = None,
    ) -> None:
        import tvm_ffi

        cp = device.cupy()
        self._main, self._device = machine["main"], tvm_ffi.device(f"cuda:{device.number(None)}")
        self._runner = runner
        self._workspaces: dict[int, Any] = {}
        self._memory = list(machine[memory.FUNCTION]())
        self.input = cp.zeros(shape, dtype)
        self._tensor = tvm_ffi.from_dlpack(self.input)  # once: DLPack exchange synchronises, which a capture forbids
        self._out: list[Any] = []
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.get_current_stream().synchronize()
        try:
            self.start(stream)
            stream.synchronize()
        except Exception as error:  # TVM raises unrelated classes
            raise EngineError(f"TVM's program fails on the GPU: {error}") from error
        self.results = [cp.empty(tuple(map(int, out.shape)), str(out.dtype)) for out in self._out]

    def start(self, stream: Any) -> None:
        """Launch every kernel on `stream`."""
        import tvm_ffi

        with self._runner_workspaces(), tvm_ffi.use_raw_stream(self._device, stream.ptr), stream:
            self._out = tensors(self._main(self._tensor, *self._memory))

    @contextmanager
    def _runner_workspaces(self) -> Iterator[None]:
        """Let the convolution runner, which all executions on a GPU share, use this execution's workspaces."""
        if self._runner is None:
            yield
            return
        with self._runner.lock:
            self._runner.workspaces = self._workspaces
            try:
                yield
            finally:
                self._runner.workspaces = {}

    def finish(self, stream: Any) -> None:
        """Write `results`."""
        runtime = device.cupy().cuda.runtime
        for out, result in zip(self._out, self.results, strict=True):
            runtime.memcpyAsync(result.data.ptr, address(out), result.nbytes,
                                runtime.memcpyDeviceToDevice, stream.ptr)  # fmt: skip
