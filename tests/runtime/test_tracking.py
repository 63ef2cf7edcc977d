"""Tracking in a run: ids that depend on the video alone, and detections that do not depend on tracking."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from framefuse import Model, Pipeline, Result, draw, open_source
from framefuse.config import Settings
from framefuse.errors import UsageError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.prediction import Detections, FrameInfo
from framefuse.runtime.plan import RunPlan
from framefuse.runtime.program import FrameResult
from framefuse.runtime.tracking import IDS, Tracks
from framefuse.runtime.views import viewer_for
from framefuse.sources import SourceInfo
from framefuse.tracking import NO_TRACK
from training.squares_clip import squares_clip

STREET = "synthetic://street?seed=5&frames=15&size=480x270&fps=30&split=test"


@pytest.fixture(scope="module")
def model() -> Any:
    with Model("scout-n") as opened:
        yield opened


def table(results: list[Result]) -> list[list[list[float]]]:
    return [
        np.concatenate(
            (r.detections.xyxy, r.detections.confidence[:, None], r.detections.class_id[:, None]), 1
        ).tolist()
        for r in results
    ]


def tracks(results: list[Result]) -> list[list[int]]:
    assert all(result.detections.tracker_id is not None for result in results)
    return [result.detections.tracker_id.tolist() for result in results]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"conf": 0.05},
        {"conf": 0.6},
        {"max_det": 3},
        pytest.param({"tiles": "1x2"}, marks=pytest.mark.slow),
        {"agnostic_nms": True},
    ],
    ids=str,
)
def test_tracking_only_adds_ids(model: Any, options: dict[str, Any]) -> None:
    plain, tracked = (
        list(Pipeline(STREET, model, **options)),
        list(Pipeline(STREET, model, track="bytetrack", **options)),
    )
    assert table(plain) == table(tracked)
    assert len({number for row in tracks(tracked) for number in row} - {NO_TRACK}) > 2
    for one, other in zip(plain, tracked, strict=True):
        assert one.detections.tracker_id is None and (one.views == other.views)
        if one.views:
            assert (one.detections.view == other.detections.view).all()


def test_both_eyes_have_ids_of_their_own_and_know_each_other(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    squares_clip(clip, frames=12, size=(640, 360))
    with closing(open_source(clip)) as source:
        eyes = [frame.to_rgb()[..., ::-1] for frame in source]
    both = [np.hstack([eye, np.roll(eye, -8, 1)]) for eye in eyes]
    results = list(Pipeline(both, "squares", stereo="sbs", track="bytetrack", save_jsonl=True, project=tmp_path))
    pairs: dict[int, set[int]] = {}
    for result in results[2:]:
        found = result.detections
        assert found.tracker_id is not None and found.pair_id is not None and len(found) > 2
        for one in found:
            assert one.pair_id is not None and one.pair_id != one.tracker_id
            if one.pair_id >= 0:
                pairs.setdefault(one.tracker_id, set()).add(one.pair_id)  # type: ignore[arg-type]
    assert len(pairs) > 2 and all(len(others) == 1 for others in pairs.values())
    assert all(pairs[min(others)] == {track} for track, others in pairs.items())
    (lines,) = tmp_path.rglob("*.jsonl")
    rows = [row for line in lines.read_text().splitlines() for row in json.loads(line)["detections"]]
    assert {row["tracker_id"] for row in rows if row["pair_id"] is not None} == pairs.keys()


def test_conf_decides_what_is_shown_and_not_the_ids(model: Any) -> None:
    shown = {}
    for conf in (0.1, 0.3, 0.7):
        for result in Pipeline(STREET, model, track="ocsort", conf=conf):
            found = result.detections
            assert (found.confidence > conf).all() and found.tracker_id is not None
            for box, number in zip(found.xyxy.tolist(), found.tracker_id.tolist(), strict=True):
                assert shown.setdefault((result.frame.index, *box), number) == number


@pytest.mark.parametrize("batch", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_ids_do_not_depend_on_the_batch(batch: int) -> None:
    clips = [f"synthetic://street?seed={seed}&frames=7&size=320x180&split=test" for seed in (1, 2, 3)]
    expected = tracks(list(Pipeline(clips, "scout-n", track=True)))
    assert tracks(list(Pipeline(clips, "scout-n", track=True, batch=batch, streams=2))) == expected
    assert {number // IDS for row in expected for number in row if number >= 0} == {0, 1, 2}


@pytest.mark.slow
def test_ids_do_not_depend_on_how_many_files_are_read_at_once(tmp_path: Path) -> None:
    clips = [tmp_path / f"{seed}.mp4" for seed in range(4)]
    for seed, clip in enumerate(clips):
        squares_clip(clip, frames=9 + seed, seed=seed)

    def found(**options: Any) -> dict[tuple[str, int], list[int]]:
        results = list(Pipeline(clips, "squares", track="bytetrack", **options))
        keys = [(result.frame.source_id, result.frame.index) for result in results]
        return dict(zip(keys, tracks(results), strict=True))

    alone = found(readers=1)
    assert found(readers=3, batch=4) == found(readers=4, batch=1) == alone
    for number, clip in enumerate(clips):
        of_clip = {i for (source, _), row in alone.items() if source == str(clip) for i in row if i >= 0}
        assert of_clip and all(number * IDS < i < (number + 1) * IDS for i in of_clip)


def test_a_stride_keeps_the_times(model: Any) -> None:
    every = list(Pipeline(STREET, model, track="bytetrack"))
    third = list(Pipeline(STREET, model, track="bytetrack", vid_stride=3))
    surest = [result.detections.tracker_id[0] for result in third]  # type: ignore[index]
    assert len(third) == 5 and len(set(surest)) <= len({int(r.detections.tracker_id[0]) for r in every}) + 1  # type: ignore[index]


def test_images_of_a_folder_are_one_source(tmp_path: Path) -> None:
    for number in range(3):
        image = np.full((120, 160, 3), 120, np.uint8)
        image[40:80, 30 + 5 * number : 70 + 5 * number] = (220, 30, 30)
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    assert tracks(list(Pipeline(tmp_path, "squares", track="bytetrack"))) == [[1]] * 3


def frame_result(source: str, index: int, boxes: list[list[float]], pts: int | None = None) -> FrameResult:
    corner = np.array(boxes, np.float32).reshape(-1, 2)
    found = Detections(
        np.concatenate((corner, corner + 50), axis=1),
        np.linspace(0.9, 0.15, len(corner), dtype=np.float32),
        np.zeros(len(corner), np.int64),
    )
    info = FrameInfo(index, index if pts is None else pts, Fraction(1, 30), 640, 480, source)
    return FrameResult(Result(info, found), None)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.permutations([0] * 8 + [1] * 8 + [2] * 8))
def test_ids_do_not_depend_on_how_sources_alternate(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    start, speed = rng.uniform(0, 400, (3, 6, 2)), rng.normal(0, 5, (3, 6, 2))

    def run(order: list[int]) -> dict[tuple[int, int], list[int]]:
        infos = {str(number): SourceInfo(str(number), "camera", number=number) for number in range(3)}
        following = Tracks(Settings(track="bytetrack", conf=0.3), infos.__getitem__)
        step, found = [0, 0, 0], {}
        for source in order:
            index = step[source]
            boxes = (start[source] + index * speed[source])[: 6 - index % 2].tolist()
            result = following.follow(frame_result(str(source), index, boxes)).result
            assert result.detections.tracker_id is not None and (result.detections.confidence > 0.3).all()
            found[source, index], step[source] = result.detections.tracker_id.tolist(), index + 1
        return found

    assert run(order) == run(sorted(order))


def test_a_source_that_starts_again_or_is_away_gets_new_ids() -> None:
    info = SourceInfo("cam", "live")
    following = Tracks(Settings(track="bytetrack"), lambda name: info)
    pts = [0, 1, 2, 200, 201, 5, 6]
    found = [following.follow(frame_result("cam", i, [[10, 10]], time)).result for i, time in enumerate(pts)]
    assert tracks(found) == [[1]] * 3 + [[2]] * 2 + [[3]] * 2
    assert following.count == 3


def test_frames_without_times_have_those_of_the_rate() -> None:
    info = SourceInfo("pictures", "images", fps=Fraction(2))
    following = Tracks(Settings(track="bytetrack"), lambda name: info)
    found = []
    for index in (0, 1, 2, 10):
        result = frame_result("a.png", index, [[10, 10]]).result
        info_of = FrameInfo(index, None, Fraction(1, 1000), 640, 480, "a.png")
        found.append(following.follow(FrameResult(Result(info_of, result.detections), None)).result)
    assert tracks(found) == [[1], [1], [1], [2]]


def test_everything_that_is_written_has_the_ids(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    squares_clip(clip, frames=6)
    options = dict.fromkeys(("save", "save_csv", "save_jsonl", "save_json", "save_mot"), True)
    pipeline = Pipeline(clip, "squares", track=True, trail=0.5, project=tmp_path, name="run", **options)
    results = list(pipeline)
    folder, expected = tmp_path / "run", tracks(results)
    lines = [json.loads(line) for line in (folder / "clip.jsonl").read_text().splitlines()]
    assert [[row["tracker_id"] or NO_TRACK for row in line["detections"]] for line in lines] == expected
    cells = [row["tracker_id"] for row in csv.DictReader((folder / "clip.csv").read_text().splitlines())]
    assert cells == [str(number) if number >= 0 else "" for row in expected for number in row]
    rows = [row.split(",") for row in (folder / "clip.txt").read_text().splitlines()]
    numbers = [(frame, number) for frame, row in enumerate(expected, 1) for number in row if number >= 0]
    assert [(int(row[0]), int(row[1])) for row in rows] == numbers and {len(row) for row in rows} == {10}
    annotations = json.loads((folder / "clip.json").read_text())["annotations"]
    assert [row.get("track_id", NO_TRACK) for row in annotations] == [number for row in expected for number in row]
    assert len(list(open_source(folder / "clip.mp4"))) == 6
    count = len({number for row in expected for number in row} - {NO_TRACK})
    assert pipeline.report.tracks == count and f"{count} track" in pipeline.report.summary()
    assert results[0].detections.to_pandas().tracker_id.tolist() == expected[0]


def test_an_annotated_frame_shows_the_track(model: Any) -> None:
    image = np.full((240, 320, 3), 60, np.uint8)
    result = model(image)
    info = result.frame
    both = [
        draw(Result(info, Detections(np.array([[40, 60, 120, 160]], np.float32), np.array([0.9], np.float32),
             np.array([0]), {0: "car"}, tracker_id=np.array([number])), pixels=result.pixels))
        for number in (7, 8, NO_TRACK)
    ]  # fmt: skip
    assert (both[0] != both[1]).any() and (both[1] != both[2]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save_mot": True}, "save_mot was asked for, but nothing is tracked"),
        ({"trail": 2.0}, "trail was asked for, but nothing is tracked"),
        ({"track": "botsort"}, "track is 'botsort'"),
        ({"track": True, "track_low": 2}, "track_low is 2"),
    ],
)
def test_wrong_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pipeline(STREET, "scout-n", **options)


@pytest.mark.parametrize(("low", "merges"), [(None, 7), (0.1, 0), (0.25, 7)])
def test_a_gpu_merges_no_views_whose_weak_boxes_only_the_tracker_needs(low: float | None, merges: int) -> None:
    card = read_card(find_model("scout-n"))
    asked = {} if low is None else {"track": "bytetrack", "track_low": low}
    chosen = Settings(device="cuda", tiles="2x3", conf=0.25, **asked)
    viewer = viewer_for(chosen, card, card.preprocess)
    assert viewer is not None
    plan = RunPlan(card, chosen, None, "null", 8, 0, {}, card.preprocess)
    plan = plan.for_views(viewer, SourceInfo("", "video", 1920, 1080))
    assert plan.merges == viewer.merges == merges
