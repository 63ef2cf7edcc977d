"""Engine cudnn in 8 bits: numbers, what may be mixed, what is chosen and why. No GPU: NumPy stands in for cuDNN."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_reference as reference
from cuda_fibres import Fibres
from cudnn_nets import Net, backbone, detector, images, onnx_runtime, relative
from cudnn_on_cpu import NumpyPlans, complete, decode, ran
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.cudnn import autotune, convolutions
from framefuse.engines.cudnn.autotune import PrecisionTuner, TuningResult, agreement
from framefuse.engines.cudnn.compiled import Compiled, compile_network
from framefuse.engines.cudnn.convolutions import OWN, Layer
from framefuse.engines.cudnn.execution import Execution, Weights, encode, rounded
from framefuse.engines.cudnn.network import Conv, Head, Type, Upsample
from framefuse.engines.cudnn.plans import Plans
from framefuse.errors import CapabilityError

EIGHT: tuple[Type, ...] = ("fp8", "int8")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, fibres: Fibres) -> None:
    complete(monkeypatch)
    monkeypatch.setattr(PrecisionTuner, "times", lambda self, executions: {
        name: sum(self.plans.cost(layer) for layer in self.layers(execution.compiled.types))
        for name, execution in executions.items()})  # fmt: skip


def wide(tmp_path: Path, seed: int = 0) -> Path:
    """A network whose channels are multiples of 16 nearly everywhere."""
    net = Net(seed)
    x = net.conv(net.conv("images", 32, stride=2), 32)
    parts = net.split(net.conv(x, 64, 1), [32, 32])
    inner = net.node("Add", parts[1], net.conv(net.conv(parts[1], 32), 32))
    joined = net.conv(net.concat(*parts, inner), 32, 1)
    down = net.conv(joined, 48, stride=2)
    y = net.conv(net.concat(net.upsample(down), joined), 32, 3)
    return net.save(tmp_path / "wide.onnx", net.conv(y, 16, 1, act="none"))


def typed(compiled: Compiled, x: Any, kind: Type) -> Compiled:
    """All that may have 8 bits, with ranges from a run in float32."""
    free = [group for group, why in autotune.groups(compiled).items() if not why]
    types = autotune.uniform(compiled, free, kind)
    peaks = {kind: ranges(compiled, x)}
    return replace(compiled, types=types, scales=autotune.scales(compiled, free, types, peaks))


def ranges(compiled: Compiled, x: Any) -> dict[str, float]:
    arena = np.zeros(compiled.memory.size, np.float32)
    reference.fill(compiled, arena, x)
    found = {}
    for index, step in enumerate(compiled.placement.steps):
        reference.step(compiled, arena, index)
        found |= {name: float(np.abs(reference.view(compiled, arena, name)).max()) for name in step.writes}
    return found


@pytest.mark.parametrize("kind", EIGHT)
def test_numbers_of_8_bits(kind: Type) -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = decode(codes, kind)
    known = np.isfinite(values) & ((values != 0) | (codes == 0))
    assert np.array_equal(encode(values[known], kind), codes[known])
    edges = {"fp8": [448, -448], "int8": [127, -128]}[kind]
    assert decode(encode(np.array([1e9, -1e9]), kind), kind).tolist() == edges
    x = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    nearest = values[known][np.abs(x[:, None] - values[known]).argmin(1)]
    assert np.abs(rounded(x, kind, 1.0) - x).max() <= np.abs(nearest - x).max() + 1e-6


def test_fp8_has_three_bits_of_mantissa() -> None:
    """E4M3: 1.0 is 0x38, the next is 1.125; halves go to the even one; the smallest is 2^-9."""
    assert decode(np.array([0x38, 0x39, 0x01, 0x7E, 0x80], np.uint8), "fp8").tolist() == [1, 1.125, 2**-9, 448, 0]
    assert decode(encode(np.array([1.0625, 1.1875, 2**-10]), "fp8"), "fp8").tolist() == [1, 1.25, 0]


def test_what_may_have_8_bits(tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "net.onnx", *(net.conv(x, 16, act="none") for x in backbone(net, "images")))
    compiled = compile_network(path, 1, 64, 96)
    groups = autotune.groups(compiled)
    whys = {why.split(" ")[0] if "channels" not in why else "channels" for why in groups.values()}
    assert whys == {"", "it", "channels"}
    for group, why in groups.items():
        names = [name for name, view in compiled.placement.views.items() if view.buffer in group]
        assert why or all(compiled.view(name).shape[0] % 16 == 0 for name in names)


@pytest.mark.parametrize(("kind", "error"), [("fp8", 0.12), ("int8", 0.08)])
def test_reference_in_8_bits_is_close(tmp_path: Path, kind: Type, error: float) -> None:
    path, x = wide(tmp_path), images(2, 32, 48)
    compiled = compile_network(path, 2, 32, 48)
    mixed = typed(compiled, x, kind)
    assert 5 < mixed.types.count(kind) < len(mixed.types)
    (expected,) = onnx_runtime(path, x)
    assert 0.001 < relative(reference.run(mixed, x)[0], expected) < error


@pytest.mark.parametrize("kind", ["fp16", *EIGHT])
def test_bytes_and_addresses(gpu: None, tmp_path: Path, kind: Type) -> None:
    """The GPU half, with weights, factors and values as bytes in memory, equals the reference."""
    path, x = wide(tmp_path), images(2, 32, 48)
    compiled = compile_network(path, 2, 32, 48)
    mixed = typed(compiled, x, kind)
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    plans = NumpyPlans(lambda layer: 1.0)
    run = Execution(mixed, plans.builder, weights, plans)
    expected = reference.run(mixed, x, dtype=np.float16)
    assert relative(ran(run, x)[0], expected[0]) < (5e-3 if kind == "fp16" else 5e-2)
    kinds = {layer.x_type for layer in plans.asked}
    assert kinds == {"fp16", kind}


def test_our_kernels_at_first_and_others_later(gpu: None, tmp_path: Path) -> None:
    """With activation and residual, also an activation after the sum."""
    net = Net()
    first = net.conv("images", 16)
    beside = net.conv(first, 16, 1)
    inner = net.conv(net.conv(first, 16, act="relu"), 16, act="none")
    summed = net.node("Relu", net.node("Add", beside, inner))
    path, x = net.save(tmp_path / "net.onnx", net.conv(summed, 8, act="none")), images(2, 32, 48)
    compiled = compile_network(path, 2, 32, 48)
    steps = [step for step in compiled.placement.steps if isinstance(step, Conv)]
    assert {step.last for step in steps} == {"none", "relu"} and any(step.residual for step in steps)
    plans = NumpyPlans(lambda layer: 1.0)
    run = Execution(compiled, plans.builder, Weights(steps), lambda layer: OWN)
    found = []
    for _ in range(2):
        found += ran(run, x)
        run.replace_kernels(plans)
    assert run.version == 1, "the same kernels again are no others"
    (expected,) = reference.run(compiled, x, dtype=np.float16)
    assert max(relative(one, expected) for one in found) < 5e-3


def cheap(*kinds: Type) -> Any:
    """8 bits halve the time of these kinds, and nothing else changes it."""
    return lambda layer: 5.0 if layer.x_type in kinds else 10.0


def tuner(tmp_path: Path, cost: Any, batch: int = 2) -> PrecisionTuner:
    return tuner_of(compile_network(wide(tmp_path), batch, 16, 24), cost, {})


def tuner_of(compiled: Compiled, cost: Any, peaks: dict[str, float]) -> PrecisionTuner:
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    plans: Any = NumpyPlans(cost)
    return PrecisionTuner(compiled, plans, weights, images(3, 16, 24), peaks)


@pytest.mark.parametrize("stated", [True, False])
def test_what_is_copied_has_the_range_of_what_it_copies(gpu: None, tmp_path: Path, stated: bool) -> None:
    """Both inputs of a sum of convolutions are copied, and the file names neither copy."""
    net = Net()
    x = net.conv("images", 32)
    deep = net.conv(x, 32)
    ends = [net.conv(value, 80, 1, 2, act="none") for value in (deep, x)]
    path = net.save(tmp_path / "net.onnx", net.conv(net.node("Relu", net.node("Add", *ends)), 16, 1, act="none"))
    compiled = compile_network(path, 1, 16, 24)
    copies = [step for step in compiled.placement.steps if isinstance(step, Upsample)]
    assert len(copies) == 2
    peaks = {
        name: peak
        for name, peak in ranges(compiled, images(1, 16, 24)).items()
        if name not in {step.y for step in copies}
    }
    if not stated:
        del peaks[x], peaks[deep]
    made = tuner_of(compiled, cheap("int8"), peaks)
    inputs = next(step.x for step in compiled.placement.steps if isinstance(step, Conv) and len(step.weight) == 80)
    assert any(compiled.view(inputs).buffer in group for group in made.free) == stated


def test_the_fastest_is_chosen(gpu: None, tmp_path: Path) -> None:
    made = tuner(tmp_path, cheap("int8"))
    choice = made.tune(EIGHT, min_agreement=0.8)
    assert choice.precision == "fp16+int8" and choice.agreement > 0.8
    assert choice.us["chosen"] < choice.us["tuned"]
    kinds = {layer["multiplies"] for layer in choice.layers}
    assert kinds == {"fp16", "int8"}
    reasons = {layer["why"] for layer in choice.layers}
    assert "5.0 us, 10.0 in fp16" in reasons and "it holds the images" in reasons
    again = TuningResult.from_json(json.loads(json.dumps(asdict(choice))))
    assert again == choice and again.applied(made.compiled).types == choice.types


def test_each_layer_may_have_another_type(gpu: None, tmp_path: Path) -> None:
    def cost(layer: Layer) -> float:
        best = "fp8" if layer.weight[2] == 1 else "int8"
        return 5.0 if layer.x_type == best else 10.0

    choice = tuner(tmp_path, cost).tune(EIGHT, min_agreement=0.5)
    assert choice.precision == "fp16+fp8+int8"


def test_what_is_no_faster_stays_in_fp16(gpu: None, tmp_path: Path) -> None:
    choice = tuner(tmp_path, lambda layer: 9.9 if layer.low_precision else 10.0).tune(EIGHT, min_agreement=0.5)
    assert choice.precision == "fp16"
    assert {layer["why"] for layer in choice.layers} >= {"8 bits are no faster"}


def test_a_gain_that_the_graph_does_not_show_is_not_taken(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrecisionTuner, "times", lambda self, executions: dict.fromkeys(executions, 100.0))
    choice = tuner(tmp_path, cheap("int8")).tune(EIGHT, min_agreement=0.5)
    assert choice.precision == "fp16" and "8 bits are not faster beyond noise" in choice.note


@pytest.mark.slow
def test_what_disturbs_the_results_goes_back(gpu: None, tmp_path: Path) -> None:
    made = tuner(tmp_path, cheap("int8", "fp8"))
    all_in_8 = made.tune(("fp8",), min_agreement=0.0)
    part = made.tune(("fp8",), min_agreement=(1 + all_in_8.agreement) / 2)
    none = made.tune(("fp8",), min_agreement=1.1)
    counts = [sum(layer["multiplies"] == "fp8" for layer in choice.layers) for choice in (all_in_8, part, none)]
    assert counts[0] > counts[1] > counts[2] == 0
    assert all_in_8.agreement < part.agreement <= none.agreement
    assert any("disturbs" in layer["why"] for layer in part.layers)


def test_layers_without_a_kernel_stay_in_fp16(gpu: None, tmp_path: Path) -> None:
    choice = tuner(tmp_path, lambda layer: float("inf") if layer.low_precision else 10.0).tune(EIGHT)
    assert choice.precision == "fp16"


def test_what_is_measured(gpu: None, tmp_path: Path) -> None:
    """Every layer of the choice, and not every mixture of types that there could be."""
    made = tuner(tmp_path, cheap("int8"))
    choice = made.tune(EIGHT, min_agreement=0.5)
    known = made.plans.known  # type: ignore[attr-defined]
    assert set(made.layers(choice.types)) <= known
    assert len(known) < 9 * len(set(made.layers(())))


def test_agreement() -> None:
    head = Head((), (), 16, 2, ((2, 2),))
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(20, 30, (1, 4, 4)), np.full((1, 2, 4), 0.01)], 1).astype(np.float32)
    values[0, 4, :2] = 0.8
    assert agreement([values], [values], head) == 1
    for change in ((5, 0.95), (4, 0.1), (2, 60)):  # another class, another confidence, another box
        other = values.copy()
        other[0, change[0], 0] = change[1]
        assert agreement([values], [other], head) == 0.5
    other = values.copy()
    other[0, 5, 3] = 0.9  # found by one of them alone
    assert agreement([values], [other], head) == pytest.approx(2 / 3)
    nothing = values.copy()
    nothing[:, 4:] = 0.01
    assert agreement([nothing], [nothing * 1.01], head) == pytest.approx(0.99, abs=1e-3)
    assert agreement([values], [values * np.nan], head) == 0


def test_a_detector_is_compared_by_what_it_finds(gpu: None, tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "net.onnx", detector(net, 5, "joined", 24, 40))
    compiled = compile_network(path, 2, 24, 40)
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    plans = NumpyPlans(cheap())
    choice = PrecisionTuner(compiled, plans, weights, images(2, 24, 40), {}).tune(EIGHT)  # type: ignore[arg-type]
    assert choice.precision == "fp16" and choice.agreement == 1


try:
    cp: Any = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""


@pytest.mark.gpu
@pytest.mark.skipif(cp is None, reason=missing)
class TestGpu:
    @pytest.fixture(autouse=True)
    def cudnn(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        pytest.importorskip("cudnn")
        monkeypatch.setattr(convolutions, "CANDIDATES", 1)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    @pytest.mark.parametrize("kind", EIGHT)
    def test_kernels_of_8_bits_equal_the_reference(self, tmp_path: Path, kind: Type) -> None:
        path, x = wide(tmp_path), images(2, 64, 96)
        mixed = typed(compile_network(path, 2, 64, 96), x, kind)
        plans = Plans(convolutions.Builder())
        weights = Weights([step for step in mixed.placement.steps if isinstance(step, Conv)])
        run, stream = Execution(mixed, plans.builder, weights, plans), cp.cuda.Stream(non_blocking=True)
        device = cp.asarray(x)
        cp.cuda.Device().synchronize()
        run.pack(device, stream)
        run.start(stream)
        run.finish(stream)
        stream.synchronize()
        assert relative(run.results[0].get(), reference.run(mixed, x, dtype=np.float16)[0]) < 5e-2

    def test_a_choice_of_precisions(self, tmp_path: Path) -> None:
        """Tuned once, reported, cached; the results stay close to ONNX Runtime's."""
        path, x = wide(tmp_path), images(2, 64, 96)
        options = EngineOptions("cuda", "auto", calibration=[x[:1], x[1:]])
        for turn in range(2):
            engine: Any = open_engine("cudnn", path, options)
            pool = engine.request_pool(2, 64, 96, 1)
            slot = pool.acquire()
            slot.write(x)
            pool.submit(slot)
            assert pool.wait(slot, 10)
            (expected,) = onnx_runtime(path, x)
            assert relative(slot.outputs[0], expected) < 1.5 * (1 - autotune.MIN_AGREEMENT)
            pool.release(slot)
            told = " | ".join(engine.reasons)
            assert "us per batch" in told and ("from the cache" in told) == bool(turn)
            assert {layer["multiplies"] for layer in engine.layers} <= {"fp16", *EIGHT}
            engine.close()
