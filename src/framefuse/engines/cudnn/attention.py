"""Recognises attention blocks by what they compute: evaluates the nodes between two reshapes on random values.

In YOLO11 one convolution computes queries, keys and values, head by head. Both the attention output and the values
alone are reshaped to images; another convolution reads the values for its positional encoding. The importer reorders
the channels of the first convolution to queries, keys, values of all heads, so that each kind is one slice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from framefuse.engines.cudnn.import_state import ImportState
from framefuse.engines.cudnn.network import Attention, Conv, Split, attend
from framefuse.kernels.network.call import MAX_KEYS, MAX_VALUES
from framefuse.models.onnx_graph import attribute

TOLERANCE = 1e-4
CHANNEL_MULTIPLE = 8
"""Channels of a key and of a value are multiples of this."""


def recognise(state: ImportState, node: Any) -> bool:
    """Whether a deferred Reshape ends an attention block, or the values of one; if so, add the operation for it."""
    nodes = state.tail_leading_to([node.output[0]])
    frontier = {state.resolve(name) for other in nodes for name in other.input} & set(state.shapes)
    splits = [other for other in nodes if other.op_type == "Split"]
    if len(frontier) != 1 or len(splits) != 1 or len(splits[0].output) != 3:
        return False
    (x,) = frontier
    conv = next((op for op in state.operations if x in op.writes), None)
    first = [other for other in nodes if x in map(state.resolve, other.input)]
    shape = state.constants.get(state.resolve(first[0].input[1])) if first[0].op_type == "Reshape" else None
    sizes = _split_sizes(state, splits[0])
    if not isinstance(conv, Conv) or conv.residual or conv.groups > 1 or state.uses[x] != 1 or shape is None:
        return False
    channels, height, width = state.shapes[x]
    heads = int(shape[1]) if len(shape) == 4 else 0
    if not sizes or heads < 1 or sizes[0] != sizes[1] or heads * sum(sizes) != channels:
        return False
    keys, _, values = sizes
    step = Attention(node.name or node.output[0], x, node.output[0], heads, keys, values, float(keys**-0.5))
    image = np.random.default_rng(0).normal(0, 1, (1, channels, height, width)).astype(np.float32)
    try:
        result = state.evaluate(nodes, {x: image}, node.output[0])
    except Exception:  # of any class: onnx's evaluator cannot run these nodes
        return False
    order = _channel_order(heads, keys, values)
    ours = image[:, order]
    if any(other.op_type == "Softmax" for other in nodes):
        expected, operation = attend(ours, step), step
    else:
        expected, operation = ours[:, 2 * heads * keys :], None
    if (
        keys > MAX_KEYS
        or values > MAX_VALUES
        or keys % CHANNEL_MULTIPLE
        or values % CHANNEL_MULTIPLE
        or result.shape != expected.shape
    ):
        return False
    if result.shape != expected.shape or np.abs(result - expected).max() > TOLERANCE:
        return False
    if x not in state.reordered:
        state.reordered.add(x)
        index = state.operations.index(conv)
        state.operations[index] = replace(conv, weight=conv.weight[order], bias=conv.bias[order])
    if operation is not None:
        state.add(operation, [(heads * values, height, width)])
    else:
        parts = [(2 * heads * keys, height, width), (heads * values, height, width)]
        state.add(Split(node.name or node.output[0], x, (f"{node.output[0]}/before", node.output[0])), parts)
    return True


def _channel_order(heads: int, keys: int, values: int) -> list[int]:
    """Indices of the model's channels in the order queries, keys, values of all heads."""
    table = np.arange(heads * (2 * keys + values)).reshape(heads, -1)
    parts = np.split(table, [keys, 2 * keys], 1)
    return [int(channel) for part in parts for channel in part.reshape(-1)]


def _split_sizes(state: ImportState, split: Any) -> list[int]:
    """Sizes of the parts; empty if unknown or not along the channels of a head."""
    if attribute(split, "axis", 0) not in (2, -2):
        return []
    if len(split.input) > 1:
        sizes = state.constants.get(state.resolve(split.input[1]))
        return [] if sizes is None else [int(size) for size in sizes]
    return [int(size) for size in attribute(split, "split", [])]
