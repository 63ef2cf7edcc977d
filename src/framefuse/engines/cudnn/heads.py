"""Detection heads by what they compute: the tail of a graph is evaluated on random values and compared with ours.

Exporters write the same decoding in many ways, so its nodes are not looked at. A head counts as known only if its
result equals that of `network.decode` to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.import_state import ImportState
from framefuse.engines.cudnn.network import AnchorHead, Concat, Flatten, Head, Split, decode, decode_anchors

TOLERANCE = 2e-4
"""Relative to the largest coordinate, of float32 evaluation."""


def recognise(reader: ImportState) -> Head | AnchorHead | None:
    """The head that the tail of a graph is, if it is one that we know."""
    frontier = sorted({reader.name(name) for node in reader.tail for name in node.input} & set(reader.shapes))
    if frontier and all(reader.ranks[name] == 4 for name in frontier):
        return _with_anchors(reader, frontier)
    if len(frontier) != 2 or any(reader.ranks[name] != 3 for name in frontier):
        return None
    parts = {name: _parts(reader, name) for name in frontier}
    levels = [tuple(reader.shapes[part.image][1:] for part in found) for found in parts.values()]
    if not levels[0] or levels[0] != levels[1]:
        return None
    rows = reader.shapes[frontier[0]][1]
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 2, reader.shapes[name][:2]).astype(np.float32) for name in frontier}
    result = _evaluated(reader, {name: value[None] for name, value in values.items()})
    if result is None:
        return None
    for sides, scores in (frontier, frontier[::-1]):
        channels, classes = reader.shapes[sides][0], reader.shapes[scores][0]
        if channels % 4 or result.shape != (1, 4 + classes, rows):
            continue
        head = Head((), (), channels // 4, classes, levels[0])
        expected = decode(values[sides], values[scores], head, *reader.size)
        if np.abs(result[0] - expected).max() < TOLERANCE * max(reader.size):
            return _cut(reader, head, parts[sides], parts[scores])
    return None


def _with_anchors(reader: ImportState, frontier: list[str]) -> AnchorHead | None:
    """A head over images of logits, the largest first: anchors are what it gives for logits of 0."""
    names = sorted(frontier, key=lambda name: -reader.shapes[name][1])
    shapes = [reader.shapes[name] for name in names]
    zeros = _evaluated(reader, {name: np.zeros((1, *reader.shapes[name]), np.float32) for name in names})
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
    values = {name: rng.normal(0, 2, (1, *reader.shapes[name])).astype(np.float32) for name in names}
    result, expected = _evaluated(reader, values), decode_anchors(list(values.values()), head, *reader.size)
    if result is None or result.shape != expected.shape:
        return None
    return head if np.abs(result - expected).max() < TOLERANCE * max(reader.size) else None


def _evaluated(reader: ImportState, values: dict[str, NDArray[Any]]) -> NDArray[Any] | None:
    """What the tail gives for these values; nothing where the evaluator cannot run it: then the head is not known."""
    output = reader.name(reader.model.graph.output[0].name)
    try:
        return reader.evaluated(reader.tail, values, output)
    except Exception:  # whatever the evaluator cannot do
        return None


@dataclass(frozen=True)
class Part:
    """Channels start .. start + count - 1 of an image."""

    image: str
    start: int
    count: int


def _parts(reader: ImportState, name: str) -> list[Part]:
    """What a list of anchors was joined from, level after level; nothing where that is not known."""
    producer = next((op for op in reader.operations if name in op.writes), None)
    if isinstance(producer, Flatten):
        return [Part(producer.x, 0, reader.shapes[name][0])]
    if isinstance(producer, Concat) and producer.along == "rows":
        parts = [_parts(reader, x) for x in producer.xs]
        return [part for found in parts for part in found] if all(parts) else []
    if isinstance(producer, Split):
        start = sum(reader.shapes[y][0] for y in producer.ys[: producer.ys.index(name)])
        return [replace(part, start=part.start + start, count=reader.shapes[name][0])
                for part in _parts(reader, producer.x)]  # fmt: skip
    return []


def _cut(reader: ImportState, head: Head, sides: list[Part], scores: list[Part]) -> Head | None:
    """The head over images instead of lists of anchors: what joined them is not needed any more."""
    names: dict[Part, str] = {}
    for pair in zip(sides, scores, strict=True):
        for image in {part.image: None for part in pair}:
            ordered = sorted((part for part in pair if part.image == image), key=lambda part: part.start)
            covered = [part.start for part in ordered] == [0, *(part.count for part in ordered[:-1])]
            channels, height, width = reader.shapes[image]
            if not covered or sum(part.count for part in ordered) != channels:
                return None  # two networks in one, or something that nobody reads
            if len(ordered) == 1:
                names[ordered[0]] = image
                continue
            ys = tuple(f"{image}/{part.start}" for part in ordered)
            reader.add(Split(f"{image}/head", image, ys), [(part.count, height, width) for part in ordered])
            names |= dict(zip(ordered, ys, strict=True))
    return replace(head, sides=tuple(names[part] for part in sides), scores=tuple(names[part] for part in scores))
