"""A minimal network for self-tests: two fused convolutions, the second with a residual."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write(path: Path) -> Path:
    """Write it as ONNX. Output: (batch, 8, height, width)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "images"
    for number, channels in enumerate((3, 8)):
        weight = rng.normal(0, channels**-0.5 / 3, (8, channels, 3, 3)).astype(np.float32)
        weights += [
            numpy_helper.from_array(weight, f"weight{number}"),
            numpy_helper.from_array(np.full(8, 0.1, np.float32), f"bias{number}"),
        ]
        raw, gate, y = f"raw{number}", f"gate{number}", f"y{number}"
        nodes += [
            helper.make_node("Conv", [x, f"weight{number}", f"bias{number}"], [raw], pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", [raw], [gate]),
            helper.make_node("Mul", [raw, gate], [y]),
        ]
        x = y
    nodes.append(helper.make_node("Add", ["y0", "y1"], ["sum"]))
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["batch", 8, "height", "width"])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
