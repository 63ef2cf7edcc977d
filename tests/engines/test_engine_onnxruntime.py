"""ONNX Runtime: what it refuses and how it says so; profiles of shapes; on a GPU, our stream, memory and graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import small_models
from command_line import spawn
from framefuse.common.machine import python_path
from framefuse.cuda import device
from framefuse.engines import EngineOptions, engine_names, open_engine
from framefuse.engines.onnx_shapes import PROFILE_KEY, Profile, at_shape, profile_of
from framefuse.engines.onnxruntime import cannot_load, first_line, no_room
from framefuse.errors import CapabilityError, EngineError, GpuMemoryError, ModelError, UsageError
from framefuse.models import find_model
from framefuse.models.onnx_file import load_onnx

HEIGHT, WIDTH = small_models.HEIGHT, small_models.WIDTH


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_models.write(tmp_path_factory.mktemp("ort") / "tiny_v5.onnx", "tiny_v5")


@pytest.mark.parametrize("kind", ["Mystery", "LRNN"])
def test_a_missing_operator_is_named(tmp_path: Path, kind: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "odd", values[:1], values[1:])
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    with pytest.raises(ModelError, match=f"no operator {kind}"):
        open_engine("onnxruntime", path, EngineOptions())


def test_every_refusal_of_a_file_has_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "loop.onnx"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in ("x", "y")]
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes.append(helper.make_node("Relu", ["b"], ["y"]))
    graph = helper.make_graph(nodes, "loop", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    for engine in ("onnxruntime", "openvino"):
        with pytest.raises(ModelError) as caught:
            open_engine(engine, path, EngineOptions("cpu"))
        assert caught.value.remedy, engine
        assert "ONNXRuntimeError" not in caught.value.message and "_src/" not in caught.value.message


def test_an_axis_that_cannot_be_free_is_said_in_plain_words(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(*facts) for facts in (("x", 1, [1, 3, "h", "w"]), ("y", 1, [1, 192]))]
    shape = numpy_helper.from_array(np.array([1, 192]), "shape")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "odd", values[:1], values[1:], [shape]
    )
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    pool = open_engine("onnxruntime", path, EngineOptions("cpu")).request_pool(1, 16, 8, 1)
    slot = pool.acquire()
    assert slot is not None
    with pytest.raises(EngineError, match="cannot be reshaped") as caught:
        pool.submit(slot)
    assert caught.value.remedy
    assert "ONNXRuntimeError" not in caught.value.message and "_src/" not in caught.value.message


def test_an_output_that_nothing_makes_is_said_in_plain_words(tmp_path: Path, model: Path) -> None:
    network = onnx.load(model)
    network.graph.output[0].name = "ghost"
    onnx.save(network, tmp_path / "ghost.onnx")
    with pytest.raises(ModelError) as caught:
        open_engine("onnxruntime", tmp_path / "ghost.onnx", EngineOptions("cpu"))
    assert caught.value.message == (
        f"ONNX Runtime cannot load {tmp_path / 'ghost.onnx'}: This is an invalid model. Graph output (ghost) does not "
        "exist in the graph."
    )


def write_odd(path: Path) -> Path:
    """A model that ONNX Runtime warns of twice: an initializer is unused, and the output has not the shape stated."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Add", ["empty", "mean"], ["output0"]),
    ]
    weights = {"empty": np.zeros((1, 6, 315), np.float32), "unused": np.ones(3, np.float32)}
    graph = helper.make_graph(
        nodes,
        "odd",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 6, 316])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {"names": "{0: 'one', 1: 'two'}"})
    onnx.save(model, path)
    return path


def test_its_warnings_are_not_printed(tmp_path: Path) -> None:
    """Neither those of sessions with options of their own, nor of others."""
    path = write_odd(tmp_path / "odd.onnx")
    done = spawn("predict", "synthetic://street?frames=2&size=160x96", path, "--stdout", "--engine", "onnxruntime")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["frame"] for line in done.stdout.splitlines()] == [0, 1]
    assert "onnxruntime:, " not in done.stderr
    code = f"""
from framefuse.common.ort import onnxruntime
onnxruntime("ort").InferenceSession({str(path)!r}, providers=["CPUExecutionProvider"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_quantised_file_is_int8_as_it_is() -> None:
    for name in ("onnxruntime", "openvino"):
        engine = open_engine(name, find_model("scout-n-int8"), EngineOptions("cpu", "int8"))
        assert any("int8" in reason for reason in engine.reasons)
        engine.close()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_int8_of_a_file_that_is_not_quantised_says_how_to_make_one(model: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no quantised layers") as caught:
        open_engine(name, model, EngineOptions("cpu", "int8"))
    assert "framefuse build MODEL --precision int8" in (caught.value.remedy or "")


def test_an_operator_without_a_kernel_is_named() -> None:
    text = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Foo(17) node with name 'n'"
    assert "no operator Foo" in str(cannot_load(Path("a.onnx"), RuntimeError(text)))


WHERE = "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t<THRW, void, Status>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"1 : FAIL : {WHERE} CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&handle);",
         "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"),
        (f"{WHERE} CUDA failure 2: out of memory ; GPU=0", "CUDA failure 2: out of memory"),
        (f"{WHERE} CUBLAS failure 1: CUBLAS_STATUS_NOT_INITIALIZED ; GPU=0", "CUBLAS_STATUS_NOT_INITIALIZED"),
        ("bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 75202560", "size 75202560"),
    ],
)  # fmt: skip
def test_no_room_on_a_gpu(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (5 * 10**6, 10**9))
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    found = no_room("load a.onnx", RuntimeError(text))
    assert isinstance(found, GpuMemoryError)
    assert found.message.startswith("the GPU has no room to load a.onnx (5 of 1,000 MB are free): ")
    assert found.message.endswith(said)


def test_what_a_library_of_cuda_said_is_found_among_where_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (5 * 10**9, 10**10))
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    error = RuntimeError(f"1 : FAIL : {WHERE} CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR ; GPU=0 ; hostname=a")
    assert no_room("load a.onnx", error) is None
    assert first_line(error) == "CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR"


@pytest.mark.parametrize("known", [{}, {"ORT_DISABLE_TELEMETRY": ""}])
def test_it_writes_nothing_down_for_its_maker(tmp_path: Path, known: dict[str, str]) -> None:
    """In a process of its own, outside what ONNX Runtime takes for a test: from 1.29 on it has a folder Microsoft."""
    code = (
        "from framefuse.engines import EngineOptions, open_engine\n"
        "from framefuse.models import find_model\n"
        "open_engine('onnxruntime', find_model('squares'), EngineOptions())"
    )
    environment = {"HOME": str(tmp_path), "PYTHONPATH": python_path()}
    subprocess.run([sys.executable, "-c", code], env=environment | known, check=True)
    assert sorted(path.name for path in tmp_path.glob(".cache/*")) == []


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-tensorrt", "onnxruntime-nvrtx"])
def test_a_provider_that_is_not_there_is_named(model: Path, name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("it is there")
    with pytest.raises(CapabilityError, match=r"has no .*ExecutionProvider; it has .*CPUExecutionProvider"):
        open_engine(name, model, EngineOptions("cuda"))


@pytest.mark.parametrize("name", ["onnxruntime-tensorrt", "onnxruntime-nvrtx"])
def test_the_providers_of_gpus_do_not_run_on_cpus(model: Path, name: str) -> None:
    assert name in engine_names()
    with pytest.raises(CapabilityError, match=f"engine {name} runs on NVIDIA GPUs only"):
        open_engine(name, model, EngineOptions("cpu"))


def test_profiles() -> None:
    profile = Profile.of({"min": (1, 3, 64, 64), "opt": (4, 3, 96, 160), "max": (8, 3, 640, 640)})
    profile.check((8, 3, 640, 64))
    assert Profile.of([1, 3, 64, 64]) == Profile.of({"opt": [1, 3, 64, 64]})
    assert Profile.of(tuple(np.int64([1, 3, 64, 64]))) == Profile.of((1, 3, 64, 64))
    with pytest.raises(UsageError, match=r"batch 9 of input .* is outside the profile min 1x3x64x64"):
        profile.check((9, 3, 96, 160))
    with pytest.raises(UsageError, match="height 32"):
        profile.check((1, 3, 32, 160))


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"min": (1, 3, 64, 64)}, "give opt"),
        ({"opt": (1, 3, 64, 64), "best": (1, 3, 64, 64)}, "best"),
        ({"opt": (1, 3, 64)}, "four|batch, 3"),
        ({"opt": (0, 3, 64, 64)}, "is .0, 3, 64, 64"),
        ({"opt": (2, 3, 64, 64), "max": (1, 3, 64, 64)}, "min <= opt <= max"),
    ],
)
def test_profiles_that_make_no_sense(shapes: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Profile.of(shapes)


def test_a_model_states_its_profile_and_is_fixed_within_it(model: Path) -> None:
    network = load_onnx(model)
    assert profile_of(network) is None
    profile = Profile.of({"opt": (1, 3, HEIGHT, WIDTH), "max": (2, 3, HEIGHT, WIDTH)})
    network.metadata_props.add(key=PROFILE_KEY, value=profile.to_json())
    assert profile_of(network) == profile
    fixed = at_shape(network, (2, 3, HEIGHT, WIDTH))
    cells = 3 * sum(HEIGHT * WIDTH // stride**2 for stride in (8, 16, 32))
    assert [axis.dim_value for axis in fixed.graph.output[0].type.tensor_type.shape.dim] == [2, cells, 85]
    with pytest.raises(UsageError, match=r"takes .* only"):
        at_shape(fixed, (1, 3, HEIGHT, WIDTH))
    with pytest.raises(UsageError, match="batch 3"):
        at_shape(fixed, (3, 3, HEIGHT, WIDTH))
    network.metadata_props[-1].value = "{}"
    with pytest.raises(ModelError, match="profile"):
        profile_of(network)


def on_gpu(name: str, model: Path, **options: Any) -> Any:
    try:
        return open_engine(name, model, EngineOptions("cuda", **options))
    except CapabilityError as error:
        pytest.skip(error.message)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("name", "precision"), [("onnxruntime", "fp32"), ("onnxruntime", "fp16"), ("torch", "fp32"),
                                                 ("torch", "fp16"), ("torch", "bf16"), ("tvm", "fp32"),
                                                 ("tvm", "fp16")])  # fmt: skip
def test_slots_on_the_gpu_give_what_the_cpu_gives(model: Path, name: str, precision: Any, batch: int) -> None:
    images = (small_models.drawn_images(batch).transpose(0, 3, 1, 2) / 255).astype(np.float32)
    host = open_engine("onnxruntime", model, EngineOptions()).request_pool(batch, HEIGHT, WIDTH, 1)
    slot = host.acquire()
    assert slot is not None
    slot.input[...] = images
    host.submit(slot)
    expected = slot.outputs[0]
    pool = on_gpu(name, model, precision=precision).request_pool(batch, HEIGHT, WIDTH, 2)
    slots = [pool.acquire(), pool.acquire()]
    for slot in slots:
        slot.write(images)
        pool.submit(slot)
    for slot in slots:
        assert pool.wait(slot, 5.0)
        error = np.abs(slot.outputs[0].astype(np.float32) - expected)
        assert error.mean() < {"fp32": 0.002, "fp16": 0.1, "bf16": 1.0}[precision]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["onnxruntime", "torch", "tvm"])
@pytest.mark.parametrize("apart", [False, True])
def test_the_program_of_the_gpu_finds_what_the_host_finds(
    model: Path, name: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph, and with the model between two graphs."""
    from framefuse.models.card import read_card
    from framefuse.preprocess import Preprocess
    from framefuse.runtime.cuda.program import CudaProgram
    from framefuse.runtime.program import HostProgram, Selection
    from framefuse.sources import open_source

    card, spec, selection = read_card(model), Preprocess(WIDTH, HEIGHT), Selection(conf=0.1)
    frames = list(open_source(list(small_models.drawn_images(6))))
    engine = on_gpu(name, model, precision="fp32")
    make = engine.execution

    def execution(*shape: int) -> Any:
        made = make(*shape)
        if apart:
            made.capturable = False
        else:
            assert made.capturable, made.how
        return made

    monkeypatch.setattr(engine, "execution", execution)
    host = HostProgram(open_engine("onnxruntime", model, EngineOptions()), card, spec, selection, batch=2)
    program = CudaProgram(engine, card, spec, selection, batch=2)
    found: list[list[Any]] = [[], []]
    for number, runner in enumerate((host, program)):
        for start in range(0, len(frames), 2):
            found[number] += [done.result.detections for done in runner.submit(frames[start : start + 2])]
        found[number] += [done.result.detections for done in runner.drain()]
    assert sum(len(each) for each in found[0]) > 5
    for here, there in zip(*found, strict=True):
        strong = here.confidence > 0.105  # what is at the threshold may go either way
        assert strong.sum() <= len(there) <= len(here) + 1
        for box, kind in zip(here.xyxy[strong], here.class_id[strong], strict=True):
            assert np.abs(there.xyxy[there.class_id == kind] - box).max(1).min() < 0.5
    host.close()
    program.close()


def test_a_session_that_fails_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime would announce on stdout that it tries again, where results may be going."""
    ort = pytest.importorskip("onnxruntime")

    def fails(*_: object) -> None:
        raise RuntimeError("Failed to allocate memory")

    monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", fails)
    with pytest.raises(ModelError, match="Failed to allocate memory"):
        open_engine("onnxruntime", find_model("squares"), EngineOptions("cpu"))
    assert capfd.readouterr() == ("", "")
