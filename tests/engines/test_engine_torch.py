"""The torch engine on the CPU: ONNX as calls of PyTorch, modules, exported programs, TorchScript; and what it refuses.

Skipped where PyTorch is not installed; .ci/run has an environment with it.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import small_models
from framefuse.engines import EngineOptions, open_engine
from framefuse.errors import CapabilityError, ModelError, UsageError
from framefuse.models import find_model
from framefuse.pipeline import Pipeline

torch = pytest.importorskip("torch")

from framefuse.engines.torch.engine import TorchEngine  # noqa: E402

SHAPE = (2, 3, small_models.HEIGHT, small_models.WIDTH)
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: small_models.write(folder / f"{name}.onnx", name) for name in ("yolov8n", "tiny_v5")}


@pytest.fixture(scope="module")
def images() -> Array:
    return (small_models.drawn_images(2).transpose(0, 3, 1, 2) / 255).astype(np.float32)


def run(engine: Any, images: Array) -> tuple[Array, ...]:
    count, _, height, width = images.shape
    pool = engine.request_pool(count, height, width, 0)
    slot = pool.acquire()
    assert slot is not None and pool.acquire() is None
    slot.input[...] = images.transpose(0, 2, 3, 1) if slot.memory_format == "nhwc" else images
    pool.submit(slot)
    assert pool.wait(slot)
    outputs = tuple(output.copy() for output in slot.outputs)
    pool.release(slot)
    return outputs


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Conv2d(3, 8, 3, 2, 1)
        self.head = torch.nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        y = torch.nn.functional.silu(self.stem(x))
        return self.head(y), y.mean((2, 3))


@pytest.mark.parametrize("name", ["yolov8n", "tiny_v5"])
def test_onnx_gives_what_onnx_runtime_gives(models: dict[str, Path], name: str, images: Array) -> None:
    (expected,) = run(open_engine("onnxruntime", models[name], EngineOptions()), images)
    for shape in (images, images[:1, :, :64, :96]):
        (expected,) = run(open_engine("onnxruntime", models[name], EngineOptions()), np.ascontiguousarray(shape))
        (found,) = run(open_engine("torch", models[name], EngineOptions()), shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-3)  # boxes are pixels


@pytest.mark.parametrize(("precision", "close"), [("fp16", 0.001), ("bf16", 0.01)])
def test_half_precision_keeps_boxes_in_float32(
    models: dict[str, Path], precision: Any, close: float, images: Array
) -> None:
    engine = open_engine("torch", models["yolov8n"], EngineOptions(precision=precision))
    (found,) = run(engine, images)
    (expected,) = run(open_engine("torch", models["yolov8n"], EngineOptions()), images)
    assert engine.precision == precision and found.dtype == np.float32
    assert 0 < np.abs(found[:, 4:] - expected[:, 4:]).mean() < close
    assert np.abs(found[:, :4] - expected[:, :4]).mean() < close * 200
    assert (found[:, :4] != found[:, :4].astype(np.float16)).mean() > 0.5


@pytest.mark.parametrize(("precision", "close"), [("fp32", 0.01), ("fp16", 0.02), ("bf16", 0.1)])
def test_a_quantised_file(precision: Any, close: float) -> None:
    """Its quantisers stay in float32, whatever is around them."""
    path, x = find_model("scout-n-int8"), np.random.default_rng(0).random((1, 3, 96, 160), np.float32)
    (expected,) = run(open_engine("onnxruntime", path, EngineOptions()), x)
    (found,) = run(open_engine("torch", path, EngineOptions(precision=precision)), x)
    assert np.linalg.norm(found - expected) < close * np.linalg.norm(expected)


def test_a_file_in_float16_is_computed_in_float32() -> None:
    images = np.random.default_rng(0).random((1, 3, 64, 96), np.float32)
    (expected,) = run(open_engine("onnxruntime", find_model("scout-s"), EngineOptions()), images)
    (found,) = run(open_engine("torch", find_model("scout-s"), EngineOptions(precision="fp32")), images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_modules_programs_and_torchscript_agree(tmp_path: Path, images: Array) -> None:
    module = Small().eval()
    example = torch.from_numpy(images)
    with torch.inference_mode():
        expected = [output.numpy() for output in module(example)]
    torch.export.save(torch.export.export(module, (example,)), tmp_path / "small.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript; files of it are about for years
        torch.jit.trace(module, example).save(tmp_path / "small.pt")
        engines = [open_engine("torch", tmp_path / name, EngineOptions()) for name in ("small.pt2", "small.pt")]
    for engine in (TorchEngine(module, EngineOptions()), *engines):
        for found, right in zip(run(engine, images), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"exported in torch\.float32"):
        open_engine("torch", tmp_path / "small.pt2", EngineOptions(precision="bf16"))


def test_a_pipeline_runs_a_module_of_the_caller(models: dict[str, Path]) -> None:
    """The card is that of the ONNX; the engine is an open one, over any module with those outputs."""
    from framefuse.engines.onnx_shapes import at_shape, folded
    from framefuse.engines.torch.importer import OnnxNetwork
    from framefuse.models.onnx_file import load_onnx

    class Wrapped(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            shape = tuple(x.shape)
            return OnnxNetwork(folded(at_shape(load_onnx(models["tiny_v5"]), shape)), x.device)(x)[0]

    images = list(small_models.drawn_images(3))
    options: dict[str, Any] = {"imgsz": [*SHAPE[2:]], "conf": 0.1}
    found = list(Pipeline(images, models["tiny_v5"], engine=TorchEngine(Wrapped(), EngineOptions()), **options))
    expected = list(Pipeline(images, models["tiny_v5"], engine="onnxruntime", **options))
    assert sum(len(result.detections) for result in expected) > 5
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_allclose(here.detections.xyxy, there.detections.xyxy, atol=0.01)


def test_a_pipeline_runs_it() -> None:
    image = np.full((360, 640, 3), 128, np.uint8)
    image[120:200, 200:280] = (0, 0, 255)
    pipeline = Pipeline([image], "squares", engine="torch")
    (result,) = pipeline
    np.testing.assert_allclose(result.detections.xyxy, [[200, 120, 280, 200]], atol=8)
    assert any("PyTorch" in reason for reason in pipeline.engine.reasons)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (EngineOptions(precision="int8"), UsageError, "no quantised layers"),
        (EngineOptions(workspace_mb=5), UsageError, "workspace"),
        (EngineOptions(streams=2), UsageError, "one request"),
    ],
)
def test_what_it_does_not_have(models: dict[str, Path], options: EngineOptions, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        open_engine("torch", models["tiny_v5"], options)


def test_a_module_in_a_precision_that_it_does_not_have() -> None:
    with pytest.raises(CapabilityError, match="engine torch has no int8"):
        TorchEngine(torch.nn.Identity(), EngineOptions("cpu", "int8"))


FREED_MEANWHILE = """
import gc
import torch
from framefuse.engines import EngineOptions
from framefuse.engines.torch.engine import TorchEngine

class Outer(torch.nn.Module):
    garbage = ()
    def forward(self, x):
        self.garbage = None
        gc.collect()
        return x * 2

def execution(module):
    return TorchEngine(module, EngineOptions("cuda")).execution(1, 32, 32)

outer = Outer()
other = execution(torch.nn.Identity())
outer.garbage = [other]
outer.garbage.append(outer.garbage)
del other
print(execution(outer).how)
"""


@pytest.mark.gpu
def test_a_model_that_is_freed_while_another_runs() -> None:
    """In a process of its own, since PyTorch would end it."""
    done = subprocess.run([sys.executable, "-c", FREED_MEANWHILE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "captured\n", done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said(models: dict[str, Path]) -> None:
    with pytest.raises(CapabilityError, match="finds no GPU"):
        open_engine("torch", models["tiny_v5"], EngineOptions("cuda"))


@pytest.mark.parametrize(("name", "content"), [("a.pt2", b"PK"), ("a.pt", b""), ("a.bin", b"x"), ("a.onnx", b"junk")])
@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
def test_files_that_are_no_model(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        open_engine("torch", tmp_path / name, EngineOptions())


def test_missing_operators_are_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("LRN", ["x"], ["a"], size=3), helper.make_node("Mish", ["a"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "odd", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="LRN, Mish"):
        open_engine("torch", tmp_path / "odd.onnx", EngineOptions()).request_pool(1, 8, 8, 1)


OPERATORS = [
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}, []),
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, []),
    ("Resize", {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}, [[], [1, 1, 2.0, 1.5]]),
    ("Resize", {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
     [[], [1, 1, 3.0, 2.0]]),
    ("Slice", {}, [[0, -1], [2, -10_000], [1, 3], [1, -1]]),
    ("Slice", {}, [[1], [9_223_372_036_854_775_807], [2], [2]]),
    ("ReduceMean", {"axes": [2, 3], "keepdims": 0}, []),
    ("ReduceMax", {"axes": [1]}, []),
    ("Clip", {}, [-0.5, 0.5]),
    ("Gather", {"axis": 2}, [[[0, -1], [2, 3]]]),
    ("Unsqueeze", {}, [[0, -1]]),
    ("Softmax", {"axis": 1}, []),
    ("LeakyRelu", {"alpha": 0.2}, []),
    ("HardSwish", {}, []),
    ("HardSigmoid", {}, []),
    ("GlobalAveragePool", {}, []),
    ("Flatten", {}, []),
    ("Transpose", {"perm": [0, 2, 3, 1]}, []),
    ("Conv", {"pads": [0, 1, 1, 0], "group": 3}, [np.ones((6, 1, 2, 2)) / 3, np.arange(6.0)]),
    ("ConvTranspose", {"strides": [2, 2]}, [np.ones((3, 2, 2, 2)) / 3]),
    ("Tile", {}, [[1, 2, 1, 3]]),
    ("TopK", {}, [[3]]),
    ("TopK", {"axis": 2, "largest": 0}, [[2]]),
    ("GatherElements", {"axis": 2}, [np.arange(24).reshape(1, 3, 1, 8) % 12 - 6]),
    ("LayerNormalization", {"axis": 2, "epsilon": 1e-3}, [np.arange(48.0).reshape(6, 8), np.ones((6, 8))]),
    ("LayerNormalization", {}, [np.arange(8.0)]),
    ("GridSample", {"align_corners": 1}, [np.linspace(-1.5, 1.2, 20).reshape(1, 2, 5, 2)]),
    ("GridSample", {"padding_mode": "border"}, [np.linspace(-1.5, 1.2, 20).reshape(1, 2, 5, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attributes", "constants"), OPERATORS)
def test_operators_are_those_of_onnx(
    kind: str, attributes: dict[str, Any], constants: list[Any], tmp_path: Path
) -> None:
    from onnx import numpy_helper

    whole = kind in ("Slice", "Gather", "Unsqueeze", "Tile", "TopK", "GatherElements")
    weights = [
        numpy_helper.from_array(np.asarray(value, np.int64 if whole else np.float32), f"c{number}")
        for number, value in enumerate(constants)
    ]
    outputs = ["y", "index"] if kind == "TopK" else ["y"]
    node = helper.make_node(kind, ["x", *(weight.name for weight in weights)], outputs, **attributes)
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 8])
    graph = helper.make_graph([node], "one", [entry], [onnx.ValueInfoProto(name="y")], weights)
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "one.onnx"
    )
    x = np.random.default_rng(0).normal(size=(1, 3, 6, 8)).astype(np.float32)
    (expected,) = run(open_engine("onnxruntime", tmp_path / "one.onnx", EngineOptions()), x)
    (found,) = run(open_engine("torch", tmp_path / "one.onnx", EngineOptions()), x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "ArgMax", "ArgMin"])
def test_operators_whose_results_are_no_floats(kind: str, tmp_path: Path) -> None:
    from onnx import numpy_helper

    inputs = ["x"] if kind.startswith("Arg") else ["x", "edge"]
    attributes = {"axis": 3, "keepdims": 0} if kind.startswith("Arg") else {}
    nodes = [
        helper.make_node(kind, inputs, ["found"], **attributes),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 8])
    graph = helper.make_graph([*nodes], "one", [entry], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(np.float32(0.25), "edge")])  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "one.onnx"
    )
    x = np.random.default_rng(0).normal(size=(1, 3, 6, 8)).astype(np.float32).round(1)
    (expected,) = run(open_engine("onnxruntime", tmp_path / "one.onnx", EngineOptions()), x)
    (found,) = run(open_engine("torch", tmp_path / "one.onnx", EngineOptions()), x)
    np.testing.assert_array_equal(found, expected)


def test_a_kernel_of_the_cpu_does_not_import_pytorch() -> None:
    """tvm_ffi would, which takes longer than all the rest of a start. It can be imported afterwards."""
    script = """
import sys
import numpy as np
from framefuse import Model
with Model("scout-n", device="cpu", engine="null") as model:
    model(np.zeros((64, 64, 3), np.uint8))
assert "tvm_ffi" in sys.modules and "torch" not in sys.modules
import torch
print(torch.zeros(2).numpy().tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[0.0, 0.0]", done.stderr
