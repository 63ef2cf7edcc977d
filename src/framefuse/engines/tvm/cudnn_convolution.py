"""The function that compiled programs call for a convolution: cuDNN's fused kernels, autotuned as in engine cudnn."""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any

from framefuse.cuda import device
from framefuse.engines.cudnn.convolutions import BIAS, RESIDUAL, WEIGHT, Builder, Layer, Plan, X, Y
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.tvm.offload import FUNCTION
from framefuse.engines.tvm.package import address

FP16_BYTES = 2


def register() -> ConvolutionRunner:
    """Register `FUNCTION` with TVM's runtime; returns the runner of this thread's current GPU."""
    import tvm_ffi

    tvm_ffi.register_global_func(FUNCTION, lambda *call: _runner_of(device.number(None))(*call), override=True)
    return _runner_of(device.number(None))


@cache
def _runner_of(gpu: int) -> ConvolutionRunner:
    """One runner per GPU, because cuDNN handles and plans belong to one GPU."""
    return ConvolutionRunner()


class ConvolutionRunner:
    """Runs the convolutions of all executions on one GPU.

    Attributes:
        calls: number of convolutions so far.
        workspaces: by size, of the execution that is launching.
        lock: held by the execution that is launching.
    """

    def __init__(self) -> None:
        self.builder = Builder()
        self.plans = Plans(self.builder)
        self.calls = 0
        self.workspaces: dict[int, Any] = {}
        self.lock = threading.Lock()
        self._plans: dict[Any, tuple[dict[str, Any], Plan]] = {}

    def __call__(self, x: Any, weight: Any, bias: Any, *rest: Any) -> None:
        """`rest`: an optional residual, the attributes as JSON, and the output. Tensors are NHWC float16.

        x and the residual may have more channels than the convolution reads; the attributes give the first one.
        """
        self.calls += 1
        *residual, text, y = rest
        shape = tuple(residual[0].shape) if residual else None
        key = (tuple(x.shape), tuple(weight.shape), tuple(y.shape), shape, str(text))
        if key not in self._plans:
            attributes = json.loads(key[-1])
            self._plans[key] = attributes, self.plans(_layer(*key[:-1], attributes))
        attributes, plan = self._plans[key]
        if plan.workspace not in self.workspaces:
            self.workspaces[plan.workspace] = device.cupy().empty(max(1, plan.workspace), device.cupy().uint8)
        pointers = {WEIGHT: address(weight), BIAS: address(bias), Y: address(y)}
        pointers[X] = address(x) + FP16_BYTES * attributes["first"]
        if residual:
            pointers[RESIDUAL] = address(residual[0]) + FP16_BYTES * attributes["residual_first"]
        handle = self.builder.handle
        self.builder.cudnn.set_stream(handle=handle, stream=device.cupy().cuda.get_current_stream().ptr)
        try:
            plan.run(handle, pointers, int(self.workspaces[plan.workspace].data.ptr))
        finally:
            self.builder.release_handle()


def _layer(x: Any, weight: Any, y: Any, residual: Any, attributes: dict[str, Any]) -> Layer:
    batch, height, width, _ = map(int, x)
    outputs, rows, columns, inputs = map(int, weight)
    return Layer(
        (batch, inputs, height, width),
        _strides(x),
        (outputs, inputs, rows, columns),
        (batch, outputs, int(y[1]), int(y[2])),
        _strides(y),
        None if residual is None else _strides(residual),
        tuple(attributes["stride"]),
        tuple(attributes["pads"]),
        tuple(attributes["dilation"]),
        attributes["activation"] or "identity",  # as in `Layer.of`: without one, cuDNN lists slower kernels first
    )


def _strides(shape: Any) -> tuple[int, int, int, int]:
    """Of an NHWC tensor in NCHW order, in elements."""
    _, height, width, channels = map(int, shape)
    return height * width * channels, 1, width * channels, channels
