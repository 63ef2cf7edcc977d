"""Traced arrays against NumPy: awkward views, what is fused, and what runs a model's nodes on a GPU.

The kernels' source runs on a fake GPU, and on a real one in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from framefuse.cuda import cubins, device, nvrtc
from framefuse.engines.cudnn import fused, image_operators, kernel_text, traced
from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.engines.cudnn.arrays import COMMON, ArrayStep
from framefuse.engines.cudnn.network import General
from framefuse.engines.cudnn.operators import layer_norm, sigmoid, softmax
from framefuse.errors import CapabilityError, ModelError
from traced_runs import gpu_of_all_tests as gpu_of_all_tests
from traced_runs import run_traced

Array = NDArray[Any]


@pytest.fixture(params=[1, kernel_text.ENOUGH])
def enough(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads make several elements of small arrays, too, or do not."""
    monkeypatch.setattr(kernel_text, "ENOUGH", request.param)


def made(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def same(function: Callable[..., Any], *inputs: Array) -> fused.Plan:
    """What a function makes of traced arrays is what it makes of NumPy's."""
    expected = function(*inputs)
    (found,), plan = run_traced(lambda *xs: [function(*xs)], *inputs)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return plan


X = made(3, 4, 5, 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[::-1, :, ::-2, 1:] * 2,
        lambda x: x.transpose(3, 1, 0, 2).reshape(12, 30) + x[0, 0, 0, 0],
        lambda x: x.transpose(2, 0, 1, 3)[::-1].reshape(-1, 6)[3:44:4].T,
        lambda x: np.concatenate([x[:, 1:2], x, x[:, ::-1]], 1).reshape(3, -1)[:, ::-1],
        lambda x: np.broadcast_to(x[:, :1], (3, 7, 5, 6)).reshape(21, 5, 6).swapaxes(0, 2),
        lambda x: np.pad(x, [(0, 0), (2, 0), (1, 3), (0, 0)], mode="reflect")[..., ::-1],
        lambda x: np.pad(x + 1, [(1, 0), (0, 2), (0, 0), (3, 1)], constant_values=-7.0).transpose(1, 0, 3, 2),
        lambda x: np.tile(x[0], (2, 1, 3)) - x[1, :1, 2:3, :1],
        lambda x: x[:, :, 5:].sum(2) + x[..., :0].sum(-1)[:, :, :1],
        lambda x: x[:0] * 2,
        lambda x: np.take(x, np.array([[3, -1], [0, 3]]), 1),
        lambda x: np.take(x, np.array([4, 2, 0]), 2),
        lambda x: x[np.array([0, 2]), np.array([-1, 1])],
        lambda x: np.take_along_axis(x, (x[:, :2] > 0).astype(np.int64) - 1, 1),
        lambda x: np.cumsum(x, 1) / 2,
        lambda x: (x.astype(np.int64) * 3 - 7) // 2,
        lambda x: (x > 1).reshape(3, -1).max(1),
        lambda x: np.argmax(x, 2) - np.argmin(x, 1)[:, :1, :],
        lambda x: np.where(x > 0, x.max((1, 3), keepdims=True), x.min((1, 3), keepdims=True)),
        lambda x: x.reshape(3, 4, 30).max(-1) + x.reshape(3, 4, 30).prod(1)[:, :4],
        lambda x: np.matmul(x, x.swapaxes(2, 3)) + np.matmul(x[0], np.ones((6, 2), np.float32)).sum(),
        lambda x: np.matmul(x[..., ::-1, ::2], x[:1, :1, ::2, ::-1].reshape(1, 1, 6, 3)[..., ::2, :]),
        lambda x: np.matmul(np.broadcast_to(x[:1], (3, 4, 5, 6)), x[0, 0, 0]),
        lambda x: np.array([1.0, np.inf, -np.inf, np.nan, 0.1, -0.0], np.float32) * np.maximum(x, np.float32(-np.inf)),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("enough")
def test_awkward_views(function: Callable[[Any], Any]) -> None:
    rough = device.cupy().__name__ == "cupy" and "matmul" in function.__code__.co_names
    if rough:  # factors are rounded to TF32, which holds these
        same(function, np.round(X * 8) / 8)
    else:
        same(function, X)


MOVES: list[Callable[[Any, int], Any]] = [
    lambda x, at: x.transpose(*np.random.default_rng(at).permutation(x.ndim).tolist()),
    lambda x, at: x[(slice(None),) * (at % x.ndim) + (slice(None, None, -1),)],
    lambda x, at: x[(slice(None),) * (at % x.ndim) + (slice(at % 2, None, 2),)],
    lambda x, at: x.reshape(x.shape[0], -1),
    lambda x, at: np.expand_dims(x, at % (x.ndim + 1)),
    lambda x, at: np.concatenate([x, x * 2], at % x.ndim),
    lambda x, at: np.pad(x, [(1, 1) if axis == at % x.ndim else (0, 0) for axis in range(x.ndim)]),
    lambda x, at: x - x.max(at % x.ndim, keepdims=True),
    lambda x, at: np.take(x, np.array([0, -1, 0]), at % x.ndim),
    lambda x, at: x + np.moveaxis(x, at % x.ndim, -1).sum(),
]


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 24))])
@pytest.mark.usefixtures("enough")
def test_chains_of_moves(seed: int) -> None:
    choice = np.random.default_rng(seed)
    steps = [(MOVES[choice.integers(len(MOVES))], int(choice.integers(100))) for _ in range(6)]

    def chain(x: Any) -> Any:
        for move, at in steps:
            if 0 < x.size < 5000 and x.ndim < 6:
                x = move(x, at)
        return x * 1

    same(chain, (X[:2, :, :3] * 16).round())


def images(batch: int, channels: int, padded: int, offset: int, dtype: Any) -> tuple[Any, Any]:
    """(batch, channels, 9, 10) of channels-last memory that has more channels and begins at an offset."""
    cp = device.cupy()
    x = np.random.default_rng(channels).normal(0, 1, (batch * 90 * padded + offset,)).astype(dtype)
    return x[offset:].reshape(batch, 9, 10, padded), cp.asarray(x)[offset:].reshape(batch, 9, 10, padded)


def in_memory(shape: tuple[int, ...], dtype: Any, channels_last: bool) -> tuple[Any, Any]:
    """An array with room at the end, and a view of it of that shape."""
    batch, channels, *sides = shape
    memory = device.cupy().zeros((batch, *sides, channels + 3) if channels_last else shape, dtype)
    return memory, memory[..., :channels].transpose(0, 3, 1, 2) if channels_last else memory


POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
BESIDE = {
    "max pool": [helper.make_node("MaxPool", ["x"], ["y"], **POOL)],
    "mean pool": [helper.make_node("AveragePool", ["x"], ["y"], **POOL)],
    "resize and join": [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["large"], mode="linear"),
        helper.make_node("Concat", ["large", "large"], ["both"], axis=1),
        helper.make_node("Relu", ["both"], ["y"]),
    ],
    "mean and softmax": [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=1),
        helper.make_node("Reshape", ["x", "rows"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["share"], axis=2),
        helper.make_node("Reshape", ["share", "shape"], ["image"]),
        helper.make_node("Add", ["image", "mean"], ["y"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    "batch, channels, padded, offset", [(1, 16, 16, 0), (2, 21, 24, 0), (3, 8, 16, 4), (2, 5, 7, 1)]
)
@pytest.mark.parametrize("nodes", BESIDE.values(), ids=BESIDE)
@pytest.mark.usefixtures("enough")
def test_channels_side_by_side(
    nodes: list[Any], batch: int, channels: int, padded: int, offset: int, channels_last: bool
) -> None:
    """Alignments, counts and orders that allow packs of channels, and others that do not."""
    constants = {
        "sizes": np.array([batch, channels, 17, 40]),
        "rows": np.array([batch, channels, 90]),
        "shape": np.array([batch, channels, 9, 10]),
    }
    step = General("step", ArrayProgram(nodes, constants), ("x",), ("y",), None)
    x, memory = images(batch, channels, padded, offset, np.float16)
    made = list[Any]()

    def target(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        made.append(in_memory(shape, np.float16 if channels_last else dtype, channels_last))
        return made[-1][1]

    ArrayStep(step, batch, {"x": (memory.transpose(0, 3, 1, 2), range(channels))}, target, precision="fp32")
    device.cupy().cuda.get_current_stream().synchronize()
    (expected,) = step.program.run({"x": x.transpose(0, 3, 1, 2)[:, :channels].astype(np.float32)}, ["y"])
    (whole, found), *_ = made
    np.testing.assert_allclose(found.get(), expected, rtol=2e-3, atol=1e-3)
    assert not channels_last or not whole.get()[..., expected.shape[1] :].any()


@pytest.mark.parametrize("images", [1, 3])
def test_a_thread_enlarges_four_channels_at_once(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 21, which end within the four of the last thread: in every image, and in a batch as in one image."""
    monkeypatch.setattr(kernel_text, "ENOUGH", 1)
    resize = {"opset": 13, "mode": "linear"}
    larger = np.array([images, 21, 36, 40])
    plan = same(lambda x: image_operators.resize(resize, x.transpose(0, 3, 1, 2)[:, :21], None, None, larger),
                made(images, 9, 10, 24))  # fmt: skip
    (launch,) = (step for step in plan.steps if isinstance(step, kernel_text.Launch))
    assert "const Pack<float, 4> " in launch.text


@pytest.mark.parametrize(
    ("count", "rows", "near"), [(33, 1, 1), (300, 7, 8), (1100, 130, 8), (40, 4099, 16), (40, 8195, 32)]
)
def test_rows_side_by_side(count: int, rows: int, near: int) -> None:
    x = made(count, rows)

    def mean(x: Any) -> Any:
        return x.mean(0)

    for function in (
        mean,
        lambda x: x.max(0, keepdims=True) - x,
        lambda x: softmax({"opset": 17, "axis": 0}, x * 3).T,
    ):
        plan = same(function, x)
        assert len(plan.steps) <= 2
        if function is mean:
            (launch,) = (step for step in plan.steps if isinstance(step, kernel_text.Launch))
            assert f", {near})" in launch.text.partition("ROW(")[2].partition("\n")[0]


@pytest.mark.parametrize("columns", [1, 31, 33, 700, 1500])
def test_a_row_takes_one_kernel(columns: int) -> None:
    scale, bias = made(columns, seed=1), made(columns, seed=2)
    x = made(5, columns)
    for function in (
        lambda x: softmax({"opset": 17}, x * 3),
        lambda x: layer_norm({}, sigmoid({}, x) + x, scale, bias),
        lambda x: x.max(-1),
    ):
        assert len(same(function, x).steps) == 1


def test_deformable_attention_takes_one_kernel() -> None:
    """Samples of two levels, weighted by a softmax over both, as the decoder of RT-DETR has it."""

    def function(values: Any, grid: Any, weights: Any) -> Any:
        levels = [values[:, :12].swapaxes(1, 2).reshape(2, 8, 3, 4), values[:, 12:].swapaxes(1, 2).reshape(2, 8, 2, 2)]
        samples = [
            image_operators.grid_sample({}, x, 2 * grid[:, :, at] - 1)[..., None, :] for at, x in enumerate(levels)
        ]
        share = softmax({"opset": 17}, weights.reshape(2, 1, 7, 6)).reshape(2, 1, 7, 2, 3)
        return (np.concatenate(samples, -2) * share).sum((3, 4)).swapaxes(1, 2)

    grid = np.random.default_rng(5).uniform(-0.2, 1.2, (2, 7, 2, 3, 2)).astype(np.float32)
    assert len(same(function, made(2, 16, 8), grid, made(2, 7, 2, 3)).steps) == 1


def test_what_several_kernels_read_is_stored_once() -> None:
    def function(x: Any) -> Any:
        heavy = np.exp(np.sin(x) * np.cos(x) + np.tanh(x) - x * x)
        return np.matmul(heavy, (heavy + 1).T)

    assert len(same(function, made(7, 8) * 0).steps) == 4  # it, its transposed sum, the product, a copy


def test_long_kernels_are_divided() -> None:
    def pooled(x: Any, side: int = 13) -> Any:
        for axis in (0, 1):
            x = np.pad(x, [(side // 2, side // 2) if one == axis else (0, 0) for one in (0, 1)], constant_values=-9)
            count = x.shape[axis] - side + 1
            parts = [x[(slice(None),) * axis + (slice(at, at + count),)] for at in range(side)]
            while len(parts) > 1:
                parts = [np.maximum(parts[0], parts[1]), *parts[2:]]
            x = parts[0]
        return x

    plan = same(lambda x: pooled(pooled(pooled(x))), made(20, 18))
    assert 3 <= len(plan.steps) <= 6
    assert all(len(step.text) < 100_000 for step in plan.steps if isinstance(step, kernel_text.Launch))


def test_values_that_are_needed_at_the_same_time_do_not_overlap() -> None:
    def function(x: Any) -> Any:
        kept = np.matmul(x, x)
        y = kept
        for _ in range(5):
            y = np.matmul(y, x)
        return y + kept

    plan = same(function, np.eye(16, dtype=np.float32)[::-1].copy())
    assert plan.size == 3 * 1024


def test_equal_kernels_are_written_once() -> None:
    plan = same(lambda x: np.matmul(np.matmul(x, x) + 1, np.matmul(x, x + 1) + 1), np.eye(4, dtype=np.float32))
    texts = [step.text for step in plan.steps if isinstance(step, kernel_text.Launch)]
    assert len(set(texts)) < len(texts)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(ModelError, match=r"2\^31"):
        x = traced.Traced(traced.Given(0, np.float32, (1, 1)))
        wide = np.broadcast_to(x, (2**16, 2**16)) + 1
        fused.plan([kernel_text.Target(0, wide, np.float32, wide.strides)])


def test_images_are_taken_as_the_file_says_and_padding_is_left_out() -> None:
    """A step for two images of one that the file takes; x has channels between which others pad, y more channels."""
    cp = device.cupy()
    nodes = [
        helper.make_node("Softmax", ["x"], ["share"], axis=1),
        helper.make_node("MaxPool", ["share"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    step = General("step", ArrayProgram(nodes, {}), ("x",), ("y",), 1)
    x, kept = made(2, 9, 7, 16).astype(np.float16), [0, 1, 2, 8, 9]
    memory, y = cp.asarray(x), cp.asarray(np.full((2, 5, 4, 8), 7, np.float16))
    run = ArrayStep(
        step, 2, {"x": (memory.transpose(0, 3, 1, 2), kept)}, lambda *_: y.transpose(0, 3, 1, 2), precision="fp16"
    )
    assert run.made[0].shape == (2, 8, 5, 4)
    cp.cuda.get_current_stream().synchronize()
    (expected,) = step.program.run({"x": x.transpose(0, 3, 1, 2)[:, kept].astype(np.float32)}, ["y"])
    np.testing.assert_allclose(y.get().transpose(0, 3, 1, 2)[:, :5], expected, rtol=1e-3)
    assert not y.get()[..., 5:].any()


def test_programs_compile_without_headers() -> None:
    try:
        compiler = nvrtc.find()
    except CapabilityError as error:
        pytest.skip(error.message)
    x = made(4, 2000)

    def function(x: Any) -> Any:
        few = np.take(softmax({"opset": 17}, x), np.array([3, 1, 1]), 1)
        return few + x.sum(0).mean() + np.argmax(x, 1)[:, None] + (x > 3).max(1, keepdims=True)

    plan = same(function, x)
    kernels = [step.text.replace("NAME", f"k{at}") for at, step in enumerate(plan.steps)]  # type: ignore[union-attr]
    source = cubins.HERE.joinpath("prelude.cuh").read_text() + COMMON.read_text() + "".join(kernels)
    assert compiler.compile(source, "program", 90).startswith(b"\x7fELF")
