"""Networks whose weights follow from their shapes travel as their scales."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.seeded_weights import EVEN, SCALES, drawn, pack, unpack


def test_weights_that_were_drawn_are_packed_and_come_back() -> None:
    random = np.random.default_rng(0)
    kernel, matrix = (48, 16, 3, 3), (64, 48)
    scales = random.uniform(0.5, 2, (48, 1, 1, 1)).astype(np.float32)
    weights = {
        "plain": drawn(kernel) * scales,
        "even": drawn(kernel, even=True) * scales,
        "matrix": drawn(matrix, transposed=True) * np.float32(0.3),
        "trained": random.normal(size=kernel).astype(np.float32),
        "small": drawn((8, 8)) * np.float32(2),
    }
    assert np.ptp(weights["even"], axis=(2, 3)).max() == 0
    stored = [numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in weights.items()]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph([], "weights", [value], [value], stored))
    whole = model.ByteSize()
    pack(model)
    names = {tensor.name for tensor in model.graph.initializer} - weights.keys()
    assert names == {"plain" + SCALES, "even" + EVEN + SCALES, "matrix" + SCALES}
    assert model.ByteSize() < whole / 2
    unpack(model)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert found.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)
