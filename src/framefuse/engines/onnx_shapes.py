"""ONNX models at one input shape, and the profile of shapes that a file was built for."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np

from framefuse.engines.requests import Shape
from framefuse.errors import ModelError, UsageError
from framefuse.models.onnx_file import attribute, evaluate, inputs_of, load_onnx, with_shapes

PROFILE_KEY = "framefuse.profile"
"""Metadata entry of an ONNX that states its profile."""
ROUNDS = 8
"""Maximum rounds of folding and shape inference; exports settle after three."""
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Profile:
    """Input shapes that an engine is built for: the smallest, the usual one (which it is tuned for) and the largest."""

    min: Shape
    opt: Shape
    max: Shape

    @classmethod
    def of(cls, shapes: Mapping[str, Sequence[int]] | Sequence[int]) -> Self:
        """From `{"min": ..., "opt": ..., "max": ...}` (min and max default to opt), or from one shape.

        Raises:
            UsageError: a shape does not have four sizes of at least 1, or min <= opt <= max does not hold.
        """
        if not isinstance(shapes, Mapping):
            shapes = {"opt": shapes}
        for shape in shapes.values():
            if not isinstance(shape, Sequence) or isinstance(shape, str):
                raise UsageError(f"shapes has {shape!r}", remedy="give (batch, 3, height, width)")
        unknown = set(shapes) - {"min", "opt", "max"}
        if unknown or "opt" not in shapes:
            has = ", ".join(map(str, shapes)) or "nothing"
            raise UsageError(f"shapes has {has}", remedy="give opt, and perhaps min and max")
        named = {name: tuple(map(_plain, shapes.get(name, shapes["opt"]))) for name in ("min", "opt", "max")}
        for name, shape in named.items():
            if len(shape) != 4 or not all(type(size) is int and size >= 1 for size in shape):
                raise UsageError(f"shapes {name} is {shape}", remedy="give (batch, 3, height, width)")
        low, middle, high = named.values()
        if not all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True)):
            raise UsageError(f"shapes are min {low}, opt {middle}, max {high}", remedy="use min <= opt <= max")
        return cls(*named.values())

    def check(self, shape: Sequence[int]) -> None:
        """
        Raises:
            UsageError: the profile excludes this shape.
        """
        axes = "batch", "channels", "height", "width"
        for axis, low, size, high in zip(axes, self.min, shape, self.max, strict=True):
            if not low <= size <= high:
                allowed = f"{low} to {high}" if high > low else str(low)
                remedy = f"ask for {allowed}, or build the engine again with shapes that include it"
                raise UsageError(f"{axis} {size} of input {tuple(shape)} is outside the profile {self}", remedy=remedy)

    def to_json(self) -> str:
        return json.dumps({"min": self.min, "opt": self.opt, "max": self.max})

    def __str__(self) -> str:
        return "min {} opt {} max {}".format(*("x".join(map(str, shape)) for shape in (self.min, self.opt, self.max)))


def _plain(size: Any) -> Any:
    """An integer of NumPy as one of Python; anything else as it is."""
    return int(size) if isinstance(size, Integral) and not isinstance(size, bool) else size


def profile_of(model: Any) -> Profile | None:
    """The profile that an ONNX `ModelProto` states; None: it states none.

    Raises:
        ModelError: the profile cannot be read.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == PROFILE_KEY), None)
    try:
        return None if text is None else Profile.of(json.loads(text))
    except (ValueError, TypeError, UsageError) as error:
        raise ModelError(f"its profile cannot be read: {str(text)[:100]!r}", remedy="build it again") from error


def read_profile(path: Path) -> Profile | None:
    """The profile that a file states; None also if it is not ONNX, which the engine reports.

    Raises:
        ModelError: the profile cannot be read.
    """
    stated = PROFILE_KEY.encode() in path.read_bytes()
    return profile_of(load_onnx(path, weights=False)) if stated else None


def at_shape(model: Any, shape: Shape) -> Any:
    """The model with its input fixed at `shape` and all shapes inferred. Changes the model that is passed.

    Raises:
        UsageError: the model's profile or a fixed size excludes this shape.
        ModelError: shape inference fails.
    """
    profile = profile_of(model)
    if profile is not None:
        profile.check(shape)
    axes = inputs_of(model)[0].type.tensor_type.shape.dim
    for dim, size in zip(axes, shape, strict=True):
        if dim.dim_value > 0 and dim.dim_value != size:
            fixed = tuple(axis.dim_value or "?" for axis in axes)
            message = f"input {shape} was asked for, but the model takes {fixed} only"
            raise UsageError(message, remedy="export the model with dynamic axes, or ask for its own size")
        dim.ClearField("dim_param")
        dim.dim_value = size
    return _inferred(model)


def _inferred(model: Any) -> Any:
    try:
        return with_shapes(model)
    except Exception as error:  # of several classes
        raise ModelError(f"shape inference of the model fails: {error}", remedy="export it again") from error


def folded(model: Any) -> Any:
    """A model `at_shape` with everything that follows from shapes and constants as weights, and no unused ones.

    What onnx's evaluator lacks stays as it is, as do quantisers.
    """
    for _ in range(ROUNDS):
        if not _fold(model):
            break
        model = _inferred(model)
    graph = model.graph
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for values in (graph.initializer, graph.input):
        used = [value for value in values if value.name in read]
        del values[:]
        values.extend(used)
    return model


def _fold(model: Any) -> bool:
    """Replace nodes with known results by constants; whether there were any."""
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
        and all(axis.HasField("dim_value") for axis in value.type.tensor_type.shape.dim)
    }
    kept = []
    for node in graph.node:
        kind, inputs = node.op_type, [name for name in node.input if name]
        results: list[Any] | None = None
        if kind == "Shape" and inputs[0] in shapes:
            start, end = attribute(node, "start", 0), attribute(node, "end", None)
            results = [np.array(shapes[inputs[0]][start:end], np.int64)]
        elif kind not in QUANTISERS and (inputs or kind == "Constant") and constants.keys() >= {*inputs}:
            with suppress(Exception):  # onnx's evaluator lacks it; the engine may have it
                results = evaluate([node], {name: constants[name] for name in inputs}, list(node.output), model)
        if results is None:
            kept.append(node)
            continue
        for name, value in zip(node.output, results, strict=True):
            if name:
                constants[name] = value
                graph.initializer.append(numpy_helper.from_array(value, name))
    found = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    return found
