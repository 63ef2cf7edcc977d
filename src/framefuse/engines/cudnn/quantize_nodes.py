"""Q/DQ nodes: removed, with the range of each value kept and 8-bit weights dequantised."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.import_state import ImportState
from framefuse.models.onnx_graph import attribute

OPERATORS = ("QuantizeLinear", "DequantizeLinear")


def fold(state: ImportState, node: Any) -> bool:
    """Whether a Q/DQ node was removed; not if its scale is computed, per block, or per channel of an activation."""
    x, y = state.resolve(node.input[0]), node.output[0]
    parameters = [state.constants.get(state.resolve(name)) for name in node.input[1:] if name]
    if not parameters or any(value is None for value in parameters) or attribute(node, "block_size", 0):
        return False
    scale = np.asarray(parameters[0], np.float32)
    zero = np.asarray(parameters[1]) if len(parameters) > 1 else np.zeros(scale.shape, np.uint8)
    zero_type = zero.dtype
    limits = np.iinfo(zero_type) if zero_type.kind in "iu" else None
    if x in state.constants:
        values, axis = state.constants[x], attribute(node, "axis", 1)
        scale, zero = (_broadcast(value, axis, values.ndim) for value in (scale, zero.astype(np.float32)))
        if node.op_type == "DequantizeLinear":
            state.constants[y] = (values.astype(np.float32) - zero) * scale
        elif limits is not None:
            numbers = np.clip(np.rint(values / scale) + zero, limits.min, limits.max)
            state.constants[y] = numbers.astype(zero_type)
        return y in state.constants
    if x not in state.shapes or scale.size != 1:
        return False
    if node.op_type == "QuantizeLinear" and limits is not None:
        edges = [(edge - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0]) for edge in (limits.min, limits.max)]
        state.ranges[x] = max(state.ranges.get(x, 0.0), *map(abs, edges))
    state.aliases[y] = x
    state.uses[x] += state.uses[y] - 1
    return True


def _broadcast(value: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Reshape per-channel values to broadcast along an axis of an array of `rank` axes."""
    if value.size == 1:
        return value.reshape(())
    shape = [1] * rank
    shape[axis % rank] = -1
    return value.reshape(shape)
