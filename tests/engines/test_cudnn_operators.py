"""Operators on arrays, as ONNX Runtime computes them: in NumPy, and by fused kernels on a fake GPU and a real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from framefuse.cuda import device
from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.engines.cudnn.operators import first_places
from framefuse.errors import ModelError
from traced_runs import gpu_of_all_tests as gpu_of_all_tests
from traced_runs import run_program, run_traced

OPSET = 17
Array = NDArray[Any]


PRODUCTS = "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"
"""Operators whose factors a GPU rounds to TF32."""


def made(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def both(kind: str, x: Array, *constants: Any, outputs: int = 1, opset: int = OPSET, **attributes: Any) -> None:
    """A node on x and constants (None: left out), by both; the results must agree."""
    names = [f"c{at}" if value is not None else "" for at, value in enumerate(constants)]
    given = {name: np.asarray(value) for name, value in zip(names, constants, strict=True) if name}
    node = helper.make_node(kind, ["x", *names], [f"y{at}" for at in range(outputs)], name="it", **attributes)
    check([node], {"x": x}, given, [f"y{at}" for at in range(outputs)], opset)


def check(
    nodes: list[Any], given: dict[str, Array], constants: dict[str, Array], wanted: list[str], opset: int
) -> None:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in wanted]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "one", inputs, results, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    for result in model.graph.output:
        result.ClearField("type")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(wanted, given)
    program = ArrayProgram(nodes, constants, opset=opset)
    rounded = device.cupy().__name__ == "cupy" and any(node.op_type in PRODUCTS for node in nodes)
    precise, rough = {"rtol": 2e-5, "atol": 2e-6}, {"rtol": 5e-3, "atol": 1e-2}
    runs = (program.run(given, wanted), precise), (run_program(program, given, wanted), rough if rounded else precise)
    for found, tolerance in runs:
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == {"f": np.float32, "i": np.int64, "b": np.bool_}[theirs.dtype.kind]
            np.testing.assert_allclose(ours, theirs, **tolerance)


IMAGE = made(2, 4, 7, 6)
ROWS = made(2, 5, 12)
POSITIVE = abs(IMAGE) + np.float32(0.1)
SMALL = made(4, 1, 1, seed=1)


@pytest.mark.parametrize(
    "kind",
    [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Min",
        "Max",
        "Sum",
        "Greater",
        "Less",
        "GreaterOrEqual",
        "LessOrEqual",
        "Equal",
    ],
)
def test_two_arrays(kind: str) -> None:
    both(kind, POSITIVE, SMALL)


@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_two_truths(kind: str) -> None:
    both(kind, IMAGE > 0, SMALL > 0)


def test_truth() -> None:
    both("Not", IMAGE > 0)
    both("IsNaN", np.array([1, np.nan], np.float32))


@pytest.mark.parametrize(
    "kind",
    ["Neg", "Abs", "Exp", "Floor", "Ceil", "Round", "Sin", "Cos", "Tanh", "Sign", "Erf", "Relu", "Sigmoid", "Softplus",
     "LeakyRelu", "Elu", "Atan", "Dropout", "HardSigmoid", "HardSwish", "Identity",
     "GlobalAveragePool", "GlobalMaxPool"],
)  # fmt: skip
def test_one_array(kind: str) -> None:
    both(kind, IMAGE)


@pytest.mark.parametrize("kind", ["Log", "Sqrt", "Reciprocal"])
def test_of_positive_numbers(kind: str) -> None:
    both(kind, POSITIVE)


def test_integers_are_divided_towards_zero() -> None:
    both("Div", np.array([7, -7, 6, -1]), np.array([2, 2, -4, 3]))
    both("Mod", np.array([7, -7, 6, -1]), np.array([2, 2, -4, 3]))
    both("Mod", np.array([7.5, -7.5], np.float32), np.float32(2), fmod=1)


def test_gelu() -> None:
    both("Mish", ROWS, opset=18)
    both("Gelu", ROWS, opset=20)
    both("Gelu", ROWS, opset=20, approximate="tanh")


SIZES: list[tuple[Any, ...]] = [
    ("Reshape", IMAGE, np.array([0, -1, 6])),
    ("Reshape", IMAGE, np.array([2, 4, 42])),
    ("Unsqueeze", ROWS, np.array([0, -1])),
    ("Squeeze", made(1, 3, 1, 2), np.array([0, 2])),
    ("Expand", SMALL, np.array([2, 4, 3, 5])),
    ("Tile", ROWS, np.array([1, 2, 3])),
    ("Slice", IMAGE, np.array([1, -5]), np.array([2**60, -1]), np.array([1, 3]), np.array([1, 2])),
    ("Slice", IMAGE, np.array([-1]), np.array([-(2**60)]), np.array([2]), np.array([-1])),
    ("Gather", IMAGE, np.array([[1, -1], [0, -2]])),
    ("Gather", IMAGE, np.array(1)),
    ("GatherElements", ROWS, np.zeros((2, 5, 12), np.int64) - 1),
    ("GatherND", ROWS, np.array([[0, 1], [1, 4]])),
    ("Pad", IMAGE, np.array([0, 0, 1, 2, 0, 0, 3, 0])),
    ("Pad", IMAGE, np.array([0, 0, 1, 2, 0, 0, 3, 0]), np.float32(7)),
    ("CumSum", ROWS, np.array(1)),
    ("TopK", ROWS, np.array([3])),
    ("Clip", IMAGE, np.float32(-0.5), np.float32(0.5)),
    ("Clip", IMAGE, None, np.float32(0.5)),
    ("PRelu", IMAGE, SMALL),
    ("MatMul", ROWS, made(12, 3)),
    ("MatMul", ROWS, made(2, 12, 3)),
]


@pytest.mark.parametrize("given", SIZES, ids=lambda given: given[0])
def test_with_constants(given: tuple[Any, ...]) -> None:
    both(*given, outputs=2 if given[0] == "TopK" else 1)


NAMED: list[tuple[str, Array, dict[str, Any]]] = [
    ("Transpose", IMAGE, {"perm": [0, 2, 3, 1]}),
    ("Transpose", ROWS, {}),
    ("Flatten", IMAGE, {"axis": 2}),
    ("Softmax", ROWS, {"axis": 1}),
    ("LogSoftmax", ROWS, {}),
    ("ReduceMean", IMAGE, {"axes": [2, 3]}),
    ("ReduceMax", IMAGE, {"axes": [1], "keepdims": 0}),
    ("ReduceL2", IMAGE, {"axes": [-1]}),
    ("ReduceMin", IMAGE, {"axes": [0, 3]}),
    ("ReduceProd", ROWS, {}),
    ("ArgMax", ROWS, {"axis": -1}),
    ("ArgMin", ROWS, {"axis": 1, "keepdims": 0}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", IMAGE, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("MaxPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", IMAGE, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    ("DepthToSpace", IMAGE, {"blocksize": 2}),
    ("DepthToSpace", IMAGE, {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", made(1, 3, 4, 6), {"blocksize": 2}),
    ("Cast", IMAGE * 3, {"to": TensorProto.INT64}),
    ("Cast", IMAGE, {"to": TensorProto.BOOL}),
]


@pytest.mark.parametrize("given", NAMED, ids=lambda given: given[0])
def test_with_attributes(given: tuple[str, Array, dict[str, Any]]) -> None:
    kind, x, attributes = given
    both(kind, x, **attributes)


def test_softmax_of_old_files_takes_all_axes_from_one_on() -> None:
    both("Softmax", IMAGE, axis=1, opset=11)


def test_split() -> None:
    both("Split", IMAGE, np.array([1, 3]), outputs=2, axis=1)
    both("Split", IMAGE, outputs=2, axis=1)


def test_top_k_of_equal_values_takes_the_first() -> None:
    both("TopK", np.array([[3, 1, 3, 2, 3, 1]], np.float32), np.array([4]), outputs=2)
    both("TopK", np.array([[3, 1, 3, 2, 3, 1]], np.float32), np.array([4]), outputs=2, largest=0)


CHANCE = np.random.default_rng(3)
SPECIAL = np.array([0, -0.0, 1, -1, 1e-45, -1e-45, np.inf, -np.inf, np.nan, np.copysign(np.nan, -1)], np.float32)
KEYS: dict[str, tuple[Array, int]] = {
    "logits of a detector": (4.6 + made(2, 8400) / 10, 300),
    "logits in float16": ((4.6 + made(1, 8400) / 100).astype(np.float16), 300),
    "many equal across the end": (CHANCE.integers(-2, 3, (3, 2501)), 300),
    "all equal": (np.full((2, 1025), -7), 1000),
    "all equal in several turns": (np.full((1, 5000), 0.5), 2500),
    "special values": (CHANCE.choice(SPECIAL, (3, 1999)), 1900),
    "only special values": (SPECIAL[None, ::-1], len(SPECIAL)),
    "zeros": (CHANCE.choice(SPECIAL[:2], (2, 77)), 70),
    "only NaN": (np.full((1, 1500), np.nan), 1400),
    "the first": (made(4, 3001), 1),
    "the first of two": (made(33, 2), 1),
    "rows of one": (made(5, 1), 1),
    "all of a row": (made(2, 3000), 3000),
    "as many as a block has threads": (made(1, 1024), 1024),
    "one less": (made(2, 1030), 1023),
    "one more": (made(2, 1030), 1025),
    "some thousands with ties": (CHANCE.integers(-50, 50, (2, 9001)), 4100),
    "rising": (np.arange(2100)[None], 65),
    "falling": (-np.arange(2100)[None], 64),
    "more than there are": (made(2, 7), 9),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_first_places(name: str) -> None:
    """NumPy sorts stably, and NaN goes last."""
    keys, count = KEYS[name]
    keys = keys.astype(np.float32)
    (found,), _ = run_traced(lambda x: [first_places(x, count)], keys)
    np.testing.assert_array_equal(found, first_places(keys, count))


def test_normalisation() -> None:
    scale, bias = made(4, seed=2), made(4, seed=3)
    both("BatchNormalization", IMAGE, scale, bias, made(4, seed=4), abs(made(4, seed=5)))
    both("InstanceNormalization", IMAGE, scale, bias)
    both("LayerNormalization", ROWS, made(12, seed=2), made(12, seed=3))
    both("GroupNormalization", IMAGE, made(2), made(2, seed=1), num_groups=2, opset=18)
    both("LayerNormalization", ROWS, made(5, 12, seed=2), axis=1, epsilon=1e-3)


def test_gemm() -> None:
    both("Gemm", made(3, 4), made(5, 4), made(5), transB=1, alpha=0.5, beta=2.0)
    both("Gemm", made(4, 3), made(4, 5), transA=1)


def test_einsum() -> None:
    both("Einsum", ROWS, made(3, 12), equation="nij,kj->nik")


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 2, 0, 1], "strides": [2, 1]},
        {"dilations": [2, 1]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    ],
    ids=str,
)
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(attributes: dict[str, Any], groups: int) -> None:
    both("Conv", IMAGE, made(6, 4 // groups, 3, 2, seed=1), made(6, seed=2), group=groups, **attributes)


def test_convolution_of_rows() -> None:
    both("Conv", ROWS, made(3, 5, 3, seed=1), pads=[1, 1])


@pytest.mark.parametrize(
    "attributes",
    [{"strides": [2, 2]}, {"strides": [2, 2], "pads": [1, 0, 1, 1], "output_padding": [1, 0]}, {"dilations": [1, 2]}],
    ids=str,
)
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(attributes: dict[str, Any], groups: int) -> None:
    both("ConvTranspose", IMAGE, made(4, 3, 3, 2, seed=1), made(3 * groups, seed=2), group=groups, **attributes)


@pytest.mark.parametrize("how", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_resize(how: str, mode: str) -> None:
    x = made(1, 2, 5, 4)
    both("Resize", x, None, None, np.array([1, 2, 13, 3]), mode=mode, coordinate_transformation_mode=how)
    scales = np.array([1, 1, 2, 2.5], np.float32)
    both("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=how, nearest_mode="floor")


def test_resize_of_old_files() -> None:
    both("Resize", made(1, 2, 5, 4), np.array([1, 1, 2, 2], np.float32), mode="linear", opset=10)


@pytest.mark.parametrize("outside", ["zeros", "border"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(outside: str, corners: int) -> None:
    grid = np.random.default_rng(3).uniform(-1.3, 1.3, (2, 5, 3, 2)).astype(np.float32)
    both("GridSample", IMAGE, grid, padding_mode=outside, align_corners=corners)


def test_shapes_are_computed_on_the_host() -> None:
    """A reshape to a size that the graph computes, a range, and a constant of a computed shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        helper.make_node("ReduceSum", ["ones"], ["count"], keepdims=0),
        helper.make_node("Div", ["flat", "count"], ["y"]),
        helper.make_node("Where", ["mask", "y", "flat"], ["z"]),
        helper.make_node("ScatterND", ["z", "places", "values"], ["end"]),
        helper.make_node("Range", ["zero", "count_of_all", "one"], ["numbers"]),
    ]
    constants = {
        "first": np.array([0]), "rest": np.array([-1]), "mask": np.arange(168) % 3 == 0,
        "zero": np.array(0), "count_of_all": np.array(5), "one": np.array(2),
        "places": np.array([[0, 5], [1, 7]]), "values": np.array([9, 8], np.float32),
    }  # fmt: skip
    check(nodes, {"x": IMAGE}, constants, ["end", "y", "shape", "numbers"], OPSET)


def test_what_is_not_possible_is_named() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], name="up", mode="cubic")
    program = ArrayProgram([node], {"scales": np.array([1, 1, 2, 2], np.float32)})
    with pytest.raises(ModelError, match=r"cannot run Resize \(up\) with mode cubic"):
        program.run({"x": IMAGE}, ["y"])
    node = helper.make_node("Reshape", ["x", "size"], ["y"], name="it")
    with pytest.raises(ModelError, match=r"cannot run Reshape \(it\), whose input size is computed"):
        ArrayProgram([node], {}).run({"x": IMAGE, "size": np.array([-1])}, ["y"])
