"""Models that say the same about every image, which a test chooses: rows of anchors, and what follows the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from framefuse import Pipeline, Result

NAMES = {0: "cat", 1: "dog"}
SIZE = 64


def anchors(*rows: tuple[float, ...], extra: int, layout: str = "yolov8") -> NDArray[np.float32]:
    """Rows of cx, cy, w, h, score of class 0, of class 1, then `extra` values, as a raw output of one image."""
    table = np.zeros(({"yolov8": 84, "yolov5": 252, "end2end": 20}[layout], 6 + extra), np.float32)
    for row, values in zip(table, rows, strict=False):
        row[:] = values
    if layout == "yolov5":
        table = np.insert(table, 4, 1, axis=1)
    elif layout == "end2end":
        table[:, 4:6] = np.stack((table[:, 4:6].max(axis=1), table[:, 4:6].argmax(axis=1)), axis=1)
    return table.T[None] if layout == "yolov8" else table[None]


def model(path: Path, *outputs: NDArray[np.float32], task: str, **metadata: Any) -> Path:
    """An ONNX that says the same about every image of SIZE x SIZE pixels."""
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.float32(0))),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    values = []
    for number, output in enumerate(outputs):
        tensor = numpy_helper.from_array(np.ascontiguousarray(output, np.float32))
        nodes.append(helper.make_node("Constant", [], [f"known{number}"], value=tensor))
        nodes.append(helper.make_node("Add", [f"known{number}", "nothing"], [f"output{number}"]))
        values.append(helper.make_tensor_value_info(f"output{number}", TensorProto.FLOAT, output.shape))
    graph = helper.make_graph(nodes, "known", [image], values)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    about = {"task": task, "names": NAMES, "stride": 32, **metadata}
    helper.set_model_props(built, {key: str(value) for key, value in about.items()})
    onnx.save(built, path)
    return path


def only(picture: Path, network: Path, **options: Any) -> Result:
    """The result of one image."""
    (result,) = Pipeline(picture, network, precision="fp32", **options)
    return result
