"""The fused network: what a model computes, as few operations as can be, with batch left out.

A value is an image of channels, named as in the ONNX file, of shape (channels, height, width); a list of anchors is
one of width 1. Operations of the first kind compute; those of the second only say that values share memory, and cost
nothing once `placement.py` has found places for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Activation = Literal["none", "silu", "relu"]
Type: TypeAlias = Literal["fp16", "fp8", "int8"]
"""Of the numbers in a buffer; fp8: E4M3."""
EIGHT_BITS: tuple[Type, ...] = ("fp8", "int8")
Shape: TypeAlias = tuple[int, int, int]
Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Conv:
    """`y = activation(conv(x, weight) + bias) + residual`."""

    name: str
    x: str
    y: str
    weight: Floats
    """(out channels, in channels / groups, height, width)."""
    bias: Floats
    """(out channels,)."""
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    activation: Activation = "none"
    residual: str | None = None
    """A value of the shape of y."""

    @property
    def depthwise(self) -> bool:
        """Whether each channel has a filter of its own."""
        return self.groups > 1 and self.groups == len(self.weight) and self.weight.shape[1] == 1

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.y,)


@dataclass(frozen=True)
class Pool:
    """Maxima of square windows of odd size, stride 1, kept in size: `ys[0]` of x, `ys[1]` of `ys[0]`, and so on."""

    name: str
    x: str
    ys: tuple[str, ...]
    kernel: int

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[str, ...]:
        return self.ys


@dataclass(frozen=True)
class Upsample:
    """Each pixel `scale` times along both axes; scale 1 is a copy."""

    name: str
    x: str
    y: str
    scale: int

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.y,)


@dataclass(frozen=True)
class Attention:
    """`y = softmax(scale q k^T) v` over the pixels of an image, for each head.

    Channels of x: `keys` of q for each head, as many of k, `values` of v; y has those of v.
    """

    name: str
    x: str
    y: str
    heads: int
    keys: int
    values: int
    scale: float

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.y,)


@dataclass(frozen=True)
class Concat:
    """y is the inputs one after the other: along the channels, or along the rows (of lists of anchors)."""

    name: str
    xs: tuple[str, ...]
    y: str
    along: Literal["channels", "rows"]

    @property
    def reads(self) -> tuple[str, ...]:
        return self.xs

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.y,)


@dataclass(frozen=True)
class Split:
    """The channels of x in consecutive parts."""

    name: str
    x: str
    ys: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[str, ...]:
        return self.ys


@dataclass(frozen=True)
class Flatten:
    """(channels, height, width) -> (channels, height * width, 1)."""

    name: str
    x: str
    y: str

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.y,)


Computed: TypeAlias = Conv | Pool | Upsample | Attention
Free: TypeAlias = Concat | Split | Flatten
Operation: TypeAlias = Computed | Free
"""Flatten, and Concat along the rows, stand before a head only, and go when it is recognised."""


@dataclass(frozen=True)
class Head:
    """A detection head without anchors whose decoding is known, so that it need not be run as written.

    With p = softmax of the `bins` logits of a side, a side lies sum(k p[k]) strides from the centre of the cell; scores
    are sigmoid(logit). Output: (4 + classes, anchors), centre x, centre y, width, height in model pixels, then scores.
    """

    sides: tuple[str, ...]
    """For each level an image of 4 * bins channels: logits of the distance to left, top, right, bottom."""
    scores: tuple[str, ...]
    """For each level an image of `classes` channels: logits."""
    bins: int
    classes: int
    levels: tuple[tuple[int, int], ...]
    """Height and width of each feature map, in the order of the anchors."""

    @property
    def anchors(self) -> int:
        return sum(height * width for height, width in self.levels)

    @property
    def values(self) -> tuple[str, ...]:
        """Distances and classes of each level, in turn."""
        return tuple(name for pair in zip(self.sides, self.scores, strict=True) for name in pair)


@dataclass(frozen=True)
class AnchorHead:
    """A detection head with anchors, as YOLOv5 has it.

    With s = sigmoid(logit): centre = (2 s - 0.5 + cell) stride, size = (2 s)^2 anchor, the rest s. Output: (anchors,
    5 + classes), level after level, in each anchor after anchor; centre x, centre y, width, height in model pixels,
    objectness, scores.
    """

    rows: tuple[str, ...]
    """For each level an image of logits: for each anchor 5 + classes channels."""
    sizes: tuple[tuple[tuple[float, float], ...], ...]
    """For each level width and height of its anchors, in model pixels."""
    classes: int
    levels: tuple[tuple[int, int], ...]

    @property
    def fields(self) -> int:
        """Numbers of an anchor."""
        return 5 + self.classes

    @property
    def anchors(self) -> int:
        return sum(len(sizes) * height * width for sizes, (height, width) in zip(self.sizes, self.levels, strict=True))

    @property
    def values(self) -> tuple[str, ...]:
        return self.rows


@dataclass
class Network:
    """Operations in an order in which they can run."""

    input: str
    outputs: tuple[str, ...]
    """Values that a reader outside wants: those of the head, or the outputs of the ONNX."""
    operations: list[Operation]
    shapes: dict[str, Shape]
    head: Head | AnchorHead | None = None
    padding: dict[str, list[int]] = field(default_factory=dict)
    """Values wider than the model's own: for each channel, that of the model, or -1 for one that is 0 or unused."""

    ranges: dict[str, float] = field(default_factory=dict)
    """Largest magnitude of a value, for those that the file quantises."""

    def channels(self, name: str) -> int:
        """Channels of a value that are the model's own; what is padded comes behind them."""
        return sum(channel >= 0 for channel in self.padding.get(name, range(self.shapes[name][0])))


def attend(x: NDArray[Any], step: Attention) -> NDArray[Any]:
    """(batch, channels, height, width) of queries, keys and values -> what they attend to."""
    batch, _, height, width = x.shape
    between = step.heads * step.keys
    parts = np.split(x.reshape(batch, -1, height * width), [between, 2 * between], 1)
    q, k, v = (part.reshape(batch, step.heads, -1, height * width) for part in parts)
    logits = q.transpose(0, 1, 3, 2) @ k * step.scale
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    result: NDArray[Any] = v @ (weight / weight.sum(-1, keepdims=True)).transpose(0, 1, 3, 2)
    return result.reshape(batch, -1, height, width)


def decode(sides: NDArray[Any], scores: NDArray[Any], head: Head, height: int, width: int) -> Floats:
    """What the head means, for one image.

    Args:
        sides: (4 bins, anchors).
        scores: (classes, anchors).
        height, width: of the model's input.

    Returns:
        (4 + classes, anchors) float32.
    """
    logits = sides.astype(np.float64).reshape(4, head.bins, -1)
    weight = np.exp(logits - logits.max(1, keepdims=True))
    left, top, right, bottom = (weight * np.arange(head.bins)[None, :, None]).sum(1) / weight.sum(1)
    x, y, stride_x, stride_y = cells(head.levels, height, width)
    boxes = [x + (right - left) / 2, y + (bottom - top) / 2, left + right, top + bottom]
    scaled = [side * (stride_x, stride_y)[index % 2] for index, side in enumerate(boxes)]
    probability = 1 / (1 + np.exp(-scores.astype(np.float64)))
    return np.concatenate([np.stack(scaled), probability]).astype(np.float32)


def decode_levels(values: Sequence[NDArray[Any]], head: Head, height: int, width: int) -> Floats:
    """`decode` of a batch: values are those of `Head.values`, (batch, channels, rows, columns)."""
    flat = [value.reshape(*value.shape[:2], -1) for value in values]
    sides, scores = np.concatenate(flat[::2], 2), np.concatenate(flat[1::2], 2)
    return np.stack([decode(a, b, head, height, width) for a, b in zip(sides, scores, strict=True)])


def decode_anchors(values: Sequence[NDArray[Any]], head: AnchorHead, height: int, width: int) -> Floats:
    """What a head with anchors means, for a batch.

    Args:
        values: those of `AnchorHead.values`, (batch, anchors * fields, rows, columns).
        height, width: of the model's input.

    Returns:
        (batch, anchors, 5 + classes) float32.
    """
    parts = []
    for value, sizes, (rows, columns) in zip(values, head.sizes, head.levels, strict=True):
        logits = value.astype(np.float64).reshape(len(value), len(sizes), head.fields, rows, columns)
        share = 1 / (1 + np.exp(-logits.transpose(0, 1, 3, 4, 2)))
        y, x = np.mgrid[0:rows, 0:columns]
        share[..., :2] = (2 * share[..., :2] - 0.5 + np.stack([x, y], -1)) * (width / columns, height / rows)
        share[..., 2:4] = (2 * share[..., 2:4]) ** 2 * np.array(sizes)[:, None, None]
        parts.append(share.reshape(len(value), -1, head.fields))
    return np.concatenate(parts, 1).astype(np.float32)


def cells(levels: Sequence[tuple[int, int]], height: int, width: int) -> NDArray[np.float64]:
    """(4, anchors): centre of each cell in cells (x, y), and the cell's size in model pixels (x, y)."""
    parts = []
    for rows, columns in levels:
        y, x = np.mgrid[0:rows, 0:columns].reshape(2, -1)
        full = np.ones(rows * columns)
        parts.append(np.stack([x + 0.5, y + 0.5, full * (width / columns), full * (height / rows)]))
    return np.concatenate(parts, 1)
