"""Engine tvm on CUDA: TVM's program with memory of its own, which only launches and so may be captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from framefuse.cuda import current as gpus
from framefuse.cuda import device
from framefuse.engines.tvm import memory
from framefuse.engines.tvm.tensors import address, tensors
from framefuse.errors import EngineError

if TYPE_CHECKING:
    from framefuse.engines.tvm.cudnn_convolution import Convolver


class TvmExecution:
    """A compiled network of one shape on the GPU.

    What the program works in is its own (`memory.py`), and a first run has compiled and loaded all kernels, so that a
    captured one allocates nothing and is not in the way of another.

    Attributes:
        input: (batch, 3, height, width).
        results: the model's outputs.
    """

    memory_format: Literal["nchw", "nhwc"] = "nchw"
    layout: str | None = None
    capturable = True

    def __init__(
        self, machine: Any, shape: tuple[int, int, int, int], dtype: np.dtype[Any], convolver: Convolver | None = None
    ) -> None:
        import tvm_ffi

        cp = device.cupy()
        self._main, self._device = machine["main"], tvm_ffi.device(f"cuda:{gpus.number(None)}")
        self._convolver = convolver
        self._scratch: dict[int, Any] = {}
        self._memory = list(machine[memory.FUNCTION]())
        self.input = cp.zeros(shape, dtype)
        self._tensor = tvm_ffi.from_dlpack(self.input)  # once: handing an array over waits, which capture forbids
        self._out: list[Any] = []
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.get_current_stream().synchronize()
        try:
            self.start(stream)
            stream.synchronize()
        except Exception as error:  # TVM's errors are of a dozen unrelated classes
            raise EngineError(f"TVM's program fails on the GPU: {error}") from error
        self.results = [cp.empty(tuple(map(int, out.shape)), str(out.dtype)) for out in self._out]

    def start(self, stream: Any) -> None:
        """Launch every kernel on `stream`."""
        import tvm_ffi

        with self._lent(), tvm_ffi.use_raw_stream(self._device, stream.ptr), stream:
            self._out = tensors(self._main(self._tensor, *self._memory))

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """Its scratch memory is that of the convolver, which all executions on a GPU share."""
        if self._convolver is None:
            yield
            return
        with self._convolver.lock:
            self._convolver.scratch = self._scratch
            try:
                yield
            finally:
                self._convolver.scratch = {}

    def finish(self, stream: Any) -> None:
        """Write `results`."""
        runtime = device.cupy().cuda.runtime
        for out, result in zip(self._out, self.results, strict=True):
            runtime.memcpyAsync(result.data.ptr, address(out), result.nbytes,
                                runtime.memcpyDeviceToDevice, stream.ptr)  # fmt: skip
