"""A segmenter that colours decide: red, green and background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NAMES = {0: "background", 1: "red", 2: "green"}


def write_segmenter(
    path: Path, *, stride: int = 1, dynamic: bool = True, task: str | None = "semantic", scale: float = 8.0
) -> Path:
    """A model whose scores are 0.25 for background, and how red or green a pixel is beyond the other channels."""
    kernel = np.zeros((3, 3, stride, stride), np.float32)
    kernel[1, 0], kernel[1, 1], kernel[1, 2] = 1, -0.5, -0.5
    kernel[2, 1], kernel[2, 0], kernel[2, 2] = 1, -0.5, -0.5
    weights = numpy_helper.from_array(scale * kernel / stride**2, "weights")
    bias = numpy_helper.from_array(np.array([0.25 * scale, 0, 0], np.float32), "bias")
    node = helper.make_node("Conv", ["images", "weights", "bias"], ["scores"], strides=[stride, stride])
    side: list[Any] = ["batch", 3, "height", "width"] if dynamic else [1, 3, 64, 96]
    out: list[Any] = ["batch", 3, "rows", "columns"] if dynamic else [1, 3, 64 // stride, 96 // stride]
    graph = helper.make_graph(
        [node],
        "segmenter",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, side)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, out)],
        [weights, bias],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    facts = {"names": repr(NAMES), "imgsz": "[64, 96]", "stride": "32"} | ({"task": task} if task else {})
    helper.set_model_props(model, facts)
    onnx.save(model, path)
    return path
