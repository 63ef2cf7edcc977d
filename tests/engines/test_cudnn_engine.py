"""Engine cudnn: what it says where there is no GPU, its cache, and on a GPU its results against ONNX Runtime's."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_nets import Net, anchored, backbone, images, mixed, onnx_runtime, relative, with_attention
from framefuse import Batcher, Model
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.cudnn import convolutions, later
from framefuse.engines.cudnn.convolutions import Layer
from framefuse.engines.cudnn.plans import PlanCache
from framefuse.errors import CapabilityError, ModelError, UsageError

try:
    cp = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""

ENVIRONMENT = {"gpu": "none", "cudnn": "91900"}
ENTRY = {"engine": 3, "knobs": {"TILE_SIZE": 1}, "us": 4.5}


def rounded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As a slot in float16 holds it."""
    return x.astype(np.float16).astype(np.float32)


def test_one_process_at_a_time_measures(tmp_path: Path) -> None:
    caches = [PlanCache(ENVIRONMENT, tmp_path) for _ in range(2)]
    answers = [False, False, False, True]
    with caches[0].measuring(lambda: False):
        caches[0].update({"layer": ENTRY})
        with caches[1].measuring(lambda: answers.pop(0)):
            assert not answers, "it waits until it is stopped"
    with caches[1].measuring(lambda: False):
        assert caches[1].get("layer") is None
        caches[1].read_again()
        assert caches[1].get("layer") == ENTRY


@pytest.mark.skipif(cp is not None, reason="there is a GPU")
def test_without_a_gpu_the_error_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match=r"CuPy|no usable GPU|no GPU") as caught:
        open_engine("cudnn", tmp_path / "model.onnx", EngineOptions(device="cuda"))
    assert caught.value.remedy


def test_what_it_cannot_do(tmp_path: Path) -> None:
    for options, kind in (
        (EngineOptions(device="cpu"), CapabilityError),
        (EngineOptions(precision="bf16"), CapabilityError),
        (EngineOptions(threads=4), UsageError),
    ):
        with pytest.raises(kind) as caught:
            open_engine("cudnn", tmp_path / "model.onnx", options)
        assert caught.value.remedy


def test_plans_are_cached(tmp_path: Path) -> None:
    cache = PlanCache(ENVIRONMENT, tmp_path)
    assert cache.get("layer") is None and cache.note == ""
    cache.update({"layer": ENTRY})
    assert PlanCache(ENVIRONMENT, tmp_path).get("layer") == ENTRY
    assert PlanCache({**ENVIRONMENT, "cudnn": "92000"}, tmp_path).get("layer") is None


def test_built_kernels_are_kept_beside(tmp_path: Path) -> None:
    cache = PlanCache(ENVIRONMENT, tmp_path)
    cache.update({"layer": dict(ENTRY), "other": dict(ENTRY)}, {"layer": b"kernel"})
    again = PlanCache(ENVIRONMENT, tmp_path)
    entry = again.get("layer")
    assert entry is not None and again.kernel(entry) == b"kernel"
    assert again.kernel(ENTRY) == b"" and again.kernel({"kernel": "../../etc/passwd"}) == b""
    (file,) = (tmp_path / cache.path.stem).iterdir()
    file.write_bytes(b"damaged")
    assert again.kernel(entry) == b""
    file.unlink()
    assert again.kernel(entry) == b""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"plans": {}}', '{"environment": {}, "plans": {"a": {}}}', "\0"])
def test_damaged_caches_are_rebuilt(tmp_path: Path, content: str) -> None:
    cache = PlanCache(ENVIRONMENT, tmp_path)
    cache.update({"layer": ENTRY})
    cache.path.write_text(content)
    again = PlanCache(ENVIRONMENT, tmp_path)
    assert again.get("layer") is None and "is rebuilt" in again.note
    again.update({"other": ENTRY})
    assert set(json.loads(cache.path.read_text())["plans"]) == {"other"}


def test_a_plan_of_another_kind_is_no_plan(tmp_path: Path) -> None:
    cache = PlanCache(ENVIRONMENT, tmp_path)
    cache.update({"layer": {"engine": "3", "knobs": {}}})
    assert PlanCache(ENVIRONMENT, tmp_path).entries == {}


def test_two_writers_keep_each_others_plans(tmp_path: Path) -> None:
    caches = [PlanCache(ENVIRONMENT, tmp_path) for _ in range(4)]

    def write(number: int) -> None:
        for turn in range(10):
            caches[number].update({f"{number}-{turn}": ENTRY})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    caches[0].update({})
    found = json.loads(caches[0].path.read_text())["plans"]
    assert {f"0-{turn}" for turn in range(10)} <= set(found)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".lock"}  # no temporary file is left


WRITER = """
import sys
from pathlib import Path
from framefuse.engines.cudnn.plans import PlanCache
folder, number = Path(sys.argv[1]), sys.argv[2]
cache = PlanCache({"gpu": "none", "cudnn": "91900"}, folder)
for turn in range(20):
    name = f"{number}-{turn}"
    cache.update({name: {"engine": 3, "knobs": {}}}, {name: name.encode() * 1000})
"""


def test_two_processes_that_build_at_once(tmp_path: Path) -> None:
    """Neither loses what the other wrote, nobody reads half a file."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(number)]) for number in range(2)]
    reader = PlanCache(ENVIRONMENT, tmp_path)
    while any(process.poll() is None for process in processes):
        again = PlanCache(ENVIRONMENT, tmp_path)
        assert again.note == "" and again.entries.keys() >= reader.entries.keys()
        reader = again
    assert [process.returncode for process in processes] == [0, 0]
    cache = PlanCache(ENVIRONMENT, tmp_path)
    wanted = {f"{number}-{turn}" for number in range(2) for turn in range(20)}
    assert set(cache.entries) == wanted
    assert all(cache.kernel(cache.entries[name]) == name.encode() * 1000 for name in wanted)


def test_a_stale_cache_says_what_has_changed(tmp_path: Path) -> None:
    PlanCache(ENVIRONMENT, tmp_path).update({"layer": ENTRY})
    PlanCache({"gpu": "another", "cudnn": "91900", "driver": "1"}, tmp_path).update({"layer": ENTRY})
    (tmp_path / "other.json").write_text("{")
    cache = PlanCache({**ENVIRONMENT, "cudnn": "92000"}, tmp_path)
    assert cache.entries == {}
    assert "stale (cudnn was '91900', is '92000'): measured again" in cache.note
    cache.update({"layer": ENTRY})
    assert PlanCache({**ENVIRONMENT, "cudnn": "92000"}, tmp_path).note == ""


def test_a_cache_that_cannot_be_written(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    cache = PlanCache(ENVIRONMENT, tmp_path / "file" / "folder")
    cache.update({"layer": ENTRY})
    assert cache.get("layer") == ENTRY and "measured again next time" in cache.note


@pytest.mark.gpu
@pytest.mark.skipif(cp is None, reason=missing)
class TestGpu:
    @pytest.fixture(autouse=True)
    def cudnn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("cudnn")
        monkeypatch.setattr(convolutions, "CANDIDATES", 1)  # a second for every three

    def test_a_handle_comes_back_from_garbage(self) -> None:
        """CuPy destroyed its stream, and what measured on it next crashed."""
        gc.collect()  # what other tests left would come back with it
        builder = convolutions.Builder()
        vars(builder)["itself"] = builder
        handle = builder.handle
        del builder
        gc.collect()
        following = convolutions.Builder()
        assert following.handle == handle
        with following.stream:
            assert int(cp.random.standard_normal(1000, cp.float32).size) == 1000
        following.stream.synchronize()

    @pytest.mark.parametrize(("height", "width", "batch"), [(64, 96, 2), (160, 64, 1), (96, 136, 3)])
    def test_equals_onnx_runtime(self, tmp_path: Path, height: int, width: int, batch: int) -> None:
        net = Net()
        up, down = backbone(net, "images")
        path = net.save(tmp_path / "net.onnx", net.conv(up, 5, 1, act="none"), net.conv(down, 16, act="none"))
        engine = open_engine("cudnn", path, EngineOptions(device="cuda"))
        pool = engine.request_pool(batch, height, width, 2)
        for seed in range(4):
            x = np.random.default_rng(seed).random((batch, 3, height, width), np.float32)
            slots = [slot for slot in (pool.acquire(), pool.acquire()) if slot is not None]
            for slot in slots:
                slot.write(x)
                pool.submit(slot)
            assert pool.acquire() is None
            for slot in slots:
                assert pool.wait(slot, 10)
                for found, expected in zip(slot.outputs, onnx_runtime(path, rounded(x)), strict=True):
                    assert relative(found, expected) < 3e-3
                pool.release(slot)
        engine.close()

    @pytest.mark.parametrize("ours", [True, False])
    def test_residual_blocks_again_and_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
        """As those of a ResNet-18: with our kernels alone, each of which begins before the one before has ended."""
        if ours:
            monkeypatch.setattr(convolutions.Builder, "candidate_engines", lambda *given: [])
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        net = Net()
        x = net.conv(net.conv("images", 64, 7, 2, "relu"), 64, 3, 2, "relu")
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            for first in (True, False):
                step = stride if first else 1
                inside = net.conv(net.conv(x, channels, 3, step, "relu"), channels, 3, act="none")
                skip = net.conv(x, channels, 1, step, "none") if first and step > 1 else x
                x = net.node("Relu", net.node("Add", inside, skip, channels=channels), channels=channels)
        path = net.save(tmp_path / "net.onnx", x)
        engine = open_engine("cudnn", path, EngineOptions(device="cuda"))
        pool = engine.request_pool(1, 224, 224, 1)
        slot = pool.acquire()
        assert slot is not None
        for seed in range(20):
            image = images(1, 224, 224) * np.float32(1 + seed / 10)
            slot.write(image)
            pool.submit(slot)
            assert pool.wait(slot, 10)
            assert relative(slot.outputs[0], onnx_runtime(path, rounded(image))[0]) < 5e-3
        engine.close()

    @pytest.mark.parametrize("what", ["attention", "anchors", "filters for each channel"])
    def test_blocks_equal_onnx_runtime(self, tmp_path: Path, what: str) -> None:
        net, height, width = Net(), 96, 160
        if what == "attention":
            y = with_attention(net, height, width)
        elif what == "anchors":
            y = anchored(net, 80, height, width)
        else:
            x = net.conv("images", 32, stride=2)
            y = net.conv(net.node("Add", x, net.conv(x, 32, groups=32)), 32, 5, 2, "relu", groups=32)
        path, x = net.save(tmp_path / "net.onnx", y), images(2, height, width)
        engine = open_engine("cudnn", path, EngineOptions(device="cuda"))
        pool = engine.request_pool(2, height, width, 1)
        slot = pool.acquire()
        assert slot is not None
        slot.write(x)
        pool.submit(slot)
        assert pool.wait(slot, 10)
        for found, image in zip(slot.outputs[0], rounded(x), strict=True):
            assert relative(found, onnx_runtime(path, image[None])[0][0]) < 5e-3
        engine.close()

    @pytest.mark.parametrize("batch", [1, 3])
    def test_nodes_without_kernels_equal_onnx_runtime(self, tmp_path: Path, batch: int) -> None:
        net, height, width = Net(), 64, 96
        path = net.save(tmp_path / "net.onnx", *mixed(net, height, width))
        engine = open_engine("cudnn", path, EngineOptions(device="cuda"))
        pool = engine.request_pool(batch, height, width, 2)
        slots = [slot for slot in (pool.acquire(), pool.acquire()) if slot is not None]
        inputs = [np.random.default_rng(seed).random((batch, 3, height, width), np.float32) for seed in (1, 2)]
        for slot, x in zip(slots, inputs, strict=True):
            slot.write(x)
            pool.submit(slot)
        for slot, x in zip(slots, inputs, strict=True):
            assert pool.wait(slot, 10)
            *found, places = slot.outputs
            *expected, _ = onnx_runtime(path, rounded(x))
            assert all(relative(ours, theirs) < 5e-3 for ours, theirs in zip(found, expected, strict=True))
            assert np.array_equal(np.take_along_axis(found[1], places.astype(np.int64), 1), found[2])
        engine.close()

    def test_yolov8n(self) -> None:
        pytest.importorskip("av")  # the model is calibrated on frames of a clip
        import cudnn_reference as reference
        from benchmarks.models import model

        path, x = model("yolov8n"), images(1, 160, 160).astype(np.float16)
        engine = open_engine("cudnn", path, EngineOptions())
        pool = engine.request_pool(1, 160, 160, 1)
        slot = pool.acquire()
        assert slot is not None
        slot.write(x)
        pool.submit(slot)
        pool.wait(slot)
        compiled = slot.handle.execution.compiled
        values = reference.run(compiled, x.astype(np.float32), dtype=np.float16)
        expected = reference.decode_levels(values, compiled.network.head, 160, 160)
        found = slot.outputs[0]
        assert relative(found, expected) < 0.01  # random weights enlarge rounding; a trained model is far closer
        assert "cached" in engine.reasons[-1]

    def test_plans_come_from_the_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        net = Net()
        path = net.save(tmp_path / "net.onnx", net.conv(net.conv("images", 16), 8))
        told = []
        for _ in range(2):
            engine = open_engine("cudnn", path, EngineOptions())
            engine.request_pool(1, 32, 32, 1)
            told.append(engine.reasons[-1])
        assert "2 kernels measured, 0 cached" in told[0]
        assert "0 kernels measured, 2 cached" in told[1]
        assert "built again" not in told[1]

    def test_a_cached_plan_that_cannot_be_built(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(convolutions.Builder, "fastest_tile", lambda *given: None)  # ours leaves nothing to damage
        net = Net()
        path = net.save(tmp_path / "net.onnx", net.conv("images", 16))
        engine = open_engine("cudnn", path, EngineOptions())
        engine.request_pool(1, 32, 32, 1)
        (file,) = (tmp_path / "framefuse" / "cudnn").glob("*.json")
        (kernel,) = (tmp_path / "framefuse" / "cudnn" / file.stem).iterdir()
        kernel.write_bytes(b"damaged")
        content = json.loads(file.read_text())
        for entry in content["plans"].values():
            entry["engine"] = 9999
        file.write_text(json.dumps(content))
        engine = open_engine("cudnn", path, EngineOptions())
        engine.request_pool(1, 32, 32, 1)
        assert any("cuDNN cannot build engine 9999" in reason for reason in engine.reasons)

    @pytest.mark.parametrize("act", ["silu", "relu"])
    def test_kernels_measured_later(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
        """It starts with our kernels, and gives the same results with the fastest."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        net = Net()
        up, down = backbone(net, "images")
        beside = net.conv(down, 16, 1, act=act)
        inner = net.conv(net.conv(down, 16, act=act), 16, act="none")
        last = net.node("Relu", net.node("Add", beside, inner))
        path = net.save(tmp_path / "net.onnx", net.conv(up, 5, 1, act="none"), last)
        engine = open_engine("cudnn", path, EngineOptions(device="cuda", tunes_later=True))
        pool = engine.request_pool(2, 64, 96, 1)
        assert not list((tmp_path / "framefuse").glob("cudnn/*.json"))
        x = np.random.default_rng(0).random((2, 3, 64, 96), np.float32)
        expected = onnx_runtime(path, rounded(x))
        slot = pool.acquire()
        assert slot is not None
        slot.write(x)
        for turn in range(2):
            assert slot.handle.execution.version == turn
            pool.submit(slot)
            assert pool.wait(slot, 10)
            for found, wanted in zip(slot.outputs, expected, strict=True):
                assert relative(found, wanted) < 3e-3
            used = slot.handle.execution.kernels.plans.values()
            assert all(bool(plan.microseconds) == bool(turn) for plan in used)
            assert turn or {plan.engine for plan in used} <= {convolutions.OWN.engine, convolutions.TENSOR}
            engine.tune()
        (file,) = (tmp_path / "framefuse").glob("cudnn/*.json")
        assert len(json.loads(file.read_text())["plans"]) >= 8
        engine.close()

    def test_kernels_measured_beside_the_work(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(later, "DELAY", 0.1)
        net = Net()
        path = net.save(tmp_path / "net.onnx", net.conv(net.conv(net.conv("images", 16), 24), 32))
        for finishes in (False, True):
            engine = open_engine("cudnn", path, EngineOptions(device="cuda", tunes_later=True))
            execution = engine.execution(1, 64, 64)
            for thread in [one for one in threading.enumerate() if finishes and one.name == "ff-tune"]:
                thread.join(60)
            assert bool(execution.version) == finishes
            engine.close()
            assert not [thread for thread in threading.enumerate() if thread.name == "ff-tune"]
        assert any("3 kernels measured beside the work" in reason for reason in engine.reasons)

    def test_engines_measure_a_kernel_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both start with kernels of ours; the second takes what the first has measured since."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        net = Net()
        path = net.save(tmp_path / "net.onnx", net.conv(net.conv("images", 16), 24))
        engines = [open_engine("cudnn", path, EngineOptions(device="cuda", tunes_later=True)) for _ in range(2)]
        executions = [engine.execution(1, 64, 64) for engine in engines]
        for engine in engines:
            engine.tune()
        assert [execution.version for execution in executions] == [1, 1]
        assert [(engine._plans.measured, engine._plans.cached) for engine in engines] == [(2, 0), (0, 2)]
        for engine in engines:
            engine.close()

    def test_a_batcher_takes_the_measured_kernels(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        images = [np.full((640, 640, 3), shade, np.uint8) for shade in range(40)]
        with Model("scout-n", device="cuda") as model, Batcher(model, max_batch_size=4) as batcher:
            for found in [batcher.submit(image) for image in images]:
                found.result(30)
            captured = [one for program in batcher._runner._programs.values() for one in program._captured.values()]
            used = [batch for batches in captured for batch in batches if batch._launched]
            assert used and all(batch._version == batch.model.version for batch in used)
        assert not caplog.messages

    def test_what_is_not_known_is_listed(self, tmp_path: Path) -> None:
        net = Net()
        path = net.save(tmp_path / "net.onnx", net.node("Det", net.conv("images", 8)))
        with pytest.raises(ModelError, match="Det x1"):
            open_engine("cudnn", path, EngineOptions()).request_pool(1, 32, 32, 1)


def test_layers_are_told_apart_by_all_that_matters() -> None:
    first = Layer((1, 8, 4, 4), (128, 1, 32, 8), (8, 8, 3, 3), (1, 8, 4, 4), (128, 1, 32, 8), None, (1, 1),
                  (1, 1, 1, 1), (1, 1), "silu")  # fmt: skip
    assert first.text.startswith("x=(1,8,4,4) x_strides=(128,1,32,8) weight=(8,8,3,3)")
