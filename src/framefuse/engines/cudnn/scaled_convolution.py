"""Tensors of 8-bit convolutions: quantised weights, scales, and their addresses on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import BIAS, OUTPUT_SCALE, RESIDUAL_SCALE, SCALE, WEIGHT
from framefuse.engines.cudnn.low_precision import encode, weight_scales
from framefuse.engines.cudnn.network import Conv

ALIGNMENT = 256


def parameters(compiled: Compiled, conv: Conv) -> dict[int, NDArray[Any]]:
    """Tensors by their unique id in cuDNN's graph; empty if the layer is all float16."""
    found: dict[int, NDArray[Any]] = {}
    kind = compiled.type(conv.x)
    if kind != "fp16":
        scales = weight_scales(conv.weight, kind)
        found[WEIGHT] = encode(conv.weight / scales[:, None, None, None], kind).transpose(0, 2, 3, 1)
        found[SCALE] = scales * np.float32(compiled.scale(conv.x))
        found[BIAS] = conv.bias.astype(np.float32)
    if conv.residual is not None and compiled.type(conv.residual) != "fp16":
        found[RESIDUAL_SCALE] = np.array([compiled.scale(conv.residual)], np.float32)
    if compiled.type(conv.y) != "fp16":
        found[OUTPUT_SCALE] = np.array([1 / compiled.scale(conv.y)], np.float32)
    return found


class Scaled:
    """`parameters` of all steps in one allocation on the GPU."""

    def __init__(self, compiled: Compiled) -> None:
        parts: list[bytes] = []
        self._offsets: dict[int, dict[int, int]] = {}
        size = 0
        for index, step in enumerate(compiled.placement.steps):
            if not isinstance(step, Conv):
                continue
            for uid, values in parameters(compiled, step).items():
                content = np.ascontiguousarray(values).tobytes()
                self._offsets.setdefault(index, {})[uid] = size
                parts.append(content.ljust(-(-len(content) // ALIGNMENT) * ALIGNMENT, b"\0"))
                size += len(parts[-1])
        self._memory = device.cupy().asarray(np.frombuffer(b"".join(parts) or b"\0", np.uint8))

    def pointers(self, index: int) -> dict[int, int]:
        """Addresses of the tensors of one step, by unique id."""
        start = int(self._memory.data.ptr)
        return {uid: start + offset for uid, offset in self._offsets.get(index, {}).items()}
