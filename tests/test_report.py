"""Profiling, verdict and report: numbers that can be trusted, sentences that come true, a page that is safe to open."""

from __future__ import annotations

import json
import math
import re
import threading
import tracemalloc
from dataclasses import dataclass, replace
from fractions import Fraction
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from random import Random
from time import process_time, thread_time

import av
import numpy as np
import pytest

from framefuse.errors import SinkError, UsageError
from framefuse.profiling import (
    Histogram,
    Measurements,
    Recorder,
    Spread,
    StageStats,
)
from framefuse.report import CopyFacts, ModelFacts, Report, build_report
from framefuse.sources import SourceInfo
from framefuse.threads import cpu_by_thread_name, name_thread, thread_named
from framefuse.verdict import Verdict, verdict

linux = pytest.mark.skipif(cpu_by_thread_name() is None, reason="per-thread CPU time is known on Linux only")
EVIL = "<script>alert('1')</script>&\"\x00</style>"


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
    before = tracemalloc.get_traced_memory()[0]
    hours(50)
    grown = tracemalloc.get_traced_memory()[0] - before
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
            seen.append(set(cpu_by_thread_name() or ()))
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


@linux
def test_engine_threads_are_charged_to_inference(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    openvino = pytest.importorskip("openvino")
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
    assert stats.cpu_ms == pytest.approx(used * 1e3, rel=0.1)
    assert stats.cpu_ms > 20


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


# --- verdict -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A stage of the simulated pipeline."""

    name: str
    cpu: float
    """CPU milliseconds a frame."""
    thread: str = ""
    """Its own thread; "": it only has helpers."""
    servers: int = 1
    sleep: float = 0.0
    """Milliseconds a frame without a core: disk, network, another device."""


def simulate(
    stages: list[Stage], cores: int, frames: int = 300, load: int = 0
) -> tuple[float, list[StageStats], float]:
    """Frames through stages that share cores: milliseconds in all, what a Recorder would have seen, idle share.

    Args:
        load: threads of other programs, always running.
    """
    jitter, queues = Random(0), [frames] + [0] * len(stages)
    jobs: list[list[float]] = []  # stage, CPU left, sleep left, start
    walls = [Histogram() for _ in stages]
    now = busy = 0.0
    while queues[-1] < frames:
        for number in reversed(range(len(stages))):
            stage = stages[number]
            while queues[number]:
                mine = [job for job in jobs if job[0] == number]
                taken = stage.thread and any(stages[int(job[0])].thread == stage.thread for job in jobs)
                full = number + 1 < len(stages) and queues[number + 1] + len(mine) >= 4
                if taken or full or len(mine) >= stage.servers:
                    break
                queues[number] -= 1
                jobs.append([number, stage.cpu * jitter.uniform(0.8, 1.2), stage.sleep, now])
        running = [job for job in jobs if job[1] > 0]
        rate = min(1.0, cores / max(len(running) + load, 1))
        step = min([job[1] / rate for job in running] + [job[2] for job in jobs if job[1] <= 0])
        now += step
        busy += min(cores, len(running) + load) * step
        for job in list(jobs):
            if job[1] > 0:
                job[1] = job[1] - step * rate if job[1] - step * rate > 1e-9 else 0.0
            else:
                job[2] = job[2] - step if job[2] - step > 1e-9 else 0.0
            if job[1] <= 0 and job[2] <= 0:
                jobs.remove(job)
                queues[int(job[0]) + 1] += 1
                walls[int(job[0])].add((now - job[3]) / 1e3)
    stats = [
        StageStats(
            stage.name,
            stage.thread or stage.name,
            frames,
            Spread.of(wall),
            cpu_ms=stage.cpu,
            own_cpu_ms=stage.cpu if stage.thread else 0.0,
            parallel=stage.servers,
            overlapped=not stage.thread,
        )
        for stage, wall in zip(stages, walls, strict=True)
    ]
    return now, stats, 1 - busy / (now * cores)


TYPICAL = [
    Stage("decode", 3.6, servers=2),
    Stage("preprocess", 0.5, "program"),
    Stage("inference", 17.0, servers=2),
    Stage("postprocess", 0.3, "program"),
    Stage("encode", 4.6, "write"),
]


def changed(**stages: Stage) -> list[Stage]:
    return [stages.get(stage.name, stage) for stage in TYPICAL]


@pytest.mark.parametrize(
    ("stages", "cores", "load", "limiter"),
    [
        pytest.param(TYPICAL, 2, 0, "inference", id="full machine"),
        pytest.param(TYPICAL, 2, 2, "inference", id="busy neighbours"),
        pytest.param(TYPICAL, 16, 0, "inference", id="engine threads on a large machine"),
        pytest.param(changed(inference=Stage("inference", 2.0, servers=2)), 8, 0, "encode", id="encoder thread"),
        pytest.param(changed(encode=Stage("encode", 0.2, "write", sleep=20.0)), 2, 0, "encode", id="slow disk"),
        pytest.param(changed(inference=Stage("inference", 0.1, sleep=30.0)), 2, 0, "inference", id="other device"),
        pytest.param(changed(decode=Stage("decode", 40.0, servers=2)), 16, 0, "decode", id="decoder threads"),
        pytest.param(
            changed(preprocess=Stage("preprocess", 12.0, "program")), 16, 0, "preprocess", id="program thread"
        ),
    ],
)
def test_what_ifs_come_true_when_the_stage_is_really_removed(
    stages: list[Stage], cores: int, load: int, limiter: str
) -> None:
    total, stats, idle = simulate(stages, cores, load=load)
    cpu = sum(stage.cpu for stage in stages)
    found = verdict(stats, cores=cores, frames=300, seconds=total / 1e3, cpu_ms=cpu, machine_idle=idle)
    assert found.limiter == limiter
    assert found.sentence.startswith(f"{limiter} limits: ")
    for what_if in found.what_ifs:
        without = [stage for stage in stages if stage.name != what_if.stage]
        really, _, _ = simulate(without, cores, load=load)
        # How much the neighbours take then is their affair, so that is a rougher guess.
        assert what_if.fps == pytest.approx(300e3 / really, rel=0.25 if load else 0.1), what_if.stage


def stats(name: str, cpu: float | None, *, thread: str = "write", wall: float = 0.0, parallel: int = 1) -> StageStats:
    """A stage of a run of 100 frames."""
    wall = wall or cpu or 0.0
    busy = Spread(mean=wall, p50=wall, min=wall, total=100 * wall)
    return StageStats(name, thread, 100, busy, cpu_ms=cpu, own_cpu_ms=cpu or 0.0, parallel=parallel)


def test_verdict_in_words() -> None:
    inference = StageStats("inference", "program", 100, Spread(min=24.0), cpu_ms=18.9, parallel=2, overlapped=True)
    rest = [stats("decode", 3.6, thread="decode"), stats("encode", 1.4)]
    found = verdict([*rest, inference], cores=2, frames=100, seconds=1.24, cpu_ms=24.1)
    assert found.sentence == (
        "inference limits: 18.9 of 24.1 CPU-ms per frame on 2 cores; "
        "if it cost nothing the run would reach about 270 fps (3.3x)"
    )
    assert found.explained == pytest.approx(24.1 / 2 / 12.4)


def test_a_live_source_that_keeps_up_is_the_limit() -> None:
    stages = [stats("decode", 2.0, thread="decode", wall=33.0), stats("encode", 5.0)]
    found = verdict(stages, cores=2, frames=100, seconds=100 / 30, cpu_ms=7.5, source_limits=True)
    assert found == Verdict(
        "the source limits (30 fps); the pipeline could do about 180 fps", "source", found.explained, ()
    )


def test_balanced_stages_are_not_blamed() -> None:
    stages = [stats("decode", 5.0, thread="decode"), stats("encode", 5.0)]
    found = verdict(stages, cores=8, frames=100, seconds=0.5, cpu_ms=10)
    assert found.limiter is None and found.sentence.startswith("no single stage limits")


def test_time_that_no_stage_explains_is_said() -> None:
    found = verdict(
        [stats("decode", 1.0), stats("encode", 2.0, thread="x")], cores=1, frames=100, seconds=2.0, cpu_ms=3
    )
    assert "15% of the time" in found.sentence


def test_copies_of_a_stage_run_side_by_side() -> None:
    decode = replace(stats("decode", 8.0, thread="decode"), copies=4)
    found = verdict([decode, stats("encode", 4.0)], cores=16, frames=100, seconds=0.4, cpu_ms=12)
    assert found.limiter == "encode" and found.what_ifs[0].factor == pytest.approx(2)


def test_verdict_without_cpu_times_rests_on_wall_times() -> None:
    stages = [stats("decode", None, thread="decode", wall=4.0), stats("encode", None, wall=10.0)]
    found = verdict(stages, cores=2, frames=100, seconds=1.0, cpu_ms=14)
    assert found.limiter == "encode" and found.what_ifs[0].factor == pytest.approx(2.5)


@pytest.mark.parametrize("frames", [0, 1, 100])
def test_verdict_of_next_to_nothing(frames: int) -> None:
    for stages in ([], [stats("decode", 0.0)], [stats("decode", 5.0)]):
        found = verdict(stages, cores=1, frames=frames, seconds=1.0, cpu_ms=0.0)
        assert found.sentence
        assert all(math.isfinite(what_if.fps) for what_if in found.what_ifs)


# --- report --------------------------------------------------------------------------------------------------------


def measurements(frames: int = 300) -> Measurements:
    latency = Histogram()
    for number in range(frames):
        latency.add(0.010 + number / 30_000)
    return Measurements(
        started="2025-11-20T14:30:01.123+00:00",
        finished="2025-11-20T14:30:05.000+00:00",
        seconds=3.6,
        frames=frames,
        stages=[
            replace(stats("decode", 3.6, thread="decode"), items=frames),
            StageStats(
                "inference",
                "program",
                frames,
                Spread(24, 24, 30, 40, 20, 50, 7200),
                800,
                0,
                16.0,
                0.1,
                2,
                overlapped=True,
            ),
            stats(EVIL, 2.0),
            stats("quiet", None),
        ],
        latency_ms=Spread.of(latency) if frames else None,
        latency_bars=[(bound * 1e3, count) for bound, count in latency.bars()],
        fps_over_time=[(0.9, 80.0), (1.8, 85.0), (2.7, 84.0), (3.6, 84.0)] if frames else [],
        cpu_seconds=6.9,
        machine_idle=0.04,
        peak_rss_mb=247.3,
        minor_faults=9123,
    )


def full_report(folder: Path) -> Report:
    source = SourceInfo(
        f"videos/{EVIL}.mp4", "file", 1920, 1080, Fraction(30000, 1001), notes=[EVIL], drops={"corrupt": 2}
    )
    error = SinkError(f"cannot write {EVIL}", remedy=f"free some space {EVIL}")
    error.stage = "write"
    return build_report(
        measurements(),
        sources=[source],
        model=ModelFacts(EVIL, "yolov8", "640x384", "openvino", "bf16"),
        choices=[f"engine openvino: {EVIL}"],
        detections={"car": 345, EVIL: 2000, **{f"class {number}": 0 for number in range(80)}},
        outputs=[
            folder / "a b.mp4",
            folder / "javascript:alert(1)",
            folder / EVIL.replace("/", "").replace("\x00", ""),
        ],
        warnings=[EVIL],
        error=error,
    )


def test_summary() -> None:
    report = build_report(measurements(), detections={"car": 2345})
    assert report.summary() == (
        "300 frames in 3.6 s, 83.3 fps, 15.0 ms p50 latency, 2,345 detections; inference limits"
    ).replace("15.0", f"{report.latency_ms.p50:.1f}" if report.latency_ms else "")
    assert report.latency_ms and report.latency_ms.p50 == pytest.approx(15.0, rel=0.02)


def test_summary_of_a_failed_run_names_error_and_stage(tmp_path: Path) -> None:
    assert full_report(tmp_path).summary().endswith("; ended by SinkError in write")
    stopped = build_report(measurements(0), error=KeyboardInterrupt())
    assert stopped.summary() == "0 frames in 3.6 s, 0.0 fps, 0 detections; ended by KeyboardInterrupt"


def test_table_fits_and_says_what_matters(tmp_path: Path) -> None:
    report = full_report(tmp_path)
    table = report.table()
    stage_lines = [
        line for line in table.splitlines() if line.startswith(("decode", "inference", "quiet", "other", "all"))
    ]
    assert len(stage_lines) == 5 and max(map(len, stage_lines)) <= 100
    for text in (report.verdict, "free some space", "engine openvino", "a b.mp4", "2 corrupt"):
        assert text in table


def test_json_round_trip(tmp_path: Path) -> None:
    report = full_report(tmp_path)
    again = Report.from_json(report.to_json())
    assert again.to_dict() == json.loads(report.to_json()) | {
        "latency_bars": report.latency_bars,
        "fps_over_time": report.fps_over_time,
    }
    assert again == report
    assert again.other_cpu_ms == pytest.approx(6.9e3 / 300 - 21.6)


def test_json_of_another_schema_or_kind_is_refused() -> None:
    report = build_report(measurements())
    with pytest.raises(UsageError, match="schema 99"):
        Report.from_json(replace(report, schema=99).to_json())
    for text in ("{}", "[1]", "not json", b"\xff"):
        with pytest.raises(UsageError, match="not a framefuse report"):
            Report.from_json(text)


def test_live_source_without_drops_is_named() -> None:
    live = SourceInfo("rtsp://camera/1", "live", fps=Fraction(84), drops={"superseded": 3})
    assert build_report(measurements(), sources=[live]).limiter == "source"
    live.drops["superseded"] = 100
    assert build_report(measurements(), sources=[live]).limiter == "inference"


def test_save_writes_json_and_html(tmp_path: Path) -> None:
    report = build_report(measurements(), outputs=[tmp_path / "run" / "out.mp4"])
    paths = report.save(tmp_path / "run")
    assert [path.name for path in paths] == ["report.json", "report.html"]
    assert Report.from_json(paths[0].read_text("utf-8")) == report
    assert "href='out.mp4'" in paths[1].read_text("utf-8")


def test_save_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot write the report"):
        build_report(measurements()).save(tmp_path / "file")


class Page(HTMLParser):
    """Collects tags and checks that they are balanced."""

    VOID = frozenset({"meta"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_safe_and_complete_page(tmp_path: Path) -> None:
    html = full_report(tmp_path).to_html(tmp_path)
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert "script" not in tags and "link" not in tags and "img" not in tags and tags.count("style") == 1
    assert not re.search(r"https?:|@import|url\(|src=|\x00", html)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links[:2] == ["a%20b.mp4", "javascript%3Aalert%281%29"]
    for text in (
        "Inference limits",
        "alert('1')",
        "The run ended early in write",
        "free some space",
        "29.97 fps",
        "345",
    ):
        assert text in page.text
    assert "70 more classes" in page.text


def test_html_of_a_run_whose_samples_all_fell_between_frames(tmp_path: Path) -> None:
    report = replace(full_report(tmp_path), fps_over_time=[(0.5, 0.0), (1.0, 0.0), (1.5, 0.0)])
    assert "Frames per second over time" not in Page(report.to_html()).text


def test_what_was_copied_is_said_and_survives_json(tmp_path: Path) -> None:
    copies = [CopyFacts("preprocess", "h2d", "control", 544.0), CopyFacts("write", "d2h", "pixels", 3110400.0)]
    report = replace(full_report(tmp_path), copies=copies)
    assert "3,110,400 bytes of pixels, 544 of tables" in report.table()
    assert "3,110,400" in Page(report.to_html()).text
    assert Report.from_json(report.to_json()).copies == copies
    assert "copies" not in full_report(tmp_path).table()


def test_html_of_an_empty_run(tmp_path: Path) -> None:
    empty = Recorder().snapshot()
    page = Page(build_report(empty, error=UsageError("no such file")).to_html())
    assert "No frame was processed" in page.text and "no such file" in page.text


def test_html_says_nothing_about_a_frame_where_there_was_none(tmp_path: Path) -> None:
    page = Page(build_report(measurements(frames=0), outputs=[tmp_path]).to_html(tmp_path))
    said = page.text
    assert "0 frames in 3.6 s" in said and "CPU per frame" not in said and "faults a frame" not in said
    assert "Where a frame's CPU time goes" not in said
    assert "this folder" in said  # where images were written


def test_html_is_styled() -> None:
    html = build_report(measurements()).to_html()
    style = html[html.index("<style>") : html.index("</style>")]
    for name in {name for _, attributes in Page(html).tags for name in (attributes.get("class") or "").split()}:
        assert f".{name}" in style, name
