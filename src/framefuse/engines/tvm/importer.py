"""ONNX -> Relax at one input shape: everything that depends on shapes alone is folded before TVM sees the graph.

TVM's importer takes shape arithmetic (Shape, Range, Expand of an anchor grid) only where every size is known, so the
file is first made static with onnx's own shape inference and evaluator. What is written in float16 is read in float32:
the precision is chosen later, and TVM would add up products of float16 in float16.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from framefuse.errors import ModelError
from framefuse.models.fp16 import to_fp32

ROUNDS = 8
"""Folding and inference in turn; an export has settled after three."""

REMEDY = "use another engine, for example onnxruntime"


def read(path: Path, shape: tuple[int, int, int, int]) -> Any:
    """The `IRModule` of an ONNX file for input `shape` (batch, 3, height, width), its weights as constants.

    Raises:
        ModelError: the file cannot be read, takes another shape, or has operators that TVM lacks; they are named.
    """
    from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

    model = static(path, shape)
    known = onnx_frontend._get_convert_map()
    missing = Counter(node.op_type for node in model.graph.node if node.op_type not in known)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise ModelError(f"engine tvm cannot take {path}: TVM has no {listed}", remedy=REMEDY)
    try:
        return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # the importer raises a dozen unrelated classes
        raise ModelError(f"engine tvm cannot take {path}: {_last_line(error)}", remedy=REMEDY) from error


def static(path: Path, shape: tuple[int, int, int, int]) -> Any:
    """The ONNX model with this input shape, and with every value that follows from shapes as a constant.

    Raises:
        ModelError: the file cannot be read, or takes another shape.
    """
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's classes depend on its implementation
        raise ModelError(f"{path} cannot be read as ONNX: {error}", remedy="export the model again") from error
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
    model = to_fp32(_inferred(model, path))
    for _ in range(ROUNDS):
        if not _fold(model):
            break
        model = _inferred(model, path)
    return _needed(model)


def _inferred(model: Any, path: Path) -> Any:
    import onnx

    names = {value.name for value in model.graph.output}
    for value in model.graph.output:  # what an export says there is symbolic: inference does not write over it
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise ModelError(f"{path}: its shapes do not follow: {error}", remedy="export the model again") from error
    assert names == {value.name for value in model.graph.output}
    return model


def _fold(model: Any) -> int:
    """Replace nodes whose results are known; how many they were."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

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
            results = _evaluate(ReferenceEvaluator, model, node, constants, shapes)
        except Exception:  # onnx's evaluator does not know it: it stays in the graph, and TVM may know it
            kept.append(node)
            continue
        folded += 1
        for name, value in zip(node.output, results, strict=False):
            if name:
                constants[name] = numpy_helper.from_array(value, name)
                graph.initializer.append(constants[name])
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _evaluate(evaluator: Any, model: Any, node: Any, constants: dict[str, Any], shapes: dict[str, list[int]]) -> Any:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    if node.op_type == "Shape":
        limits = {attribute.name: attribute.i for attribute in node.attribute}
        return [np.array(shapes[node.input[0]][limits.get("start", 0) : limits.get("end")], np.int64)]
    values = {name: numpy_helper.to_array(constants[name]) for name in node.input if name}
    graph = helper.make_graph(
        [node],
        "fold",
        [helper.make_tensor_value_info(name, constants[name].data_type, None) for name in values],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return [np.asarray(result) for result in evaluator(alone).run(None, values)]


def _needed(model: Any) -> Any:
    """The model without the weights that no node reads any more."""
    read = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in read]
    inputs = [value for value in model.graph.input if value.name in read]
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(weights)
    model.graph.input.extend(inputs)
    return model


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
