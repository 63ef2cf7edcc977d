"""The two detection heads: anchor-free with a distribution per box side (YOLOv8), anchor-based (YOLOv5).

Both decode to boxes in model pixels inside the graph. `Head.score_at` lets models.py choose how many candidates pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.model_graph import Array, Graph, Tensor

STRIDES = (8, 16, 32)
BINS = 16
"""YOLOv8 predicts each side of a box as a distribution over the distances 0..15 strides."""

ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""YOLOv5's anchors for COCO: (width, height) in model pixels, three for each stride."""

COCO_NAMES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis",
    "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed",
    "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven",
    "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush"
)  # fmt: skip
CLASSES = len(COCO_NAMES)


@dataclass(frozen=True)
class ScoreLevel:
    """What raises or lowers the scores of one stride."""

    bias: str
    """The bias of the convolution that gives the scores, and which of its rows matter."""
    rows: slice | list[int]
    score_at: Callable[[float], Array]
    """Best class score of each anchor (frames, anchors) if that bias were shifted by the argument."""


@dataclass(frozen=True)
class Head:
    """A detection head that has been added to a graph."""

    output: Tensor
    axes: tuple[str, str, str]
    """Names of the output's dynamic axes; empty where the axis has a fixed size."""
    levels: list[ScoreLevel]


def logistic(logit: Array, shift: float = 0.0, factor: Array | float = 1.0) -> Array:
    """`factor * sigmoid(logit + shift)`."""
    return factor / (1 + np.exp(-(logit.astype(np.float64) + shift)))


def cell_indices(graph: Graph, name: str, feature: Tensor) -> Tensor:
    """Column and row of every cell of a feature map: float32, (2, h, w), x first."""
    size = graph.size(f"{name}/size", feature)
    zero, one = (graph.constant(f"{name}/{word}", np.array(n, np.int64)) for n, word in enumerate(("zero", "one")))
    planes = []
    for axis, shape in ((1, [1, 1, -1]), (0, [1, -1, 1])):
        label = f"{name}/{'yx'[axis]}"
        length = graph.add("Gather", f"{label}/length", size, (zero, one)[axis])
        indices = graph.add("Cast", f"{label}/float", graph.add("Range", f"{label}/Range", zero, length, one), to=1)
        line_shape = graph.constant(f"{label}/shape", np.array(shape, np.int64))
        line = graph.add("Reshape", f"{label}/line", indices, line_shape)
        planes.append(graph.add("Expand", f"{label}/Expand", line, size))
    return graph.add("Concat", f"{name}/grid", *planes, axis=0)


def anchor_free(graph: Graph, features: list[Tensor], name: str) -> Head:
    """YOLOv8: output (batch, 4 + classes, anchors) of centre x, centre y, width, height, class scores."""
    box_width, class_width = max(16, features[0].channels // 4, 4 * BINS), max(features[0].channels, min(CLASSES, 100))
    levels, points, strides, scores_of = [], [], [], []
    flat = graph.constant(f"{name}/flat", np.array([0, 4 * BINS + CLASSES, -1], np.int64))
    for level, (feature, stride) in enumerate(zip(features, STRIDES, strict=True)):
        branches = []
        # In a trained network neighbouring cells agree on class and box, so several candidates become one box. Kernels
        # that are mostly averages and class weights that are mostly shared make these random ones agree as well.
        for branch, width, out, std, shared in (
            ("cv2", box_width, 4 * BINS, 0.5, 0.0),
            ("cv3", class_width, CLASSES, 2.0, 0.9),
        ):
            label = f"{name}/{branch}.{level}"
            x = graph.silu(f"{label}.0/act", graph.conv(f"{label}.0/conv", feature, width, 3, smooth=0.6))
            x = graph.silu(f"{label}.1/act", graph.conv(f"{label}.1/conv", x, width, 3, smooth=0.6))
            branches.append(graph.conv(f"{label}.2", x, out, 1, std=std, shared=shared))
        best = branches[1].value.max(axis=1).reshape(len(branches[1].value), -1)
        scores_of.append(ScoreLevel(f"{name}/cv3.{level}.2.bias", slice(None), partial(logistic, best)))
        joined = graph.add("Concat", f"{name}/Concat.{level}", *branches, axis=1)
        levels.append(graph.add("Reshape", f"{name}/Reshape.{level}", joined, flat))
        cells = cell_indices(graph, f"{name}/anchors.{level}", feature)
        line = graph.constant(f"{name}/anchors.{level}/flat", np.array([1, 2, -1], np.int64))
        cells = graph.add("Reshape", f"{name}/anchors.{level}/Reshape", cells, line)
        half = graph.constant(f"{name}/anchors.{level}/half", np.array(0.5, np.float32))
        points.append(graph.add("Add", f"{name}/anchors.{level}/centre", cells, half))
        # 0 * x + stride: the stride of every anchor, with a length that follows the image.
        first = graph.constant(f"{name}/strides.{level}/first", np.array([0], np.int64))
        row = graph.add("Gather", f"{name}/strides.{level}/row", cells, first, axis=1)
        nothing = graph.add("Mul", f"{name}/strides.{level}/zeros", row,
                            graph.constant(f"{name}/strides.{level}/zero", np.array(0, np.float32)))  # fmt: skip
        value = graph.constant(f"{name}/strides.{level}/value", np.array(stride, np.float32))
        strides.append(graph.add("Add", f"{name}/strides.{level}/Add", nothing, value))
    everything = graph.add("Concat", f"{name}/Concat", *levels, axis=2)
    centres = graph.add("Concat", f"{name}/centres", *points, axis=2)
    scale = graph.add("Concat", f"{name}/strides", *strides, axis=2)

    sides, logits = graph.split(f"{name}/Split", everything, [4 * BINS, CLASSES], axis=1)
    boxes = graph.add("Mul", f"{name}/boxes", _decode_distances(graph, f"{name}/dfl", sides, centres), scale)
    scores = graph.add("Sigmoid", f"{name}/Sigmoid", logits)
    return Head(
        output=graph.add("Concat", f"{name}/output", boxes, scores, axis=1),
        axes=("batch", "", "anchors"),
        levels=scores_of,
    )


def _decode_distances(graph: Graph, name: str, sides: Tensor, centres: Tensor) -> Tensor:
    """Expected distance to each side, then centre and size, in strides: (batch, 64, anchors) -> (batch, 4, anchors).

    The expectation over the bins is a 1x1 convolution with weights 0..15 ("distribution focal loss", Li et al. 2020).
    """
    split = graph.constant(f"{name}/shape", np.array([0, 4, BINS, -1], np.int64))
    by_side = graph.add("Reshape", f"{name}/Reshape", sides, split)
    by_bin = graph.add("Transpose", f"{name}/Transpose", by_side, perm=[0, 2, 1, 3])
    probability = graph.add("Softmax", f"{name}/Softmax", by_bin, axis=1)
    bins = graph.constant(f"{name}/bins", np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
    expected = graph.add("Conv", f"{name}/Conv", probability, bins)
    four = graph.constant(f"{name}/four", np.array([0, 4, -1], np.int64))
    distance = graph.add("Reshape", f"{name}/distance", expected, four)
    left_top, right_bottom = graph.split(f"{name}/Split", distance, [2, 2], axis=1)
    start = graph.add("Sub", f"{name}/start", centres, left_top)
    end = graph.add("Add", f"{name}/end", centres, right_bottom)
    two = graph.constant(f"{name}/two", np.array(2, np.float32))
    middle = graph.add("Div", f"{name}/middle", graph.add("Add", f"{name}/sum", start, end), two)
    return graph.add("Concat", f"{name}/xywh", middle, graph.add("Sub", f"{name}/size", end, start), axis=1)


def anchor_based(graph: Graph, features: list[Tensor], name: str, *, std: float = 1.5) -> Head:
    """YOLOv5: output (batch, anchors, 5 + classes) of centre x, centre y, width, height, objectness, class scores.

    With s = sigmoid(raw), whose deviation is `std`: centre = (2 s - 0.5 + cell) * stride, size = (2 s)^2 * anchor.
    """
    per_cell, fields = len(ANCHORS[0]), 5 + CLASSES
    levels, scores_of = [], []
    objectness_rows = [4 + fields * anchor for anchor in range(per_cell)]
    two = graph.constant(f"{name}/two", np.array(2, np.float32))
    rows = graph.constant(f"{name}/rows", np.array([0, -1, fields], np.int64))
    for level, (feature, stride) in enumerate(zip(features, STRIDES, strict=True)):
        label = f"{name}/m.{level}"
        raw = graph.conv(label, feature, per_cell * fields, 1, std=std)
        size = graph.size(f"{label}/size", feature)
        head = graph.constant(f"{label}/head", np.array([0, per_cell, fields], np.int64))
        shape = graph.add("Concat", f"{label}/shape", head, size, axis=0)
        by_anchor = graph.add("Transpose", f"{label}/Transpose",
                              graph.add("Reshape", f"{label}/Reshape", raw, shape), perm=[0, 1, 3, 4, 2])  # fmt: skip
        activated = graph.add("Sigmoid", f"{label}/Sigmoid", by_anchor)
        xy, wh, scores = graph.split(f"{label}/Split", activated, [2, 2, 1 + CLASSES], axis=4)

        cells = graph.add("Transpose", f"{label}/cells", cell_indices(graph, f"{label}/grid", feature), perm=[1, 2, 0])
        corner = graph.add("Sub", f"{label}/corner", cells, graph.constant(f"{label}/half", np.array(0.5, np.float32)))
        offset = graph.add("Add", f"{label}/offset", graph.add("Mul", f"{label}/xy2", xy, two), corner)
        pitch = graph.constant(f"{label}/stride", np.array(stride, np.float32))
        centre = graph.add("Mul", f"{label}/centre", offset, pitch)
        anchors = np.array(ANCHORS[level], np.float32).reshape(1, per_cell, 1, 1, 2)
        doubled = graph.add("Mul", f"{label}/wh2", wh, two)
        extent = graph.add("Mul", f"{label}/extent", graph.add("Mul", f"{label}/square", doubled, doubled),
                           graph.constant(f"{label}/anchors", anchors))  # fmt: skip
        joined = graph.add("Concat", f"{label}/Concat", centre, extent, scores, axis=4)
        levels.append(graph.add("Reshape", f"{label}/rows", joined, rows))
        logits = by_anchor.value.reshape(len(by_anchor.value), -1, fields)
        score_at = partial(logistic, logits[..., 4], factor=logistic(logits[..., 5:].max(axis=-1)))
        scores_of.append(ScoreLevel(f"{label}.bias", objectness_rows, score_at))
    return Head(
        output=graph.add("Concat", f"{name}/output", *levels, axis=1),
        axes=("batch", "anchors", ""),
        levels=scores_of,
    )
