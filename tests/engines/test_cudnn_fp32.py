"""Engine cudnn in fp32 and tf32: the kernels' own source on the CPU, against ONNX Runtime. No GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_on_cpu import Compiled as Fibres
from cudnn_nets import Net, anchored, detector, images, mixed, onnx_runtime, relative, with_attention
from cudnn_on_cpu import NumpyPlans, complete, ran
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.backend import Doubt
from framefuse.engines.cudnn import convolutions
from framefuse.engines.cudnn.compiled import Compiled, check_wide, compile_network, why_not
from framefuse.engines.cudnn.convolutions import OWN, Layer, Plan, TensorPlan, tiles
from framefuse.engines.cudnn.execution import Execution, Weights
from framefuse.engines.cudnn.network import Conv, Head, Type
from framefuse.engines.cudnn.plans import Plans, network_memory
from framefuse.errors import CapabilityError, EngineError, ModelError

try:
    device.cupy()
except CapabilityError as error:
    missing = error.message
else:
    missing = ""

HEIGHT, WIDTH = 24, 40


def pools(net: Net) -> list[str]:
    x = net.conv("images", 8)
    joined = net.concat(net.pool(x), net.upsample(net.conv(x, 16, stride=2)))
    each = net.conv(joined, 24, 3, groups=24)
    return [net.conv(net.node("Add", joined, each), 5, act="none"), net.conv(each, 16, stride=2, act="relu")]


NETWORKS: dict[str, Callable[[Net], list[str]]] = {
    "pools, filters and residuals": pools,
    "detector": lambda net: [detector(net, 5, "joined", HEIGHT, WIDTH)],
    "anchors": lambda net: [anchored(net, 11, HEIGHT, WIDTH)],
    "attention": lambda net: [with_attention(net, HEIGHT, WIDTH)],
    "nodes without kernels": lambda net: list(mixed(net, HEIGHT, WIDTH)),
}


def opened(compiled: Compiled, wide: Type, plans: Callable[[Layer], Any], builder: Any = None) -> Execution:
    compiled = replace(compiled, wide=wide)
    dtype = np.float16 if wide == "fp16" else np.float32
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)], dtype)
    return Execution(compiled, builder, weights, plans)


def with_any_tile(layer: Layer) -> Plan:
    possible = tiles(layer, 90, 132)
    return TensorPlan(layer, possible[layer.weight[0] % len(possible)])


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks(fibres: Fibres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """In fp32 nothing is rounded to float16 on the way: what is left is float32's own rounding."""
    complete(monkeypatch)
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", *NETWORKS[name](net)), images(2, HEIGHT, WIDTH)
    compiled = compile_network(path, 2, HEIGHT, WIDTH)
    expected = [np.concatenate(both) for both in zip(*(onnx_runtime(path, image[None]) for image in x), strict=True)]
    off: dict[str, float] = {}
    runs: dict[str, tuple[Type, Callable[[Layer], Plan]]] = {
        "fp32": ("fp32", lambda layer: OWN),
        "fp16": ("fp16", lambda layer: OWN),
        "tensor cores": ("fp16", with_any_tile),
    }
    builder = SimpleNamespace(launch=lambda plan, pointers, memory, stream: plan.run(None, pointers, 0, stream.ptr))
    for way, (kind, plans) in runs.items():
        run = opened(compiled, kind, plans, builder)
        for _ in range(2):
            found = ran(run, x)
        pairs = [(ours, theirs) for ours, theirs in zip(found, expected, strict=True) if theirs.dtype == np.float32]
        off[way] = max(relative(ours, theirs) for ours, theirs in pairs)
    assert run.arena.dtype == np.float16
    assert off["fp32"] < 3e-6 and off["fp32"] < off["fp16"] / 30
    assert off["tensor cores"] < 1.2 * off["fp16"]


def test_tf32_takes_cudnns_kernels(fibres: Fibres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The layers say float32 for all that they touch. The stand-in for cuDNN does not round factors."""
    complete(monkeypatch)
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", *pools(net)), images(2, HEIGHT, WIDTH)
    plans = NumpyPlans(lambda layer: 1.0)
    run = opened(compile_network(path, 2, HEIGHT, WIDTH), "tf32", plans, plans.builder)
    found, expected = ran(run, x), onnx_runtime(path, x)
    assert max(relative(ours, theirs) for ours, theirs in zip(found, expected, strict=True)) < 3e-6
    assert plans.asked and {(layer.x_type, layer.y_type, layer.stored) for layer in plans.asked} == {("tf32",) * 3}
    assert not any(layer.low_precision for layer in plans.asked)
    assert "x_type=tf32" in plans.asked[0].text


@pytest.mark.gpu
@pytest.mark.skipif(bool(missing), reason=missing)
@pytest.mark.parametrize("kind", ["fp32", "tf32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: Type) -> None:
    """fp32 is as close as its rounding allows, tf32 as close as fp16 is."""
    pytest.importorskip("cudnn")
    monkeypatch.setattr(convolutions, "CANDIDATES", 1)
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", *NETWORKS[name](net)), images(2, HEIGHT, WIDTH)
    engine = open_engine("cudnn", path, EngineOptions("cuda", kind))  # type: ignore[arg-type]
    assert engine.precision == kind and engine.input_dtype == np.float32
    pool = engine.request_pool(2, HEIGHT, WIDTH, 1)
    slot = pool.acquire()
    assert slot is not None and slot.input.dtype == np.float32 and slot.memory_format == "nchw"
    slot.write(x)
    pool.submit(slot)
    assert pool.wait(slot, 60)
    expected = [np.concatenate(both) for both in zip(*(onnx_runtime(path, image[None]) for image in x), strict=True)]
    for found, theirs in zip(slot.outputs, expected, strict=True):
        if theirs.dtype == np.float32:
            assert relative(found, theirs) < (2e-5 if kind == "fp32" else 5e-3)
    engine.close()


def layer_of(tmp_path: Path, wide: Type, groups: int = 1) -> Layer:
    net = Net()
    path = net.save(tmp_path / "net.onnx", net.conv(net.conv("images", 32), 32, 3, groups=groups))
    compiled = replace(compile_network(path, 1, HEIGHT, WIDTH), wide=wide)
    return list(Layer.all_of(compiled).values())[-1]


class Value:
    """A tensor in a graph of cuDNN, which gives itself for whatever is set."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self


class Graph(Value):
    """Notes the types of its tensors."""

    def __init__(self, **types: Any) -> None:
        self.types = [types["io_data_type"]]

    def tensor(self, *, data_type: str, **facts: Any) -> Value:
        self.types.append(data_type)
        return Value()

    def __getattr__(self, name: str) -> Any:
        return lambda **given: Value()


@pytest.mark.parametrize(("kind", "stored"), [("tf32", "FLOAT"), ("fp16", "HALF")])
def test_what_cudnn_is_asked_for(tmp_path: Path, kind: Type, stored: str) -> None:
    """Image, weights, bias and residual of one type; cuDNN takes float32 to tensor cores as TF32 where it may."""
    net = Net()
    x = net.conv("images", 16)
    path = net.save(tmp_path / "net.onnx", net.node("Add", x, net.conv(x, 16)))
    compiled = replace(compile_network(path, 1, HEIGHT, WIDTH), wide=kind)
    layer = next(layer for layer in Layer.all_of(compiled).values() if layer.residual_strides)
    builder = object.__new__(convolutions.Builder)
    names = "HALF", "FLOAT", "FP8_E4M3", "INT8", "INT32"
    types = SimpleNamespace(**{name: name for name in names})
    builder.cudnn, builder.handle = SimpleNamespace(data_type=types, pygraph=Graph), None
    assert builder.graph(layer).types == [stored] * 5


def without_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, later: bool = False) -> Plans:
    """Plans of a cuDNN that has no kernel for anything."""

    def autotune(layer: Layer) -> Plan:
        raise EngineError("cuDNN has no kernel")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("framefuse.engines.cudnn.plans.environment", lambda builder: {})
    return Plans(SimpleNamespace(autotune=autotune, max_workspace=0), later=later)  # type: ignore[arg-type]


@pytest.mark.parametrize("later", [False, True])
def test_fp32_never_asks_cudnn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, later: bool) -> None:
    """Its fused kernels multiply in tensor cores, which have no float32."""
    plans = without_kernels(monkeypatch, tmp_path, later=later)
    assert plans(layer_of(tmp_path, "fp32")) is OWN and not plans.unmeasured


def test_tf32_without_a_kernel_of_cudnn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = without_kernels(monkeypatch, tmp_path)
    assert plans(layer_of(tmp_path, "tf32")) is OWN
    for layer in (layer_of(tmp_path, "fp16"), layer_of(tmp_path, "tf32", groups=4)):
        with pytest.raises(EngineError, match="no kernel"):
            plans(layer)


def test_what_fp32_has_no_kernel_for(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "net.onnx", net.conv(net.conv("images", 32), 32, 3, groups=4))
    network = compile_network(path, 1, HEIGHT, WIDTH).network
    check_wide(network, "tf32")
    with pytest.raises(ModelError, match=r"fp32 for .*, a convolution of 4 groups") as caught:
        check_wide(network, "fp32")
    assert "tf32" in str(caught.value.remedy)
    assert "4 groups" in str(why_not(path, "fp32", HEIGHT, WIDTH))


def test_auto_prefers_other_engines_in_fp32(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "net.onnx", net.conv("images", 8))
    assert isinstance(why_not(path, "fp32", HEIGHT, WIDTH), Doubt)
    assert why_not(path, "tf32", HEIGHT, WIDTH) is None
    assert why_not(path, "auto", HEIGHT, WIDTH) is None


@pytest.mark.parametrize("kind", ["fp16", "fp32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_memory_of_a_network(
    fibres: Fibres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, kind: Type
) -> None:
    """What is predicted without a GPU is what an execution takes, to the byte but for small tables."""
    complete(monkeypatch)
    net = Net()
    path = net.save(tmp_path / "net.onnx", *NETWORKS[name](net))
    compiled = compile_network(path, 2, HEIGHT, WIDTH)
    run = opened(compiled, kind, lambda layer: OWN)
    found = network_memory(path, 2, HEIGHT, WIDTH, kind)

    steps = [*run.general.values(), *([run.tail] if compiled.network.tail is not None else [])]
    results = 0 if run.layout else sum(result.nbytes for result in run.results)
    if isinstance(compiled.network.head, Head) and kind == "fp16":
        results = 0  # a run leaves the decoding of boxes to others
    beside = sum(memory.nbytes for memory in run.kernels.workspaces) + (run.input.nbytes if kind == "fp32" else 0)
    taken = run.arena.nbytes + beside + results + sum(step._fused._memory.nbytes for step in steps)
    assert found.activations == taken
    held = {id(copy): copy.nbytes for step in compiled.network.general for copy in step.program.on_gpu.values()}
    itemsize = 2 if kind == "fp16" else 4
    convs = [step for step in compiled.placement.steps if isinstance(step, Conv)]
    assert found.weights == itemsize * sum(one.weight.size + one.bias.size for one in convs) + sum(held.values())
    assert name != "nodes without kernels" or (steps and held)
