"""Profiling: percentiles, histograms and CPU times of threads that can be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
from itertools import pairwise
from pathlib import Path
from time import process_time, thread_time

import av
import numpy as np
import pytest

from framefuse.common.machine import python_path
from framefuse.runtime import profiling, threads
from framefuse.runtime.profiling import Histogram, Recorder, Spread
from framefuse.runtime.threads import HelperCpu, name_thread, thread_named

linux = pytest.mark.skipif(not HelperCpu().known, reason="per-thread CPU time is known on Linux only")


# --- recording ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [3e-6, 2e-3, 40.0])
def test_percentiles_are_within_two_percent(scale: float) -> None:
    values = np.random.default_rng(0).lognormal(0, 0.8, 20_000) * scale
    histogram = Histogram()
    for value in values:
        histogram.add(float(value))
    for percent in (50, 95, 99):
        assert histogram.percentile(percent) == pytest.approx(np.percentile(values, percent), rel=0.02)
    assert (histogram.count, histogram.low, histogram.high) == (20_000, values.min(), values.max())
    assert histogram.total == pytest.approx(values.sum())


def test_histogram_takes_extremes() -> None:
    histogram = Histogram()
    assert histogram.percentile(50) == 0 and histogram.bars() == []
    for value in (0.0, 1e-12, 1e9):
        histogram.add(value)
    assert histogram.percentile(1) <= histogram.percentile(100) == 1e9
    assert Spread.of(Histogram()) == Spread()


def test_one_value_is_every_percentile() -> None:
    histogram = Histogram()
    histogram.add(0.0123, 7)
    spread = Spread.of(histogram)
    assert {spread.p50, spread.p95, spread.p99, spread.min, spread.max} == {12.3}
    assert spread.total == pytest.approx(7 * 12.3)


def test_bars_hold_every_value() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    bars = histogram.bars(10)
    assert sum(count for _, count in bars) == 1000
    assert all(low < high for (low, _), (high, _) in pairwise(bars))


def test_a_batch_is_shared_by_its_frames() -> None:
    recorder = Recorder()
    clock = recorder.stage("preprocess")
    clock.add(0.008, items=4, wait_in=0.5)
    clock.add(0.0, items=0, wait_out=0.25)
    (stats,) = recorder.snapshot().stages
    assert (stats.items, stats.wait_in_ms, stats.wait_out_ms) == (4, 500, 250)
    assert stats.busy_ms.p50 == pytest.approx(2.0)
    assert recorder.stage("preprocess") is clock


def _held_by_the_recorder() -> int:
    """The bytes allocated by the profiler: what other threads of the test process allocate is not counted."""
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, profiling.__file__)])
    return sum(trace.size for trace in snapshot.traces)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_run() -> None:
    now = [0.0]
    recorder = Recorder(clock=lambda: now[0])
    clock = recorder.stage("decode")

    def hours(count: int) -> None:
        for _ in range(count):
            for _ in range(40):
                now[0] += 90.0
                clock.add(now[0] % 0.1 + 1e-4, wait_out=0.1)
                recorder.frame(now[0] % 0.3)

    hours(5)
    tracemalloc.start()
    before = _held_by_the_recorder()
    hours(50)
    grown = _held_by_the_recorder() - before
    tracemalloc.stop()
    assert grown < 20_000
    measured = recorder.snapshot()
    assert measured.frames == 55 * 40
    assert 50 < len(measured.fps_over_time) <= 240
    ends = [0.0, *(end for end, _ in measured.fps_over_time)]
    frames = sum(
        fps * (end - start) for (start, end), (_, fps) in zip(pairwise(ends), measured.fps_over_time, strict=True)
    )
    assert frames == pytest.approx(measured.frames, abs=1)


def test_start_forgets_and_stop_holds() -> None:
    now = [0.0]
    recorder = Recorder(clock=lambda: now[0])
    clock = recorder.stage("decode")
    clock.add(1.0)
    recorder.frame(1.0)
    now[0] = 10.0
    recorder.start()
    clock.add(0.5)
    recorder.frame()
    now[0] = 12.0
    recorder.stop()
    now[0] = 99.0
    recorder.stop()
    measured = recorder.snapshot()
    assert (measured.frames, measured.seconds, measured.latency_ms) == (1, 2.0, None)
    assert measured.stages[0].busy_ms.total == 500
    assert recorder.snapshot().cpu_seconds == measured.cpu_seconds


# --- whose CPU time is it ------------------------------------------------------------------------------------------


@linux
def test_threads_are_named_and_named_back() -> None:
    def work() -> None:
        first = name_thread("ff-a-name-that-is-long")
        with thread_named("ff-inside"):
            seen.append({Path("/proc/thread-self/comm").read_text().strip()})
        seen.append({name_thread("x") or "", first or ""})

    seen: list[set[str]] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "ff-inside" in seen[0]
    assert "ff-a-name-that-" in seen[1]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (360, 640, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        for number in range(30):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 3 * number, 1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@linux
def test_decoder_and_encoder_threads_are_charged_to_their_stages(clip: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    decode, encode = recorder.stage("decode"), recorder.stage("encode")
    frames: list[av.VideoFrame] = []

    def read() -> None:
        name_thread("ff-decode")
        with av.open(str(clip)) as container:
            stream = container.streams.video[0]
            stream.thread_type, stream.codec_context.thread_count = "FRAME", 2
            for _ in range(8):
                container.seek(0)
                began = thread_time()
                for frame in container.decode(stream):
                    now = thread_time()
                    decode.add(0.001, cpu=now - began)
                    recorder.frame()
                    began = now
                    frames.append(frame)
            recorder.sample()

    def write() -> None:
        name_thread("ff-write")
        began = thread_time()
        with av.open(str(tmp_path / "out.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
            stream.codec_context.thread_count = 2
            for frame in frames:
                frame.pts = None
                container.mux(stream.encode(frame))
            recorder.sample()
            encode.add(0.001, cpu=thread_time() - began)

    for work in (read, write):
        before = process_time()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        used = process_time() - before
        stage = "decode" if work is read else "encode"
        charged = {
            stats.name: (stats.cpu_ms or 0) * recorder.snapshot().frames / 1e3 for stats in recorder.snapshot().stages
        }
        assert charged[stage] == pytest.approx(used, rel=0.2)
        assert charged[stage] > 0.03


def charged_to_inference() -> tuple[float, float]:
    """CPU milliseconds of OpenVINO's threads by the recorder, and by the process's clock."""
    import onnx
    import openvino

    helper = onnx.helper
    weights = np.full((32, 32, 3, 3), 0.01, np.float32)
    shape = [1, 32, 128, 128]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "conv",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, shape)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with thread_named("ff-engine"):
        compiled = openvino.Core().compile_model(
            openvino.Core().read_model(model.SerializeToString()), "CPU", {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2}
        )
    recorder = Recorder()
    recorder.stage("inference", parallel=2)
    requests = [compiled.create_infer_request() for _ in range(2)]
    data = np.zeros(shape, np.float32)
    before, own = process_time(), thread_time()
    for number in range(40):
        request = requests[number % 2]
        request.wait()
        request.start_async({0: data})
    for request in requests:
        request.wait()
    recorder.frame()
    used = process_time() - before - (thread_time() - own)
    (stats,) = recorder.snapshot().stages
    return stats.cpu_ms or 0.0, used * 1e3


@linux
def test_engine_threads_are_charged_to_inference() -> None:
    """In a process of its own: where OpenVINO has run before, it keeps threads that are called otherwise."""
    pytest.importorskip("openvino")
    program = "import test_profiling; print(*test_profiling.charged_to_inference())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": python_path()})  # fmt: skip
    assert done.returncode == 0, done.stderr
    charged, used = map(float, done.stdout.split())
    assert charged == pytest.approx(used, rel=0.1)
    assert charged > 20


@linux
def test_a_python_thread_that_is_ending_is_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        name_thread("ff-engine")
        while not done.is_set():
            pass

    done = threading.Event()
    recorder = Recorder()
    recorder.stage("inference")
    thread = threading.Thread(target=work)
    thread.start()
    recorder.sample()
    rest = [other for other in threading.enumerate() if other is not thread]
    with monkeypatch.context() as patch:
        patch.setattr(threading, "enumerate", lambda: rest)
        (stats,) = recorder.snapshot().stages
    done.set()
    thread.join()
    assert stats.cpu_ms == 0


def test_cpu_of_a_stage_that_measured_nothing_is_unknown() -> None:
    recorder = Recorder()
    recorder.stage("nothing").add(0.1)
    assert recorder.snapshot().stages[0].cpu_ms is None


@linux
def test_an_engine_without_threads_costs_no_cpu() -> None:
    recorder = Recorder()
    recorder.stage("inference").add(0.1)
    assert recorder.snapshot().stages[0].cpu_ms == 0


def test_stages_come_in_pipeline_order() -> None:
    recorder = Recorder()
    for name in ("video", "inference", "jsonl", "decode"):
        recorder.stage(name).add(0.1)
    assert [stage.name for stage in recorder.snapshot().stages] == ["decode", "inference", "video", "jsonl"]


def test_a_thread_that_ends_while_threads_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("7", "8"):
        (tmp_path / task).mkdir()
    (tmp_path / "8/comm").write_text("ff-decode\n")  # of the other one nothing is left
    monkeypatch.setattr(threads, "_TASKS", str(tmp_path))
    (tmp_path / "8/schedstat").write_text("1500000000 0 0\n")
    assert threads._read_tasks() == {8: ("ff-decode", 1.5)}


@linux
def test_numbers_of_threads_are_not_interned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 keeps such a text until the process ends, and each run starts threads with new numbers."""
    interned, intern = list[str](), sys.intern

    def note(text: str) -> str:
        interned.append(text)
        return intern(text)

    monkeypatch.setattr(sys, "intern", note)
    assert Path("/a/of-this-test").name in interned, "it notes what pathlib interns"
    helpers = HelperCpu()
    helpers.sample()
    assert str(threading.get_native_id()) in os.listdir(threads._TASKS)
    assert not [text for text in interned if text.isdigit()]
