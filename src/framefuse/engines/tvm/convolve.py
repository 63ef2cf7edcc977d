"""What a compiled program calls for a convolution: cuDNN's fused kernel, chosen by measurement as engine cudnn does."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from framefuse.engines.cudnn.convolutions import BIAS, RESIDUAL, WEIGHT, Builder, Layer, X, Y
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.tvm.offload import FUNCTION
from framefuse.engines.tvm.on_gpu import address
from framefuse.kernels import cuda


@cache
def register() -> Convolver:
    """Make `FUNCTION` known to TVM's runtime."""
    import tvm_ffi

    convolver = Convolver()
    tvm_ffi.register_global_func(FUNCTION, convolver, override=True)
    return convolver


class Convolver:
    """Plans of all convolutions that were called, and their scratch memory, which one stream at a time may use."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.plans = Plans(self.builder)
        self._known: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, x: Any, weight: Any, bias: Any, *rest: Any) -> None:
        """`rest`: the residual if there is one, how as JSON, and the output. All NHWC, float16."""
        *residual, how, y = rest
        key = (tuple(x.shape), tuple(weight.shape), tuple(y.shape), len(residual), str(how))
        if key not in self._known:
            plan = self.plans(_layer(*key))
            self._known[key] = plan, cuda.cupy().empty(max(1, plan.workspace), cuda.cupy().uint8)
        plan, workspace = self._known[key]
        pointers = {X: address(x), WEIGHT: address(weight), BIAS: address(bias), Y: address(y)}
        if residual:
            pointers[RESIDUAL] = address(residual[0])
        handle = self.builder.handle
        self.builder.cudnn.set_stream(handle=handle, stream=cuda.cupy().cuda.get_current_stream().ptr)
        plan.run(handle, pointers, int(workspace.data.ptr))
        self.builder.rest()


def _layer(x: Any, weight: Any, y: Any, residuals: int, how: str) -> Layer:
    given = json.loads(how)
    batch, height, width, inputs = map(int, x)
    outputs, rows, columns, _ = map(int, weight)
    return Layer(
        (batch, inputs, height, width),
        _strides(x),
        (outputs, inputs, rows, columns),
        (batch, outputs, int(y[1]), int(y[2])),
        _strides(y),
        _strides(y) if residuals else None,
        tuple(given["stride"]),
        tuple(given["pads"]),
        tuple(given["dilation"]),
        given["activation"],
    )


def _strides(shape: Any) -> tuple[int, int, int, int]:
    """Elements from one batch, channel, row, column to the next."""
    _, height, width, channels = map(int, shape)
    return height * width * channels, 1, width * channels, channels
