"""Attributes of ONNX nodes, and their evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def evaluate(nodes: list[Any], values: dict[str, Array], outputs: list[str], model: Any) -> list[Array]:
    """Run nodes with onnx's reference evaluator, which raises errors of any class for what it cannot run.

    Args:
        model: where the nodes are from, for its opsets.
    """
    from onnx import TensorProto, ValueInfoProto, helper
    from onnx.reference import ReferenceEvaluator

    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [ValueInfoProto(name=name) if name else helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
         for name in outputs],
    )  # fmt: skip
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return [np.asarray(value) for value in ReferenceEvaluator(part).run(outputs, values)]


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of a node, text as str; `default` if it is absent."""
    from onnx import helper

    for attribute in node.attribute:
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            return value.decode() if isinstance(value, bytes) else value
    return default
