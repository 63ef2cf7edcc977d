"""What ONNX files state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from framefuse.models.onnx_file import outputs_at


def test_sizes_may_depend_on_large_tables(tmp_path: Path) -> None:
    """Weights are left out while sizes are inferred, integers are not."""
    table = np.arange(1000)
    weight = np.zeros((16, 3, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["features"]),
        helper.make_node("Gather", ["table", "at"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
    ]
    held = {"weight": weight, "table": table, "at": np.array([1, 7])}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("features", "zeros")],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert [output.shape for output in outputs_at(path, (2, 3, 32, 40))] == [(2, 16, 30, 38), (1, 7)]
