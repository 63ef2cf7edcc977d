"""Matrix products in float16: blocks of transformers as ONNX Runtime computes them, and which kernels they take.

The kernels' source runs on a fake GPU, and on a real one in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from framefuse.cuda import blas, device
from framefuse.engines.cudnn import fused
from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.engines.cudnn.operators import gelu, layer_norm, softmax, top_k
from framefuse.engines.cudnn.traced import Multiplied
from traced_runs import gpu_of_all_tests as gpu_of_all_tests
from traced_runs import run_program, run_traced

Array = NDArray[Any]
ROUNDED = {"rtol": 4e-3, "atol": 4e-3}
"""What is left of values of about 1 that are rounded to float16, which has 11 bits, a few times."""


def made(*shape: int, seed: int = 0, size: float = 1.0) -> Array:
    return np.random.default_rng(seed).normal(0, size, shape).astype(np.float32)


def weight(rows: int, columns: int, seed: int) -> Array:
    """Keeps the size of what it multiplies."""
    return made(rows, columns, seed=seed, size=rows**-0.5)


def same(function: Callable[..., Any], *inputs: Array) -> list[fused.Step]:
    """What a function makes with products of float16 is what it makes of NumPy's float32; the steps."""
    expected = function(*inputs)
    (found,), plan = run_traced(lambda *xs: [function(*xs)], *inputs, half=True)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, **ROUNDED)
    return plan.steps


def products(steps: list[fused.Step]) -> list[Multiplied]:
    return [step for step in steps if isinstance(step, Multiplied)]


def block(x: Any, heads: int, *, wide: int = 4, scale: bool = True) -> Any:
    """A layer of an encoder: attention, and two products with a ReLU between them, each with a layer norm."""
    images, tokens, channels = x.shape
    depth = channels // heads

    def linear(x: Any, columns: int, seed: int) -> Any:
        return np.matmul(x, weight(x.shape[-1], columns, seed)) + made(columns, seed=seed + 50)

    def split(x: Any) -> Any:
        return x.reshape(images, tokens, heads, depth).transpose(0, 2, 1, 3)

    q, k, v = (split(linear(x, channels, seed)) for seed in (1, 2, 3))
    root = np.float32(depth**-0.25)
    scores = np.matmul(q * root, k.swapaxes(2, 3) * root) if scale else np.matmul(q, k.swapaxes(2, 3)) / root**-2
    seen = np.matmul(softmax({"opset": 17}, scores), v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = layer_norm({}, x + linear(seen, channels, 4), made(channels, seed=5), made(channels, seed=6))
    hidden = np.maximum(linear(x, wide * channels, 7), 0)
    return layer_norm({}, x + linear(hidden, channels, 8), made(channels, seed=9), made(channels, seed=10))


@pytest.mark.parametrize("shape", [(1, 16, 32), (3, 13, 32), (2, 7, 12), (1, 1, 8)], ids=str)
@pytest.mark.parametrize("scale", [True, False])
def test_a_layer_of_an_encoder(shape: tuple[int, ...], scale: bool) -> None:
    """Of several images, and of sizes that are no multiples of 8."""
    same(lambda x: block(x, 4, scale=scale), made(*shape))


def test_an_aligned_layer_takes_few_kernels() -> None:
    """q, k and v are one product, which adds their biases and is read by heads; the next writes all heads side by side;
    the norms, which read sums of float32, and the softmax remain."""
    steps = same(lambda x: block(x, 4), made(1, 16, 32))
    kinds = ["product" if isinstance(step, Multiplied) else "kernel" for step in steps]
    assert kinds == ["kernel", *["product"] * 2, "kernel", *["product"] * 2, "kernel", *["product"] * 2, "kernel"]
    assert [step.shape for step in products(steps)] == [
        (1, 16, 96),
        (4, 16, 16),
        (4, 16, 8),
        (1, 16, 32),
        (1, 16, 128),
        (1, 16, 32),
    ]
    assert [len(step.args) - 2 for step in products(steps)] == [1, 0, 0, 1, 1, 1]
    assert [step.relu for step in products(steps)] == [False, False, False, False, True, False]
    assert [step.stored.char for step in products(steps)] == [*"efefef"]


FACTORS: list[Callable[[Any], Any]] = [
    lambda x: np.matmul(x, x.swapaxes(1, 2)),
    lambda x: np.matmul(x.swapaxes(1, 2), x),
    lambda x: np.matmul(x.swapaxes(1, 2) * 0.5, x * 2),
    lambda x: np.matmul(x[:, ::-1], x[:, :3].swapaxes(1, 2)),
    lambda x: np.matmul(weight(16, x.shape[1], 1), x),
    lambda x: np.matmul(weight(16, x.shape[1], 1), x) + np.arange(x.shape[2], dtype=np.float32),
    lambda x: np.matmul(x, weight(24, x.shape[2], 1).T) + np.ones((16, 24), np.float32)[: x.shape[1]],
    lambda x: np.matmul(x, np.broadcast_to(weight(x.shape[2], 8, 1), (len(x), x.shape[2], 8))) + np.float32(3),
    lambda x: np.matmul(x, made(len(x), x.shape[2], 8, seed=1, size=0.2)) + 0.5,
    lambda x: np.maximum(np.matmul(x[0], weight(x.shape[2], 8, 1)), 0) + np.maximum(np.matmul(x[1], x[0].T), 1)[:, :1],
    lambda x: np.matmul(np.ones((2, x.shape[1]), np.float32), x * 0.1),
    lambda x: np.matmul(x[:, 0], weight(x.shape[2], 8, 1)) + np.matmul(x[0], weight(x.shape[2], 8, 1)).reshape(-1)[:8],
    lambda x: np.matmul(np.matmul(x, weight(x.shape[2], 16, 1)) + 1, weight(16, 16, 2)) * 2 - x.max(),
    lambda x: np.matmul(x, weight(x.shape[2], 3, 1)).transpose(2, 0, 1).reshape(3, -1) + 1,
    lambda x: np.matmul(x, np.zeros((x.shape[2], 8), np.float32)) + np.matmul(x, weight(x.shape[2], 8, 3)),
    lambda x: np.maximum(np.matmul(np.tanh(x[:1, :1]), np.tanh(weight(x.shape[2], 16, 1)) + x[0, 0, 0]), 0),
    lambda x: np.maximum(np.matmul(np.tanh(made(5, 12) * x[0, 0, 0])[3:4, 4:], weight(8, 16, 1)), 0),
    lambda x: np.matmul(np.tanh(x)[0, 3:4], weight(x.shape[2], 16, 1)) + np.arange(16, dtype=np.float32),
]  # fmt: skip


@pytest.mark.parametrize("size", [(2, 16, 32), (2, 16, 31), (3, 9, 10), (2, 8, 7)], ids=str)
@pytest.mark.parametrize("function", FACTORS)
def test_awkward_factors(function: Callable[[Any], Any], size: tuple[int, ...]) -> None:
    same(function, made(*size, size=0.3))


def test_coordinates_stay_float32() -> None:
    """A product of 4 numbers is one of float32, and so is what it takes, even if others take it too."""

    def function(x: Any) -> Any:
        box = np.tanh(np.matmul(x, weight(32, 4, 1)))
        return np.matmul(box, weight(4, 16, 2)).sum(-1, keepdims=True) * 0 + box

    x = made(1, 9, 32)
    (found,), plan = run_traced(lambda x: [function(x)], x, half=True)
    *_, last = products(plan.steps)
    assert not any(arg.value.stored == np.float16 for arg in last.args)
    half = x.astype(np.float16).astype(np.float64) @ weight(32, 4, 1).astype(np.float16)
    np.testing.assert_allclose(found, np.tanh(half), rtol=1e-5, atol=1e-6)


def test_weighted_sums_of_coordinates_stay_float32() -> None:
    """Of distances, as boxes of D-FINE are, and of boxes that are computed."""

    def function(x: Any) -> Any:
        shares = softmax({"opset": 17, "axis": -1}, x)
        far = np.matmul(shares, 30 * np.arange(33, dtype=np.float32)[:, None])
        return far + np.matmul(shares[:, :, :9], np.exp(x[:, :9, :4]) * 3840).sum(-1, keepdims=True)

    x = made(2, 40, 33)
    (found,), plan = run_traced(lambda x: [function(x)], x, half=True)
    assert not any(arg.value.stored == np.float16 for one in products(plan.steps) for arg in one.args)
    np.testing.assert_allclose(found, function(x.astype(np.float64)), rtol=2e-3)


def test_products_of_the_same_matrix_are_one() -> None:
    def several(x: Any) -> list[Any]:
        memory = np.tanh(x)
        values = [np.matmul(memory, weight(32, 16, seed)) + made(16, seed=seed) for seed in range(3)]
        heads = [value.reshape(2, 9, 2, 8)[:, :, 1] for value in values]
        picked = np.take(values[1].reshape(2, 9, 16), np.array([[3, 1], [1, 8]]), 1)
        flat = np.matmul(memory, weight(32, 24, 7)).reshape(2, -1)
        return [*heads, picked, flat, np.maximum(np.matmul(memory, weight(32, 8, 8)), 0)]

    x = made(2, 9, 32)
    found, plan = run_traced(several, x, half=True)
    for ours, theirs in zip(found, several(x), strict=True):
        np.testing.assert_allclose(ours, theirs, **ROUNDED)
    assert sorted(step.shape for step in products(plan.steps)) == [(1, 18, 8), (1, 18, 24), (1, 18, 48)]


def test_rows_of_odd_sizes_begin_at_multiples_of_16_bytes() -> None:
    for step in products(same(lambda x: block(x, 4), made(3, 13, 32))):
        sizes = [(arg.strides, arg.value.stored.itemsize) for arg in step.args[:2]]
        for strides, itemsize in (*sizes, (step.strides, step.stored.itemsize)):
            assert all(stride == 1 or stride * itemsize % 16 == 0 for stride in strides)


def test_keys_of_a_search_stay_float32() -> None:
    """Of equal values in float16, the larger in float32 come first, though a product takes them too."""

    def function(x: Any) -> Any:
        scores = np.matmul(x, np.eye(9, 33, dtype=np.float32)) + np.arange(33, dtype=np.float32) * np.float32(1e-5)
        _, places = top_k({"axis": 1}, scores, 20)
        return places + np.matmul(scores, weight(33, 20, 1)).astype(np.int64) * 0

    x = made(4, 9)
    (found,), _ = run_traced(lambda x: [function(x)], x, half=True)
    np.testing.assert_array_equal(found, function(x.astype(np.float16).astype(np.float32)))


def test_gelu_stays_exact() -> None:
    steps = same(lambda x: gelu({}, np.matmul(x, weight(16, 64, 1) * 3) + made(64, seed=2)), made(5, 16))
    assert len(steps) == 3


@pytest.mark.parametrize("images", [1, 3])
def test_nodes_of_a_file(images: int) -> None:
    """Gemm with transposed weights and factors of its own, Einsum, and constants on the left, by ONNX Runtime."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=0.5, beta=2.0),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["parts"]),
        helper.make_node("Einsum", ["parts", "e"], ["mixed"], equation="nij,kj->nik"),
        helper.make_node("MatMul", ["left", "mixed"], ["sides"]),
        helper.make_node("Softmax", ["sides"], ["share"], axis=-1),
        helper.make_node("Transpose", ["share"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["turned", "sides"], ["y"]),
    ]
    constants = {
        "w": weight(24, 40, 1).T.copy().reshape(40, 24), "b": made(40, seed=2), "shape": np.array([0, 5, 8]),
        "e": weight(8, 16, 3).T.copy(), "left": weight(5, 6, 4).T.copy(),
    }  # fmt: skip
    x = made(images, 24)
    graph = helper.make_graph(
        nodes, "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(["y"], {"x": x})
    (found,) = run_program(ArrayProgram(nodes, constants), {"x": x}, ["y"], half=True)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_constants_beyond_the_range_become_the_largest() -> None:
    found = run_traced(
        lambda x: [np.matmul(x, np.eye(8, dtype=np.float32) * 1e6)], np.eye(8, dtype=np.float32), half=True
    )
    np.testing.assert_array_equal(found[0][0], np.eye(8) * np.finfo(np.float16).max)


SHAPES = [
    (1, 300, 256, 256), (1, 400, 256, 1024), (1, 8400, 256, 768), (1, 300, 256, 288), (1, 8400, 256, 4),
    (1, 1, 512, 1000), (8, 300, 32, 300), (8, 300, 300, 32), (3, 5, 7, 9), (2, 17, 49, 33),
]  # fmt: skip


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("by_columns", [(False, False), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int, int], by_columns: tuple[bool, bool], half: bool) -> None:
    """cuBLAS, of both types of results, with a row and a ReLU where all is aligned."""
    cp, (count, m, k, n) = device.cupy(), shape
    a, b = (made(count, *sides, seed=seed).astype(np.float16) for seed, sides in enumerate(((m, k), (k, n))))
    dtype = np.float16 if half else np.float32
    row, c = made(n, seed=2).astype(dtype), np.zeros((m, count, n), dtype)
    arrays = [
        cp.asarray(np.ascontiguousarray(x.swapaxes(1, 2) if turned else x))
        for x, turned in zip((a, b), by_columns, strict=True)
    ]
    row_there, c_there, workspace = cp.asarray(row), cp.asarray(c), cp.empty(blas.WORKSPACE, np.uint8)
    left, right = (
        blas.Matrices(int(x.data.ptr), turned, x.shape[2], x.shape[1] * x.shape[2], half=True)
        for x, turned in zip(arrays, by_columns, strict=True)
    )
    to = blas.Matrices(int(c_there.data.ptr), False, count * n, n, half=half)  # matrices side by side
    added = left.aligned and right.aligned and to.aligned
    relu = added and m % 8 == 0
    expected = np.float32(0.25) * np.matmul(a.astype(np.float32), b.astype(np.float32)) + row.astype(np.float32) * added
    expected = np.maximum(expected, 0) if relu else expected
    stream = device.new_stream()
    cp.cuda.get_current_stream().synchronize()
    blas.product(
        left, right, to, shape, scale=0.25, row=int(row_there.data.ptr) * added, relu=relu,
        workspace=int(workspace.data.ptr),
    )(stream.ptr)  # fmt: skip
    stream.synchronize()
    found = c_there.get().transpose(1, 0, 2)
    np.testing.assert_allclose(found, expected, rtol=2e-3 if half else 1e-4, atol=2e-3 if half else 1e-3)
