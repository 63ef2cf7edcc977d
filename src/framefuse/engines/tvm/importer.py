"""ONNX -> Relax at one input shape, with everything folded that depends on shapes alone.

TVM's importer supports shape arithmetic (Shape, Range, Expand of an anchor grid) only for known sizes, so onnx's shape
inference and evaluator make the model static first. FP16 models are imported as FP32: the precision is chosen later,
and TVM would accumulate float16 products in float16.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from framefuse.engines.onnx_shapes import at_shape, folded
from framefuse.engines.tvm.package import last_line
from framefuse.errors import ModelError
from framefuse.models.fp16 import to_fp32
from framefuse.models.onnx_file import inputs_of, load_onnx

REMEDY = "use another engine, for example onnxruntime"


def import_model(path: Path, shape: tuple[int, int, int, int]) -> Any:
    """The `IRModule` of an ONNX file for input `shape` (batch, 3, height, width), with weights as constants.

    Raises:
        ModelError: the file cannot be read, has other inputs, or has operators that TVM lacks.
        UsageError: the model, or the profile it was built for, excludes this shape.
    """
    from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

    model = _make_static(path, shape)
    known = onnx_frontend._get_convert_map()
    missing = Counter(node.op_type for node in model.graph.node if node.op_type not in known)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise ModelError(f"engine tvm cannot run {path}: TVM has no {listed}", remedy=REMEDY)
    try:
        return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # TVM raises unrelated classes
        raise ModelError(f"engine tvm cannot run {path}: {last_line(error)}", remedy=REMEDY) from error


def _make_static(path: Path, shape: tuple[int, int, int, int]) -> Any:
    """The ONNX model with this input shape, and with all values that follow from shapes as constants."""
    model = load_onnx(path)
    inputs = inputs_of(model)
    if len(inputs) != 1 or len(inputs[0].type.tensor_type.shape.dim) != 4:
        raise ModelError(
            f"{path} has inputs {[value.name for value in inputs]}",
            remedy="engine tvm takes one input of (batch, 3, height, width)",
        )
    return folded(to_fp32(at_shape(model, shape)))
