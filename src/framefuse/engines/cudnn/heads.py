"""Recognises detection heads by what they compute: evaluates the tail of a graph on random values.

Exporters write the same decoding in many ways, so the nodes themselves are not inspected. A head is recognised only if
its result equals that of `network.decode` or `network.decode_anchors` up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.import_state import ImportState
from framefuse.engines.cudnn.network import AnchorHead, Concat, Flatten, Head, Split, decode, decode_anchors

TOLERANCE = 2e-4
"""Relative to the largest coordinate, for float32 evaluation."""


def recognise(state: ImportState) -> Head | AnchorHead | None:
    """The head that the tail of a graph computes; None if it is unknown."""
    frontier = sorted({state.resolve(name) for node in state.tail for name in node.input} & set(state.shapes))
    if frontier and all(state.ranks[name] == 4 for name in frontier):
        return _anchor_head(state, frontier)
    if len(frontier) != 2 or any(state.ranks[name] != 3 for name in frontier):
        return None
    parts = {name: _parts(state, name) for name in frontier}
    levels = [tuple(state.shapes[part.image][1:] for part in found) for found in parts.values()]
    if not levels[0] or levels[0] != levels[1]:
        return None
    rows = state.shapes[frontier[0]][1]
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 2, state.shapes[name][:2]).astype(np.float32) for name in frontier}
    result = _evaluate_tail(state, {name: value[None] for name, value in values.items()})
    if result is None:
        return None
    for sides, scores in (frontier, frontier[::-1]):
        channels, classes = state.shapes[sides][0], state.shapes[scores][0]
        if channels % 4 or result.shape != (1, 4 + classes, rows):
            continue
        head = Head((), (), channels // 4, classes, levels[0])
        expected = decode(values[sides], values[scores], head, *state.size)
        if np.abs(result[0] - expected).max() < TOLERANCE * max(state.size):
            return _over_feature_maps(state, head, parts[sides], parts[scores])
    return None


def _anchor_head(state: ImportState, frontier: list[str]) -> AnchorHead | None:
    """A head over feature maps, the largest first. Its results for logits of 0 are the anchor sizes."""
    names = sorted(frontier, key=lambda name: -state.shapes[name][1])
    shapes = [state.shapes[name] for name in names]
    zeros = _evaluate_tail(state, {name: np.zeros((1, *state.shapes[name]), np.float32) for name in names})
    if zeros is None or zeros.ndim != 3 or zeros.shape[2] < 6 or any(shape[0] % zeros.shape[2] for shape in shapes):
        return None
    fields, sizes, first = zeros.shape[2], [], 0
    for channels, rows, columns in shapes:
        cells = rows * columns
        starts = range(first, first + channels // fields * cells, cells)
        if first + channels // fields * cells > zeros.shape[1]:
            return None
        sizes.append(tuple((float(zeros[0, at, 2]), float(zeros[0, at, 3])) for at in starts))
        first += channels // fields * cells
    head = AnchorHead(tuple(names), tuple(sizes), fields - 5, tuple(shape[1:] for shape in shapes))
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 2, (1, *state.shapes[name])).astype(np.float32) for name in names}
    result, expected = _evaluate_tail(state, values), decode_anchors(list(values.values()), head, *state.size)
    if result is None or result.shape != expected.shape:
        return None
    return head if np.abs(result - expected).max() < TOLERANCE * max(state.size) else None


def _evaluate_tail(state: ImportState, values: dict[str, NDArray[Any]]) -> NDArray[Any] | None:
    """The tail's result for these values; None if onnx's evaluator cannot run it."""
    output = state.resolve(state.model.graph.output[0].name)
    try:
        return state.evaluate(state.tail, values, output)
    except Exception:  # of any class: onnx's evaluator cannot run these nodes
        return None


@dataclass(frozen=True)
class Part:
    """Channels start .. start + count - 1 of an image."""

    image: str
    start: int
    count: int


def _parts(state: ImportState, name: str) -> list[Part]:
    """The feature maps that a list of anchors joins, level by level; empty if unknown."""
    producer = next((op for op in state.operations if name in op.writes), None)
    if isinstance(producer, Flatten):
        return [Part(producer.x, 0, state.shapes[name][0])]
    if isinstance(producer, Concat) and producer.along == "rows":
        parts = [_parts(state, x) for x in producer.xs]
        return [part for found in parts for part in found] if all(parts) else []
    if isinstance(producer, Split):
        start = sum(state.shapes[y][0] for y in producer.ys[: producer.ys.index(name)])
        return [replace(part, start=part.start + start, count=state.shapes[name][0])
                for part in _parts(state, producer.x)]  # fmt: skip
    return []


def _over_feature_maps(state: ImportState, head: Head, sides: list[Part], scores: list[Part]) -> Head | None:
    """The head over feature maps instead of joined lists of anchors."""
    names: dict[Part, str] = {}
    for pair in zip(sides, scores, strict=True):
        for image in {part.image: None for part in pair}:
            ordered = sorted((part for part in pair if part.image == image), key=lambda part: part.start)
            covered = [part.start for part in ordered] == [0, *(part.count for part in ordered[:-1])]
            channels, height, width = state.shapes[image]
            if not covered or sum(part.count for part in ordered) != channels:
                return None  # two networks in one, or unread channels
            if len(ordered) == 1:
                names[ordered[0]] = image
                continue
            ys = tuple(f"{image}/{part.start}" for part in ordered)
            state.add(Split(f"{image}/head", image, ys), [(part.count, height, width) for part in ordered])
            names |= dict(zip(ordered, ys, strict=True))
    return replace(head, sides=tuple(names[part] for part in sides), scores=tuple(names[part] for part in scores))
