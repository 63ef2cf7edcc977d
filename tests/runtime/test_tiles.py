"""Tiles that are chosen: by the size of the frame, and by the time of the model, which a test states."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from fake_gpu import Gpu
from framefuse import Frame, Model, Pipeline
from framefuse.engines.null import CudaNullEngine, NullEngine
from framefuse.errors import UsageError
from framefuse.lab.evaluation import validate
from framefuse.models.card import Card
from framefuse.preprocess import Preprocess
from framefuse.runtime.cuda.program import CudaProgram
from framefuse.runtime.profiling import median_seconds
from framefuse.runtime.program import HostProgram, Selection
from framefuse.runtime.tiles import AutoTiles, Tiles, choose_tiles
from framefuse.sources import SourceInfo

UHD, HD, SQUARE = (3840, 2160), (1920, 1080), (640, 640)


@pytest.mark.parametrize(
    ("size", "options", "grid", "says"),
    [
        (UHD, {"seconds": 0.00344, "rate": 30}, (2, 4), "31 ms for 9 views of 3.44 ms within 1/30 s"),
        (UHD, {"seconds": 0.0047, "rate": 30}, (2, 3), "the finest that fit, 32.9 ms for 7 views of 4.7 ms"),
        (UHD, {"seconds": 0.0001, "rate": 30}, (4, 8), "they show every pixel, 3.3 ms for 33 views"),
        (UHD, {"seconds": 0.0112, "rate": 30}, None, "none at 3840x2160: 3 views of 11.2 ms within 1/30 s do not fit"),
        (UHD, {"seconds": 0.0111, "rate": 30}, (1, 2), "33.3 ms for 3 views"),
        (UHD, {"seconds": 0.0112, "rate": 30, "whole": False}, (1, 2), "22.4 ms for 2 views of 11.2 ms"),
        (UHD, {"seconds": 0.0023, "rate": 30, "parts": 2}, (2, 3), "32.2 ms for 14 views of 2.3 ms"),
        (UHD, {}, (3, 5), "the finest that fit, 16 views without target_fps"),
        (HD, {}, (2, 4), "2x4 of 640x640 at 1920x1080: they show every pixel, 9 views"),
        (HD, {"seconds": 0.0, "rate": 1000}, (2, 4), "they show every pixel"),
        (HD, {"parts": 8}, None, "none at 1920x1080: 24 views without target_fps do not fit"),
        ((832, 832), {}, None, "hardly larger than the model's input of 640x640"),
        ((833, 400), {}, (1, 2), "1x2 of 640x400"),
        ((99, 5000), {}, (10, 1), "10x1 of 99x640"),
        ((1, 1), {}, None, "hardly larger"),
    ],
)
def test_the_finest_tiles_that_fit(
    size: tuple[int, int], options: dict[str, Any], grid: tuple[int, int] | None, says: str
) -> None:
    tiles, reason = choose_tiles(size, SQUARE, **options)
    assert says in reason and reason.startswith("tiles: ")
    if grid is None:
        assert tiles is None
        return
    assert tiles is not None
    found = tiles.of((0, 0, *size))
    assert (len({y for _, y, _, _ in found}), len({x for x, _, _, _ in found})) == grid
    assert tiles == choose_tiles(size, SQUARE, **options)[0]


def test_more_time_never_gives_coarser_tiles_and_never_too_many() -> None:
    for size, model_input, whole in product((UHD, HD, (1500, 4000)), (SQUARE, (640, 384)), (True, False)):
        sides = []
        for views in range(1, 60):
            tiles, _ = choose_tiles(size, model_input, seconds=0.01 / views, rate=100, whole=whole)
            found = tiles.of((0, 0, *size)) if tiles else [(0, 0, *size)]
            assert tiles is None or len(found) + whole <= views
            sides.append(max(found[0][2] / model_input[0], found[0][3] / model_input[1], 1))
        assert sides == sorted(sides, reverse=True)


def test_many_sizes_make_a_short_report() -> None:
    auto = AutoTiles(SQUARE, whole=True)
    for width in range(1000, 1040, 2):
        auto.of((0, 0, width, 700), 1)
    assert len(auto.reasons) == 9 and auto.reasons[-1] == "tiles: chosen likewise for 12 more sizes"
    auto.limit(30.0, 1.0)
    assert auto.of((5, 6, 1000, 700), 1) == [(5, 6, 1000, 700)] and len(auto.reasons) == 1


def test_the_time_is_a_median_after_the_first_call() -> None:
    calls: list[None] = []
    assert median_seconds(lambda: calls.append(None)) < 0.1 and len(calls) == 6
    median_seconds(lambda: calls.append(None), limit=0.0)
    assert len(calls) == 8


def frame(width: int, height: int) -> np.ndarray[Any, Any]:
    return np.full((height, width, 3), 90, np.uint8)


def takes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[None]:
    """Makes every model take so long a row; the calls that measured it."""
    calls: list[None] = []
    monkeypatch.setattr(HostProgram, "row_seconds", lambda self: (calls.append(None), seconds)[1])
    return calls


def test_sizes_that_change_are_chosen_anew_with_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = takes(monkeypatch, 0.0047)
    images = [frame(*HD), frame(2560, 1440), frame(600, 400), frame(*HD)]
    pipeline = Pipeline(images, "squares", engine="null", tiles="auto", target_fps=30)
    assert [len(result.views) for result in pipeline] == [7, 7, 1, 7]
    assert len(calls) == 1
    reasons = [text for text in pipeline.report.choices if text.startswith("tiles")]
    assert reasons == [
        "tiles: 2x3 of 739x600 at 1920x1080: the finest that fit, 32.9 ms for 7 views of 4.7 ms within 1/30 s",
        "tiles: 2x3 of 985x800 at 2560x1440: the finest that fit, 32.9 ms for 7 views of 4.7 ms within 1/30 s",
        "tiles: none at 600x400: it is hardly larger than the model's input of 640x640",
    ]


def test_files_have_no_limit_but_16_views_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = takes(monkeypatch, 1.0)
    (result,) = Pipeline([frame(*UHD)], "squares", engine="null", tiles="auto")
    assert len(result.views) == 16 and not calls
    with Model("squares", engine="null", tiles="auto") as model:
        assert len(model(frame(*UHD)).views) == 16 and not calls
    with Model("squares", engine="null", tiles="auto", target_fps=0.4) as model:
        assert len(model(frame(*UHD)).views) == 1 and len(calls) == 1


class Camera:
    """A live source that delivers two frames."""

    def __init__(self, fps: int | None) -> None:
        self.info = SourceInfo("camera", "camera", *HD, fps=fps)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        return iter([Frame.from_array(frame(*HD), index=number, source_id="camera") for number in range(2)])

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(("fps", "stride", "views"), [(30, 1, 7), (None, 1, 7), (60, 1, 3), (60, 2, 7), (90, 1, 1)])
def test_a_live_source_keeps_its_own_rate(
    monkeypatch: pytest.MonkeyPatch, fps: int | None, stride: int, views: int
) -> None:
    takes(monkeypatch, 0.0047)
    for result in Pipeline(Camera(fps), "squares", engine="null", tiles="auto", vid_stride=stride, max_age=60):
        assert len(result.views) == views


def test_regions_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    takes(monkeypatch, 0.0023)
    (result,) = Pipeline([frame(*UHD)], "squares", engine="null", tiles="auto", target_fps=30, stereo="sbs")
    assert len(result.views) == 14
    assert [view.tag for view in result.views if "tile" not in view.tag] == ["left", "right"]


@pytest.mark.parametrize("streams", [1, 2])
def test_the_host_measures_the_requests_of_its_engine(streams: int) -> None:
    with Model("squares", precision="fp32", streams=streams) as model:
        assert 0 < model._program.row_seconds() < 10
        assert len(list(model(frame(64, 48)).detections)) == 0


def test_the_time_of_a_row_is_a_share_of_that_of_a_batch(segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(run: Any) -> float:
        run()
        return 0.6

    monkeypatch.setattr("framefuse.runtime.program.median_seconds", timed)
    engine = NullEngine(lambda pixels: [np.zeros((3, 3, 32, 48), np.float32)])
    engine.streams = 2
    program = HostProgram(engine, segmenter, Preprocess(96, 64), Selection(), batch=3, slots=4)
    assert program.row_seconds() == pytest.approx(0.1)
    (pool,) = program._pools.values()
    assert len(list(iter(pool.acquire, None))) == 4  # all have been returned
    program.close()


def test_a_gpu_is_timed_by_launches_of_the_model(gpu: Gpu, segmenter: Card) -> None:
    engine = CudaNullEngine(lambda batch, height, width: [np.zeros((batch, 3, height // 2, width // 2), np.float32)])
    program = CudaProgram(engine, segmenter, Preprocess(96, 64), Selection(), batch=2)
    before = gpu.launches
    assert 0 < program.row_seconds() < 1
    assert gpu.launches - before == 24
    program.close()


def test_a_rate_without_tiles_to_choose_is_refused() -> None:
    for options in ({}, {"tiles": "2x2"}, {"views": lambda frame, latest: []}):
        with pytest.raises(UsageError, match="target_fps is 30") as error:
            Pipeline([frame(64, 48)], "squares", target_fps=30, **options)
        assert "tiles=auto" in str(error.value.remedy)
    with pytest.raises(UsageError, match="target_fps is 0"):
        Pipeline([frame(64, 48)], "squares", tiles="auto", target_fps=0)


def test_data_with_ground_truth_are_scored_with_chosen_tiles() -> None:
    scores = validate("scout-n", "synthetic://street?frames=1&size=1280x720", engine="null", tiles="auto")
    assert scores.frames == 1


def test_a_tile_is_no_larger_than_asked() -> None:
    assert Tiles(0, 0, 640, 0.2).of((10, 20, 600, 700)) == [(10, 20, 600, 640), (10, 80, 600, 640)]
