"""Lowers an ONNX model to FP16, with FP32 islands. The result is strongly typed.

These stay in FP32, each with its reason in the report:
- inputs and outputs;
- decoding, that is everything after the last weighted layers: at 640 pixels, FP16 has steps of half a pixel;
- overflow: nodes whose inputs or outputs on real frames come within a factor of `HEADROOM` of the largest FP16 number;
- operators that ONNX does not define for FP16, and those with sub-graphs.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from framefuse.errors import ModelError
from framefuse.models.onnx_file import OnnxGraph, reads

FP16_MAX = 65504.0
HEADROOM = 8.0
ONLY_FP32 = ("Range", "NonMaxSuppression", "Upsample", "CumSum", "TopK", "GridSample", "RoiAlign", "RandomNormalLike",
             "QuantizeLinear", "DequantizeLinear")  # fmt: skip
"""Operators without FP16, or with FP16 only in opsets that most engines do not support."""
TYPED_INPUTS = {"Resize": 1, "Clip": 3}
"""Number of leading inputs that have the node's type, for operators where not all of them do."""


def plan_fp16(model: Any, largest: Mapping[str, float]) -> dict[int, str]:
    """Nodes to keep in FP32: index -> reason.

    Args:
        largest: largest magnitude of tensors on real frames, by name; may be incomplete.

    Raises:
        ModelError: the model has no layers with weights.
    """
    graph = OnnxGraph(model)
    layers = graph.network()
    if not layers:
        raise ModelError("the model has no layer with weights", remedy="there is nothing to convert to FP16")
    network = graph.up_to(layers)
    kept: dict[int, str] = {}
    for number, node in enumerate(graph.nodes):
        weights = [graph.weights[name] for name in node.input if name in graph.weights]
        if number not in network:
            kept[number] = "decoding: positions in pixels need FP32"
        elif node.op_type in ONLY_FP32:
            kept[number] = f"{node.op_type} is not defined for FP16"
        elif any(attribute.g.node or attribute.graphs for attribute in node.attribute):
            kept[number] = f"{node.op_type} has a sub-graph"
        elif (peak := max((_peak(tensor) for tensor in weights), default=0.0)) > FP16_MAX:
            kept[number] = f"weights up to {peak:.3g} overflow FP16"
        elif (peak := max((largest.get(name, 0.0) for name in reads(node)), default=0.0)) > FP16_MAX / HEADROOM:
            kept[number] = f"inputs up to {peak:.3g} come close to the largest FP16 number"
        elif (peak := max((largest.get(name, 0.0) for name in node.output), default=0.0)) > FP16_MAX / HEADROOM:
            kept[number] = f"values up to {peak:.3g} come close to the largest FP16 number"
    return kept


def network_tensors(model: Any) -> list[str]:
    """Float32 tensors that the network computes before decoding, whose ranges `plan_fp16` needs."""
    graph = OnnxGraph(model)
    types = tensor_types(model)
    network = sorted(graph.up_to(graph.network()))
    return [name for number in network for name in graph.nodes[number].output if types.get(name) == "float32"]


def to_fp16(model: Any, kept: Mapping[int, str]) -> Any:
    """A copy of the model in FP16, except the nodes in `kept`, with casts in between."""
    import onnx
    from onnx import TensorProto, helper

    types = tensor_types(model)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    half = deepcopy(model)
    nodes: list[Any] = []
    constants: dict[str, Any] = {}
    names: dict[tuple[str, bool], str] = {(value.name, False): value.name for value in model.graph.input}
    """(tensor, whether FP16) -> its name in the new graph, if it exists."""
    taken = {name for node in model.graph.node for name in (*reads(node), *node.output)}
    suffix = "_half"
    while any(name + suffix in taken for name in taken):  # a file that was lowered before
        suffix += "_"
    captured = {name for node in model.graph.node for name in reads(node) if name not in node.input}
    captured |= {value.name for value in model.graph.output}

    def typed(name: str, as_half: bool) -> str:
        """The tensor's name in the type; adds a cast or a converted weight on first use."""
        if types.get(name) != "float32":
            return name
        if (name, as_half) not in names:
            target = name + suffix if as_half else name
            if name not in weights:
                kind = TensorProto.FLOAT16 if as_half else TensorProto.FLOAT
                nodes.append(helper.make_node("Cast", [names[name, not as_half]], [target], f"{target}/cast", to=kind))
            elif as_half:
                constants[target] = _cast_tensor(weights[name], np.float16, target)
            names[name, as_half] = target
        return names[name, as_half]

    for number, original in enumerate(model.graph.node):
        node, as_half = deepcopy(original), number not in kept
        typed_inputs = TYPED_INPUTS.get(node.op_type, len(node.input)) if as_half else len(node.input)
        for index, name in enumerate(node.input):
            node.input[index] = typed(name, as_half and index < typed_inputs) if name else name
        if as_half:
            _retype(node, to_half=True)
        for index, name in enumerate(node.output):
            if as_half and types.get(name) == "float32":
                node.output[index] = names[name, True] = name + suffix
            elif types.get(name) == "float32":
                names[name, False] = name
        nodes.append(node)
        for name in original.output:  # sub-graphs and callers read these by their FP32 names
            if as_half and name in captured:
                typed(name, False)
    used = {name for node in nodes for name in reads(node)} | captured
    del half.graph.node[:], half.graph.value_info[:], half.graph.initializer[:]
    half.graph.node.extend(nodes)
    half.graph.initializer.extend(tensor for name, tensor in weights.items() if name in used)
    half.graph.initializer.extend(constants.values())
    onnx.checker.check_model(half, full_check=True)
    return half


def to_fp32(model: Any) -> Any:
    """Convert a model from FP16 to FP32 in place, without casts; inputs keep their types."""
    from onnx import TensorProto, helper

    types, graph = tensor_types(model), model.graph
    if "float16" not in types.values():
        return model
    results = {value.name for value in graph.output}
    replacements: dict[str, str] = {}
    nodes = []
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            replacements[value.name] = f"{value.name}_full"
            nodes.append(helper.make_node("Cast", [value.name], [replacements[value.name]], to=TensorProto.FLOAT))
    for node in graph.node:
        source, result = types.get(node.input[0] if node.input else ""), types.get(node.output[0])
        floats = {source, result} <= {"float16", "float32"}
        if node.op_type == "Cast" and floats and node.output[0] not in results:
            replacements[node.output[0]] = replacements.get(node.input[0], node.input[0])
            continue
        nodes.append(node)
        node.input[:] = [replacements.get(name, name) for name in node.input]
        _retype(node, to_half=False)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(_cast_tensor(tensor, np.float32, tensor.name))
    for value in (*graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def tensor_types(model: Any) -> dict[str, str]:
    """NumPy name of the element type of every tensor whose type is known."""
    import onnx
    from onnx import helper

    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    values = (*inferred.input, *inferred.output, *inferred.value_info)
    types |= {value.name: value.type.tensor_type.elem_type for value in values}
    return {name: helper.tensor_dtype_to_np_dtype(number).name for name, number in types.items() if number}


def _peak(tensor: Any) -> float:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.FLOAT:
        return 0.0
    values = numpy_helper.to_array(tensor)
    return float(np.abs(values).max()) if values.size else 0.0


def _retype(node: Any, *, to_half: bool) -> None:
    """Change types in the attributes of a node from FP32 to FP16 or back."""
    from onnx import TensorProto, helper

    old, new = (TensorProto.FLOAT, TensorProto.FLOAT16) if to_half else (TensorProto.FLOAT16, TensorProto.FLOAT)
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == old:
            attribute.i = new
        elif attribute.name in ("value", "dtype") and attribute.t.data_type == old:
            attribute.t.CopyFrom(_cast_tensor(attribute.t, np.float16 if to_half else np.float32))
    if to_half and node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", helper.make_tensor("", TensorProto.FLOAT16, [1], [0])))


def _cast_tensor(tensor: Any, dtype: Any, name: str | None = None) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), name)
