"""ONNX -> Relax at one input shape, with everything folded that depends on shapes alone.

TVM's importer supports shape arithmetic (Shape, Range, Expand of an anchor grid) only for known sizes, so onnx's shape
inference and evaluator make the model static first. FP16 models are imported as FP32: the precision is chosen later,
and TVM would accumulate float16 products in float16.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.engines.tvm.package import last_line
from framefuse.errors import ModelError
from framefuse.models.fp16 import to_fp32
from framefuse.models.onnx_file import load_onnx
from framefuse.models.onnx_nodes import attribute, evaluate

ROUNDS = 8
"""Maximum rounds of folding and shape inference; exports settle after three."""

REMEDY = "use another engine, for example onnxruntime"


def import_model(path: Path, shape: tuple[int, int, int, int]) -> Any:
    """The `IRModule` of an ONNX file for input `shape` (batch, 3, height, width), with weights as constants.

    Raises:
        ModelError: the file cannot be read, takes another shape, or has operators that TVM lacks.
    """
    from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

    model = make_static(path, shape)
    known = onnx_frontend._get_convert_map()
    missing = Counter(node.op_type for node in model.graph.node if node.op_type not in known)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise ModelError(f"engine tvm cannot run {path}: TVM has no {listed}", remedy=REMEDY)
    try:
        return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # TVM raises unrelated classes
        raise ModelError(f"engine tvm cannot run {path}: {last_line(error)}", remedy=REMEDY) from error


def make_static(path: Path, shape: tuple[int, int, int, int]) -> Any:
    """The ONNX model with this input shape, and with all values that follow from shapes as constants.

    Raises:
        ModelError: the file cannot be read, or takes another shape.
    """
    model = load_onnx(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    axes = inputs[0].type.tensor_type.shape.dim if len(inputs) == 1 else ()
    if len(axes) != 4:
        raise ModelError(
            f"{path} has inputs {[value.name for value in inputs]}",
            remedy="engine tvm takes one input of (batch, 3, height, width)",
        )
    for axis, size in zip(axes, shape, strict=True):
        if axis.dim_value not in (0, size):
            raise ModelError(
                f"{path} takes {tuple(a.dim_value or a.dim_param for a in axes)} only, not {shape}",
                remedy="export the model with dynamic batch, height and width",
            )
        axis.dim_value = size
    model = to_fp32(_infer_shapes(model, path))
    for _ in range(ROUNDS):
        if not _fold(model):
            break
        model = _infer_shapes(model, path)
    return _without_unused(model)


def _infer_shapes(model: Any, path: Path) -> Any:
    import onnx

    names = {value.name for value in model.graph.output}
    for value in model.graph.output:  # symbolic in exports, and inference does not overwrite it
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise ModelError(f"{path}: shape inference fails: {error}", remedy="export the model again") from error
    assert names == {value.name for value in model.graph.output}
    return model


def _fold(model: Any) -> int:
    """Replace nodes with known results by constants; returns how many."""
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
        if all(axis.HasField("dim_value") for axis in value.type.tensor_type.shape.dim)
        and value.type.tensor_type.HasField("shape")
    }
    kept, folded = [], 0
    for node in graph.node:
        inputs = [name for name in node.input if name]
        known = node.op_type == "Constant" or (
            inputs
            and ((node.op_type == "Shape" and inputs[0] in shapes) or all(name in constants for name in inputs))
            and node.op_type not in ("DequantizeLinear", "QuantizeLinear")
        )
        if not known:
            kept.append(node)
            continue
        try:
            results = _evaluate(model, node, constants, shapes)
        except Exception:  # onnx's evaluator lacks it; TVM may have it
            kept.append(node)
            continue
        folded += 1
        for name, value in zip(node.output, results, strict=True):
            if name:
                constants[name] = numpy_helper.from_array(value, name)
                graph.initializer.append(constants[name])
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _evaluate(model: Any, node: Any, constants: dict[str, Any], shapes: dict[str, list[int]]) -> Any:
    from onnx import numpy_helper

    if node.op_type == "Shape":
        start, end = attribute(node, "start", 0), attribute(node, "end", None)
        return [np.array(shapes[node.input[0]][start:end], np.int64)]
    values = {name: numpy_helper.to_array(constants[name]) for name in node.input if name}
    return evaluate([node], values, list(node.output), model)


def _without_unused(model: Any) -> Any:
    """The model without unused weights."""
    read = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in read]
    inputs = [value for value in model.graph.input if value.name in read]
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(weights)
    model.graph.input.extend(inputs)
    return model
