"""Detectors for 160x96 that take long to compile, or never answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EMPTY = np.zeros((1, 6, 1260), np.float32)


def write_deep(path: Path, layers: int = 2000) -> Path:
    """So many layers that OpenVINO compiles it for many seconds."""
    nodes, last = [], "images"
    for number in range(layers):
        nodes.append(helper.make_node("Conv", [last, "weight"], [f"conv{number}"]))
        nodes.append(helper.make_node("Relu", [f"conv{number}"], [last := f"relu{number}"]))
    nodes.append(helper.make_node("ReduceMean", [last], ["mean"], keepdims=0))
    nodes.append(helper.make_node("Add", ["empty", "mean"], ["output0"]))
    return _save(path, nodes, {"weight": np.ones((3, 3, 1, 1), np.float32) / 3})


def write_endless(path: Path) -> Path:
    """Answers at once if the image is dark, and never if it is bright."""
    inner = {"turn": (TensorProto.INT64, []), "go": (TensorProto.BOOL, []), "before": (TensorProto.FLOAT, [1])}
    inner |= {"goes": inner["go"], "after": inner["before"]}
    values = [helper.make_tensor_value_info(name, *facts) for name, facts in inner.items()]
    steps = [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Sin", ["before"], ["after"])]
    body = helper.make_graph(steps, "body", values[:3], values[3:])
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Round", ["mean"], ["bright"]),
        helper.make_node("Cast", ["bright"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mul", ["whole", "many"], ["turns"]),
        helper.make_node("Reshape", ["mean", "one"], ["start"]),
        helper.make_node("Loop", ["turns", "yes", "start"], ["end"], body=body),
        helper.make_node("Mul", ["end", "zero"], ["nothing"]),
        helper.make_node("Add", ["empty", "nothing"], ["output0"]),
    ]
    weights = {"many": np.array(2**40), "one": np.array([1]), "yes": np.array(True), "zero": np.zeros(1, np.float32)}
    return _save(path, nodes, weights)


def _save(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 96, 160])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, EMPTY.shape)],
        [numpy_helper.from_array(value, name) for name, value in (weights | {"empty": EMPTY}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {"names": "{0: 'one', 1: 'two'}"})
    onnx.save(model, path)
    return path
