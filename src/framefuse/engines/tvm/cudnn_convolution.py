"""What a compiled program calls for a convolution: cuDNN's fused kernel, chosen by measurement as engine cudnn does."""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any

from framefuse.cuda import current as gpus
from framefuse.cuda import device
from framefuse.engines.cudnn.convolutions import BIAS, RESIDUAL, WEIGHT, Builder, Layer, Plan, X, Y
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.tvm.offload import FUNCTION
from framefuse.engines.tvm.tensors import address

HALF = 2
"""Bytes."""


def register() -> Convolver:
    """Make `FUNCTION` known to TVM's runtime; what answers on this thread's current GPU."""
    import tvm_ffi

    tvm_ffi.register_global_func(FUNCTION, lambda *call: _of(gpus.number(None))(*call), override=True)
    return _of(gpus.number(None))


@cache
def _of(gpu: int) -> Convolver:
    """A GPU's own: a handle of cuDNN, and the plans that it runs, belong to one."""
    return Convolver()


class Convolver:
    """Plans of all convolutions that were called on one GPU.

    Attributes:
        calls: how many convolutions there were so far.
        scratch: memory that kernels work in, by size; an execution lends its own while it launches.
        lock: held by the execution that launches.
    """

    def __init__(self) -> None:
        self.builder = Builder()
        self.plans = Plans(self.builder)
        self.calls = 0
        self.scratch: dict[int, Any] = {}
        self.lock = threading.Lock()
        self._known: dict[Any, tuple[dict[str, Any], Plan]] = {}

    def __call__(self, x: Any, weight: Any, bias: Any, *rest: Any) -> None:
        """`rest`: the residual if there is one, how as JSON, and the output. All NHWC, float16.

        Of x and of the residual those channels are read that begin where `how` says.
        """
        self.calls += 1
        *residual, text, y = rest
        shape = tuple(residual[0].shape) if residual else None
        key = (tuple(x.shape), tuple(weight.shape), tuple(y.shape), shape, str(text))
        if key not in self._known:
            told = json.loads(key[-1])
            self._known[key] = told, self.plans(_layer(*key[:-1], told))
        how, plan = self._known[key]
        if plan.workspace not in self.scratch:
            self.scratch[plan.workspace] = device.cupy().empty(max(1, plan.workspace), device.cupy().uint8)
        pointers = {X: address(x) + HALF * how["first"], WEIGHT: address(weight), BIAS: address(bias), Y: address(y)}
        if residual:
            pointers[RESIDUAL] = address(residual[0]) + HALF * how["residual_first"]
        handle = self.builder.handle
        self.builder.cudnn.set_stream(handle=handle, stream=device.cupy().cuda.get_current_stream().ptr)
        try:
            plan.run(handle, pointers, int(self.scratch[plan.workspace].data.ptr))
        finally:
            self.builder.release_handle()


def _layer(x: Any, weight: Any, y: Any, residual: Any, how: dict[str, Any]) -> Layer:
    batch, height, width, _ = map(int, x)
    outputs, rows, columns, inputs = map(int, weight)
    return Layer(
        (batch, inputs, height, width),
        _strides(x),
        (outputs, inputs, rows, columns),
        (batch, outputs, int(y[1]), int(y[2])),
        _strides(y),
        None if residual is None else _strides(residual),
        tuple(how["stride"]),
        tuple(how["pads"]),
        tuple(how["dilation"]),
        how["activation"] or "identity",  # as `Layer.of`: without, cuDNN puts forward slower kernels
    )


def _strides(shape: Any) -> tuple[int, int, int, int]:
    """Elements from one batch, channel, row, column to the next."""
    _, height, width, channels = map(int, shape)
    return height * width * channels, 1, width * channels, channels
