"""Engine tvm on the CPU: against ONNX Runtime, from its cache, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cudnn_nets import Net
from framefuse.engines import EngineOptions, open_engine
from framefuse.errors import CapabilityError, ModelError, UsageError

pytest.importorskip("tvm")
CPU = EngineOptions(device="cpu", threads=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "framefuse" / "tvm"


def small(path: Path) -> Path:
    net = Net()
    x = net.conv("images", 8, stride=2)
    y = net.conv(x, 8)
    net.save(path, net.node("Add", x, y, channels=8))
    return path


def run(model: Path, size: tuple[int, int, int], options: EngineOptions = CPU) -> tuple[Any, Any, Any]:
    """Engine, outputs and those of ONNX Runtime."""
    ort = pytest.importorskip("onnxruntime")
    batch, height, width = size
    engine = open_engine("tvm", model, options)
    pool = engine.request_pool(batch, height, width, 1)
    slot = pool.acquire()
    assert slot is not None
    slot.input[...] = np.random.default_rng(0).random(slot.input.shape)
    pool.submit(slot)
    assert pool.wait(slot)
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    expected = session.run(None, {session.get_inputs()[0].name: slot.input})
    return engine, slot.outputs, expected


@pytest.mark.slow
def test_it_gives_what_onnx_runtime_gives_and_is_built_once(tmp_path: Path, cache: Path) -> None:
    model = small(tmp_path / "net.onnx")
    engine, outputs, expected = run(model, (2, 17, 22))
    assert [value.shape for value in outputs] == [value.shape for value in expected]
    assert np.abs(outputs[0] - expected[0]).max() < 1e-4
    assert any("built in" in reason for reason in engine.reasons) and any("not tuned" in r for r in engine.reasons)
    sidecar = next(path for path in cache.glob("*.json"))
    assert '"engine": "tvm"' in sidecar.read_text() and "[2, 3, 17, 22]" in sidecar.read_text()
    sidecar.with_suffix(".so").unlink()  # not written over: this process has it mapped
    sidecar.with_suffix(".so").write_bytes(b"torn")
    again, outputs, _ = run(model, (2, 17, 22))
    assert "is damaged (4 bytes): built again" in again.reasons[-1]
    last, outputs, _ = run(model, (2, 17, 22))
    assert "from the cache" in last.reasons[-1]
    assert np.abs(outputs[0] - expected[0]).max() < 1e-4


def test_half_precision_stays_near(tmp_path: Path) -> None:
    engine, outputs, expected = run(
        small(tmp_path / "net.onnx"), (1, 16, 16), EngineOptions(device="cpu", precision="fp16", threads=1)
    )
    error = np.abs(outputs[0] - expected[0]).max() / np.abs(expected[0]).max()
    assert engine.precision == "fp16" and outputs[0].dtype == np.float32 and 1e-6 < error < 5e-3


def detector(path: Path) -> Path:
    """Sides as a distribution of distances, scores above them; (batch, 8, cells), in pixels of an image of 1024."""
    net = Net()
    x = net.conv("images", 16, stride=2)
    sides = net.node("Reshape", net.conv(x, 64, kernel=1, act=""), net.constant(np.array([0, 4, 16, -1])))
    scores = net.node("Reshape", net.conv(x, 4, kernel=1, act=""), net.constant(np.array([0, 4, -1])))
    soft = net.node("Softmax", net.node("Transpose", sides, perm=[0, 2, 1, 3], channels=16), axis=1)
    distances = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)
    mean = net.node("Conv", soft, net.constant(distances), channels=1)
    boxes = net.node("Reshape", mean, net.constant(np.array([0, 4, -1])))
    grid = net.constant(np.arange(64, dtype=np.float32).reshape(1, 1, 64))
    boxes = net.node("Mul", net.node("Add", boxes, grid), net.constant(np.array(16, np.float32)))
    boxes = net.node("Clip", boxes, net.constant(np.array(0, np.float32)), net.constant(np.array(2000, np.float32)))
    return net.save(path, net.node("Concat", boxes, net.node("Sigmoid", scores), axis=1))


@pytest.mark.parametrize("input_too", [False, True])
def test_a_file_in_float16_is_computed_in_float32(tmp_path: Path, input_too: bool) -> None:
    import onnx
    from onnx import TensorProto, numpy_helper

    from framefuse.models.fp16 import plan_fp16, to_fp16

    network = onnx.shape_inference.infer_shapes(onnx.load(small(tmp_path / "net.onnx")))
    for tensor in network.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32), tensor.name)
        )
    onnx.save(network, tmp_path / "rounded.onnx")
    half = to_fp16(network, plan_fp16(network, {}))
    assert any(tensor.data_type == TensorProto.FLOAT16 for tensor in half.graph.initializer)
    if input_too:
        (entry,), (cast,) = half.graph.input, [node for node in half.graph.node if "images" in node.input]
        entry.type.tensor_type.elem_type = TensorProto.FLOAT16
        for node in half.graph.node:
            node.input[:] = ["images" if name == cast.output[0] else name for name in node.input]
        half.graph.node.remove(cast)
    onnx.save(half, tmp_path / "half.onnx")
    engine, outputs, _ = run(tmp_path / "half.onnx", (1, 16, 16))
    pool = open_engine("onnxruntime", tmp_path / "rounded.onnx", CPU).request_pool(1, 16, 16, 1)
    slot = pool.acquire()
    assert slot is not None
    image = np.random.default_rng(0).random(slot.input.shape)
    slot.input[...] = image.astype(np.float16) if input_too else image
    pool.submit(slot)
    pool.wait(slot)
    assert engine.precision == "fp32" and outputs[0].dtype == np.float32
    assert np.abs(outputs[0] - slot.outputs[0]).max() < 1e-5


def test_at_half_precision_boxes_are_decoded_in_float32(tmp_path: Path) -> None:
    _, (found,), (expected,) = run(
        detector(tmp_path / "net.onnx"), (1, 16, 16), EngineOptions(device="cpu", precision="fp16", threads=1)
    )
    assert expected[:, :4].max() > 1024  # where float16 goes in steps of a pixel
    assert 1e-4 < np.abs(found[:, :4] - expected[:, :4]).max() < 0.1
    assert np.abs(found[:, 4:] - expected[:, 4:]).max() < 1e-3


def test_layers_put_out_float16_whatever_follows(tmp_path: Path) -> None:
    """So that a function is the same wherever a layer stands, and schedules are found again."""
    from framefuse.engines.tvm import compiling, targets
    from framefuse.engines.tvm.compiling import import_model

    module = import_model(detector(tmp_path / "net.onnx"), (1, 3, 16, 16))
    lowered = compiling.lower(module, targets.this_cpu(1), "fp16")
    kinds = []
    for function in lowered.functions.values():
        if "conv2d_nchw" in (text := function.script()):
            line = next(line for line in text.splitlines() if line.startswith("def "))
            kinds.append({'"float16"' in buffer for buffer in line.split("T.Buffer(")[1:]})
    assert sorted(map(list, kinds)) == [[False], [True], [True], [True]]


def test_operators_that_tvm_cannot_halve_stand_between_layers(tmp_path: Path) -> None:
    net = Net()
    limits = [net.constant(np.array(value, np.float32)) for value in (0, 6)]
    x = net.node("Clip", net.conv("images", 8, act=""), *limits)
    left, right = net.split(net.node("HardSwish", net.conv(x, 8, act="")), [4, 4])
    model = net.save(tmp_path / "net.onnx", net.conv(left, 4), left, net.node("Sigmoid", right))
    _, outputs, expected = run(model, (1, 16, 16), EngineOptions(device="cpu", precision="fp16", threads=1))
    for found, wanted in zip(outputs, expected, strict=True):
        assert found.dtype == np.float32 and np.abs(found - wanted).max() < 5e-3 * np.abs(wanted).max()


def test_what_has_no_layers_stays_in_float32(tmp_path: Path) -> None:
    net = Net()
    model = net.save(tmp_path / "net.onnx", net.node("Mul", "images", net.constant(np.array(1000.3, np.float32))))
    _, (found,), (expected,) = run(model, (1, 16, 16), EngineOptions(device="cpu", precision="fp16", threads=1))
    assert np.array_equal(found, expected)


def test_an_operator_that_tvm_lacks_is_named(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MelWeightMatrix2", ["images"], ["y"], domain="com.example")
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)],
    )
    onnx.save(model, tmp_path / "odd.onnx")
    engine = open_engine("tvm", tmp_path / "odd.onnx", CPU)
    with pytest.raises(ModelError, match=r"TVM has no MelWeightMatrix2 \(1\)"):
        engine.request_pool(1, 16, 16, 1)


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    model = small(tmp_path / "net.onnx")
    with pytest.raises(UsageError, match="no quantised layers"):
        open_engine("tvm", model, EngineOptions(device="cpu", precision="int8"))
    with pytest.raises(UsageError, match="workspace"):
        open_engine("tvm", model, EngineOptions(device="cpu", workspace_mb=8))
    with pytest.raises(CapabilityError, match="CUDA"):
        open_engine("tvm", model, EngineOptions(device="cuda"))
    (tmp_path / "torn.onnx").write_bytes(model.read_bytes()[:100])
    with pytest.raises(ModelError, match="truncated"):
        open_engine("tvm", tmp_path / "torn.onnx", CPU)


def test_a_model_of_one_size_refuses_others(tmp_path: Path) -> None:
    model = onnx.load(small(tmp_path / "net.onnx"))
    for axis, size in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], (32, 64), strict=True):
        axis.dim_value = size
    onnx.save(model, tmp_path / "fixed.onnx")
    engine = open_engine("tvm", tmp_path / "fixed.onnx", CPU)
    with pytest.raises(UsageError, match=r"takes \(1, 3, 32, 64\) only"):
        engine.request_pool(1, 64, 64, 1)


def test_tvm_is_imported_only_when_it_is_chosen() -> None:
    code = "import sys, framefuse.engines.tvm, framefuse.cli.app; print('tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_network_whose_shapes_are_computed_is_folded(tmp_path: Path) -> None:
    from framefuse.engines.onnx_shapes import at_shape, folded
    from framefuse.models.onnx_file import load_onnx
    from small_models import write

    model = folded(at_shape(load_onnx(write(tmp_path / "v8.onnx", "yolov8n")), (1, 3, 64, 96)))
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"Shape", "Range", "Expand", "Gather", "ConstantOfShape", "Constant"}
    assert [axis.dim_value for axis in model.graph.output[0].type.tensor_type.shape.dim] == [1, 84, 126]
