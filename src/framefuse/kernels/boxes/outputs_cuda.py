"""The outputs of a model on the GPU, by layout: which kernel reads them, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from framefuse.cuda import device
from framefuse.errors import UsageError

SAMPLES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class View(NamedTuple):
    """Where the values of an array on the GPU lie; pitches in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sample: str

    @classmethod
    def of(cls, array: Any) -> View:
        """
        Raises:
            UsageError: it is not on a GPU, of another dtype, or its last axis is not contiguous.
        """
        if getattr(array, "is_cuda", False):  # torch, whose bfloat16 CuPy has no name for
            address, shape, strides = array.data_ptr(), tuple(array.shape), tuple(array.stride())
        else:
            array = device.as_cupy(array)
            address, shape = device.address(array), array.shape
            strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
        sample = SAMPLES.get(str(array.dtype).removeprefix("torch."))
        if sample is None or (0 not in shape and shape[-1] > 1 and strides[-1] != 1):
            raise UsageError(
                f"an output is {array.dtype}, shape {shape}, strides {strides}",
                remedy="pass float32, float16 or bfloat16 whose last axis is contiguous",
            )
        return cls(address, shape, strides, sample)


class Heads(NamedTuple):
    """How the outputs of a model are read."""

    symbol: str
    arguments: dict[str, Any]
    anchors: int
    capacity: int
    """Candidates of an image at most."""
    classes: int
    """0: not known from the shape."""


def read(outputs: Sequence[Any], layout: str, activation: str | None, batch: int) -> Heads:
    """
    Raises:
        UsageError: they do not fit the layout, each other, or the batch.
    """
    if layout == "detr" and len(outputs) == 3:
        return _listed(outputs, batch)
    views = [View.of(output) for output in outputs]
    expected = (1, 2) if layout == "detr" else (1,)
    shapes = [view.shape for view in views]
    least = {"yolov8": 5, "yolov5": 6, "end2end": 6, "detr": 1 if len(views) == 2 else 5}.get(layout)
    if least is None:
        raise UsageError(f"{layout} outputs are not read on a GPU", remedy="copy them to the host")
    values = shapes[-1]
    columns = values[1 if layout == "yolov8" else -1] if len(values) == 3 else 0
    if len(views) not in expected or columns < least or any(shape[0] < batch for shape in shapes):
        raise UsageError(f"the {layout} outputs have shapes {shapes} for {batch} images")
    last = views[-1]
    anchors = values[2] if layout == "yolov8" else values[1]
    arguments = {"values": last.address, "image_pitch": last.strides[0], "pitch": last.strides[1]}
    if layout != "detr":
        count = {"yolov8": columns - 4, "yolov5": columns - 5, "end2end": 0}[layout]
        return Heads(f"filter_{layout}_{last.sample}", arguments, anchors, anchors, count)
    sides, count = views[0], columns
    if len(views) == 1:  # the boxes are the first four columns
        count -= 4
        arguments["values"] += 4 * (4 if last.sample == "f32" else 2)
    elif shapes[0][1:] != (anchors, 4) or sides.sample != last.sample:
        raise UsageError(f"detr boxes are {sides.sample} {shapes[0]}, logits {last.sample} {values}")
    arguments |= {"sides": sides.address, "sides_image_pitch": sides.strides[0], "sides_pitch": sides.strides[1]}
    if (activation or ("sigmoid" if len(views) == 2 else "none")) == "sigmoid":
        return Heads(f"filter_detr_{last.sample}", arguments, anchors, anchors * count, count)
    arguments["softmax"] = int(activation == "softmax")
    return Heads(f"filter_queries_{last.sample}", arguments, anchors, anchors, count)


def _listed(outputs: Sequence[Any], batch: int) -> Heads:
    """Labels (batch, rows), boxes (batch, rows, 4) and scores (batch, rows)."""
    labels, boxes, scores = outputs
    view, points = View.of(boxes), View.of(scores)
    shapes = [tuple(output.shape) for output in outputs]
    rows = view.shape[1] if len(view.shape) == 3 else 0
    fits = shapes[0] == shapes[2] == view.shape[:2] and len(view.shape) == 3 and view.shape[2] == 4
    if not fits or view.shape[0] < batch or view.sample != points.sample:
        raise UsageError(
            f"the detr outputs have shapes {shapes} for {batch} images",
            remedy="pass labels (batch, rows), boxes (batch, rows, 4), and scores (batch, rows) of the same dtype",
        )
    if "int" in str(labels.dtype):
        address, words = integers("labels", labels)
        pitch = int(device.as_cupy(labels).strides[0] // device.as_cupy(labels).itemsize)
    else:
        names = View.of(labels)
        if names.sample != view.sample:
            raise UsageError(f"labels are {labels.dtype}, boxes {boxes.dtype}", remedy="pass integers, or one dtype")
        address, words, pitch = names.address, 0, names.strides[0]
    arguments = {
        "values": view.address,
        "image_pitch": view.strides[0],
        "pitch": view.strides[1],
        "scores": points.address,
        "scores_image_pitch": points.strides[0],
        "class_ids": address,
        "class_ids_image_pitch": pitch,
        "label_words": words,
    }
    return Heads(f"filter_listed_{view.sample}", arguments, rows, rows, 0)


def integers(name: str, array: Any) -> tuple[int, int]:
    """Address of integers, and how many words of 32 bits each has."""
    found = device.as_cupy(array)
    if found.dtype.name not in ("int32", "int64") or (found.shape[-1] > 1 and found.strides[-1] != found.itemsize):
        raise UsageError(f"{name} are {found.dtype}, strides {found.strides}", remedy="pass int32 or int64, contiguous")
    return device.address(found), found.itemsize // 4
