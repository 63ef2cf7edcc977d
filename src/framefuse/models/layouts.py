"""Infers the task and the output layout of a model from its output shapes and number of classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from framefuse.errors import CardError
from framefuse.models.onnx_file import TensorFacts

Task = Literal["detect", "segment", "pose", "obb", "classify", "semantic"]
OutputLayout = Literal[
    "yolov5", "yolov8", "end2end", "detr", "classify", "semantic", "yolox", "nanodet", "centerface", "centernet"
]
Activation = Literal["none", "sigmoid", "softmax"]
BoxUnits = Literal["pixels", "relative"]

WHOLE: tuple[Task, ...] = ("classify", "semantic")
"""Tasks that say something about the whole frame, not about objects; their layouts have the same names."""
UNDECODED: tuple[OutputLayout, ...] = ("yolox", "nanodet", "centerface", "centernet")
"""Layouts of networks that leave the decoding of their boxes to others."""
NANODET_SIDES = 32
"""Values of an anchor of NanoDet besides its scores: four distances of eight bins."""
READ = "yolov5 (b, N, 5 + nc), yolov8 (b, 4 + nc, N), end2end (b, K, 6), or boxes (b, K, 4) with logits (b, K, nc)"
"""For messages."""
MAX_QUERIES = 1000
"""Maximum boxes of models that select their boxes (end2end, detr); models with anchors have more."""


@dataclass(frozen=True)
class Resolved:
    """A layout, and the outputs that it reads."""

    name: OutputLayout
    outputs: tuple[str, ...]
    indices: tuple[int, ...]
    class_count: int | None
    """From the shapes; None if they do not tell."""
    activation: Activation = "none"
    box_units: BoxUnits = "pixels"
    task: Task = "detect"
    extra: int = 0
    """Values of an anchor or query after its classes: mask coefficients, keypoints, or an angle."""
    origin: dict[str, str] = field(default_factory=dict)


def resolve(
    outputs: Sequence[TensorFacts],
    *,
    size: tuple[int, int],
    class_count: int | None,
    task: Task | None = None,
    layout: OutputLayout | None = None,
    wanted: Sequence[str] | None = None,
    activation: Activation | None = None,
    box_units: BoxUnits | None = None,
    keypoints: tuple[int, int] | None = None,
    probe: Callable[[], bool] | None = None,
) -> Resolved:
    """Infer task and layout. Arguments that are not None are checked against the shapes and never overridden.

    Args:
        outputs: all outputs of the ONNX model, in order.
        size: (height, width) of the model input.
        class_count: number of class names, if known.
        wanted: names of the outputs to read, in the order of the layout.
        keypoints: their number, and the values of each: 2, or 3 with a confidence.
        probe: runs the model once, and returns whether its boxes are in pixels; None: it is not run.

    Raises:
        CardError: the layout is unknown, ambiguous or contradictory; the remedy names the key to add.
    """
    listed = _listed(outputs)
    by_name = {tensor.name: tensor for tensor in outputs}
    if missing := [name for name in wanted or () if name not in by_name]:
        raise CardError(f"outputs {missing} do not exist; the model has {listed}", remedy="correct outputs in the card")
    chosen = [by_name[name] for name in wanted] if wanted else list(outputs)
    ranks, inferred = sorted(len(tensor.shape) for tensor in chosen), {}
    if task is None:
        guessed: dict[tuple[int, ...], Task] = {(3, 4): "segment", (2,): "classify"}
        task = guessed.get(tuple(ranks), "detect") if layout in (None, "yolov5", "yolov8", "end2end") else "detect"
        inferred = {"task": f"onnx output shapes {listed}"} if task != "detect" else {}
    name: OutputLayout
    if task == "segment":
        chosen.sort(key=lambda tensor: len(tensor.shape))
    heat = _heat_map(chosen, layout) if task in ("detect", "pose") else None
    extra = 0 if heat else _extra(task, chosen, keypoints)
    if heat is not None:
        name, count, why = heat, chosen[0].shape[1], f"onnx output shapes {listed}"
        task, extra = ("pose", chosen[3].shape[1] or 0) if heat == "centerface" else ("detect", 0)
    elif task == "classify":
        name, count, why = "classify", _check_classify(chosen, listed), "only output"
    elif len(chosen) == 1 or task == "segment":
        name, count, why = _single(chosen[0], size, class_count, layout, extra, probe)
    else:
        ordered = _detr_order(chosen, keep=wanted is not None)
        if not any(len(tensor.shape) in (0, 3) for tensor in chosen):
            message = f"no output holds boxes in a layout that framefuse reads: {listed}"
            raise CardError(message, remedy=f"export the model with its decoding and with one of these outputs: {READ}")
        if ordered is None or layout not in (None, "detr"):
            remedy = "add outputs: [name, ...] (and layout: yolov5, yolov8, end2end or detr) to the card"
            raise CardError(f"it is unclear which outputs hold the detections: {listed}", remedy=remedy)
        chosen, name = ordered, "detr"
        count = count_classes(name, [tensor.shape for tensor in chosen], activation)
        why = f"onnx output shapes {_listed(chosen)}"
        if len(chosen) == 3 and box_units is None:
            remedy = "add box_units: relative (0..1 of the model input) or box_units: pixels (of it) to the card"
            raise CardError(f"the units of output {chosen[1]} are not stated", remedy=remedy)
    if extra and name == "detr":
        raise CardError(f"task {task} has no layout detr: {listed}", remedy="use yolov5, yolov8 or end2end")
    if class_count is not None and count is not None and count != class_count:
        raise CardError(
            f"{class_count} class names are given, but the outputs have {count} classes ({name}: {listed})",
            remedy=f"correct {'names or keypoints' if task == 'pose' else 'names'} in the card"
            + ("; if the last class means no object, add activation: softmax" if count == class_count + 1 else ""),
        )
    default: Activation = "sigmoid" if name == "detr" and len(chosen) == 2 else "softmax" if inferred else "none"
    return Resolved(
        name,
        tuple(tensor.name for tensor in chosen),
        tuple(outputs.index(tensor) for tensor in chosen),
        count,
        activation or (default if name in ("detr", "classify") else "none"),
        box_units or ("relative" if name == "detr" else "pixels"),
        task,
        extra,
        {"layout": why, "outputs": why, **dict.fromkeys(("activation", "box_units"), f"default of layout {name}")}
        | inferred,
    )


def _heat_map(chosen: Sequence[TensorFacts], layout: OutputLayout | None) -> OutputLayout | None:
    """centerface or centernet, if these are its outputs in its order; CardError if that was stated and they are not."""
    shapes = [tensor.shape for tensor in chosen]
    planes = all(len(shape) == 4 for shape in shapes) and len({shape[2:] for shape in shapes}) == 1
    sizes: dict[OutputLayout, bool] = {
        "centernet": planes and [shape[1] for shape in shapes[1:]] == [2, 2],
        "centerface": planes and len(shapes) == 4 and [shape[1] for shape in shapes[:3]] == [1, 2, 2],
    }
    if layout in sizes and not sizes[layout]:
        raise CardError(
            f"outputs {_listed(chosen)} are not those of layout {layout}",
            remedy="name them in its order: outputs: [heat map, sizes, offsets], of centerface also the landmarks",
        )
    return next((name for name, fits in sizes.items() if fits and layout in (None, name)), None)


def _extra(task: Task, chosen: Sequence[TensorFacts], keypoints: tuple[int, int] | None) -> int:
    """Values of an anchor after its classes; CardError without prototypes of masks, or the number of keypoints."""
    if task == "segment":
        planes = [tensor for tensor in chosen if len(tensor.shape) == 4]
        if len(chosen) != 2 or len(planes) != 1 or planes[0].shape[1] is None:
            raise CardError(
                f"task segment needs boxes with coefficients, and prototypes (b, n, h, w): {_listed(chosen)}",
                remedy="export it with both outputs; outputs: [boxes, prototypes] in the card chooses among more",
            )
        return planes[0].shape[1]
    if task == "pose":
        if keypoints is None or keypoints[0] < 1 or keypoints[1] not in (2, 3):
            stated = "nothing says" if keypoints is None else f"keypoints {list(keypoints)} do not say"
            remedy = "add keypoints: [17, 3] to the card: their number, and 2 (x, y) or 3 (with a confidence) values"
            raise CardError(f"{stated} how many keypoints output {_listed(chosen)} has", remedy=remedy)
        return keypoints[0] * keypoints[1]
    return int(task == "obb")


def _listed(tensors: Sequence[TensorFacts]) -> str:
    return "; ".join(map(str, tensors))


def _check_classify(chosen: Sequence[TensorFacts], listed: str) -> int | None:
    """Number of classes of an output (b, nc), or (b, nc, 1, 1)."""
    shape = chosen[0].shape
    if len(chosen) != 1 or (shape and (len(shape) < 2 or set(shape[2:]) - {1} or shape[1] == 0)):
        raise CardError(f"the output of a classifier is (b, nc): {listed}", remedy="name it: outputs: [name]")
    return shape[1] if shape else None


def count_classes(
    layout: str, shapes: Sequence[tuple[int | None, ...]], activation: Activation | None, extra: int = 0
) -> int | None:
    """Number of classes in outputs of these shapes; None if the layout does not tell.

    Args:
        shapes: in the order of the layout.
        activation: softmax models with queries have an extra logit for no object.
        extra: values of an anchor after its classes.
    """
    if layout == "semantic":
        return shapes[0][1] if len(shapes) == 1 and len(shapes[0]) == 4 else None
    if layout == "classify":
        return shapes[0][1] if len(shapes[0]) > 1 else None
    if layout in ("centerface", "centernet"):
        return shapes[0][1]
    if layout == "yolov8_head":
        return shapes[1][-1]
    if layout == "detr" and len(shapes) == 2:
        return _minus(shapes[1][-1], int(activation == "softmax")) if shapes[1] else None
    if len(shapes[0]) != 3 or (layout == "detr" and len(shapes) != 1):
        return None
    _, rows, columns = shapes[0]
    counts = {"yolov8": _minus(rows, 4 + extra), "yolov5": _minus(columns, 5 + extra), "detr": _minus(columns, 4)}
    counts |= {"yolox": _minus(columns, 5), "nanodet": _minus(columns, NANODET_SIDES)}
    return counts.get(layout)


def _single(
    tensor: TensorFacts,
    size: tuple[int, int],
    class_count: int | None,
    layout: OutputLayout | None,
    extra: int,
    probe: Callable[[], bool] | None,
) -> tuple[OutputLayout, int | None, str]:
    """Layout and number of classes of a model with one output that has boxes, and the reason."""
    shape = tensor.shape
    if layout is not None and not shape:
        return layout, None, "only output"
    if layout == "semantic":
        return layout, _check_semantic(tensor, size), "only output"
    if len(shape) != 3:
        remedy = "add task: semantic to the card if it holds the scores of each class for each pixel, or a matte"
        remedy = remedy if len(shape) == 4 else f"export the model with one of these outputs: {READ}"
        raise CardError(f"output {tensor} has no known layout", remedy=remedy)
    if layout is not None:
        count = count_classes(layout, [shape], None, extra)
        if (count is not None and count < 1) or (layout == "end2end" and shape[2] not in (6 + extra, None)):
            raise CardError(f"output {tensor} does not fit layout {layout}", remedy="correct layout in the card")
        return layout, count, "only output"
    found = {name: count_classes(name, [shape], None, extra) for name in _candidates(shape, size, extra)}
    fitting = {name: n for name, n in found.items() if class_count is None or n is None or n == class_count}
    if {"yolov5", "yolox"} <= fitting.keys() and (class_count is not None or "nanodet" not in fitting) and probe:
        name: OutputLayout = "yolov5" if probe() else "yolox"
        what = "pixels" if name == "yolov5" else "cells and logarithms"
        return name, fitting[name], f"onnx output shape {tensor}, whose boxes are {what} in a test run"
    # A single candidate that contradicts the names is reported as a wrong class list by the caller.
    if len(fitting or found) != 1:
        names = "no class names" if class_count is None else f"{class_count} class names"
        could = " or ".join(fitting or found) or "no known layout"
        candidates = ", ".join(fitting or found) or "yolov5, yolov8, end2end, detr, yolox or nanodet"
        remedy = f"add layout: {candidates}" + (" and names" if class_count is None else "") + " to the card"
        raise CardError(f"output {tensor} with {names} is {could}", remedy=remedy)
    ((name, count),) = (fitting or found).items()
    return name, count, f"onnx output shape {tensor}" + (f" and {class_count} names" if class_count else "")


def _check_semantic(tensor: TensorFacts, size: tuple[int, int]) -> int | None:
    """Number of classes of an output (b, classes, h, w); h and w must be the same fraction of the input's sides."""
    shape = tensor.shape
    if len(shape) != 4 or (shape[1] is not None and not 1 <= shape[1] <= 256):
        message = f"output {tensor} is not (b, 1 to 256 classes, h, w)"
        raise CardError(
            message, remedy="export the logits of all classes, background included, or a matte as one class"
        )
    height, width = shape[2:]
    if height and width and height * size[1] != width * size[0]:
        message = f"output {tensor} does not have the aspect ratio of the input {size[1]}x{size[0]}"
        raise CardError(message, remedy="export logits at the size of the input, or at 1/2, 1/4, ... of it")
    return shape[1]


def _minus(size: int | None, fixed: int) -> int | None:
    return None if size is None else size - fixed


def _candidates(shape: tuple[int | None, ...], size: tuple[int, int], extra: int) -> list[OutputLayout]:
    """Layouts that the shape (b, rows, columns) of an output allows."""
    _, rows, columns = shape
    plain = _minus(columns, extra) or 0
    cells = [sum((size[0] // s) * (size[1] // s) for s in strides) for strides in ((8, 16, 32), (8, 16, 32, 64))]
    found: list[OutputLayout] = []
    if rows is not None and rows > 4 + extra and (columns is None or columns > rows or columns in cells):
        found.append("yolov8")
    if columns is None:
        return found
    nanodet: list[OutputLayout] = ["nanodet"] if columns > NANODET_SIDES else []
    rounded_up = sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in (8, 16, 32, 64))  # of NanoDet-Plus
    if not extra and rows == rounded_up and nanodet:
        return nanodet
    if not extra and rows in cells and columns > 5:
        return ["yolov5", "yolox", *nanodet]
    anchors = rows is None or rows in [3 * n for n in cells]
    queries = rows is not None and rows <= MAX_QUERIES and not anchors
    if plain > 5 and (anchors or (rows is not None and rows > MAX_QUERIES)):
        found.append("yolov5")
    if plain == 6 and (rows is None or queries):
        found.append("end2end")
    if not extra and columns > 4 and columns not in cells and queries:
        found.append("detr")
    return found


def _detr_order(tensors: Sequence[TensorFacts], *, keep: bool) -> list[TensorFacts] | None:
    """Two outputs as boxes, logits; three as labels, boxes, scores; else None. With `keep`, the user gave the order."""
    if keep:
        boxes_at = len(tensors) - 2
        return list(tensors) if boxes_at in (0, 1) and tensors[boxes_at].shape[2:] in ((4,), (None,), ()) else None
    boxes = [t for t in tensors if len(t.shape) == 3 and t.shape[2] == 4]
    if len(boxes) == 2:  # with four classes, only the names differ
        boxes = [t for t in boxes if any(part in t.name.lower() for part in ("box", "dets"))]
    if len(boxes) != 1:
        return None
    rest = [t for t in tensors if t is not boxes[0]]
    ranks = [len(t.shape) for t in rest]
    if ranks == [3]:
        return [boxes[0], *rest]
    labels = [t for t in rest if "int" in t.dtype or "label" in t.name.lower()]
    if ranks == [2, 2] and len(labels) == 1:
        return [labels[0], boxes[0], *(t for t in rest if t is not labels[0])]
    return None
