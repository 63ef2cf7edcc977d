"""How engine cudnn comes to a choice of precisions: workers, measurements, cache, options. No GPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest

from cudnn_nets import Net
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.cudnn import choices, convolutions, engine, plans
from framefuse.engines.cudnn.autotune import TuningResult
from framefuse.engines.cudnn.compiled import compile_network
from framefuse.engines.cudnn.convolutions import TENSOR, Builder, Layer, Plan, TensorPlan
from framefuse.engines.cudnn.engine import Precisions
from framefuse.engines.cudnn.plans import Workers, fastest_plans
from framefuse.errors import CapabilityError, EngineError, SourceError, UsageError
from framefuse.kernels.network.call import TILES
from framefuse.models import find_model
from framefuse.pipeline import Pipeline

LAYER = Layer((1, 16, 4, 4), (256, 1, 64, 16), (16, 16, 3, 3), (1, 16, 4, 4), (256, 1, 64, 16), None, (1, 1),
              (1, 1, 1, 1), (1, 1), "silu")  # fmt: skip

WORKER = """
    import os, pickle, sys
    while True:
        try:
            layer, engine, knobs = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        if engine == 13:
            os._exit(3)
        answer = (b"", "no such engine") if engine == 9 else (f"{layer.x_type} {engine} {sys.argv[1]}".encode(), "")
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that build nothing."""
    (tmp_path / "worker_stand_in.py").write_text(textwrap.dedent(WORKER))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(plans, "WORKER_MODULE", "worker_stand_in")


def test_workers_build_side_by_side(stand_in: None) -> None:
    with contextlib.closing(Workers(4096, 3)) as pool:
        built = [pool.build(replace(LAYER, x_type=kind), engine, {}) for kind in ("fp16", "int8") for engine in (1, 2)]
        refused = pool.build(LAYER, 9, {})
        assert [future.result(30) for future in built] == [b"fp16 1 4096", b"fp16 2 4096", b"int8 1 4096",
                                                           b"int8 2 4096"]  # fmt: skip
        with pytest.raises(EngineError, match="no such engine"):
            refused.result(30)


def test_a_worker_that_ends_is_replaced(stand_in: None) -> None:
    with contextlib.closing(Workers(0, 1)) as pool:
        with pytest.raises(EngineError, match="exited with code 3"):
            pool.build(LAYER, 13, {}).result(30)
        assert pool.build(LAYER, 1, {}).result(30) == b"fp16 1 0"


class Offers:
    """A builder whose plans take as long as their engine's number says.

    Args:
        tile_us: of our kernel, which runs float16.
    """

    def __init__(self, candidate_engines: dict[str, list[int]], tile_us: float) -> None:
        self.known, self.tile_us = candidate_engines, tile_us

    def candidate_engines(self, layer: Layer) -> list[tuple[int, dict[str, int]]]:
        return [(engine, {}) for engine in self.known[layer.x_type]]

    def timer(self, layer: Layer) -> Any:
        return lambda plan: float(plan.engine)

    def fastest_tile(self, layer: Layer, measure: Any) -> Plan | None:
        if layer.x_type != "fp16":
            return None
        plan = TensorPlan(layer, TILES[0])
        plan.microseconds = self.tile_us
        return plan

    def load(self, binary: bytes, engine: int, knobs: dict[str, int]) -> Plan:
        return Plan(None, 0, engine, knobs, binary=binary)


@pytest.mark.parametrize(("engines", "tile_us", "ours"), [([5, 3], 2.0, True), ([5, 3], 4.0, False), ([9], 4.0, True)])
def test_our_kernel_is_taken_where_it_is_faster(engines: list[int], tile_us: float, ours: bool, stand_in: None) -> None:
    builder: Any = Offers({"fp16": engines}, tile_us)
    with contextlib.closing(Workers(0, 2)) as pool:
        ((_, plan),) = fastest_plans(builder, pool, [LAYER], candidates=2)
    assert isinstance(plan, Plan) and isinstance(plan, TensorPlan) == ours
    assert plan.microseconds == (tile_us if ours else 3.0)
    assert plan.provisional == (engines == [9])  # which cannot be built


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ((7, {}), 7),  # alone, although others are faster
        ((9, {}), 3),  # cannot be built here: the fastest of all
        ((TENSOR, {}), TENSOR),
        ((TENSOR, {"rows": 1}), 3),
    ],
)
def test_what_was_the_fastest_before_is_built_alone(choice: choices.Choice, wanted: int, stand_in: None) -> None:
    class Knows(Offers):
        def build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> Plan:
            if knobs:
                raise EngineError("no such tiles")
            return TensorPlan(layer, TILES[0])

    builder: Any = Knows({"fp16": [5, 3, 7]}, 4.0)
    with contextlib.closing(Workers(0, 2)) as pool:
        ((_, plan),) = fastest_plans(builder, pool, [LAYER], candidates=2, choices={LAYER.text: choice})
    assert isinstance(plan, Plan) and plan.engine == wanted and not plan.provisional


def test_choices_are_those_of_the_same_kind_of_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = dict.fromkeys(choices.LIKE, "1") | {"gpu": "NVIDIA Test 1"}
    known = {"environment": gpu, "choices": {"layer": [3, {"TILE": 2}]}}
    (tmp_path / "nvidia-test-1.json").write_text(json.dumps(known))
    (tmp_path / "damaged.json").write_text('{"environment": ')
    (tmp_path / "another.json").write_text('{"choices": {}}')
    monkeypatch.setattr(choices, "FOLDER", tmp_path)
    assert choices.choices_for(gpu | {"driver": "2"}) == {"layer": (3, {"TILE": 2})}
    for name in choices.LIKE:
        assert choices.choices_for(gpu | {name: "2"}) == {}


def test_choices_are_written_for_the_gpu_that_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import choices as benchmark

    gpu = dict.fromkeys(choices.LIKE, "1") | {"gpu": "NVIDIA Test", "driver": "3"}
    for module in (choices, benchmark):
        monkeypatch.setattr(module, "FOLDER", tmp_path / "made")
    (tmp_path / "made").mkdir()
    for number in (1, 2):  # the second keeps what the first has written
        cache = plans.PlanCache(gpu, tmp_path / str(number))
        cache.update({f"layer {number}": {"engine": number, "knobs": {"TILE": 1}, "us": 2.5, "workspace": 0}})
        benchmark.write(cache)
    choices._known.cache_clear()
    assert choices.choices_for(gpu) == {"layer 1": (1, {"TILE": 1}), "layer 2": (2, {"TILE": 1})}


def test_choices_that_come_with_the_package_are_readable() -> None:
    for file in choices.FOLDER.glob("*.json"):
        environment = json.loads(file.read_text())["environment"]
        for number, knobs in choices.choices_for(environment).values():
            assert isinstance(number, int) and all(isinstance(value, int) for value in knobs.values())


def test_choices_that_come_with_the_package_are_of_its_kernels() -> None:
    """Where this fails, kernels have changed, and every user measures again: python -m benchmarks.gpu.choices."""
    ours = hashlib.sha256(plans.kernel_text().encode()).hexdigest()[:16]
    assert {json.loads(file.read_text())["environment"]["ours"] for file in choices.FOLDER.glob("*.json")} == {ours}


def test_what_is_provisional_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plans, "environment", lambda builder: {"gpu": "none"})
    for provisional in (True, False):
        made = plans.Plans(Offers({}, 1.0))  # type: ignore[arg-type]
        plan = TensorPlan(LAYER, TILES[0])
        plan.microseconds, plan.provisional = 2.0, provisional
        monkeypatch.setattr(plans, "fastest_plans", lambda *given, plan=plan, **options: [(LAYER, plan)])
        made.workers = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
        made.measure([LAYER], 2)
        assert made(LAYER) is plan
        made.save()
        assert (plans.PlanCache({"gpu": "none"}).get(LAYER.text) is None) == provisional


def test_a_layer_without_memory_is_one_layer(stand_in: None) -> None:
    class Full(Offers):
        def timer(self, layer: Layer) -> Any:
            if layer.x_type == "fp16":
                raise MemoryError("no room for arrays")
            return super().timer(layer)

    builder: Any = Full({"fp16": [3], "int8": [7]}, 1.0)
    with contextlib.closing(Workers(0, 2)) as pool:
        layers = [LAYER, replace(LAYER, x_type="int8")]
        found = dict(fastest_plans(builder, pool, layers, candidates=2))
    assert found[layers[0]] == "no room for arrays"
    assert isinstance(plan := found[layers[1]], Plan) and plan.engine == 7


def test_a_plan_of_our_kernel_is_made_again_from_what_the_cache_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current_gpu", lambda: 0)
    monkeypatch.setattr(convolutions, "multiprocessors", lambda gpu: (90, 132))
    monkeypatch.setattr(convolutions.kernel, "prepare", lambda symbols: None)
    builder = object.__new__(Builder)  # without cuDNN
    for plan in builder.on_tensor_cores(LAYER, None):
        made = builder.build(LAYER, plan.engine, json.loads(json.dumps(plan.knobs)))
        assert isinstance(made, TensorPlan) and made.tile == plan.tile
    monkeypatch.setattr(convolutions, "multiprocessors", lambda gpu: (86, 82))
    with pytest.raises(EngineError, match="no tiles of"):
        builder.build(LAYER, TENSOR, {"rows": 64, "columns": 64, "parts": 4})


def test_the_fastest_of_the_first_is_taken(stand_in: None) -> None:
    builder: Any = Offers({"fp16": [5, 3, 2], "fp8": [9], "int8": [9, 7]}, 10.0)
    layers = [replace(LAYER, x_type=kind) for kind in ("fp16", "fp8", "int8")]
    with contextlib.closing(Workers(0, 2)) as pool:
        found = dict(fastest_plans(builder, pool, layers, candidates=2))
    assert isinstance(plan := found[layers[0]], Plan) and (plan.engine, plan.microseconds) == (3, 3.0)
    assert plan.binary == b"fp16 3 0"
    assert found[layers[1]] == "no such engine"
    assert isinstance(plan := found[layers[2]], Plan) and plan.engine == 7


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A GPU that can be asked what it is; choosing is counted, and always gives INT8."""
    made = SimpleNamespace(compute_capability="90")
    module = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: made))
    monkeypatch.setattr(device, "cupy", lambda: module)
    monkeypatch.setattr(engine, "environment", lambda builder: {"gpu": "none", "cudnn": "91900"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made.chosen = []

    class PrecisionTuner:
        def __init__(self, compiled: Any, plans: Any, weights: Any, images: Any, peaks: Any) -> None:
            self.compiled, self.given = compiled, (images, peaks)

        def tune(self, kinds: Any) -> TuningResult:
            made.chosen.append((kinds, *self.given))
            types = ("int8",) * len(self.compiled.placement.sizes)
            layers = [{"name": "conv", "multiplies": "int8", "why": "1.0 us, 2.0 in fp16"}]
            us = {"fp16": 4.0, "tuned": 3.0, "chosen": 2.0}
            return TuningResult(types, (0.5,) * len(types), 0.97, us, layers)

    monkeypatch.setattr(engine, "PrecisionTuner", PrecisionTuner)
    return made


def network(tmp_path: Path, seed: int = 0) -> Path:
    net = Net(seed)
    return net.save(tmp_path / "net.onnx", net.conv(net.conv("images", 16), 16))


PLANS: Any = SimpleNamespace(builder=None, stop_workers=lambda: None, save=lambda: None)
FRAMES = [np.full((1, 3, 32, 48), 0.5, np.float32)] * 2


def test_a_choice_is_made_once(gpu: Any, tmp_path: Path) -> None:
    path = network(tmp_path)
    compiled = compile_network(path, 2, 32, 48)
    for turn in range(2):
        made = Precisions(path, EngineOptions("cuda", "auto", calibration=FRAMES))
        assert made.kinds == ("fp8", "int8") and made.precision == "fp16"
        mixed, reasons = made.apply(compiled, PLANS, None)  # type: ignore[arg-type]
        assert set(mixed.types) == {"int8"} and mixed.scale(compiled.network.outputs[0]) == 0.5
        assert made.precision == "fp16+int8" and made.layers[0]["name"] == "conv"
        assert "1 in int8; 2 us per batch, 3 with all in fp16 and tuned kernels, 4 by default" in reasons[0]
        assert "97.0% (2 frames" in reasons[0]
        assert ("from the cache" in reasons[1]) == bool(turn)
        assert made.apply(compiled, PLANS, None)[1] == []  # type: ignore[arg-type]
    assert len(gpu.chosen) == 1 and gpu.chosen[0][1].shape == (2, 3, 32, 48)
    (file,) = (tmp_path / "cache" / "framefuse" / engine.CACHE).glob("*" + engine.SUFFIX)
    assert json.loads(file.read_text())["layers"][0]["why"] == "1.0 us, 2.0 in fp16"


@pytest.mark.parametrize("what", ["frames", "batch", "precision", "model"])
def test_anything_else_is_chosen_again(gpu: Any, tmp_path: Path, what: str) -> None:
    for changed in (False, True):
        path = network(tmp_path, seed=int(changed and what == "model"))
        frames = [np.full((1, 3, 32, 48), 0.7, np.float32)] if changed and what == "frames" else FRAMES
        precision: Any = "int8" if changed and what == "precision" else "auto"
        compiled = compile_network(path, 4 if changed and what == "batch" else 2, 32, 48)
        made = Precisions(path, EngineOptions("cuda", precision, calibration=frames))
        made.apply(compiled, PLANS, None)  # type: ignore[arg-type]
    assert len(gpu.chosen) == 2


def test_frames_of_another_size_are_sampled(gpu: Any, tmp_path: Path) -> None:
    path = network(tmp_path)
    frame = np.arange(3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)
    made = Precisions(path, EngineOptions("cuda", "fp8", calibration=[frame]))
    made.apply(compile_network(path, 1, 16, 4), PLANS, None)  # type: ignore[arg-type]
    kinds, images, _ = gpu.chosen[0]
    assert kinds == ("fp8",) and np.array_equal(images, frame.repeat(2, 2)[..., ::2])


def test_the_default_is_fp16(gpu: Any, tmp_path: Path) -> None:
    path = network(tmp_path)
    compiled = compile_network(path, 1, 32, 48)
    for precision in ("auto", "fp16"):
        made = Precisions(path, EngineOptions("cuda", precision))
        assert made.apply(compiled, PLANS, None) == (compiled, [])  # type: ignore[arg-type]
        assert made.precision == "fp16" and made.reason.startswith("precision fp16")
    assert gpu.chosen == []
    assert "Q/DQ nodes of the file are removed" in Precisions(find_model("scout-n-int8"), EngineOptions()).reason


def test_a_quantised_file_needs_no_frames(gpu: Any) -> None:
    path = find_model("scout-n-int8")
    made = Precisions(path, EngineOptions("cuda", "int8"))
    _, reasons = made.apply(compile_network(path, 1, 64, 96), PLANS, None)  # type: ignore[arg-type]
    kinds, images, peaks = gpu.chosen[0]
    assert kinds == ("int8",) and len(images) == engine.NOISE_IMAGES and len(peaks) == 51
    assert "noise, since there are no frames" in reasons[0]


def test_8_bits_need_frames(gpu: Any, tmp_path: Path) -> None:
    path = network(tmp_path)
    for precision in ("int8", "fp8"):
        with pytest.raises(UsageError, match=f"needs frames to choose what runs in {precision}") as caught:
            Precisions(path, EngineOptions("cuda", precision))
        assert "--calib" in str(caught.value.remedy)


def test_a_gpu_without_fp8(gpu: Any, tmp_path: Path) -> None:
    gpu.compute_capability = "86"
    path = network(tmp_path)
    with pytest.raises(CapabilityError, match="no FP8"):
        Precisions(path, EngineOptions("cuda", "fp8", calibration=FRAMES))
    assert Precisions(path, EngineOptions("cuda", "auto", calibration=FRAMES)).kinds == ("int8",)


def test_float32(gpu: Any, tmp_path: Path) -> None:
    """Precisions that are not chosen layer by layer, whether or not there are frames."""
    path = network(tmp_path)
    compiled = compile_network(path, 1, 32, 48)
    for precision, how in (("fp32", "no tensor cores"), ("tf32", "tensor cores round")):
        made = Precisions(path, EngineOptions("cuda", precision, calibration=FRAMES))  # type: ignore[arg-type]
        assert made.apply(compiled, PLANS, None) == (compiled, [])  # type: ignore[arg-type]
        assert (made.wide, made.precision) == (precision, precision) and how in made.reason
    assert Precisions(path, EngineOptions("cuda", "fp16")).wide == "fp16"
    gpu.compute_capability = "75"
    assert Precisions(path, EngineOptions("cuda", "fp32")).wide == "fp32"
    with pytest.raises(CapabilityError, match="no TF32"):
        Precisions(path, EngineOptions("cuda", "tf32"))


def test_a_choice_of_another_network() -> None:
    choice = TuningResult(("fp16",) * 99, (1.0,) * 99, 1.0, {})
    with pytest.raises(ValueError, match="99 types"):
        choice.applied(compile_network(find_model("scout-n"), 1, 64, 96))


def test_other_engines_say_that_they_do_not_choose(tmp_path: Path) -> None:
    path = network(tmp_path)
    with pytest.raises(CapabilityError, match="engine openvino has no fp8"):
        open_engine("openvino", path, EngineOptions(precision="fp8"))
    with pytest.raises(UsageError, match="no use for calibration frames"):
        open_engine("openvino", path, EngineOptions(calibration=FRAMES))


def test_calibration_frames_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipeline(calib=...) reads frames as the model's card says."""
    from framefuse import pipeline
    from framefuse.runtime import choices, plan

    given: list[EngineOptions] = []

    def opened(name: str, model: Path, options: EngineOptions) -> Any:
        given.append(options)
        raise EngineError("enough was seen")

    monkeypatch.setattr(pipeline, "open_engine", opened)
    monkeypatch.setattr(choices, "choose_engine", lambda *args: ("cudnn", "as if there were a GPU"))
    source = "synthetic://street?seed=1&frames=40&size=320x192"
    with pytest.raises(EngineError, match="enough was seen"):
        Pipeline(source, "scout-n", device="cpu", calib=source)
    assert 8 <= len(given[0].calibration) <= plan.CALIBRATION_FRAMES
    assert given[0].calibration[0].shape[:2] == (1, 3)
    image = tmp_path / "image.png"
    PIL.Image.new("RGB", (320, 192)).save(image)
    with pytest.raises(SourceError, match="exceeds max_pixels"):  # the limit of the run is that of its calibration
        Pipeline(source, "scout-n", device="cpu", calib=image, max_pixels=320 * 192 - 1)
