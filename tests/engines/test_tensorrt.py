"""Engine tensorrt without TensorRT: quantised graphs, plans on disk, and the run half on a stand-in."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from enum import IntFlag
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import fake_tensorrt
from cuda_on_cpu import HostArray, on_device
from framefuse.cuda import device
from framefuse.engines import EngineOptions, Slot, open_engine, requests, selftest
from framefuse.engines.tensorrt import build as tensorrt_build
from framefuse.engines.tensorrt import plans as tensorrt_plans
from framefuse.engines.tensorrt.build import Messages, Shapes, bindings, build_plan, precision_of
from framefuse.engines.tensorrt.engine import Execution, TensorrtEngine
from framefuse.engines.tensorrt.qdq import symmetric, to_fp8
from framefuse.errors import CapabilityError, EngineError, FramefuseError, ModelError, UsageError
from framefuse.lab.building import build_engine
from framefuse.models import find_model

SHAPES = Shapes((1, 3, 32, 32), (4, 3, 32, 48), (16, 3, 64, 64))


class CudaError(Exception):
    pass


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return selftest.write(tmp_path / "two.onnx")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A fake GPU with a fake TensorRT; what it is can be changed."""
    facts = SimpleNamespace(name=b"Card A", major=8, driver=13000)
    stream = SimpleNamespace(ptr=7, synchronize=lambda: None, __enter__=None)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None, done=True)
    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyAsync=lambda to, source, size, kind, stream: ctypes.memmove(to, source, size),
        getDevice=lambda: 0,
        getDeviceProperties=lambda number: {"name": facts.name, "major": facts.major, "minor": 0},
        driverGetVersion=lambda: facts.driver,
    )

    class Stream(nullcontext[None]):
        ptr = 7

        def __init__(self, non_blocking: bool = True) -> None:
            super().__init__()

        def synchronize(self) -> None: ...

    def capture(stream: Any, work: Any) -> Any:
        fake_tensorrt.CAPTURING.append(stream.ptr)
        work()
        fake_tensorrt.CAPTURING.clear()
        return SimpleNamespace(launch=lambda stream: work())

    module = SimpleNamespace(
        ndarray=HostArray,
        float16=np.float16,
        zeros=lambda shape, dtype: on_device(np.zeros(shape, dtype)),
        empty=lambda shape, dtype: on_device(np.zeros(shape, dtype)),
        asarray=lambda array, dtype=None: on_device(np.ascontiguousarray(array)),
        cuda=SimpleNamespace(
            runtime=runtime,
            Event=lambda **options: event,
            Stream=Stream,
            get_current_stream=lambda: stream,
            get_elapsed_time=lambda start, end: 0.25,
        ),
    )
    monkeypatch.setattr(device, "cupy", lambda: module)
    monkeypatch.setattr(device, "pinned", lambda shape, dtype: np.zeros(shape, dtype))
    monkeypatch.setattr(requests, "capture", capture)
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield facts
    fake_tensorrt.CAPTURING.clear()


def run(path: Path, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"images": images})
    return np.asarray(output)


def images(batch: int, height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random((batch, 3, height, width), np.float32).astype(np.float16).astype(np.float32)


def through(pool: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    slot: Slot = pool.acquire()
    slot.write(values)
    pool.submit(slot)
    assert pool.wait(slot, 1.0)
    output = slot.outputs[0].copy()
    pool.release(slot)
    return np.asarray(output)


# --- shapes


@pytest.mark.parametrize(
    "text",
    ["", "1x3x640", "1x3x640x640:8x3x640x640", "1x4x64x64", "axbxcxd", "0x3x64x64", "8x3x64x64:1x3x64x64:16x3x64x64"],
)
def test_shapes_that_make_no_profile_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="shapes"):
        Shapes.parse(text)


def test_shapes_are_read_as_they_are_written() -> None:
    text = "1x3x32x32:4x3x32x48:16x3x64x64"
    assert Shapes.parse(text) == SHAPES and str(SHAPES) == text
    assert Shapes.parse("2x3x32x64") == Shapes.exact(2, 32, 64)
    assert SHAPES.allow(16, 64, 33) and not SHAPES.allow(17, 64, 64) and not SHAPES.allow(1, 31, 32)


# --- quantised graphs


def quantised(path: Path, zero: int, *, pads: tuple[int, ...] = (1, 1, 1, 1)) -> Any:
    """Quantised input -> two convolutions of different padding, and a sum that reads the quantised tensor itself."""
    rng = np.random.default_rng(zero)
    stored = rng.integers(-127, 128, (2, 3, 3, 3)).astype(np.int8)
    constants = {
        "s": np.float32(0.02), "z": np.uint8(zero), "w": stored, "ws": rng.random(2).astype("f4") / 99 + 1e-3,
        "wz": np.zeros(2, np.int8), "b": rng.random(2).astype("f4"), "dense": rng.random((3, 3, 1, 1)).astype("f4"),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["images", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"], "dq"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], "wdq", axis=0),
        helper.make_node("Conv", ["x", "wf", "b"], ["y0"], "padded", pads=list(pads)),
        helper.make_node("Conv", ["x", "dense"], ["y1"], "without_bias"),
        helper.make_node("Add", ["y1", "x"], ["y2"], "sum"),
        helper.make_node("Concat", ["y0", "y2"], ["out"], "join", axis=1),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", c, "h", "w"])
        for name, c in (("images", 3), ("out", 5))
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "q", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return model


@pytest.mark.parametrize("zero", [0, 14, 127, 128, 255])
def test_a_zero_point_moves_into_the_tensor_and_the_result_stays(tmp_path: Path, zero: int) -> None:
    model = quantised(tmp_path / "q.onnx", zero)
    moved = symmetric(model)
    onnx.save(moved, tmp_path / "moved.onnx")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in moved.graph.initializer}
    zeros = [weights[node.input[2]] for node in moved.graph.node if node.op_type == "QuantizeLinear"]
    assert len(zeros) == 2 and all(value.dtype == np.int8 and not value.any() for value in zeros)
    values = (np.round((images(2, 7, 9) - 0.3) * 200) + np.float32(0.3)) * np.float32(0.02)  # far from ties
    assert np.abs(run(tmp_path / "moved.onnx", values) - run(tmp_path / "q.onnx", values)).max() < 1e-4


def test_uneven_padding_is_kept(tmp_path: Path) -> None:
    model = quantised(tmp_path / "q.onnx", 30, pads=(2, 0, 0, 2))
    onnx.save(symmetric(model), tmp_path / "moved.onnx")
    values = (np.round(images(1, 6, 6) * 150) + np.float32(0.3)) * np.float32(0.02)
    assert np.abs(run(tmp_path / "moved.onnx", values) - run(tmp_path / "q.onnx", values)).max() < 1e-4


def test_a_shipped_int8_model_keeps_its_boxes_without_zero_points(tmp_path: Path) -> None:
    path = find_model("scout-n-int8")
    onnx.save(symmetric(onnx.load(path)), tmp_path / "moved.onnx")
    smooth = np.linspace(0, 1, 96, dtype=np.float32) * np.ones((1, 3, 64, 1), np.float32)
    # Numbers at the edge of two steps fall to either side, as they do between two engines.
    assert np.abs(run(tmp_path / "moved.onnx", smooth) - run(path, smooth)).mean() < 0.5


def test_fp8_takes_the_ranges_of_int8(tmp_path: Path) -> None:
    model = quantised(tmp_path / "q.onnx", 14)
    eight = to_fp8(model)
    assert precision_of(model) == "int8" and precision_of(eight) == "fp8"
    kinds = {tensor.data_type for tensor in eight.graph.initializer}
    assert TensorProto.FLOAT8E4M3FN in kinds and not kinds & {TensorProto.INT8, TensorProto.UINT8}
    onnx.save(eight, tmp_path / "fp8.onnx")
    values = images(2, 7, 9) * 3
    close, exact = run(tmp_path / "fp8.onnx", values), run(tmp_path / "q.onnx", values)
    # Three bits behind the first one: an eighth at most, for one factor or the other.
    assert np.abs(close - exact).max() < np.abs(exact).max() / 8


def test_fp8_of_a_model_without_ranges_is_refused(two: Path) -> None:
    with pytest.raises(ModelError, match="int8 first"):
        to_fp8(onnx.load(two))


def test_scales_that_are_computed_are_refused(tmp_path: Path) -> None:
    model = quantised(tmp_path / "q.onnx", 14)
    model.graph.node.insert(0, helper.make_node("Identity", ["z"], ["computed"]))
    model.graph.node[1].input[2] = "computed"
    with pytest.raises(ModelError, match="computed"):
        symmetric(model)


# --- building


def test_neither_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tensorrt_build.MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CapabilityError, match="tensorrt-rtx"):
        bindings()


def test_an_old_tensorrt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module("8.6.1"))
    with pytest.raises(CapabilityError, match=r"8\.6\.1"):
        bindings()


@pytest.mark.parametrize(
    ("change", "options", "error", "said"),
    [
        ("operator", {}, ModelError, r"operator Strange of node 'odd'"),
        ("", {"precision": "fp16"}, UsageError, "written in fp32"),
        ("", {"precision": "fp8"}, UsageError, "precision int8 first|--precision int8"),
        ("", {"workspace_mb": 0, "shapes": Shapes.exact(1, 0 + 1, 1)}, None, ""),
        ("junk", {}, ModelError, "cannot be read as ONNX"),
    ],
)
def test_what_cannot_be_built_is_named(
    two: Path, gpu: Any, change: str, options: dict[str, Any], error: type[FramefuseError] | None, said: str
) -> None:
    if change == "operator":
        model = onnx.load(two)
        model.graph.node.append(helper.make_node("Strange", ["sum"], ["odd"], "odd", domain="somewhere"))
        onnx.save(model, two)
    elif change == "junk":
        two.write_bytes(b"junk")
    shapes = options.pop("shapes", SHAPES)
    with nullcontext() if error is None else pytest.raises(error, match=said):
        build_plan(two, shapes, **options)


def test_shapes_outside_the_model_are_refused(two: Path, gpu: Any) -> None:
    model = onnx.load(two)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, two)
    with pytest.raises(UsageError, match="takes 1x3xanyxany"):
        build_plan(two, SHAPES)
    assert build_plan(two, Shapes.exact(1, 32, 32)).messages == {"WARNING": ["one thing to know"]}


def test_too_little_scratch_memory_says_so(two: Path, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fake_tensorrt.Config, "set_memory_pool_limit", lambda self, pool, size: setattr(self, "limit", 1)
    )
    with pytest.raises(EngineError, match="--workspace"):
        build_plan(two, SHAPES, workspace_mb=64)


def test_the_timing_cache_is_kept(two: Path, gpu: Any, tmp_path: Path) -> None:
    for _ in range(2):
        tensorrt_plans.build(two, SHAPES, output=tmp_path / "two.plan")
    (kept,) = (tmp_path / "cache/framefuse/tensorrt").glob("*.timing")
    assert kept.read_bytes() == b"++" and "sm_80" in kept.name


# --- plans on disk


def opened(path: Path) -> TensorrtEngine:
    engine = open_engine("tensorrt", path, EngineOptions("cuda"))
    assert isinstance(engine, TensorrtEngine)
    return engine


def test_a_plan_runs_like_the_model(two: Path, gpu: Any, tmp_path: Path) -> None:
    path, plan = tensorrt_plans.build(two, SHAPES, output=tmp_path / "two.plan")
    engine = opened(path)
    assert engine.artifact_bytes == len(plan.content) == path.stat().st_size and engine.precision == "fp32"
    for batch, height, width in ((1, 32, 32), (16, 64, 64), (3, 33, 47)):
        values = images(batch, height, width)
        pool = engine.request_pool(batch, height, width, 2)
        for _ in range(3):
            assert np.abs(through(pool, values) - run(two, values)).max() < 1e-5
    engine.close()


def test_a_request_outside_the_plan_is_refused_with_its_shapes(two: Path, gpu: Any, tmp_path: Path) -> None:
    path, _ = tensorrt_plans.build(two, SHAPES, output=tmp_path / "two.plan")
    with pytest.raises(UsageError, match="17x3x32x32 is outside"):
        opened(path).request_pool(17, 32, 32, 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [("truncated", "truncated"), ("changed", "is not the plan"), ("alone", "missing"),
     ("version", "version '10.13.0', here '11.0'"),
     ("gpu", "Card A.*Card B"), ("driver", "driver '13000', here '13010'"), ("description", "describes no plan")],
)  # fmt: skip
def test_foreign_plans_are_refused(
    two: Path, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, said: str
) -> None:
    path, plan = tensorrt_plans.build(two, SHAPES, output=tmp_path / "two.plan")
    beside = Path(f"{path}.json")
    if damage == "truncated":
        path.write_bytes(plan.content[: len(plan.content) // 2])
    elif damage == "changed":
        path.write_bytes(plan.content[:-1] + b"?")
    elif damage == "alone":
        beside.unlink()
    elif damage == "version":
        monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module("11.0"))
    elif damage == "gpu":
        gpu.name = b"Card B"
    elif damage == "driver":
        gpu.driver = 13010
    else:
        beside.write_text("{}")
    with pytest.raises(ModelError, match=said):
        opened(path)


def test_a_plan_that_tensorrt_itself_refuses(two: Path, gpu: Any, tmp_path: Path) -> None:
    path, plan = tensorrt_plans.build(two, SHAPES, output=tmp_path / "two.plan")
    about = json.loads(Path(f"{path}.json").read_text())["key"]
    other = tensorrt_build.Plan(b"junk" + plan.content[4:], "fp32", SHAPES, 0, 0, 1)
    tensorrt_plans.write(path, other, about)
    with pytest.raises(EngineError, match=r"this GPU, .* of compute capability \d+\.\d+: .*kEXPECTED_MAGIC_TAG"):
        opened(path)


def test_a_gpu_that_tensorrt_for_rtx_does_not_support(
    two: Path, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = tensorrt_plans.build(two, SHAPES, output=tmp_path / "two.plan")
    about = json.loads(Path(f"{path}.json").read_text())["key"]
    tensorrt_plans.write(path, tensorrt_build.Plan(b"junk" + plan.content[4:], "fp32", SHAPES, 0, 0, 1), about)
    kinds = IntFlag("EngineInvalidityDiagnostics", ["VERSION_MISMATCH", "UNSUPPORTED_CC"])
    monkeypatch.setattr(bindings().trt, "EngineInvalidityDiagnostics", kinds, raising=False)
    monkeypatch.setattr(fake_tensorrt.Runtime, "get_engine_validity", lambda self, content: (0, 2), raising=False)
    with pytest.raises(CapabilityError, match=r"refuses two.plan on this GPU, .*UNSUPPORTED_CC"):
        opened(path)


def test_the_cache_builds_once_takes_a_wider_plan_and_rebuilds_a_damaged_one(
    two: Path, gpu: Any, tmp_path: Path
) -> None:
    first = opened(two)
    first.request_pool(2, 32, 32, 1)
    assert "built in" in first.reasons[-1]
    second = opened(two)
    second.request_pool(2, 32, 32, 1)
    assert "from the cache" in second.reasons[-1]
    (kept,) = (tmp_path / "cache/framefuse/tensorrt").glob("*.plan")
    kept.write_bytes(kept.read_bytes()[:100])
    third = opened(two)
    third.request_pool(2, 32, 32, 1)
    assert "damaged (100 bytes): built again" in third.reasons[-1]
    tensorrt_plans.build(two, SHAPES, precision="fp32")
    wide = opened(two)
    wide.request_pool(7, 48, 48, 1)
    wide.request_pool(8, 48, 48, 1)
    assert str(SHAPES) in wide.reasons[-1] and len(wide.reasons) == 3
    gpu.driver = 14000
    other = opened(two)
    other.request_pool(2, 32, 32, 1)
    assert "stale" in other.reasons[-1] and "driver was '13000', is '14000'" in other.reasons[-1]


def test_the_shapes_that_a_file_states_are_those_of_its_plan(two: Path, gpu: Any, tmp_path: Path) -> None:
    built = build_engine(
        two, shapes={"min": (1, 3, 32, 32), "opt": (4, 3, 32, 32), "max": (8, 3, 64, 64)}, engine="tensorrt",
        device="cuda", output=tmp_path / "built.onnx",
    )  # fmt: skip
    engine = open_engine("tensorrt", built.path, EngineOptions("cuda"))
    values = images(3, 40, 33)
    assert np.abs(through(engine.request_pool(3, 40, 33, 1), values) - run(two, values)).max() < 1e-5
    assert any("1x3x32x32:4x3x32x32:8x3x64x64" in reason for reason in engine.reasons), engine.reasons
    with pytest.raises(UsageError, match="batch 9"):
        engine.request_pool(9, 32, 32, 1)


def _build_in_a_process(model: Path, folder: Path) -> None:
    sys.modules["tensorrt"] = fake_tensorrt.module()
    rtx = tensorrt_build.Bindings(fake_tensorrt.module(), "tensorrt_rtx", "1.7")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    for _ in range(5):
        kept, _ = tensorrt_plans.cached(model, "fp32", (1, 32, 32), found=rtx)
        assert kept.path.read_bytes()[:4] == fake_tensorrt.TAG


def test_two_builders_at_once(two: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_build_in_a_process, args=(two, tmp_path / "cache")) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]


# --- running


@pytest.fixture
def plan(two: Path, gpu: Any) -> Any:
    """An engine of the stand-in, as its runtime gives it, and what it says."""
    found = bindings()
    said = Messages(found.trt)
    return found, found.trt.Runtime(said.logger).deserialize_cuda_engine(build_plan(two, SHAPES).content), said


def test_the_stand_in_refuses_what_tensorrt_refuses(plan: Any) -> None:
    _, engine, said = plan
    context = engine.create_execution_context()
    assert not context.execute_async_v3(7) and "shapes" in said.errors()
    assert not context.set_input_shape("images", (17, 3, 32, 32)) and not context.set_input_shape(
        "other", (1, 3, 32, 32)
    )
    assert context.set_input_shape("images", (1, 3, 32, 32))
    said.forget()
    assert not context.execute_async_v3(7) and "Address" in said.errors()
    assert not context.set_tensor_address("other", 1)


def test_an_execution_keeps_the_order_that_tensorrt_wants(plan: Any, two: Path) -> None:
    found, engine, said = plan
    execution = Execution(found, engine, said, 2, 32, 48)
    values = images(2, 32, 48)
    execution.input[..., :3] = values.transpose(0, 2, 3, 1)
    stream = SimpleNamespace(ptr=7)
    execution.start(stream)
    execution.finish(stream)
    fake_tensorrt.CAPTURING.append(7)
    execution.start(stream)
    assert execution.layout is None and np.abs(execution.results[0] - run(two, values)).max() < 1e-5
    with pytest.raises(EngineError, match="captured"):
        Execution(found, engine, said, 2, 32, 48).start(stream)


def test_what_tensorrt_says_is_in_the_error(plan: Any) -> None:
    found, engine, said = plan
    with pytest.raises(EngineError, match=r"at 17x3x32x32 refuses the shape: .*outside the profile"):
        Execution(found, engine, said, 17, 32, 32)
    with pytest.raises(EngineError, match="default stream"):
        Execution(found, engine, said, 1, 32, 32).start(SimpleNamespace(ptr=0))


@pytest.mark.parametrize(
    ("options", "error"),
    [(EngineOptions("cpu"), CapabilityError), (EngineOptions(precision="bf16"), CapabilityError),
     (EngineOptions(streams=2), UsageError), (EngineOptions(threads=1), UsageError)],
)  # fmt: skip
def test_options_that_it_does_not_have(two: Path, gpu: Any, options: EngineOptions, error: type[Exception]) -> None:
    with pytest.raises(error):
        open_engine("tensorrt", two, options)
