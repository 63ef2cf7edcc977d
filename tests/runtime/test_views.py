"""Views: a part of a frame gives what its crop would give, whatever the batch, and odd requests get an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import media
from framefuse import Frame, Model, Pipeline, Result, View, draw, open_source
from framefuse.errors import FramefuseError, UsageError
from framefuse.report.report import Report
from framefuse.runtime.views import parse_roi, parse_tiles
from training.squares_clip import squares_clip, squares_scene


def scene(frames: int = 1, size: tuple[int, int] = (960, 540), seed: int = 1) -> list[NDArray[np.uint8]]:
    """Frames (height, width, 3) BGR with six squares each."""
    return [image[..., ::-1].copy() for image, _ in squares_scene(frames, size, seed=seed)]


def rows(result: Result) -> list[list[float]]:
    found = result.detections
    table = np.concatenate((found.xyxy, found.confidence[:, None], found.class_id[:, None]), axis=1)
    listed: list[list[float]] = table.tolist()
    return listed


def moved(table: list[list[float]], x: int, y: int) -> NDArray[np.float64]:
    return np.add(table, (x, y, x, y, 0, 0))


@pytest.mark.parametrize(
    ("text", "size", "count"),
    [
        ("2x3", (1920, 1080), 6),
        ("1x1", (640, 480), 1),
        ("640", (1920, 1080), 8),
        ("640:0", (1920, 1080), 6),
        ("640:0.5", (1921, 1079), 18),
        ("640", (320, 200), 1),
        ("3x5:0.1", (3840, 2160), 15),
        ("17", (99, 33), 24),
    ],
)
def test_tiles_cover_the_frame_and_overlap(text: str, size: tuple[int, int], count: int) -> None:
    tiles = parse_tiles(text)
    found = tiles.of((0, 0, *size))
    assert len(found) == count
    covered = np.zeros(size[::-1], np.int64)
    for x, y, width, height in found:
        assert x >= 0 <= y and x + width <= size[0] and y + height <= size[1]
        covered[y : y + height, x : x + width] += 1
    assert covered.min() == 1
    starts = sorted({(x, width) for x, _, width, _ in found})
    for (left, width), (right, _) in pairwise(starts):
        assert left + width - right >= tiles.overlap * width - 1


def test_regions_are_read_in_pixels_and_shares() -> None:
    assert parse_roi("10,20,30,40; 0.5,0,0.5,1") == [(10, 20, 30, 40), (0.5, 0, 0.5, 1)]
    assert parse_roi("0,0,9,0,9,9") == [(0, 0, 9, 0, 9, 9)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tiles": "2by3"}, "tiles is '2by3'"),
        ({"tiles": "0x3"}, "tiles is '0x3'"),
        ({"tiles": "4000x4000"}, "1 to 256 tiles"),
        ({"tiles": "640:1"}, "overlap below 0.9"),
        ({"tiles": "640:1.5"}, "overlap below 0.9"),
        ({"tiles": "8"}, "16 pixels or more"),
        ({"roi": "1,2,3"}, "roi is '1,2,3'"),
        ({"roi": "1,2,3,4;"}, "roi is ''"),
        ({"roi": "1,2,-3,4"}, "roi is '1,2,-3,4'"),
        ({"roi": "1,2,nan,4"}, "roi is '1,2,nan,4'"),
        ({"roi": "1,2,0,4"}, "no area"),
        ({"roi": "1,2,3,4", "stereo": "sbs"}, "choose one of them"),
        ({"stereo": "both"}, "one of auto, sbs, tb, left, right"),
        ({"views": 3}, "views is 3"),
        ({"views": lambda frame, latest: [], "tiles": "2x2"}, "let the function return all views"),
    ],
)
def test_what_cannot_be_a_view_is_refused_before_anything_runs(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        Pipeline(scene(), "squares", **options)
    assert says in f"{error.value.message} {error.value.remedy}"


def test_a_frame_within_one_tile_is_looked_at_once() -> None:
    frames = scene(3)
    plain, tiled = list(Pipeline(frames, "squares")), list(Pipeline(frames, "squares", tiles="960"))
    assert [rows(result) for result in tiled] == [rows(result) for result in plain]
    assert [view.tag for view in tiled[0].views] == ["whole"]
    assert plain[0].views == () and plain[0].detections.view is None


@pytest.mark.parametrize("region", [(320, 180, 640, 360), (301, 77, 513, 333), (0, 0, 961, 540), (2, 1, 961, 539)])
def test_a_region_gives_what_its_crop_gives(region: tuple[int, int, int, int]) -> None:
    frame = scene(size=(963, 541))[0]
    x, y, width, height = region
    with Model("squares", precision="fp32") as model:
        expected = rows(model(np.ascontiguousarray(frame[y : y + height, x : x + width])))
    (found,) = Pipeline([frame], "squares", precision="fp32", roi=",".join(map(str, region)))
    assert len(expected) and np.allclose(rows(found), moved(expected, x, y), atol=0.01)


def test_regions_of_a_rotated_image_are_those_of_the_image_as_shown(tmp_path: Path) -> None:
    image, exif = Image.fromarray(scene()[0][..., ::-1]), Image.Exif()
    exif[0x0112] = 6  # orientation: turn it clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    (shown,) = open_source(tmp_path / "turned.png")
    assert (shown.width, shown.height) == (540, 960) and shown.rotation == 90
    with Model("squares", precision="fp32") as model:
        expected = rows(model(np.ascontiguousarray(shown.to_bgr()[480:])))
    (found,) = Pipeline(tmp_path / "turned.png", "squares", precision="fp32", roi="0,0.5,1,0.5")
    assert len(expected) and np.allclose(rows(found), moved(expected, 0, 480), atol=0.01)


@pytest.mark.parametrize("batch", [2, *(pytest.param(batch, marks=pytest.mark.slow) for batch in (1, 4, 16))])
def test_views_are_spread_over_batches_and_frames_stay_in_order(batch: int) -> None:
    frames = scene(9)
    expected = [rows(result) for result in Pipeline(frames, "squares", tiles="2x3", precision="fp32")]
    results = list(Pipeline(frames, "squares", tiles="2x3", precision="fp32", batch=batch))
    assert [result.frame.index for result in results] == list(range(9))
    for result, wanted in zip(results, expected, strict=True):
        assert len(result.views) == 7
        np.testing.assert_allclose(rows(result), wanted, atol=0.01)


def test_small_objects_are_found_in_tiles() -> None:
    frame = np.full((2160, 3840, 3), 110, np.uint8)
    small = scene(size=(480, 270))[0]
    for x, y in ((100, 100), (1900, 900), (3300, 1800)):
        frame[y : y + 270, x : x + 480] = small
    (whole,), (tiled,) = Pipeline([frame], "squares"), Pipeline([frame], "squares", tiles="3x5")
    assert len(tiled.detections) == 18
    assert len(whole.detections) < 18


def test_sizes_that_change_and_results_of_several_files(tmp_path: Path) -> None:
    clips = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    for clip, size in zip(clips, ((640, 360), (360, 640)), strict=True):
        squares_clip(clip, frames=5, size=size)
    results = list(Pipeline(clips, "squares", tiles="2x2", batch=3, save_jsonl=True, project=tmp_path))
    assert [(Path(r.frame.source_id).stem, r.frame.index) for r in results] == [(s, n) for s in "ab" for n in range(5)]
    lines = [json.loads(line) for line in next(tmp_path.rglob("b.jsonl")).read_text().splitlines()]
    named = {row["view"] for line in lines for row in line["detections"]}
    assert named and named <= {"whole", "tile 1", "tile 2", "tile 3", "tile 4"}


@pytest.mark.slow
def test_views_are_shown_if_asked(tmp_path: Path) -> None:
    image = np.full((360, 640, 3), 60, np.uint8)
    Image.fromarray(image).save(tmp_path / "grey.png")
    squares_clip(tmp_path / "clip.mp4", frames=2, size=(640, 360))
    shown = []
    for show in (False, True):
        options = {"save": True, "show_views": show, "tiles": "1x2", "project": tmp_path / "runs"}
        still, clip = (Pipeline(tmp_path / name, "squares", **options) for name in ("grey.png", "clip.mp4"))
        still.run()
        clip.run()
        assert still.folder is not None and clip.folder is not None
        (frame, _) = open_source(clip.folder / "clip.mp4")
        shown.append((np.asarray(Image.open(still.folder / "grey.png")), frame.to_rgb()))
    (plain, before), (outlined, after) = shown
    assert (plain == 60).all() and 0.002 < (outlined == 255).mean() < 0.02
    white = (before.min(axis=2) < 200) & (after.min(axis=2) > 220)
    assert white.mean() > 0.002
    (result,) = Pipeline([image], "squares", tiles="1x2")
    frame = Frame.from_array(image)
    assert (draw(result, frame) == 60).all() and (draw(result, frame, views=True) == 255).any()


def test_a_video_whose_size_changes_has_other_tiles_from_there_on(tmp_path: Path) -> None:
    for name, size in (("a", (640, 360)), ("b", (480, 272))):
        squares_clip(tmp_path / f"{name}.ts", frames=3, size=size)
    (tmp_path / "both.ts").write_bytes(b"".join((tmp_path / f"{name}.ts").read_bytes() for name in "ab"))
    options: dict[str, Any] = {"tiles": "1x2", "batch": 4, "save": True, "show_views": True, "project": tmp_path}
    pipeline = Pipeline(tmp_path / "both.ts", "squares", **options)
    results = list(pipeline)
    assert [result.views[2].region for result in results[:1] + results[-1:]] == [(284, 0, 356, 360), (213, 0, 267, 272)]
    assert len(results) == 6 and all(len(result.views) == 3 for result in results)
    assert pipeline.folder is not None and len(list(pipeline.folder.glob("*.mp4"))) == 2


def test_eyes_are_named_and_kept_apart() -> None:
    left, right = scene(seed=1)[0], scene(seed=2)[0]
    (found,) = Pipeline([np.hstack([left, right])], "squares", stereo="sbs", precision="fp32")
    with Model("squares", precision="fp32") as model:
        alone = [rows(model(eye)) for eye in (left, right)]
    assert [view.tag for view in found.views] == ["left", "right"]
    for number, (expected, offset) in enumerate(zip(alone, (0, 960), strict=True)):
        eye = found.detections[np.asarray(found.detections.view) == number]
        assert np.allclose(np.sort(eye.xyxy[:, 0]), np.sort([row[0] + offset for row in expected]), atol=0.01)
    (one,) = Pipeline([np.hstack([left, right])], "squares", stereo="right")
    assert len(one.detections) == len(alone[1]) and one.detections.xyxy[:, 0].min() >= 960


def test_a_region_beyond_the_frame_is_clipped_and_said() -> None:
    pipeline = Pipeline(scene(2), "squares", roi="480,0,4000,540")
    assert [result.views[0].region for result in pipeline] == [(480, 0, 480, 540)] * 2
    assert pipeline.report.warnings.count("view 'roi 1' was clipped to the frame of 960x540") == 1


@pytest.mark.parametrize("whole", [True, False])
def test_a_region_beyond_the_frame_is_divided_where_it_is_inside(whole: bool) -> None:
    pipeline = Pipeline(scene(), "squares", roi="480,0,4000,4000", tiles="1x2:0", tiles_whole=whole)
    (result,) = pipeline
    assert [view.region for view in result.views][-2:] == [(480, 0, 240, 540), (720, 0, 240, 540)]
    assert len(result.views) == 2 + whole
    with pytest.raises(UsageError, match=r"4000x40 at \(2000, 0\).*nothing of it is inside"):
        list(Pipeline(scene(), "squares", roi="2000,0,4000,40", tiles="1x2", tiles_whole=whole))


def test_a_region_outside_of_the_frame_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing of it is inside"):
        list(Pipeline(scene(), "squares", roi="2000,0,100,100"))


def test_a_function_chooses_the_views_of_each_frame() -> None:
    given: list[int] = []

    def around(frame: Frame, latest: Sequence[Result]) -> list[View]:
        given.append(len(latest))
        if frame.index % 3 == 2:
            return []
        return [View((0, 0, 480, 540), "first half")] if frame.index % 3 else [View()]

    pipeline = Pipeline(scene(6), "squares", views=around)
    results = list(pipeline)
    assert [[view.tag for view in result.views] for result in results] == [["whole"], ["first half"], []] * 2
    assert [len(result.detections) for result in results][2::3] == [0, 0]
    assert all(results[n].detections.xyxy[:, 2].max() <= 480 for n in (1, 4))
    assert given[0] == 0 and len(given) == 6
    views = pipeline.report.views
    assert views is not None and (views.per_frame, views.pixels) == (pytest.approx(4 / 6), pytest.approx(0.5))


@pytest.mark.slow
def test_the_report_says_what_views_cost(tmp_path: Path) -> None:
    pipeline = Pipeline(squares(tmp_path), "squares", tiles="2x2", save_jsonl=True, project=tmp_path)
    pipeline.run()
    assert pipeline.folder is not None
    report = Report.from_json((pipeline.folder / "report.json").read_text())
    views, stages = report.views, {stage.name: stage for stage in report.stages}
    assert views is not None and views.per_frame == 5 and 2.2 < views.pixels < 2.3
    timed = [stages[name].busy_ms.mean for name in ("preprocess", "inference", "postprocess")]
    assert stages["inference"].items == 5 * report.frames and views.ms == pytest.approx(sum(timed))
    said = f"5 a frame, {views.ms:.3g} ms each, with {views.pixels:.3g} times its pixels"
    assert f"views    {said}" in report.table()
    page = (pipeline.folder / "report.html").read_text()
    assert all(part in page for part in ("<h2>Views</h2>", said, "each view is a frame"))
    plain = Pipeline(scene(), "squares")
    plain.run()
    assert plain.report.views is None and "<h2>Views</h2>" not in plain.report.to_html()


def squares(folder: Path) -> Path:
    """A clip of four frames of 640 x 360."""
    squares_clip(folder / "clip.mp4", frames=4, size=(640, 360))
    return folder / "clip.mp4"


@pytest.mark.parametrize(
    ("rubbish", "says"),
    [
        (None, "views returned None"),
        (["left"], "return a list of framefuse.View"),
        ([View(("a", 0, 1, 1))], "has the region"),  # type: ignore[arg-type]
        ([View((0, 0, 1))], "has the region"),  # type: ignore[arg-type]
        ([View((0, 0, float("inf"), 1))], "has the region"),  # type: ignore[arg-type]
        ([View((0, 0, 9, 9), outline=((0, 0), (9, 9)))], "three corners"),
        ([View(outline=((0, 0), (9, 9), (float("nan"), 1)))], "has the outline"),
        ([View(outline="abc")], "has the outline"),  # type: ignore[arg-type]
        ([View((0, 0, 0, 5), "thin")], "nothing of it is inside"),
        ([View((-9, 0, 5, 5), "beside")], "nothing of it is inside"),
        ({View()}, "views returned"),
        ([View()] * 300, "at most 256"),
        (ZeroDivisionError("by zero"), "views raised ZeroDivisionError"),
    ],
    ids=str,
)
def test_rubbish_from_the_function_names_the_frame_and_loses_nothing(rubbish: Any, says: str, tmp_path: Path) -> None:
    def choose(frame: Frame, latest: Sequence[Result]) -> Any:
        if frame.index == 3 and isinstance(rubbish, Exception):
            raise rubbish
        return rubbish if frame.index == 3 else [View()]

    clip = media.clip(tmp_path / "clip.mp4", frames=6)
    with pytest.raises(FramefuseError) as error:
        Pipeline(clip, "squares", views=choose, save_jsonl=True, project=tmp_path).run()
    assert says in f"{error.value.message} {error.value.remedy}" and "frame 3" in error.value.message
    assert len(next(tmp_path.rglob("clip.jsonl")).read_text().splitlines()) == 3


@pytest.fixture(scope="module")
def bodies() -> NDArray[np.uint8]:
    """A BGR image with people, 641 x 363."""
    (frame,) = open_source("synthetic://bodies?frames=1&size=642x364&seed=5")
    return np.ascontiguousarray(frame.to_bgr()[1:, 1:])


def mask_of(result: Result) -> NDArray[np.uint8]:
    assert result.masks is not None
    found: NDArray[np.uint8] = result.masks.class_id
    return found


@pytest.mark.parametrize("region", [(301, 77, 213, 233), (0, 1, 641, 361), (2, 0, 639, 363), (0, 0, 641, 363)])
def test_the_mask_of_a_region_is_that_of_its_crop(bodies: NDArray[np.uint8], region: tuple[int, int, int, int]) -> None:
    x, y, width, height = region
    with Model("body-n", precision="fp32") as model:
        expected = mask_of(model(np.ascontiguousarray(bodies[y : y + height, x : x + width])))
    (found,) = Pipeline([bodies], "body-n", precision="fp32", roi=",".join(map(str, region)))
    assert (expected > 0).mean() > 0.01
    np.testing.assert_array_equal(mask_of(found)[y : y + height, x : x + width], expected)
    assert mask_of(found).shape == (363, 641) and np.count_nonzero(mask_of(found)) == np.count_nonzero(expected)


def test_masks_of_a_rotated_image_are_those_of_the_image_as_shown(bodies: NDArray[np.uint8], tmp_path: Path) -> None:
    image, exif = Image.fromarray(np.rot90(bodies)[..., ::-1]), Image.Exif()
    exif[0x0112] = 6  # orientation: turn it clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    with Model("body-n", precision="fp32") as model:
        expected = mask_of(model(np.ascontiguousarray(bodies[31:, 101:])))
    (found,) = Pipeline(tmp_path / "turned.png", "body-n", precision="fp32", roi="101,31,540,332")
    assert np.array_equal(np.rot90(bodies).shape[:2], (641, 363)) and (expected > 0).mean() > 0.01
    np.testing.assert_array_equal(mask_of(found)[31:, 101:], expected)


@pytest.mark.parametrize("batch", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_masks_of_tiles_and_of_both_eyes_are_joined(bodies: NDArray[np.uint8], batch: int) -> None:
    options: dict[str, Any] = {"precision": "fp32", "batch": batch}
    with Model("body-n", precision="fp32") as model:
        whole, mirrored = mask_of(model(bodies)), mask_of(model(np.ascontiguousarray(bodies[:, ::-1])))
    stereo = np.hstack([bodies, bodies[:, ::-1]])
    (eyes,) = Pipeline([stereo], "body-n", stereo="sbs", **options)
    np.testing.assert_array_equal(mask_of(eyes), np.hstack([whole, mirrored]))
    (right,) = Pipeline([stereo], "body-n", stereo="right", **options)
    np.testing.assert_array_equal(mask_of(right), np.hstack([np.zeros_like(whole), mirrored]))
    tiled = list(Pipeline([bodies, bodies[:200], bodies], "body-n", tiles="1x2", **options))
    assert [len(result.views) for result in tiled] == [3, 3, 3]
    assert [mask_of(result).shape for result in tiled] == [(363, 641), (200, 641), (363, 641)]
    for result in tiled[::2]:
        assert ((mask_of(result) > 0) == (whole > 0)).mean() > 0.97
    (none,) = Pipeline([bodies], "body-n", views=lambda frame, latest: [], **options)
    assert mask_of(none).shape == (363, 641) and not mask_of(none).any()


def test_a_model_looks_at_views_of_each_image() -> None:
    images = scene(3)
    with Model("squares", tiles="2x3", precision="fp32") as model:
        found, alone = model(images), model(images[1])
        listed = [rows(result) for result in Pipeline(images, model)]
    assert [len(result.views) for result in found] == [7, 7, 7]
    assert [rows(result) for result in found] == listed
    assert rows(alone) == listed[1]
