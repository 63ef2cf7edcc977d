"""Images that a program submits, and sources that come and go while a run goes on."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from framefuse import FrameFeed, Pipeline, open_source
from framefuse.errors import EngineError, QueueFullError, SourceError, UsageError
from framefuse.runtime.channel import EMPTY, Threaded
from framefuse.runtime.inputs import Inputs
from media import video

STREET = "synthetic://street?frames={}&size=320x180&complexity=1&seed={}"
SMALL = {"imgsz": 96, "engine": "openvino"}


def images(count: int, seed: int = 3) -> list[Any]:
    return [np.ascontiguousarray(frame.to_rgb()[..., ::-1]) for frame in open_source(STREET.format(count, seed))]


def taken(pipeline: Pipeline, count: int | None = None) -> list[Any]:
    """So many results, or all until the end."""
    found = list[Any]()
    while count is None or len(found) < count:
        result = pipeline.get_result(timeout=20)
        if result is None:
            break
        found.append(result)
    return found


@pytest.mark.parametrize("options", [{"capacity": "8"}, {"capacity": True}, {"capacity": 0}, {"name": 5}, {"name": ""}])
def test_wrong_arguments_of_a_feed(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        FrameFeed(**options)


@pytest.mark.parametrize(
    "options",
    [
        *({"seconds": value} for value in (float("nan"), float("inf"), "now", 10**400)),
        *({"timeout": value} for value in ("1", -1, float("nan"), float("inf"), 1e300)),
    ],
)
def test_wrong_arguments_of_an_image(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        FrameFeed().submit(np.zeros((4, 4, 3), np.uint8), **options)


def test_submitted_images_get_the_results_of_the_same_list() -> None:
    given = images(8)
    with Pipeline(given, "scout-n", imgsz=320) as pipeline:
        expected = list(pipeline)
    feed = FrameFeed("robot")
    with Pipeline(feed, "scout-n", imgsz=320).start() as pipeline:
        numbers = [feed.submit(image) for image in given]
        feed.finish()
        found = taken(pipeline)
    assert numbers == [result.frame.index for result in found] == list(range(8))
    for one, other in zip(found, expected, strict=True):
        assert one.frame.source_id == "robot"
        np.testing.assert_allclose(one.detections.xyxy, other.detections.xyxy, atol=1e-3)
    assert pipeline.get_result() is None
    assert pipeline.report.frames == 8


def test_images_have_the_times_that_they_are_given() -> None:
    feed = FrameFeed()
    with Pipeline(feed, "squares", track="bytetrack").start() as pipeline:
        for number, image in enumerate(images(4)):
            feed.submit(image, seconds=0.25 * number)
        feed.finish()
        assert [result.frame.seconds for result in taken(pipeline)] == [0, 0.25, 0.5, 0.75]


def test_a_reader_that_stops_holds_the_submitter_up() -> None:
    feed = FrameFeed(capacity=2)
    image = images(1)[0]
    with Pipeline(feed, "squares", queue=1).start() as pipeline:
        with pytest.raises(QueueFullError, match="2 images are waiting"):
            for _ in range(100):
                feed.submit(image, timeout=0.5)
        first = taken(pipeline, 1)[0]
        assert first.frame.index == 0
        feed.submit(image, timeout=20)
    with pytest.raises(UsageError, match="has ended"):
        feed.submit(image)


def test_nothing_comes_before_anything_is_submitted() -> None:
    with Pipeline(FrameFeed(), "squares").start() as pipeline, pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        pipeline.get_result(timeout=0.1)


def test_what_is_wrong_with_an_image_reaches_who_submits_it() -> None:
    feed = FrameFeed()
    with Pipeline(feed, "squares").start() as pipeline:
        for wrong in (None, "image.png", np.zeros((3, 3, 9), np.uint8), np.zeros((3, 3), np.float64)):
            with pytest.raises(UsageError):
                feed.submit(wrong)
        feed.submit(images(1)[0])
        feed.finish()
        assert len(taken(pipeline)) == 1
    with pytest.raises(UsageError, match="capacity"):
        FrameFeed(capacity=0)


def test_a_pipeline_that_was_not_started_has_no_results_to_get() -> None:
    with Pipeline(FrameFeed(), "squares") as pipeline, pytest.raises(UsageError, match="start"):
        pipeline.get_result()


@pytest.mark.parametrize("timeout", ["1", -1, float("nan"), float("inf"), 1e300])
def test_wrong_timeouts_of_a_result(timeout: Any) -> None:
    with Pipeline(FrameFeed(), "squares").start() as pipeline, pytest.raises(UsageError, match="timeout is"):
        pipeline.get_result(timeout)


def test_starting_again_loses_no_result() -> None:
    feed = FrameFeed()
    pipeline = Pipeline(feed, "squares").start()
    feed.submit(images(1)[0])
    with pytest.raises(UsageError, match="already run"):
        pipeline.start()
    assert len(taken(pipeline, 1)) == 1
    pipeline.close()
    closed = Pipeline(FrameFeed(), "squares")
    closed.close()
    for ended in (pipeline, closed):
        with pytest.raises(UsageError, match="already run, or was closed"):
            ended.start()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_producer_that_dies_leaves_a_pipeline_that_can_be_closed() -> None:
    feed = FrameFeed()

    def produce() -> None:
        feed.submit(images(1)[0])
        raise SystemExit

    with Pipeline(feed, "squares").start() as pipeline:
        producer = threading.Thread(target=produce)
        producer.start()
        producer.join()
        assert len(taken(pipeline, 1)) == 1
        with pytest.raises(TimeoutError):
            pipeline.get_result(0.1)
    with pytest.raises(UsageError, match="has ended"):
        feed.submit(images(1)[0])


def test_an_error_of_the_run_reaches_the_reader() -> None:
    def broken() -> Any:
        yield images(1)[0]
        raise SourceError("the camera is gone")

    with Pipeline(broken(), "squares").start() as pipeline:
        assert pipeline.get_result(20) is not None
        with pytest.raises(SourceError, match="gone"):
            pipeline.get_result(20)
        assert pipeline.get_result(20) is None


def test_sources_are_added_and_removed_while_it_runs(tmp_path: Path) -> None:
    feed = FrameFeed("first")
    options: dict[str, Any] = {"save_jsonl": True, "track": "bytetrack", "project": tmp_path, "name": "run"}
    with Pipeline(feed, "scout-n", imgsz=320, events=True, **options).start() as pipeline:
        feed.submit(images(1)[0])
        assert taken(pipeline, 1)[0].frame.source_id == "first"
        names = [pipeline.add_source(STREET.format(frames, frames)) for frames in (7, 12)]
        others = FrameFeed("others")
        pipeline.add_source(others)
        found = taken(pipeline, 19)
        assert Counter(result.frame.source_id for result in found) == {names[0]: 7, names[1]: 12}
        for name, count in zip(names, (7, 12), strict=True):
            assert [one.frame.index for one in found if one.frame.source_id == name] == list(range(count))
        tracks = {
            name: {
                track
                for one in found
                if one.frame.source_id == name and one.detections.tracker_id is not None
                for track in one.detections.tracker_id.tolist()
                if track >= 0
            }
            for name in names
        }
        assert all(tracks.values())
        assert not tracks[names[0]] & tracks[names[1]]
        for number, image in enumerate(images(3)):
            others.submit(image)
            assert taken(pipeline, 1)[0].frame.index == number
        # The sources that have ended have left: their outputs are complete, their tracks have ended.
        assert {event.source_id for event in pipeline.ended} == set(names)
        pipeline.remove_source("others")
        feed.submit(images(1)[0])
        assert taken(pipeline, 1)[0].frame.index == 1
        with pytest.raises(UsageError, match="no source others is being read"):
            pipeline.remove_source("others")
        again = FrameFeed("others")
        pipeline.add_source(again)
        again.submit(images(1)[0])
        assert taken(pipeline, 1)[0].frame.source_id == "others"
        again.finish()
        feed.finish()
        assert taken(pipeline) == []
    files = sorted((tmp_path / "run").glob("*.jsonl"))
    assert sorted(len(file.read_text().splitlines()) for file in files) == [1, 2, 3, 7, 12]
    assert pipeline.report.frames == 25


def test_an_error_of_an_added_source_ends_only_that(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(b"no video")
    feed = FrameFeed()
    with Pipeline(feed, "squares").start() as pipeline:
        feed.submit(images(1)[0])
        assert len(taken(pipeline, 1)) == 1
        with pytest.raises(SourceError):
            pipeline.add_source(str(damaged))
        with pytest.raises(SourceError):
            pipeline.add_source("no-such-file.mp4")

        class Failing:
            info = open_source(STREET.format(1, 1)).info

            def __iter__(self) -> Any:
                yield next(iter(open_source(STREET.format(1, 1))))
                raise SourceError("its disk is gone")

            def close(self) -> None: ...

        pipeline.add_source(Failing())
        assert len(taken(pipeline, 1)) == 1
        feed.submit(images(1)[0])
        assert taken(pipeline, 1)[0].frame.index == 1
    assert "its disk is gone" in pipeline.report.to_json()


def test_the_same_source_twice_and_after_the_end() -> None:
    feed = FrameFeed("one")
    pipeline = Pipeline(feed, "squares").start()
    with pytest.raises(UsageError, match="already being read"):
        pipeline.add_source(FrameFeed("one"))
    with pytest.raises(SourceError, match="no such file"):
        pipeline.add_source("missing.mp4")
    feed.submit(images(1)[0])
    assert len(taken(pipeline, 1)) == 1
    for _ in range(2):
        pipeline.remove_source("one")
    assert taken(pipeline) == []
    with pytest.raises(UsageError, match="no source one is being read"):
        pipeline.remove_source("one")
    pipeline.close()
    with pytest.raises(UsageError, match="has ended"):
        pipeline.add_source(FrameFeed("two"))


def test_an_error_of_any_kind_in_an_added_source_does_not_end_the_run() -> None:
    def frames() -> Iterator[Any]:
        yield images(1)[0]
        raise ValueError("its camera is gone")

    feed = FrameFeed("one")
    with Pipeline(feed, "squares").start() as pipeline:
        pipeline.add_source(frames())
        assert len(taken(pipeline, 1)) == 1
        feed.submit(images(1)[0])
        assert len(taken(pipeline, 1)) == 1
    assert "ValueError: its camera is gone" in pipeline.report.to_json()


def test_a_source_that_is_refused_stays_as_it_is() -> None:
    feed = FrameFeed("one")
    with Pipeline(feed, "squares").start() as pipeline:
        with pytest.raises(UsageError, match="already being read"):
            pipeline.add_source(feed)
        feed.submit(images(1)[0])
        assert len(taken(pipeline, 1)) == 1


def test_a_name_is_free_again_once_the_last_frames_of_its_source_have_results() -> None:
    inputs = Inputs([FrameFeed("one")])
    frames = inputs.followed(inputs.add(FrameFeed("two")), images(2))
    next(frames)
    inputs.remove("two")
    frames.close()
    with pytest.raises(UsageError, match="two was removed, but has not ended yet"):
        inputs.add(FrameFeed("two"))
    inputs.done("two")
    assert inputs.add(FrameFeed("two")) == 2


def test_a_source_that_comes_as_the_run_ends_is_read_or_refused() -> None:
    channel = Threaded(iter([iter(())]), name="test")
    assert channel.get(10) in (None, EMPTY) and channel.get(10) is None
    assert not channel.add(iter([1]), "block")


def test_a_started_run_is_not_iterated_by_others() -> None:
    with Pipeline("synthetic://street?frames=3&size=320x240", "squares").start() as pipeline:
        with pytest.raises(UsageError, match="already run"):
            list(pipeline)
        assert len(taken(pipeline)) == 3


def test_closing_wakes_who_waits() -> None:
    feed = FrameFeed(capacity=1)
    pipeline = Pipeline(feed, "squares", queue=1).start()
    image, ended = images(1)[0], threading.Event()

    def submit() -> None:
        try:
            while True:
                feed.submit(image)
        except UsageError:
            ended.set()

    threading.Thread(target=submit, daemon=True).start()
    time.sleep(0.3)
    pipeline.close()
    assert ended.wait(10)


def test_swapping_sources_leaves_no_thread_and_no_file(tmp_path: Path) -> None:
    feed = FrameFeed("stays")
    image = images(1)[0]
    with Pipeline(feed, "squares", save_jsonl=True, project=tmp_path, name="run").start() as pipeline:
        feed.submit(image)
        taken(pipeline, 1)

        def swap(number: int) -> None:
            other = FrameFeed(f"camera {number}")
            pipeline.add_source(other)
            other.submit(image)
            pipeline.get_result(20)
            pipeline.remove_source(other.info.uri)
            feed.submit(image)
            pipeline.get_result(20)

        for number in range(20):
            swap(number)
        gc.collect()
        before = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for number in range(20, 60):
            swap(number)
        time.sleep(0.2)
        gc.collect()
        after = threading.active_count(), len(os.listdir("/proc/self/fd"))
        assert after[0] <= before[0] + 1
        assert after[1] <= before[1] + 2
        feed.finish()
    lines = [json.loads(line) for file in (tmp_path / "run").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 1 + 2 * 60


def test_nothing_is_kept_of_a_source_but_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framefuse.runtime.inputs.KEPT", 3)
    feed, image = FrameFeed("stays"), images(1)[0]
    options: dict[str, Any] = {"save_jsonl": True, "save_events": True, "track": "bytetrack", "project": tmp_path}
    with Pipeline(feed, "squares", name="run", **options).start() as pipeline:

        def swap(number: int) -> None:
            silent, other = FrameFeed(f"silent {number}"), FrameFeed(f"camera {number}")
            pipeline.add_source(silent)
            pipeline.add_source(other)
            other.submit(image)
            taken(pipeline, 1)
            pipeline.remove_source(silent.info.uri)
            pipeline.remove_source(other.info.uri)
            time.sleep(0.05)
            feed.submit(image)
            taken(pipeline, 1)

        def held() -> Counter[str]:
            gc.collect()
            return Counter(type(one).__name__ for one in gc.get_objects() if "framefuse" in str(type(one)))

        for number in range(5):
            swap(number)
        before = held()
        for number in range(5, 25):
            swap(number)
        assert not [name for name, count in (held() - before).items() if count >= 10]
        feed.finish()
    assert sum(path.endswith(".jsonl") for path in map(str, pipeline.report.outputs)) >= 1 + 25


def test_the_frames_of_a_removed_source_are_not_held_back() -> None:
    """With adaptive, most results wait for the next look of the model, which a source that has ended does not have."""
    stays, image = FrameFeed("stays"), images(1)[0]
    with Pipeline(stays, "squares", adaptive=True).start() as pipeline:
        for number in range(2):
            other = FrameFeed(f"camera {number}")
            pipeline.add_source(other)
            for _ in range(5):
                other.submit(image)
            other.finish()
            assert [result.frame.index for result in taken(pipeline, 5)] == list(range(5))
        stays.finish()


def test_only_the_latest_sources_that_have_ended_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framefuse.runtime.inputs.KEPT", 3)
    feed, image = FrameFeed("stays"), images(1)[0]
    with Pipeline(feed, "squares").start() as pipeline:
        for number in range(8):
            other = FrameFeed(f"camera {number}")
            pipeline.add_source(other)
            other.submit(image)
            assert taken(pipeline, 1)[0].frame.source_id == f"camera {number}"
            pipeline.remove_source(f"camera {number}")
            feed.submit(image)
            assert taken(pipeline, 1)[0].frame.source_id == "stays"
        again = FrameFeed("camera 0")  # a name that is known no longer
        pipeline.add_source(again)
        again.submit(image)
        assert taken(pipeline, 1)[0].frame.source_id == "camera 0"
        feed.finish()
        again.finish()
    names = [source.uri for source in pipeline.report.sources]
    assert names[0] == "stays"
    assert len(names) <= 1 + 3 + 2
    assert names[-1].endswith("others that ended earlier")
    assert pipeline.report.frames == 17


def test_an_engine_error_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameFeed()
    with Pipeline(feed, "squares").start() as pipeline:
        monkeypatch.setattr(pipeline._program, "submit", lambda frames: (_ for _ in ()).throw(EngineError("broken")))
        feed.submit(images(1)[0])
        with pytest.raises(EngineError, match="broken"):
            pipeline.get_result(20)


def test_a_folder_of_images_and_videos_is_saved_as_both(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    video(folder / "b.mp4", frames=5)
    PIL.Image.fromarray(images(1)[0]).save(folder / "a.png")
    Pipeline(str(folder), "squares", save=True, project=tmp_path, name="out").run()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert "b.mp4" in written and written & {"a.png", "a.jpg"}
