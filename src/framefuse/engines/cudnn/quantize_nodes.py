"""Quantisers of a file (Q/DQ): left out, with the range of each value kept, and weights in 8 bits multiplied out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.import_state import ImportState
from framefuse.engines.cudnn.onnx_nodes import attribute

KINDS = ("QuantizeLinear", "DequantizeLinear")


def take(reader: ImportState, node: Any) -> bool:
    """Whether a quantiser was taken: not where its scale is computed, or belongs to blocks of values."""
    x, y = reader.name(node.input[0]), node.output[0]
    known = [reader.constants.get(reader.name(name)) for name in node.input[1:] if name]
    if not known or any(value is None for value in known) or attribute(node, "block_size", 0):
        return False
    scale = np.asarray(known[0], np.float32)
    zero = np.asarray(known[1]) if len(known) > 1 else np.zeros(scale.shape, np.uint8)
    kind = np.iinfo(zero.dtype) if zero.dtype.kind in "iu" else None
    if x in reader.constants:
        values, axis = reader.constants[x], attribute(node, "axis", 1)
        scale, zero = (_along(value, axis, values.ndim) for value in (scale, zero.astype(np.float32)))
        if node.op_type == "DequantizeLinear":
            reader.constants[y] = (values.astype(np.float32) - zero) * scale
        elif kind is not None:
            numbers = np.clip(np.rint(values / scale) + zero, kind.min, kind.max)
            reader.constants[y] = numbers.astype(np.asarray(known[1]).dtype if len(known) > 1 else np.uint8)
        return y in reader.constants
    if x not in reader.shapes or scale.size != 1:
        return False
    if node.op_type == "QuantizeLinear" and kind is not None:
        edges = [(edge - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0]) for edge in (kind.min, kind.max)]
        reader.ranges[x] = max(reader.ranges.get(x, 0.0), *map(abs, edges))
    reader.names[y] = x
    reader.uses[x] += reader.uses[y] - 1
    return True


def _along(value: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """A number for each index of an axis, so that it can be multiplied with values of `rank` axes."""
    if value.size == 1:
        return value.reshape(())
    shape = [1] * rank
    shape[axis % rank] = -1
    return value.reshape(shape)
