"""The pipeline: order, batches of mixed sizes, errors in any stage, early exit, and memory use."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from numpy.typing import NDArray
from PIL import Image

from framefuse import Pipeline, Result
from framefuse.config import settings_from
from framefuse.engines.null import NullEngine
from framefuse.errors import (
    CapabilityError,
    DecodeError,
    FramefuseError,
    HostMemoryError,
    NonFiniteError,
    SinkError,
    SourceError,
    UsageError,
)
from framefuse.frame import Frame
from framefuse.sinks import CallbackSink
from framefuse.sources import SourceInfo
from training.squares_clip import squares_clip

NO_BOXES = np.zeros((7, 100), np.float32)


def marked(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
    """A model whose confidence encodes the grey level at the centre of each image, to tell results apart."""
    outputs = np.zeros((len(batch), 7, 100), np.float32)
    for row, image in enumerate(batch):
        _, height, width = image.shape
        level = image[0, height // 2, width // 2]
        outputs[row, :5, 0] = (width / 2, height / 2, 32, 32, 0.5 + level / 4)
    return [outputs]


def level_of(result: Result) -> int:
    return round(float(result.detections.confidence[0] - 0.5) * 4 * 255)


def images(count: int, *sizes: tuple[int, int]) -> list[NDArray[np.uint8]]:
    """Grey images whose level is their number, cycling through the given (width, height)."""
    sizes = sizes or ((64, 48),)
    return [
        np.full((sizes[number % len(sizes)][1], sizes[number % len(sizes)][0], 3), number, np.uint8)
        for number in range(count)
    ]


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ff-")]


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("slots", [1, 3])
def test_results_come_in_order_whatever_the_batch(batch: int, slots: int) -> None:
    pipeline = Pipeline(images(20), "squares", engine=NullEngine(marked), batch=batch, slots=slots)
    results = list(pipeline)
    assert [result.frame.index for result in results] == list(range(20))
    assert [level_of(result) for result in results] == list(range(20))


def test_mixed_sizes_are_bucketed_and_stay_in_order() -> None:
    shapes: list[tuple[int, ...]] = []

    def spy(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
        shapes.append(batch.shape)
        return marked(batch)

    frames = images(24, (64, 48), (64, 48), (64, 48), (32, 96), (96, 32))
    results = list(Pipeline(frames, "squares", engine=NullEngine(spy), batch=2))
    assert [level_of(result) for result in results] == list(range(24))
    assert {shape[2:] for shape in shapes} == {(480, 640), (640, 224), (224, 640)}
    assert {shape[0] for shape in shapes} == {2}, "a partial batch is padded"
    for result, frame in zip(results, frames, strict=True):
        assert (result.frame.height, result.frame.width) == frame.shape[:2]
        x1, _, x2, _ = result.detections.xyxy[0]
        assert (x1 + x2) / 2 == pytest.approx(frame.shape[1] / 2, abs=0.5)


@pytest.mark.parametrize("batch", [3, 8])
def test_sources_of_other_sizes_come_one_after_the_other(tmp_path: Path, batch: int) -> None:
    """Each writes its own file, and all its frames come before those of the next."""
    clips = [tmp_path / f"{number}.mp4" for number in range(3)]
    for clip, size in zip(clips, ((96, 64), (64, 96), (96, 64)), strict=True):
        squares_clip(clip, frames=13, size=size)
    runs = tmp_path / "runs"
    results = list(Pipeline(clips, "squares", engine="null", batch=batch, save_jsonl=True, project=runs))
    assert [(Path(result.frame.source_id).stem, result.frame.index) for result in results] == [
        (str(number), index) for number in range(3) for index in range(13)
    ]
    written = {path.name: len(path.read_text().splitlines()) for path in runs.rglob("[0-9].jsonl")}
    assert written == {f"{number}.jsonl": 13 for number in range(3)}


def test_a_folder_of_images_of_other_sizes_stays_in_order(tmp_path: Path) -> None:
    for number, image in enumerate(images(9, (96, 64), (64, 96), (64, 96))):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    results = list(Pipeline(tmp_path, "squares", engine="null", batch=4))
    assert [result.frame.index for result in results] == list(range(9))


def test_more_shapes_than_request_pools() -> None:
    frames = images(40, *((64, 32 * number) for number in range(1, 9)))
    assert [level_of(result) for result in Pipeline(frames, "squares", engine=NullEngine(marked))] == list(range(40))


def test_real_engines_agree(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    squares_clip(clip, frames=8, size=(640, 360))
    runs = {
        engine: list(Pipeline(clip, "squares", engine=engine, precision="fp32", batch=batch))
        for engine, batch in (("openvino", 1), ("onnxruntime", 3))
    }
    for one, other in zip(runs["openvino"], runs["onnxruntime"], strict=True):
        assert one.detections.class_id.tolist() == other.detections.class_id.tolist()
        np.testing.assert_allclose(one.detections.xyxy, other.detections.xyxy, atol=0.05)


def test_leaving_early_ends_every_thread_and_closes_the_source() -> None:
    closed = threading.Event()

    def endless() -> Iterator[NDArray[np.uint8]]:
        try:
            while True:
                yield np.zeros((48, 64, 3), np.uint8)
        finally:
            closed.set()

    for number, _ in enumerate(Pipeline(endless(), "squares", engine=NullEngine(marked))):
        if number == 5:
            break
    assert closed.wait(5)
    assert our_threads() == []


def test_close_from_another_thread_ends_the_loop() -> None:
    def endless() -> Iterator[NDArray[np.uint8]]:
        while True:
            yield np.zeros((48, 64, 3), np.uint8)

    pipeline = Pipeline(endless(), "squares", engine=NullEngine(marked))
    seen = 0
    for _ in pipeline:
        seen += 1
        if seen == 3:
            threading.Thread(target=pipeline.close).start()
    assert seen >= 3
    assert our_threads() == []


def test_closing_while_the_stages_begin_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, order = Pipeline(images(9), "squares", engine=NullEngine(marked)), list[str]()

    def close() -> None:
        pipeline.close()
        order.append("closed")

    def begin(start: Callable[[], Any] = pipeline._start) -> Any:
        closing.start()
        time.sleep(0.3)  # time enough for the other thread to close, if it did not wait
        stages = start()
        order.append("stages")
        return stages

    closing = threading.Thread(target=close)
    monkeypatch.setattr(pipeline, "_start", begin)
    assert len(list(pipeline)) <= 9
    closing.join()
    assert order == ["stages", "closed"]
    assert our_threads() == []


def test_what_is_closed_just_before_its_stages_begin_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, begun = Pipeline(images(9), "squares", engine=NullEngine(marked)), list[None]()
    monkeypatch.setattr(pipeline, "_start", lambda: begun.append(None) or iter(()))

    class ClosedAfter:
        """The lock of the pipeline, which is closed as soon as the run has left it."""

        def __init__(self) -> None:
            self.lock = pipeline._lock

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()
            pipeline._lock = self.lock
            pipeline.close()

    pipeline._lock = ClosedAfter()  # type: ignore[assignment]
    assert list(pipeline) == []
    assert begun == []


def test_what_a_pipeline_opened_is_freed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, freed = Pipeline(images(2), "squares", engine="onnxruntime"), list[int]()
    close = pipeline.engine.close
    monkeypatch.setattr(pipeline.engine, "close", lambda: (close(), freed.append(1)))
    pipeline.run()
    pipeline.close()
    assert freed == [1]


def test_a_pipeline_runs_once() -> None:
    pipeline = Pipeline(images(2), "squares", engine=NullEngine(marked))
    pipeline.run()
    with pytest.raises(UsageError, match="already run"):
        list(pipeline)


def test_an_error_of_the_source_comes_after_all_earlier_results(tmp_path: Path) -> None:
    def damaged() -> Iterator[NDArray[np.uint8]]:
        yield from images(7)
        raise DecodeError("cable cut")

    results: list[Result] = []
    pipeline = Pipeline(damaged(), "squares", engine=NullEngine(marked), save_jsonl=True, project=tmp_path)
    with pytest.raises(DecodeError, match=r"\[decode\] cable cut"):
        results.extend(pipeline)
    assert pipeline.report.frames == 7
    assert pipeline.report.error is not None
    assert pipeline.report.error.stage == "decode"
    assert pipeline.folder is not None
    (path,) = pipeline.folder.glob("*.jsonl")
    assert len(path.read_text().splitlines()) == 7
    assert (pipeline.folder / "report.json").exists()
    assert our_threads() == []


def test_non_finite_outputs_are_an_error_not_an_empty_result() -> None:
    def broken(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
        outputs = np.zeros((len(batch), 7, 100), np.float32)
        outputs[0, 5, 3] = np.nan
        return [outputs]

    with pytest.raises(NonFiniteError, match=r"\[program\]"):
        list(Pipeline(images(4), "squares", engine=NullEngine(broken)))
    assert our_threads() == []


def test_too_little_memory_is_said_with_the_sizes_after_all_earlier_results(tmp_path: Path) -> None:
    batches = iter(range(9))

    def hungry(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
        return marked(batch) if next(batches) < 3 else [np.empty(2**52)]

    pipeline = Pipeline(images(5), "squares", engine=NullEngine(hungry), slots=1, save_jsonl=True, project=tmp_path)
    with pytest.raises(HostMemoryError, match=r"not enough memory at batch 1 of \d+x\d+: Unable to alloc") as caught:
        pipeline.run()
    assert "--imgsz" in (caught.value.remedy or "") and isinstance(caught.value.__cause__, MemoryError)
    assert pipeline.report.error is not None and pipeline.report.frames == 3
    assert pipeline.folder is not None
    (path,) = pipeline.folder.glob("*.jsonl")
    assert len(path.read_text().splitlines()) == 3
    assert our_threads() == []


def test_an_error_of_a_sink_names_the_stage_and_ends_the_run() -> None:
    def fail(result: Result, frame: Frame | None) -> None:
        if result.frame.index == 3:
            raise SinkError("disk full: /data")

    with pytest.raises(SinkError, match=r"\[write\] disk full"):
        list(Pipeline(images(9), "squares", engine=NullEngine(marked), sinks=[lambda: CallbackSink(fail)]))
    assert our_threads() == []


def test_an_error_of_the_callers_loop_leaves_nothing_running() -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in Pipeline(images(50), "squares", engine=NullEngine(marked)):
            raise ZeroDivisionError
    assert our_threads() == []


def test_cuda_without_cuda_says_what_is_missing() -> None:
    with pytest.raises(CapabilityError, match=r"libcuda\.so\.1|no CUDA engine"):
        Pipeline(images(1), "squares", device="cuda")


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(UsageError, match="max_det"):
        Pipeline(images(1), "squares", max_dets=3)


class Camera:
    """A live source that delivers a frame on request."""

    def __init__(self, count: int) -> None:
        self.info = SourceInfo("camera", "camera")
        self.go = threading.Semaphore(0)
        self.given = threading.Semaphore(0)
        self._count = count
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        for number in range(self._count):
            self.go.acquire()
            if self._closed:
                return
            image = np.full((48, 64, 3), number, np.uint8)
            yield Frame.from_array(image, index=number, source_id="camera")
            self.given.release()

    def close(self) -> None:
        self._closed = True
        self.go.release()


def test_a_live_source_keeps_the_latest_frame_and_counts_the_others() -> None:
    camera = Camera(10)
    busy, proceed = threading.Event(), threading.Event()

    def slow(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
        busy.set()
        assert proceed.wait(10)
        return marked(batch)

    pipeline = Pipeline(camera, "squares", engine=NullEngine(slow), max_age=60)
    levels: list[int] = []
    reader = threading.Thread(target=lambda: levels.extend(level_of(result) for result in pipeline))
    reader.start()
    camera.go.release()
    assert busy.wait(10), "the first frame is in the model"
    for _ in range(9):
        camera.go.release()
    for _ in range(10):
        assert camera.given.acquire(timeout=10)
    proceed.set()
    reader.join(10)
    assert levels == [0, 9]
    assert pipeline.report.sources[0].drops == {"superseded": 8}


def test_frame_size_change_in_one_video(tmp_path: Path) -> None:
    """An MPEG-TS of two recordings: boxes stay correct, and two playable files are written."""
    truth = squares_clip(tmp_path / "a.ts", frames=10, size=(640, 360), seed=1)
    truth += squares_clip(tmp_path / "b.ts", frames=10, size=(480, 272), seed=2)
    joined = tmp_path / "joined.ts"
    joined.write_bytes((tmp_path / "a.ts").read_bytes() + (tmp_path / "b.ts").read_bytes())
    pipeline = Pipeline(joined, "squares", save=True, project=tmp_path / "runs")
    results = list(pipeline)
    assert {(result.frame.width, result.frame.height) for result in results} == {(640, 360), (480, 272)}
    found = sum(len(result.detections) for result in results)
    assert found == pytest.approx(sum(map(len, truth)), abs=4)
    assert pipeline.folder is not None
    videos = sorted(pipeline.folder.glob("*.mp4"))
    counts = []
    for video in videos:
        with av.open(video) as container:
            counts.append(sum(1 for _ in container.decode(video=0)))
    assert sum(counts) == len(results)
    assert len(videos) == 2


def test_no_frame_sized_allocation_in_steady_state(tmp_path: Path) -> None:
    """Python's own allocations (numpy's included) per frame stay far below the size of a frame, 3.1 MB here."""
    clip = tmp_path / "clip.mp4"
    squares_clip(clip, frames=50, size=(1920, 1080))
    peaks = []
    tracemalloc.start()
    try:
        for number, _ in enumerate(Pipeline(clip, "squares", slots=1)):
            if number >= 20:
                peaks.append(tracemalloc.get_traced_memory()[1] - tracemalloc.get_traced_memory()[0])
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert np.median(peaks) < 1_000_000


def test_a_closed_pipeline_says_so() -> None:
    with Pipeline(images(2), "squares", engine=NullEngine(marked)) as pipeline:
        pass
    with pytest.raises(UsageError, match="closed"):
        list(pipeline)


@pytest.mark.parametrize("sink", [print, CallbackSink(print), CallbackSink, lambda frame: None, 3])
def test_what_makes_no_sink_is_refused(sink: Any) -> None:
    with pytest.raises(UsageError, match="does not make a sink"):
        Pipeline(images(1), "squares", engine=NullEngine(marked), sinks=[sink])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinks": CallbackSink}, r"sinks is .*CallbackSink"),
        ({"sinks": 5}, "sinks is 5"),
        ({"sinks": [lambda: CallbackSink("print")]}, "the callback is 'print'"),  # type: ignore[arg-type]
        ({"settings": {"conf": 0.3}}, "settings is {'conf': 0.3}"),
        ({"engine": None}, "engine is None"),
        ({"model": 5}, "the model is 5"),
        ({"model": None}, "no model is given"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Pipeline(images(1), **{"model": "squares", **options})
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ([], SourceError, r"^\[\] has no images\n"),
        ((), SourceError, r"^\(\) has no images\n"),
        (None, UsageError, r"^None is not a source of frames\n"),
        ([None], UsageError, r"^None is not a source of frames\n"),
        (3.5, UsageError, r"^3\.5 is not a source of frames\n"),
        ("", UsageError, r"^the source is an empty string\n"),
    ],
)
def test_what_is_no_source_is_named(source: Any, kind: type[FramefuseError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        Pipeline(source, "squares")
    assert caught.value.remedy


@pytest.mark.parametrize("classes", [[9], ["grey"], "red,teal", "0,9", [1, "grey"], [-1, 0]])
def test_a_class_that_the_model_does_not_have_is_refused(classes: Any) -> None:
    with pytest.raises(UsageError, match=r"0 red, 1 green, 2 blue|class numbers or names|1 green"):
        Pipeline(images(1), "squares", classes=classes)


@pytest.mark.parametrize("classes", [["green"], "Green", "1", 1, [1, "green"], " green ,", ("1",)])
def test_classes_by_number_and_by_name(tmp_path: Path, classes: Any) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=3)
    pipeline = Pipeline(tmp_path / "clip.mp4", "squares", classes=classes)
    assert {int(number) for result in pipeline for number in result.detections.class_id} == {1}
    assert set(pipeline.settings.classes or ()) == {1}


def test_names_with_spaces_are_separated_by_commas() -> None:
    classes = {text: settings_from({"classes": text}).classes for text in ("traffic light, fire hydrant", "0 2", "0,2")}
    assert classes["traffic light, fire hydrant"] == ["traffic light", "fire hydrant"]
    assert classes["0 2"] == classes["0,2"] == [0, 2]


def test_images_are_named_in_their_lines_and_reported_once(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(images(1)[0]).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"not an image")
    squares_clip(folder / "clip.mp4", frames=2, size=(320, 240))
    pipeline = Pipeline(folder, "squares", save_jsonl=True, save_csv=True, project=tmp_path / "runs")
    report = pipeline.run()
    assert report.frames == 5
    uris = [source.uri for source in report.sources]
    assert len(uris) == len(set(uris))
    assert "broken.png" in report.table()
    assert pipeline.folder is not None
    sources = [
        json.loads(line).get("source")
        for path in pipeline.folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {Path(source).name for source in sources if source} == {"0.png", "1.png", "2.png"}


def test_nothing_phones_home() -> None:
    code = (
        "import sys, threading, framefuse.engines as engines\n"
        "from framefuse.models import find_model\n"
        "engines.open_engine('openvino', find_model('squares'), engines.EngineOptions())\n"
        "print(sys.modules.get('openvino_telemetry'), [t.name for t in threading.enumerate()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None ['MainThread']"


def test_an_iterator_that_refills_one_array_gives_each_image() -> None:
    """As `capture.read(array)` does."""

    def reused() -> Iterator[NDArray[np.uint8]]:
        array = np.empty((48, 64, 3), np.uint8)
        for number in range(20):
            array[:] = number
            yield array

    assert [level_of(result) for result in Pipeline(reused(), "squares", engine=NullEngine(marked))] == list(range(20))


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_a_model_may_put_out_no_boxes_at_all(engine: str, tmp_path: Path) -> None:
    """End-to-end models drop duplicates themselves, so their output may have no rows."""
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [
                onnx.helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
                onnx.helper.make_node("Less", ["mean", "dark"], ["is_dark"]),
                onnx.helper.make_node("Compress", ["box", "is_dark"], ["kept"], axis=0),
                onnx.helper.make_node("Unsqueeze", ["kept", "front"], ["output"]),
            ],
            "bright images have no boxes",
            [onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, [1, 3, 64, 64])],
            [onnx.helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, [1, "boxes", 6])],
            [
                onnx.numpy_helper.from_array(np.array([0.5], np.float32), "dark"),
                onnx.numpy_helper.from_array(np.array([[8, 8, 40, 40, 0.9, 0]], np.float32), "box"),
                onnx.numpy_helper.from_array(np.array([0], np.int64), "front"),
            ],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    onnx.helper.set_model_props(model, {"names": "{0: 'thing', 1: 'other', 2: 'third'}"})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    frames = [np.full((64, 64, 3), level, np.uint8) for level in (0, 255, 0, 255)]
    assert [len(result.detections) for result in Pipeline(frames, path, engine=engine)] == [1, 0, 1, 0]
