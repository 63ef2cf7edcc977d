"""The pipeline on an NVIDIA GPU: NVDEC's surfaces, the captured program, and both together against the host's path."""

from __future__ import annotations

import gc
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import media
from benchmarks.gpu.accuracy import Boxes, pairs
from framefuse import FrameFeed, Result
from framefuse.adaptive import disagreement, guard
from framefuse.adaptive.ladder import Ladder, Rung
from framefuse.cli.synth import write_clip
from framefuse.engines.null import CudaNullEngine, NullEngine
from framefuse.models.card import read_card
from framefuse.pipeline import Pipeline
from framefuse.preprocess import Preprocess
from framefuse.runtime.choices import processor
from framefuse.runtime.program import HostProgram, Selection
from framefuse.sources import SourceOptions, open_source
from framefuse.world import World
from training.squares import write_squares
from training.squares_clip import squares_clip

pytestmark = pytest.mark.gpu

FRAMES = 50
# GPU machines may lack OpenVINO (benchmarks/device/bundle.sh).
HOST_ENGINE = "openvino" if find_spec("openvino") else "onnxruntime"
REFERENCE: dict[str, Any] = {"device": "cpu", "engine": HOST_ENGINE, "precision": "fp32"}
ON_THE_GPU: dict[str, Any] = {"device": "cuda", "engine": "cudnn"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "clip.mp4"
    squares_clip(path, frames=FRAMES, size=(640, 360))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squares(tmp_path_factory.mktemp("cuda") / "squares.onnx")


def host_planes(frame: Any) -> list[np.ndarray[Any, Any]]:
    """Luma, U and V on the host."""
    import cupy

    frame.ready.synchronize()
    luma, chroma = (cupy.asnumpy(plane) for plane in frame.planes)
    frame.lease.release()
    return [luma, chroma[:, :, 0], chroma[:, :, 1]]


@pytest.mark.parametrize("options", [{}, {"start": 0.5, "end": 1.2}, {"vid_stride": 3}, {"low_latency": True}])
@pytest.mark.parametrize("held", [1, 5])
def test_nvdec_gives_the_pictures_of_ffmpeg(clip: Path, options: dict[str, Any], held: int) -> None:
    surfaces = open_source(clip, SourceOptions(device="cuda", held=held, **options))
    assert any("decoded by NVDEC" in text for text in surfaces.info.notes), surfaces.info.notes
    count = 0
    for expected in open_source(clip, SourceOptions(**options)):
        frame = next(surfaces)
        facts = ("index", "pts", "time_base", "matrix", "full_range", "rotation", "width", "height", "source_id")
        assert [getattr(frame, name) for name in facts] == [getattr(expected, name) for name in facts]
        for plane, other in zip(host_planes(frame), expected.planes, strict=True):
            np.testing.assert_array_equal(plane, other)
        count += 1
    assert count > 10
    with pytest.raises(StopIteration):
        next(surfaces)


def test_a_held_surface_is_not_overwritten(clip: Path) -> None:
    source = open_source(clip, SourceOptions(device="cuda"))
    frame = next(source)
    before = [plane.copy() for plane in frame.planes]
    following: list[Any] = []
    reader = threading.Thread(target=lambda: following.append(next(source)))
    reader.start()
    reader.join(0.5)
    assert reader.is_alive() and not following
    for plane, copy in zip(frame.planes, before, strict=True):
        assert bool((plane == copy).all())
    frame.lease.release()
    reader.join(10)
    assert following[0].index == 1
    source.close()


@pytest.mark.parametrize("held", [1, 3])
def test_a_surface_waits_for_a_reader_that_is_late(clip: Path, held: int) -> None:
    """The reader is queued behind work of many milliseconds, and the decoder goes on at once."""
    import cupy

    ballast = cupy.zeros(1 << 30, cupy.uint8), cupy.empty(1 << 30, cupy.uint8)
    stream, pictures = cupy.cuda.Stream(non_blocking=True), []
    source = open_source(clip, SourceOptions(device="cuda", held=held))
    with stream:
        for _, frame in zip(range(12), source, strict=False):
            stream.wait_event(frame.ready)
            for _ in range(20):
                ballast[1].data.copy_from_device_async(ballast[0].data, ballast[0].nbytes, stream)
            pictures.append(frame.planes[0].copy())
            ended = cupy.cuda.Event(disable_timing=True)
            ended.record(stream)
            frame.lease.release(after=ended)
        stream.synchronize()
    for picture, expected in zip(pictures, open_source(clip), strict=False):
        np.testing.assert_array_equal(cupy.asnumpy(picture), expected.planes[0])
    source.close()


@pytest.mark.parametrize("sizes", [[(640, 360), (320, 192)], [(320, 192), (640, 360)]])
def test_a_size_that_changes_in_the_stream_runs_another_graph(model: Path, tmp_path: Path, sizes: list[Any]) -> None:
    stream = tmp_path / "changes.ts"
    with stream.open("wb") as joined:
        for number, size in enumerate(sizes):
            part = tmp_path / f"{number}.ts"
            squares_clip(part, frames=12, size=size, seed=number)
            joined.write(part.read_bytes())
    expected = [(frame.index, frame.width) for frame in open_source(stream)]
    for batch in (1, 3):
        pipeline = Pipeline(stream, model, device="cuda", engine="null", batch=batch)
        assert [(result.frame.index, result.frame.width) for result in pipeline] == expected


def test_a_corrupt_stream_among_eight_is_the_only_one_that_suffers(model: Path, tmp_path: Path) -> None:
    clips = [squares_clip(tmp_path / f"{number}.mp4", frames=40, size=(320, 192), seed=number) for number in range(8)]
    paths = [tmp_path / f"{number}.mp4" for number in range(8)]
    assert len(clips) == 8
    media.scramble(paths[3], 0.4, 0.6)
    counts: dict[str, int] = {}
    for result in Pipeline(paths, model, device="cuda", engine="null"):
        counts[result.frame.source_id] = counts.get(result.frame.source_id, 0) + 1
    damaged = counts.pop(str(paths[3]), 0)
    assert list(counts.values()) == [40] * 7 and 5 < damaged <= 40


def test_auto_takes_the_gpu(clip: Path) -> None:
    from framefuse.runtime.choices import cuda_missing

    assert cuda_missing() is None
    pipeline = Pipeline(clip, "scout-n")
    assert pipeline.settings.device == "cuda" and pipeline.engine.name == "cudnn"
    assert len(list(pipeline)) == FRAMES
    assert "device cuda: an NVIDIA GPU, NVDEC and engine cudnn are here" in pipeline.report.choices


def test_closing_ends_a_wait_for_a_lease(clip: Path) -> None:
    source = open_source(clip, SourceOptions(device="cuda"))
    kept = next(source)
    reader = threading.Thread(target=lambda: list(source))
    reader.start()
    source.close()
    reader.join(10)
    assert not reader.is_alive() and kept.lease is not None


def test_a_damaged_stream_goes_on(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(range(200)) * 2
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(data)
    count = 0
    for frame in open_source(damaged, SourceOptions(device="cuda")):
        frame.lease.release()
        count += 1
    assert count > FRAMES // 2


def answers(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
    """The output of a YOLOv8 with three classes: some boxes, the same for every size."""
    random = np.random.default_rng(0)
    anchors = sum((height // stride) * (width // stride) for stride in (8, 16, 32))
    centres, sides = random.uniform(0, 300, (batch, 2, anchors)), random.uniform(5, 90, (batch, 2, anchors))
    scores = random.uniform(0, 0.3, (batch, 3, anchors))
    return [np.concatenate([centres, sides, scores], axis=1).astype(np.float32)]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("decoder", ["cuda", "cpu"])
def test_the_captured_program_finds_what_the_host_finds(clip: Path, model: Path, batch: int, decoder: Any) -> None:
    from framefuse.runtime.cuda.program import CudaProgram

    card, spec = read_card(model), Preprocess(320, 320, rectangular=True)
    selection = Selection(conf=0.2, max_det=50)
    host = HostProgram(NullEngine(lambda array: answers(batch, *array.shape[2:])), card, spec, selection, batch=batch)
    program = CudaProgram(CudaNullEngine(answers), card, spec, selection, batch=batch)
    found: list[list[Any]] = [[], []]
    for number, (runner, device) in enumerate(((host, "cpu"), (program, decoder))):
        frames = []
        for frame in open_source(clip, SourceOptions(device=device, held=batch * 3)):
            frames.append(frame)
            if len(frames) == batch:
                found[number] += list(runner.submit(frames))
                frames = []
        if frames:
            found[number] += list(runner.submit(frames))
        found[number] += list(runner.drain())
    assert len(found[0]) == len(found[1]) == FRAMES
    for (first, *_), (second, *_) in zip(*found, strict=True):
        assert first.frame == second.frame
        assert len(first.detections) > 5
        np.testing.assert_array_equal(first.detections.class_id, second.detections.class_id)
        np.testing.assert_allclose(first.detections.xyxy, second.detections.xyxy, atol=1e-3)
        np.testing.assert_allclose(first.detections.confidence, second.detections.confidence, atol=1e-6)
    pixels = program.ledger.crossed("pixels")
    assert program.ledger.frames == FRAMES
    assert pixels == (0 if decoder == "cuda" else FRAMES * 640 * 360 * 3 // 2)
    host.close()
    program.close()


def test_the_model_sees_the_same_picture(clip: Path, model: Path) -> None:
    import cupy

    from framefuse.runtime.cuda.program import CudaProgram

    card, spec = read_card(model), Preprocess(320, 320, rectangular=True)
    program = CudaProgram(CudaNullEngine(answers), card, spec, Selection(), slots=1)
    frames = open_source(clip, SourceOptions(device="cuda"))
    for expected in open_source(clip, SourceOptions(end=0.2)):
        list(program.submit([next(frames)]))
        list(program.drain())
        (execution,) = program._executions[192, 320]
        there = cupy.asnumpy(execution.input)[0]
        here = np.empty((3, 192, 320), np.float32)
        spec(expected, here)
        np.testing.assert_allclose(there[:, :, :3].transpose(2, 0, 1), here, atol=1e-3)
        assert not there[:, :, 3:].any()
    program.close()


@pytest.mark.parametrize("batch", [1, 3])
def test_the_pipeline_runs_on_the_gpu(clip: Path, model: Path, batch: int, tmp_path: Path) -> None:
    pipeline = Pipeline(clip, model, device="cuda", engine="null", batch=batch, save=True, save_jsonl=True,
                        project=tmp_path, imgsz=[320])  # fmt: skip
    results = list(pipeline)
    assert [result.frame.index for result in results] == list(range(FRAMES))
    assert pipeline.folder is not None and len(list(pipeline.folder.iterdir())) >= 2
    again = Pipeline(clip, model, device="cuda", engine="null", batch=batch, imgsz=[320])
    for number, _ in enumerate(again):
        if number == 5:
            break
    again.close()


def test_a_source_without_frames_keeps_no_other_waiting(clip: Path, model: Path) -> None:
    image, stays = np.zeros((360, 640, 3), np.uint8), FrameFeed("stays")
    with Pipeline(stays, model, **ON_THE_GPU).start() as pipeline:
        pipeline.add_source(clip)
        assert [result_of(pipeline).frame.source_id for _ in range(FRAMES)] == [str(clip)] * FRAMES
        for number in range(20):
            other = FrameFeed(f"camera {number}")
            pipeline.add_source(other)
            other.submit(image)
            assert result_of(pipeline).frame.source_id == other.info.uri
            pipeline.remove_source(other.info.uri)
            stays.submit(image)
            assert result_of(pipeline).frame.source_id == "stays"
        stays.finish()


def result_of(pipeline: Pipeline) -> Result:
    result = pipeline.get_result(20)
    assert result is not None
    return result


def test_pipelines_leave_no_memory_on_the_gpu(clip: Path, model: Path) -> None:
    """One after the other, each of another input size, in a process that goes on."""
    import cupy

    used = []
    for size in (320, 352, 384, 416, 448, 480):
        Pipeline(clip, model, device="cuda", engine="null", batch=4, imgsz=[size]).run()
        gc.collect()
        used.append(cupy.get_default_memory_pool().used_bytes())
    assert max(used) - used[0] < 2 << 20, used


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = World.parse("synthetic://street?complexity=1&split=test&seed=5&frames=40&size=1280x720")
    return write_clip(world, tmp_path_factory.mktemp("crowd"))[0]


@pytest.mark.parametrize("batch", [1, 8])
def test_a_crowd_has_the_boxes_of_the_cpu_reference(crowd: Path, batch: int) -> None:
    """Every decoder, kernel and network is the real one: NVDEC and cuDNN against FFmpeg and a CPU engine in FP32."""

    def found(**options: Any) -> list[Boxes]:
        with Pipeline(crowd, "scout-n", conf=0.25, **options) as pipeline:
            detections = [result.detections for result in pipeline]
        return [Boxes(each.xyxy, each.confidence, each.class_id) for each in detections]

    expected, given = found(**REFERENCE), found(batch=batch, **ON_THE_GPU)
    counts = np.array([[len(frame.xyxy) for frame in frames] for frames in (expected, given)])
    assert counts.shape == (2, 40) and counts[0].min() >= 8, counts
    assert np.abs(counts[0] - counts[1]).max() <= 2, counts
    assert abs(counts[0].sum() - counts[1].sum()) <= 0.01 * counts[0].sum(), counts
    sure, alone = 0, []
    for number, frames in enumerate(zip(expected, given, strict=True)):
        _, *unpaired = pairs(*frames, least=0.9)
        for boxes, left in zip(frames, unpaired, strict=True):
            sure += int((boxes.confidence >= 0.3).sum())
            alone += [(number, boxes.xyxy[i], boxes.confidence[i]) for i in left if boxes.confidence[i] >= 0.3]
    assert sure >= 2 * 400
    assert len(alone) <= 0.01 * sure, alone


def test_bodies_have_the_masks_of_the_cpu_reference(tmp_path: Path) -> None:
    world = World.parse("synthetic://bodies?split=test&seed=5&frames=24&size=1280x720")
    clip, _ = write_clip(world, tmp_path)
    with Pipeline(clip, "body-n", **REFERENCE) as host:
        expected = [result.masks for result in host]
    with Pipeline(clip, "body-n", batch=3, **ON_THE_GPU) as pipeline:
        given = [result.masks for result in pipeline]
        copies = {(copy.stage, copy.direction, copy.kind) for copy in pipeline.report.copies}
    assert len(expected) == len(given) == world.frames
    body, classes = [], set()
    for first, second in zip(expected, given, strict=True):
        assert first is not None and second is not None
        assert first.class_id.shape == second.class_id.shape == (720, 1280)
        assert (first.class_id == second.class_id).mean() > 0.99
        either = (first.class_id > 0) | (second.class_id > 0)
        assert (first.class_id == second.class_id)[either].mean() > 0.95
        body.append(float((second.class_id > 0).mean()))
        classes |= set(np.unique(second.class_id).tolist())
    assert np.mean(body) > 0.1 and len(classes) >= 5, (body, classes)
    assert ("postprocess", "d2h", "results") in copies


@pytest.mark.parametrize(("batch", "precision"), [(1, "fp16"), (1, "fp32"), (4, "fp32")])
def test_adaptive_compute_keeps_frames_on_the_gpu(tmp_path: Path, batch: int, precision: str) -> None:
    """More frames wait than NVDEC has surfaces; what the model sees is what it sees without. Graphs of several batch
    sizes have different kernels, which round differently in FP16."""
    world = "synthetic://street?frames=90&size=640x360&split=test"
    clips = [write_clip(World.parse(f"{world}&seed={seed}"), tmp_path / str(seed))[0] for seed in (5, 6)]
    options: dict[str, Any] = {"batch": batch, "readers": 2, "project": tmp_path, "save": True, "exist_ok": True}
    options["precision"] = precision
    options |= ON_THE_GPU
    plain = {(found.frame.source_id, found.frame.index): found for found in Pipeline(clips, "scout-n", **options)}
    results = list(Pipeline(clips, "scout-n", adaptive=True, **options))
    assert len(results) == len(plain) == 180 and 0 < sum(result.inferred for result in results) < 180
    for path in clips:
        mine = [result for result in results if result.frame.source_id == str(path)]
        assert [result.frame.index for result in mine] == list(range(90))
    for result in results:
        expected = plain[result.frame.source_id, result.frame.index].detections
        if result.inferred:
            sure, seen = expected[expected.confidence > 0.4], result.detections[result.detections.confidence > 0.3]
            apart = np.abs(sure.xyxy[:, None] - seen.xyxy[None]).max(2, initial=0)
            assert (apart.min(1, initial=np.inf) < 2).all(), (result.frame, apart.min(1, initial=np.inf))


def test_rungs_of_a_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rung has its own graphs; late results step down, and no frame is lost."""
    for name, value in {"DWELL": 0.0, "ENOUGH": 3, "CALM": 1000.0, "LONGEST_CALM": 1000.0}.items():
        monkeypatch.setattr(guard, name, value)
    rungs = [Rung(*one, "cudnn", "fp16", *[1.0] * 4, 1.0, 0.0, 0.5, 0.5, 0.5, 1.0)
             for one in (("scout-n", 192), ("scout-s", 640))]  # fmt: skip
    path = tmp_path / "ladder.json"
    path.write_text(Ladder(tuple(rungs), "agreement", "", 1, processor("cuda"), "", "cuda").to_json())
    source = "synthetic://street?seed=3&frames=96&size=640x360&fps=30&split=test"
    for latency, expected in ((60.0, {"scout-s 640"}), (1e-6, {"scout-s 640", "scout-n 192"})):
        pipeline = Pipeline(source, path, device="cuda", adaptive=True, max_latency=latency)
        results = list(pipeline)
        assert [result.frame.index for result in results] == list(range(96))
        words = [result.rung.split() for result in results if result.inferred]
        seen = {f"{first} {last}" for first, *_, last in words}
        assert seen == expected, pipeline.report.choices


@pytest.mark.parametrize("batch", [1, 8])
def test_adaptive_compute_is_that_of_the_host(batch: int) -> None:
    """What the model says of the frames that it sees is as good as that of every frame."""
    source = "synthetic://street?seed=5&frames=150&size=640x360&fps=30&split=test"
    every = list(Pipeline(source, "scout-s", **ON_THE_GPU, conf=0.4))
    found = list(Pipeline(source, "scout-s", **ON_THE_GPU, conf=0.4, batch=batch, adaptive=True))
    assert [result.frame.index for result in found] == list(range(150))
    looked = [(one, other) for one, other in zip(every, found, strict=True) if other.inferred]
    assert 10 < len(looked) < 150
    for one, other in looked:
        assert disagreement(one.detections, other.detections) <= 0.1 * max(1.0, float(one.detections.confidence.sum()))
