"""Attention by what it computes: the nodes between two reshapes are evaluated on random values and compared with ours.

A block as YOLO11 has it: a convolution makes queries, keys and values of all heads, head by head; what they attend to
is an image again, and so are the values alone, which a convolution adds position to. The channels of that convolution
are put in the order queries, keys, values, so that each kind is a slice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from framefuse.engines.cudnn.import_state import ImportState
from framefuse.engines.cudnn.network import Attention, Conv, Split, attend
from framefuse.engines.cudnn.onnx_nodes import attribute
from framefuse.kernels.network.call import MAX_KEYS, MAX_VALUES

TOLERANCE = 1e-4
EIGHT = 8
"""Channels of keys and values come in eights."""


def take(reader: ImportState, node: Any) -> bool:
    """Whether a Reshape that was put off ends a block of attention, or its values: then its result is known."""
    nodes = reader.leading_to([node.output[0]])
    frontier = {reader.name(name) for other in nodes for name in other.input} & set(reader.shapes)
    splits = [other for other in nodes if other.op_type == "Split"]
    if len(frontier) != 1 or len(splits) != 1 or len(splits[0].output) != 3:
        return False
    (x,) = frontier
    conv = next((op for op in reader.operations if x in op.writes), None)
    first = [other for other in nodes if x in map(reader.name, other.input)]
    shape = reader.constants.get(reader.name(first[0].input[1])) if first[0].op_type == "Reshape" else None
    sizes = _sizes(reader, splits[0])
    if not isinstance(conv, Conv) or conv.residual or conv.groups > 1 or reader.uses[x] != 1 or shape is None:
        return False
    channels, height, width = reader.shapes[x]
    heads = int(shape[1]) if len(shape) == 4 else 0
    if not sizes or heads < 1 or sizes[0] != sizes[1] or heads * sum(sizes) != channels:
        return False
    keys, _, values = sizes
    step = Attention(node.name or node.output[0], x, node.output[0], heads, keys, values, float(keys**-0.5))
    image = np.random.default_rng(0).normal(0, 1, (1, channels, height, width)).astype(np.float32)
    try:
        result = reader.evaluated(nodes, {x: image}, node.output[0])
    except Exception:  # whatever the evaluator cannot do: then it is not known
        return False
    order = _by_kind(heads, keys, values)
    ours = image[:, order]
    if any(other.op_type == "Softmax" for other in nodes):
        expected, operation = attend(ours, step), step
    else:
        expected, operation = ours[:, 2 * heads * keys :], None
    if keys > MAX_KEYS or values > MAX_VALUES or keys % EIGHT or values % EIGHT or result.shape != expected.shape:
        return False
    if np.abs(result - expected).max() > TOLERANCE:
        return False
    if x not in reader.regrouped:
        reader.regrouped.add(x)
        index = reader.operations.index(conv)
        reader.operations[index] = replace(conv, weight=conv.weight[order], bias=conv.bias[order])
    if operation is not None:
        reader.add(operation, [(heads * values, height, width)])
    else:
        parts = [(2 * heads * keys, height, width), (heads * values, height, width)]
        reader.add(Split(node.name or node.output[0], x, (f"{node.output[0]}/before", node.output[0])), parts)
    return True


def _by_kind(heads: int, keys: int, values: int) -> list[int]:
    """Channels of the model in the order queries of all heads, keys, values."""
    table = np.arange(heads * (2 * keys + values)).reshape(heads, -1)
    parts = np.split(table, [keys, 2 * keys], 1)
    return [int(channel) for part in parts for channel in part.reshape(-1)]


def _sizes(reader: ImportState, split: Any) -> list[int]:
    """Of the three parts of a split; none where it is not known or not along the channels of a head."""
    if attribute(split, "axis", 0) not in (2, -2):
        return []
    if len(split.input) > 1:
        sizes = reader.constants.get(reader.name(split.input[1]))
        return [] if sizes is None else [int(size) for size in sizes]
    return [int(size) for size in attribute(split, "split", [])]
