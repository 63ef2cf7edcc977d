"""Adaptive compute in real runs: what comes out, in which order, and what it says about itself."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framefuse import Pipeline, View
from framefuse.adaptive import disagreement, guard
from framefuse.adaptive.ladder import Ladder, Rung
from framefuse.common.machine import cpu_model
from framefuse.errors import CapabilityError, ConfigError, UsageError
from framefuse.lab.evaluation import validate
from framefuse.prediction import Result
from framefuse.runtime import adaptive
from framefuse.runtime.adaptive import DeviceLimits, SharedLease
from framefuse.runtime.power import Counter, find_counters
from media import clip
from servers import Server

DAY = "synthetic://street?seed=5&frames=150&size=640x360&schedule=day&split=test"
STREET = "synthetic://street?seed=5&frames=48&size=640x360&split=test"


def run(source: Any, model: str | Path = "scout-n", **options: Any) -> list[Result]:
    return list(Pipeline(source, model, **options))


@pytest.fixture(scope="module")
def plain() -> list[Result]:
    return run(STREET)


@pytest.fixture(scope="module")
def adapted() -> list[Result]:
    return run(STREET, adaptive=True)


def test_every_frame_has_a_result_in_its_order(plain: list[Result], adapted: list[Result]) -> None:
    assert [result.frame for result in adapted] == [result.frame for result in plain]
    assert {result.inferred for result in adapted} == {True, False}
    assert all(result.inferred for result in plain)
    assert adapted[0].inferred
    assert adapted[-1].inferred
    assert all(result.why for result in adapted)


def test_inferred_frames_are_those_of_the_model_bit_for_bit(plain: list[Result], adapted: list[Result]) -> None:
    for one, other in zip(plain, adapted, strict=True):
        if other.inferred:
            for name in ("xyxy", "confidence", "class_id"):
                np.testing.assert_array_equal(getattr(one.detections, name), getattr(other.detections, name))
            assert other.rung == one.rung


def test_the_others_agree_with_the_model(plain: list[Result], adapted: list[Result]) -> None:
    lost = sum(disagreement(one.detections, other.detections) for one, other in zip(plain, adapted, strict=True))
    assert lost < 0.06 * sum(float(result.detections.confidence.sum()) for result in plain)
    assert all((result.detections.confidence > 0.25).all() for result in adapted)


@pytest.mark.slow
def test_an_empty_scene_costs_little_and_the_report_says_so() -> None:
    pipeline = Pipeline(DAY, "scout-n", adaptive=True)
    results = list(pipeline)
    share = np.mean([result.inferred for result in results])
    assert share < 0.7
    (line,) = (choice for choice in pipeline.report.choices if choice.startswith("adaptive"))
    assert f"the model saw {share:.0%} of the frames" in line


@pytest.mark.parametrize("frames", [1, 2, 17])
def test_short_sources(frames: int) -> None:
    results = run(f"synthetic://street?frames={frames}&size=320x240", adaptive=True)
    assert [result.frame.index for result in results] == list(range(frames))


def test_frames_of_several_sizes() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 255, (height, 160, 3), np.uint8) for height in (120, 120, 90, 90, 90, 120)]
    results = run(arrays, "squares", adaptive=True)
    assert [result.frame.height for result in results] == [120, 120, 90, 90, 90, 120]
    assert [result.inferred for result in results] == [True, True, True, False, True, True]


def test_no_block_goes_over_frames_of_another_size() -> None:
    arrays = [np.zeros((height, 160, 3), np.uint8) for height in (120, 120, 120, 90, 120, 120, 120)]
    results = run(arrays, "squares", adaptive=True)
    assert [result.inferred for result in results] == [True, False, True, True, True, False, True]


def test_many_images_leave_nothing_behind(tmp_path: Path) -> None:
    for number in range(30):
        Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / f"{number:02}.png")
    pipeline = Pipeline(tmp_path, "squares", adaptive=True)
    assert all(result.inferred for result in pipeline)
    (line,) = (choice for choice in pipeline.report.choices if choice.startswith("adaptive"))
    assert "saw 100% of the frames; expected agreement 1.000" in line


def test_several_sources_keep_their_own_blocks() -> None:
    sources = [f"synthetic://street?seed={seed}&frames=20&size=320x240" for seed in (1, 2)]
    results = run(sources, adaptive=True, readers=2)
    for source in {result.frame.source_id for result in results}:
        mine = [result for result in results if result.frame.source_id == source]
        assert [result.frame.index for result in mine] == list(range(20))
        assert not all(result.inferred for result in mine)


def test_files_come_one_after_another(tmp_path: Path) -> None:
    files = [clip(tmp_path / f"{number}.mp4", 10 + 7 * number) for number in range(4)]
    with Pipeline(files, "squares", adaptive=True, save_jsonl=True, project=tmp_path, name="run") as pipeline:
        found = [(result.frame.source_id, result.frame.index) for result in pipeline]
    assert found == [(str(file), index) for number, file in enumerate(files) for index in range(10 + 7 * number)]
    lines = {path.stem: len(path.read_text().splitlines()) for path in (tmp_path / "run").glob("[0-9]*.jsonl")}
    assert lines == {"0": 10, "1": 17, "2": 24, "3": 31}


@pytest.mark.slow
def test_batches_that_are_never_full_are_not_waited_for(adapted: list[Result]) -> None:
    """The frames of one stream that are held back ask for fewer rows than a batch has."""
    begun = perf_counter()
    results = run(STREET, adaptive=True, batch=32, batch_timeout=60.0, imgsz=320)
    assert perf_counter() - begun < 60
    assert [result.frame for result in results] == [result.frame for result in adapted]
    assert not all(result.inferred for result in results)


def test_tracks_go_on_through_frames_that_were_not_inferred() -> None:
    results = run(STREET, adaptive=True, track=True)
    skipped = [result for result in results if not result.inferred]
    assert skipped
    ids = [result.detections.tracker_id for result in skipped]
    with_ids = [one for one in ids if one is not None and (one >= 0).any()]
    assert len(with_ids) > 0.8 * len(skipped)


def test_outputs_mark_frames_that_were_not_inferred(tmp_path: Path) -> None:
    saved = {"save_jsonl": True, "save_csv": True, "save_json": True, "save": True}
    pipeline = Pipeline(STREET, "scout-n", adaptive=True, project=tmp_path, **saved)
    inferred = {result.frame.index: result.inferred for result in pipeline}
    folder = pipeline.folder
    assert folder is not None
    (lines,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {row["frame"]: row.get("inferred", True) for row in rows} == inferred
    (table,) = folder.glob("*.csv")
    for row in csv.DictReader(table.read_text().splitlines()):
        assert row["inferred"] == str(inferred[int(row["frame"])]).lower()
    (coco,) = (path for path in folder.glob("*.json") if path.name not in ("report.json", "manifest.json"))
    images = json.loads(coco.read_text())["images"]
    assert {image["frame"]: image.get("inferred", True) for image in images} == inferred


def test_parquet_marks_them_too(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pipeline = Pipeline(STREET, "scout-n", adaptive=True, save_parquet=True, project=tmp_path)
    inferred = {result.frame.index: result.inferred for result in pipeline}
    folder = pipeline.folder
    assert folder is not None
    (path,) = folder.glob("*.parquet")
    table = parquet.read_table(path).to_pydict()
    assert dict(zip(table["frame"], table["inferred"], strict=True)) == inferred


def test_leaving_early_closes_everything() -> None:
    pipeline = Pipeline(DAY, "scout-n", adaptive=True)
    for number, _ in enumerate(pipeline):
        if number == 20:
            break
    pipeline.close()
    assert pipeline.report.frames == 21


@pytest.mark.slow
def test_latency_shortens_blocks() -> None:
    results = run(DAY, adaptive=True, max_latency=0.14)  # four frames, so blocks of two
    runs = "".join("x" if result.inferred else "." for result in results)
    assert "." in runs
    assert ".." not in runs


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tiles": "2x2"}, UsageError, "beside tiles"),
        ({"stereo": "sbs"}, UsageError, "beside tiles"),
        ({"views": lambda frame, latest: [View()]}, UsageError, "beside tiles"),
        ({"target_fps": 30, "adaptive": False}, UsageError, "add tiles=auto or adaptive"),
        ({"min_agreement": 0}, UsageError, "min_agreement"),
        ({"max_latency": -1}, UsageError, "max_latency"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Pipeline(STREET, "scout-n", **{"adaptive": True, **options})


def test_a_segmenter_cannot_be_adapted() -> None:
    with pytest.raises(CapabilityError, match="has the task semantic"):
        Pipeline("synthetic://bodies?frames=4", "body-n", adaptive=True)


def test_an_error_of_the_source_keeps_what_was_found() -> None:
    def frames() -> Any:
        for number in range(40):
            if number == 30:
                raise RuntimeError("the camera fell down")
            yield np.zeros((120, 160, 3), np.uint8)

    results = []
    with pytest.raises(Exception, match="the camera fell down"):
        for result in Pipeline(frames(), "squares", adaptive=True):
            results.append(result.frame.index)
    assert results == list(range(30))


@pytest.mark.slow
def test_validation_says_what_it_costs() -> None:
    plain, adapted = (validate("scout-n", STREET, adaptive=adaptive) for adaptive in (False, True))
    assert plain.frames == adapted.frames == 48
    assert plain.boxes is not None
    assert adapted.boxes is not None
    assert 0 < adapted.boxes.map50_95 < plain.boxes.map50_95 + 0.05
    assert adapted.boxes.map50_95 > plain.boxes.map50_95 - 0.05


@pytest.mark.slow
def test_a_live_source_loses_no_frame_and_stays_young() -> None:
    results = []
    with Server() as server:
        pipeline = Pipeline(server.url(), "squares", adaptive=True)
        for result in pipeline:
            results.append(result)
            if len(results) == 60:
                break
    assert not all(result.inferred for result in results)
    numbers = [result.frame.index for result in results]
    assert numbers == sorted(numbers)
    assert len(numbers) > 0.8 * (numbers[-1] - numbers[0])


def test_the_limits_of_the_device_are_looked_at_once_a_second() -> None:
    clock = iter([0.0, 0.5, 1.0, 1.0, 1.5, 2.1, 2.1])
    joules = iter([0.0, 40.0, 45.0])
    limit = DeviceLimits(10, Counter("cpu", "test", value=lambda: next(joules)), clock=lambda: next(clock))
    assert limit.exceeded() == ""  # 0.0, which reads the clock again
    assert limit.exceeded() == "max_power"  # 1.0: 40 J in a second
    assert limit.exceeded() is None  # 1.5: too early
    assert limit.exceeded() == ""  # 2.1: 5 J


def test_heat_is_a_limit() -> None:
    clock = iter([0.0, 2.0, 4.0])
    hot = iter([False, True, False])
    limit = DeviceLimits(hot=lambda: next(hot), clock=lambda: next(clock))
    assert [limit.exceeded() for _ in range(3)] == ["", "its temperature", ""]


@pytest.mark.slow
def test_less_is_inferred_above_the_power_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    free = run(STREET, adaptive=True)
    counter = Counter("cpu", "test", value=lambda: 1000 * perf_counter())  # a device that draws a kilowatt
    monkeypatch.setattr(adaptive, "_counter", lambda gpu: counter)
    monkeypatch.setattr(adaptive, "LIMIT_SECONDS", 0.02)
    pipeline = Pipeline(STREET, "scout-n", adaptive=True, max_power=20)
    results = list(pipeline)
    assert len(results) == len(free)
    assert sum(result.inferred for result in results) < sum(result.inferred for result in free)
    assert any("over max_power" in choice for choice in pipeline.report.choices)


@pytest.mark.skipif(not find_counters()[0].missing, reason="this machine measures its power")
def test_a_power_limit_needs_a_counter() -> None:
    with pytest.raises(CapabilityError, match="max_power needs a power counter"):
        Pipeline(STREET, "scout-n", adaptive=True, max_power=20)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that acts within a short clip."""
    for name, value in {"DWELL": 0.02, "ENOUGH": 3, "CALM": 1000.0, "LONGEST_CALM": 1000.0}.items():
        monkeypatch.setattr(guard, name, value)


def _ladder(folder: Path, *rungs: tuple[str, int]) -> Path:
    """A file with a ladder of these models and sizes."""
    measured = [Rung(*one, "openvino", "auto", *[1.0] * 4, 1.0, 0.0, 0.5, 0.5, 0.5, 1.0) for one in rungs]
    path = folder / "ladder.json"
    path.write_text(Ladder(tuple(measured), "agreement", "", 1, cpu_model(), "").to_json())
    return path


@pytest.mark.usefixtures("quick")
def test_results_that_come_too_late_step_down_to_a_smaller_size(tmp_path: Path) -> None:
    # sizes far apart: their costs keep their order on a busy machine, too
    ladder = _ladder(tmp_path, ("scout-n", 192), ("scout-n", 640))
    pipeline = Pipeline(STREET, ladder, adaptive=True, max_latency=0.001)
    results = list(pipeline)
    assert [result.frame.index for result in results] == list(range(48))
    sizes = [int(result.rung.split()[-1]) for result in results if result.inferred]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (640, 192)
    assert results[-1].why.endswith("a cheaper rung, because results came too late")
    (line,) = (choice for choice in pipeline.report.choices if choice.startswith("rungs"))
    assert "1 switch, the last because results came too late" in line


@pytest.mark.usefixtures("quick")
def test_a_rung_that_sees_nothing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "AUDITS", 15.0)
    ladder = _ladder(tmp_path, ("scout-n", 64), ("scout-n", 640))
    pipeline = Pipeline(STREET, ladder, adaptive=True, max_latency=0.001)
    results = list(pipeline)
    sizes = [int(result.rung.split()[-1]) for result in results if result.inferred]
    first, last = sizes.index(64), len(sizes) - sizes[::-1].index(64)
    assert last - first < 24  # the audit comes after four looks or so: the other rung costs about fifty times as much
    assert set(sizes[last:]) == {640}
    (line,) = (choice for choice in pipeline.report.choices if choice.startswith("rungs"))
    assert "an audit found what it does not see" in line


@pytest.mark.usefixtures("quick")
def test_a_rung_that_was_left_out_takes_no_engine_from_the_next(tmp_path: Path) -> None:
    """The second rung is slower than the first, and the third has the model of the second."""
    ladder = _ladder(tmp_path, ("scout-s", 64), ("scout-s", 640), ("scout-n", 640))
    results = run(STREET, ladder, adaptive=True, max_latency=0.001)
    assert len(results) == 48
    looks = {result.rung for result in results if result.inferred}
    assert {rung.split()[0] + rung.split()[-1] for rung in looks} == {"scout-n640", "scout-s64"}


def test_rungs_have_the_same_classes(tmp_path: Path) -> None:
    ladder = _ladder(tmp_path, ("squares", 640), ("scout-n", 640))
    with pytest.raises(ConfigError, match=r"squares.onnx has other classes than scout-n.onnx"):
        Pipeline(STREET, ladder, adaptive=True, max_latency=0.1)


def test_a_surface_that_two_rungs_see_is_given_back_once_both_have_read_it() -> None:
    done: list[Any] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def release(self, after: Any = None) -> None:
            done.append(("released after", after.name if after else None))

        def synchronize(self) -> None:
            done.append(("waited for", self.name))

    lease = SharedLease(Recorder("surface"))
    lease.release(after=Recorder("first"))
    assert not done
    lease.release(after=Recorder("second"))
    assert done == [("waited for", "first"), ("released after", "second")]
