"""Detection heads by what they compute: the tail of a graph is evaluated on random values and compared with ours.

Exporters write the same decoding in many ways, so its nodes are not looked at. A head counts as known only if its
result equals that of `network.decode` to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from framefuse.engines.cudnn.network import Concat, Flatten, Head, Split, decode

if TYPE_CHECKING:
    from framefuse.engines.cudnn.reading import Reader

TOLERANCE = 2e-4
"""Relative to the largest coordinate, of float32 evaluation."""


def recognise(reader: Reader) -> Head | None:
    """The head that the tail of a graph is, if it is one that we know."""
    from framefuse.engines.cudnn.reading import evaluate

    frontier = sorted({reader.name(name) for node in reader.tail for name in node.input} & set(reader.shapes))
    if len(frontier) != 2 or any(reader.ranks[name] != 3 for name in frontier):
        return None
    levels = [_levels(reader, name) for name in frontier]
    rows = {reader.shapes[name][1] for name in frontier}
    if len(rows) != 1 or levels[0] is None or levels[0] != levels[1]:
        return None
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 2, reader.shapes[name][:2]).astype(np.float32) for name in frontier}
    output = reader.name(reader.model.graph.output[0].name)
    feeds = {name: value[None] for name, value in values.items()}
    names = {name for node in reader.tail for name in node.input}
    feeds |= {name: values[reader.name(name)][None] for name in names if reader.name(name) in values}
    feeds |= {name: reader.constants[reader.name(name)] for name in names if reader.name(name) in reader.constants}
    try:
        (result,) = evaluate(reader.tail, feeds, [output], reader.model)
    except Exception:  # whatever the evaluator cannot do: then the head is not known
        return None
    for sides, scores in (frontier, frontier[::-1]):
        channels, classes = reader.shapes[sides][0], reader.shapes[scores][0]
        if channels % 4 or result.shape != (1, 4 + classes, *rows):
            continue
        head = Head(sides, scores, channels // 4, classes, levels[0])
        expected = decode(values[sides], values[scores], head, *reader.size)
        if np.abs(result[0] - expected).max() < TOLERANCE * max(reader.size):
            return head
    return None


def _levels(reader: Reader, name: str) -> tuple[tuple[int, int], ...] | None:
    """Height and width of the feature maps that a list of anchors was joined from."""
    producers = {written: op for op in reader.operations for written in op.writes}
    operation = producers.get(name)
    while isinstance(operation, Split):
        operation = producers.get(operation.x)
    parts = operation.xs if isinstance(operation, Concat) and operation.along == "rows" else (name,)
    found = []
    for part in parts:
        flat = producers.get(part)
        while isinstance(flat, (Split, Concat)) and not (isinstance(flat, Concat) and flat.along == "rows"):
            flat = producers.get(flat.x if isinstance(flat, Split) else flat.xs[0])
        if not isinstance(flat, Flatten):
            return None
        found.append(reader.shapes[flat.x][1:])
    return tuple(found)
