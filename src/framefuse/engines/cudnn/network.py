"""The fused network: the intermediate representation split importer and scheduler. Shapes leave out the batch.

A value is a feature map (channels, height, width), named as in the ONNX file; a list of anchors has width 1. Compute
operations run kernels. Layout operations only relate values, and cost nothing: `compiled.py` makes their values views
of shared buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.kernels.boxes.head_cuda import cells as cells

Activation = Literal["none", "silu", "relu"]
Type: TypeAlias = Literal["fp16", "fp8", "int8", "fp32", "tf32"]
"""Number format of a buffer, and how a convolution multiplies it. fp8 is E4M3. fp32 and tf32 are stored alike, but in
tf32 factors are rounded to the 10 bits of float16 after the point."""
BYTES: dict[Type, int] = {"fp16": 2, "fp8": 1, "int8": 1, "fp32": 4, "tf32": 4}
LOW_PRECISIONS: tuple[Type, ...] = ("fp8", "int8")
Shape: TypeAlias = tuple[int, int, int]
Floats: TypeAlias = NDArray[np.float32]


class _Operation:
    """Reads x, or xs, and a residual if it has one; writes y, or ys."""

    @property
    def reads(self) -> tuple[str, ...]:
        fields = vars(self)
        return (*fields.get("xs", ()), *(fields[name] for name in ("x", "residual") if fields.get(name)))

    @property
    def writes(self) -> tuple[str, ...]:
        fields = vars(self)
        return fields["ys"] if "ys" in fields else (fields["y"],)


@dataclass(frozen=True, eq=False)
class Conv(_Operation):
    """`y = last(activation(conv(x, weight) + bias) + residual)`."""

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
    last: Activation = "none"
    """Only with a residual."""

    @property
    def depthwise(self) -> bool:
        """Whether each channel has its own filter."""
        return self.groups > 1 and self.groups == len(self.weight) and self.weight.shape[1] == 1


@dataclass(frozen=True)
class Pool(_Operation):
    """Chain of max pools (square, odd kernel, stride 1, same size): `ys[0]` pools x, `ys[1]` pools `ys[0]`, ..."""

    name: str
    x: str
    ys: tuple[str, ...]
    kernel: int


@dataclass(frozen=True)
class Upsample(_Operation):
    """Nearest upsampling by `scale`; 1 is a copy."""

    name: str
    x: str
    y: str
    scale: int


@dataclass(frozen=True)
class Attention(_Operation):
    """`y = softmax(scale q k^T) v` over pixels, for each head.

    Channels of x: q of all heads (`keys` each), k of all heads (`keys` each), v of all heads (`values` each), as y.
    """

    name: str
    x: str
    y: str
    heads: int
    keys: int
    values: int
    scale: float


@dataclass(frozen=True)
class Concat(_Operation):
    """Concatenation along the channels, or along the rows (of lists of anchors)."""

    name: str
    xs: tuple[str, ...]
    y: str
    along: Literal["channels", "rows"]


@dataclass(frozen=True)
class Split(_Operation):
    """Consecutive parts of the channels of x."""

    name: str
    x: str
    ys: tuple[str, ...]


@dataclass(frozen=True)
class Flatten(_Operation):
    """(channels, height, width) -> (channels, height * width, 1)."""

    name: str
    x: str
    y: str


@dataclass(frozen=True)
class Pairs(_Operation):
    """(channels, height, width) -> (2 * channels, height, width / 2): the channels of two neighbouring pixels."""

    stride: ClassVar = (1, 2)
    """Rows and columns from one pixel of y to the next."""
    name: str
    x: str
    y: str


@dataclass(frozen=True)
class Subsample(_Operation):
    """The pixels of x in every `stride`-th row and column, from the first on."""

    name: str
    x: str
    y: str
    stride: tuple[int, int]


@dataclass(frozen=True, eq=False)
class General(_Operation):
    """Nodes of the ONNX file that have no kernel of their own, on arrays (batch, channels, height, width)."""

    name: str
    program: ArrayProgram
    xs: tuple[str, ...]
    ys: tuple[str, ...]
    images: int = 0
    """That the nodes take at once; 0: any number."""


ComputeOp: TypeAlias = Conv | Pool | Upsample | Attention | General
LayoutOp: TypeAlias = Concat | Split | Flatten | Pairs | Subsample
Operation: TypeAlias = ComputeOp | LayoutOp
"""Flatten, and Concat along the rows, occur only before a head; recognising it removes them."""


@dataclass(frozen=True)
class Head:
    """An anchor-free detection head, as in YOLOv8.

    With p = softmax of the `bins` logits of a side, the side lies sum(k p[k]) strides from the centre of the cell;
    scores are sigmoid(logit). Output: (4 + classes, anchors): centre x, centre y, width, height in model pixels, then
    scores.
    """

    sides: tuple[str, ...]
    """For each level a feature map of 4 * bins logits: distances to left, top, right, bottom."""
    scores: tuple[str, ...]
    """For each level a feature map of `classes` logits."""
    bins: int
    classes: int
    levels: tuple[tuple[int, int], ...]
    """Height and width of each feature map, in the order of the anchors."""

    @property
    def anchors(self) -> int:
        return sum(height * width for height, width in self.levels)

    @property
    def values(self) -> tuple[str, ...]:
        """Distances and scores of each level, alternating."""
        return tuple(name for pair in zip(self.sides, self.scores, strict=True) for name in pair)


@dataclass(frozen=True)
class AnchorHead:
    """A detection head with anchors, as in YOLOv5.

    With s = sigmoid(logit): centre = (2 s - 0.5 + cell) stride, size = (2 s)^2 anchor, the rest s. Output: (anchors,
    5 + classes), ordered by level, then anchor shape, then cell: centre x, centre y, width, height in model pixels,
    objectness, scores.
    """

    rows: tuple[str, ...]
    """For each level a feature map of logits: 5 + classes channels per anchor shape."""
    sizes: tuple[tuple[tuple[float, float], ...], ...]
    """For each level the width and height of its anchor shapes, in model pixels."""
    classes: int
    levels: tuple[tuple[int, int], ...]

    @property
    def fields(self) -> int:
        return 5 + self.classes

    @property
    def anchors(self) -> int:
        return sum(len(sizes) * height * width for sizes, (height, width) in zip(self.sizes, self.levels, strict=True))

    @property
    def values(self) -> tuple[str, ...]:
        return self.rows


@dataclass
class Network:
    """Operations in topological order."""

    input: str
    outputs: tuple[str, ...]
    """Values that are read after the run: inputs of the head, or the outputs of the ONNX file."""
    operations: list[Operation]
    shapes: dict[str, Shape]
    head: Head | AnchorHead | None = None
    tail: General | None = None
    """What makes the outputs of the ONNX file, its `ys`, from `outputs`, its `xs`; of any shape."""
    padding: dict[str, list[int]] = field(default_factory=dict)
    """For padded values: the model's channel of each channel, or -1 for padding, which is 0 or unused."""
    ranges: dict[str, float] = field(default_factory=dict)
    """Largest magnitude of each value that the file quantises."""

    @property
    def general(self) -> list[General]:
        """What nodes without a kernel make, in order."""
        return [op for op in (*self.operations, self.tail) if isinstance(op, General)]

    def channels(self, name: str) -> int:
        """Channels of a value without padding."""
        return len(self.kept(name))

    def kept(self, name: str) -> list[int]:
        """The channels of a value that do not pad it."""
        padding = self.padding.get(name, range(self.shapes[name][0]))
        return [at for at, channel in enumerate(padding) if channel >= 0]

    def spans(self, names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
        """Each value with its first channel among the concatenated ones, and its channels."""
        start = 0
        for name in names:
            yield name, start, self.shapes[name][0]
            start += self.shapes[name][0]


def attend(x: NDArray[Any], step: Attention) -> NDArray[Any]:
    """`Attention` of x (batch, channels, height, width)."""
    batch, _, height, width = x.shape
    split = step.heads * step.keys
    parts = np.split(x.reshape(batch, -1, height * width), [split, 2 * split], 1)
    q, k, v = (part.reshape(batch, step.heads, -1, height * width) for part in parts)
    logits = q.transpose(0, 1, 3, 2) @ k * step.scale
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    result: NDArray[Any] = v @ (weight / weight.sum(-1, keepdims=True)).transpose(0, 1, 3, 2)
    return result.reshape(batch, -1, height, width)


def decode(sides: NDArray[Any], scores: NDArray[Any], head: Head, height: int, width: int) -> Floats:
    """Decode the logits of one image.

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


def decode_anchors(values: Sequence[NDArray[Any]], head: AnchorHead, height: int, width: int) -> Floats:
    """Decode the logits of a batch.

    Args:
        values: of `AnchorHead.values`, (batch, anchors * fields, rows, columns).
        height, width: of the model's input.

    Returns:
        (batch, anchors, 5 + classes) float32.
    """
    parts = []
    for value, sizes, (rows, columns) in zip(values, head.sizes, head.levels, strict=True):
        logits = value.astype(np.float64).reshape(len(value), len(sizes), head.fields, rows, columns)
        sigmoid = 1 / (1 + np.exp(-logits.transpose(0, 1, 3, 4, 2)))
        y, x = np.mgrid[0:rows, 0:columns]
        sigmoid[..., :2] = (2 * sigmoid[..., :2] - 0.5 + np.stack([x, y], -1)) * (width / columns, height / rows)
        sigmoid[..., 2:4] = (2 * sigmoid[..., 2:4]) ** 2 * np.array(sizes)[:, None, None]
        parts.append(sigmoid.reshape(len(value), -1, head.fields))
    return np.concatenate(parts, 1).astype(np.float32)
