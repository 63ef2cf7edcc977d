"""The captured program on a fake GPU: boxes, masks, and what happens where CUDA fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_gpu import LAUNCH_FAILURE, Array, Gpu
from framefuse.config import Settings
from framefuse.engines.null import CudaNullEngine, NullEngine
from framefuse.errors import GpuLostError, NonFiniteError
from framefuse.frame import Frame, View
from framefuse.kernels.boxes.cuda import Scratch
from framefuse.models.card import Card, read_card
from framefuse.prediction import Detections, Result
from framefuse.preprocess import Preprocess
from framefuse.runtime import memory, runners
from framefuse.runtime.batcher import Batcher
from framefuse.runtime.batching import FrameBatcher
from framefuse.runtime.channel import Threaded
from framefuse.runtime.cuda import device_outputs
from framefuse.runtime.cuda.captured_batch import CapturedBatch
from framefuse.runtime.cuda.program import CudaProgram
from framefuse.runtime.model import Model
from framefuse.runtime.plan import plan_run
from framefuse.runtime.profiling import Recorder
from framefuse.runtime.program import FrameResult, HostProgram, Program, Selection
from framefuse.runtime.stages import infer
from framefuse.runtime.views import viewer_for
from known_models import model
from training.squares import write_squares

SIZE = 96, 64
"""Width and height of the model's input."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing goes but what nobody refers to."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def scores(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
    """Of three classes, at half the input's size; every picture of the batch has others."""
    return [np.random.default_rng(3).normal(size=(batch, 3, height // 2, width // 2)).astype(np.float32)]


def pictures(count: int, width: int = 80, height: int = 61) -> list[Frame]:
    random = np.random.default_rng(0)
    return [
        Frame.from_array(random.integers(0, 255, (height, width, 3), np.uint8), index=index) for index in range(count)
    ]


def run(program: Program, frames: Sequence[Frame], batch: int) -> list[FrameResult]:
    found = []
    for start in range(0, len(frames), batch):
        found += list(program.submit(frames[start : start + batch]))
    return found + list(program.drain())


def on_cuda(card: Card, batch: int = 2, answer: Any = scores, **options: Any) -> CudaProgram:
    return CudaProgram(CudaNullEngine(answer), card, Preprocess(*SIZE), Selection(), batch=batch, **options)


def test_masks_are_those_of_the_host(gpu: Gpu, segmenter: Card) -> None:
    """Sizes change in the middle, and the last batch is not full."""
    frames = [*pictures(4), *pictures(3, 50, 70)]
    host = HostProgram(
        NullEngine(lambda pixels: scores(2, *pixels.shape[2:])), segmenter, Preprocess(*SIZE), Selection(), batch=2
    )
    program = on_cuda(segmenter)
    for part in (frames[:4], frames[4:]):
        for expected, found in zip(run(host, part, 2), run(program, part, 2), strict=True):
            assert expected.result.masks is not None and found.result.masks is not None
            assert len(found.result.detections) == 0
            assert found.result.masks.names == expected.result.masks.names
            same = expected.result.masks.class_id == found.result.masks.class_id
            assert same.shape == (part[0].height, part[0].width)
            assert same.mean() > 0.999  # two classes may be equal but for the order of additions
    program.close()


def test_mattes_are_those_of_the_host(gpu: Gpu, segmenter: Card) -> None:
    """Of the classes that count as foreground, at the resolution of the model and without its padding."""
    frames = [*pictures(4), *pictures(3, 50, 70)]
    for classes in ((), (0, 2)):
        answer = NullEngine(lambda pixels: scores(2, *pixels.shape[2:]))
        host = HostProgram(answer, segmenter, Preprocess(*SIZE), Selection(), batch=2, mattes=classes)
        program = on_cuda(segmenter, mattes=classes)
        for part in (frames[:4], frames[4:]):
            for expected, found in zip(run(host, part, 2), run(program, part, 2), strict=True):
                one, other = expected.result.matte, found.result.matte
                assert one is not None and other is not None and found.result.masks is None
                assert one.size == other.size == (part[0].width, part[0].height)
                np.testing.assert_allclose(one.parts[0].alpha, other.parts[0].alpha, atol=1e-6)
        program.close()


@pytest.mark.parametrize("layout", ["yolox", "centerface"])
def test_what_the_network_leaves_undecoded_is_that_of_the_host(gpu: Gpu, tmp_path: Path, layout: str) -> None:
    random, rows = np.random.default_rng(5), 2
    if layout == "yolox":
        outputs = [np.concatenate((random.uniform(0, 1, (rows, 84, 4)), random.uniform(0, 1, (rows, 84, 3))), 2)]
    else:
        outputs = [random.uniform(low, 1, (rows, count, 16, 16)) for low, count in ((0, 1), (0, 2), (0, 2), (-1, 10))]
    raw = [output.astype(np.float32) for output in outputs]
    network = model(tmp_path / "known.onnx", *(output[:1] for output in raw), task="detect")
    names = "[cat, dog]" if layout == "yolox" else "[face]"
    network.with_suffix(".yaml").write_text(f"layout: {layout}\nnames: {names}\n")
    card, spec, asked = read_card(network), Preprocess(64, 64), Selection(conf=0.5)
    host = HostProgram(NullEngine(lambda pixels: raw), card, spec, asked, batch=rows)
    program = CudaProgram(CudaNullEngine(lambda *shape: raw), card, spec, asked, batch=rows)
    for expected, found in zip(run(host, pictures(3), rows), run(program, pictures(3), rows), strict=True):
        one, other = expected.result.detections, found.result.detections
        assert len(one) == len(other) > 2
        np.testing.assert_allclose(one.xyxy, other.xyxy, atol=1e-3)
        assert (one.keypoints is None) == (other.keypoints is None) == (layout == "yolox")
    program.close()


def test_masks_of_views_are_those_of_the_host(gpu: Gpu, segmenter: Card) -> None:
    """Both eyes, and tiles of one size, share what was captured; the whole frame, whose mask is larger, does not."""
    regions = [(0, 0, 40, 61), (40, 0, 40, 61), None, (0, 0, 33, 31), (47, 30, 33, 31), (3, 7, 33, 31)]
    (picture,) = pictures(1)
    rows = [picture.replace_unchecked(view=View(region, size=SIZE)) for region in regions]
    host = HostProgram(
        NullEngine(lambda pixels: scores(2, *pixels.shape[2:])), segmenter, Preprocess(*SIZE), Selection(), batch=2
    )
    program = on_cuda(segmenter)
    assert [program.batch_key(one) == program.batch_key(other) for one, other in pairwise(rows)] == [
        *(True, False, False, True, True)
    ]
    for part in (rows[:2], rows[2:3], rows[3:]):
        for expected, found in zip(run(host, part, 2), run(program, part, 2), strict=True):
            assert expected.result.masks is not None and found.result.masks is not None
            same = expected.result.masks.class_id == found.result.masks.class_id
            view = part[0].view
            assert view is not None and same.shape[::-1] == (view.region[2:] if view.region else (80, 61))
            assert same.mean() > 0.999
    assert len(program._captured) == 3
    program.close()


def test_a_segmenter_with_views_on_the_gpu(gpu: Gpu, segmenter: Card) -> None:
    """Frames of two sizes through the stages: no batch holds masks of different sizes."""
    frames = [*pictures(2), *pictures(3, 50, 70)]
    settings, spec, found = Settings(tiles="1x2", roi="0,0,0.8,1"), Preprocess(*SIZE), list[list[Result]]()

    def alike(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        return [scores(1, height, width)[0].repeat(batch, axis=0)]

    host = HostProgram(NullEngine(lambda pixels: alike(2, *pixels.shape[2:])), segmenter, spec, Selection(), batch=2)
    for program in (host, on_cuda(segmenter, answer=alike)):
        viewer = viewer_for(settings, segmenter, spec)
        read = Threaded([iter(frames)], name="decode", capacity=1)
        found.append([item.result for item in infer(read, program, FrameBatcher(2, 1.0), viewer)])
        program.close()
    for one, other, frame in zip(*found, frames, strict=True):
        assert one.masks is not None and other.masks is not None and len(other.views) == 3
        assert other.masks.class_id.shape == (frame.height, frame.width)
        assert (one.masks.class_id == other.masks.class_id).mean() > 0.99


def test_stages_are_timed_on_the_gpu(gpu: Gpu, segmenter: Card) -> None:
    """The first batch of each captured one is timed; the fake GPU takes 0.25 ms for every stage."""
    recorder = Recorder()
    program = on_cuda(segmenter, recorder=recorder)
    assert len(run(program, pictures(8), 2)) == 8
    program.close()
    stages = {stage.name: stage.device_ms for stage in recorder.snapshot().stages}
    assert set(stages) == {"preprocess", "inference", "postprocess"}
    for spread in stages.values():
        assert spread is not None and spread.mean == pytest.approx(0.125)  # of a batch of two


def test_scores_that_are_not_numbers_are_seen_on_the_gpu(gpu: Gpu, segmenter: Card) -> None:
    def broken(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        (values,) = scores(batch, height, width)
        values[1, 2, 3, 4], values[1, 0, 0, 0] = np.nan, np.inf
        return [values]

    program = on_cuda(segmenter, answer=broken)
    with pytest.raises(NonFiniteError, match="in 2 of its scores for frame 1 of a batch of 2"):
        run(program, pictures(2), 2)
    program.close()


def test_what_the_gpu_reads_is_kept_until_it_has(gpu: Gpu, segmenter: Card) -> None:
    """Surfaces of others: their owner, and nobody else, keeps their memory alive."""

    class Owner:
        pass

    program, owner = on_cuda(segmenter, batch=1), Owner()
    alive = weakref.ref(owner)
    (picture,) = pictures(1)
    there = replace(picture, planes=tuple(plane.view(Array) for plane in picture.planes), owner=owner)
    list(program.submit([there]))
    del owner, there
    gc.collect()
    assert alive() is not None
    assert len(list(program.drain())) == 1
    gc.collect()
    assert alive() is None
    assert program.ledger.crossed("pixels") == 0
    program.close()


def test_a_lost_gpu_keeps_what_was_finished(gpu: Gpu, segmenter: Card) -> None:
    program = on_cuda(segmenter, batch=1)
    frames = pictures(3)
    done = [*program.submit(frames[:1]), *program.drain()]
    assert [item.result.frame.index for item in done] == [0]
    list(program.submit(frames[1:2]))
    gpu.lost = LAUNCH_FAILURE
    with pytest.raises(
        GpuLostError, match=r"could not finish a batch: a kernel failed \(cudaErrorLaunchFailure"
    ) as error:
        list(program.finish())
    assert "framefuse doctor" in str(error.value.remedy)
    assert program.in_flight == 0
    assert not list(program.drain())
    with pytest.raises(GpuLostError, match="could not copy an image"):
        list(program.submit(frames[2:]))
    program.close()


def test_a_gpu_that_is_lost_while_frames_are_brought_to_the_host(gpu: Gpu, segmenter: Card) -> None:
    """For those who draw and write."""

    class Ready:
        ptr = 0

        def synchronize(self) -> None:
            gpu.lost = LAUNCH_FAILURE

    (frame,) = pictures(1)
    frame = replace(frame, planes=tuple(plane.view(Array) for plane in frame.planes), ready=Ready())
    program = on_cuda(segmenter, batch=1, keep_frames=True)
    with pytest.raises(GpuLostError, match="could not copy frames to the host: a kernel failed"):
        list(program.submit([frame]))
    program.close()


def test_closing_a_program_whose_gpu_was_lost(gpu: Gpu, segmenter: Card) -> None:
    program = on_cuda(segmenter, batch=1)
    list(program.submit(pictures(1)))
    models = [weakref.ref(model) for model in program._executions[64, 96]]
    gpu.lost = LAUNCH_FAILURE
    program.close()
    assert program.in_flight == 0
    gc.collect()
    assert all(model() is not None for model in models)  # CUDA would refuse to free it, loudly


def test_a_partial_batch_runs_in_the_smallest_graph_that_holds_it(gpu: Gpu, segmenter: Card) -> None:
    host = HostProgram(
        NullEngine(lambda pixels: scores(1, *pixels.shape[2:])), segmenter, Preprocess(*SIZE), Selection(), batch=1
    )
    program = on_cuda(segmenter, batch=6, answer=lambda *size: [np.repeat(scores(1, *size[1:])[0], size[0], 0)],
                      partial_batches=True)  # fmt: skip
    frames, rows, found = pictures(21), list[int](), list[FrameResult]()
    for end, count in zip((1, 3, 6, 10, 15, 21), range(1, 7), strict=True):
        found += program.submit(frames[end - count : end])
        rows.append(program._in_flight[-1].captured.rows)
        found += program.drain()
    assert rows == [1, 2, 4, 4, 6, 6]
    assert [one.result.frame.index for one in found] == list(range(21))
    for expected, one in zip(run(host, frames, 1), found, strict=True):
        assert expected.result.masks is not None and one.result.masks is not None
        assert (expected.result.masks.class_id == one.result.masks.class_id).mean() > 0.999
    found = [
        done for frame in frames[:6] for done in program.submit([frame])
    ]  # the small ones are busy: larger ones run
    assert [one.result.frame.index for one in [*found, *program.drain()]] == list(range(6))
    program.close()


@pytest.mark.slow  # its kernels take some 15 seconds to compile
def test_boxes_are_those_of_the_host(gpu: Gpu, tmp_path: Path) -> None:
    batch = 2

    def answers(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        random = np.random.default_rng(0)
        anchors = sum((height // stride) * (width // stride) for stride in (8, 16, 32))
        centres, sides = random.uniform(0, 90, (batch, 2, anchors)), random.uniform(5, 40, (batch, 2, anchors))
        found = random.uniform(0, 0.3, (batch, 3, anchors))
        return [np.concatenate([centres, sides, found], axis=1).astype(np.float32)]

    card, spec = read_card(write_squares(tmp_path / "squares.onnx")), Preprocess(96, 96)
    selection = Selection(conf=0.2, max_det=20)
    host = HostProgram(NullEngine(lambda pixels: answers(batch, *pixels.shape[2:])), card, spec, selection, batch=batch)
    scratch = [item for item in gc.get_objects() if isinstance(item, Scratch)]
    program = CudaProgram(CudaNullEngine(answers), card, spec, selection, batch=batch)
    for expected, found in zip(*(run(each, pictures(5), batch) for each in (host, program)), strict=True):
        assert len(found.result.detections) > 2
        np.testing.assert_allclose(expected.result.detections.xyxy, found.result.detections.xyxy, atol=1e-3)
        np.testing.assert_array_equal(expected.result.detections.class_id, found.result.detections.class_id)
    program.close()
    assert [item for item in gc.get_objects() if isinstance(item, Scratch) and item not in scratch] == []


def overlapping(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
    """Sixty boxes of three classes in each row, other ones in each; many meet or end at an edge."""
    random = np.random.default_rng(5)
    centres, sides = random.uniform(0, 1, (batch, 2, 60)), random.uniform(0.05, 0.6, (batch, 2, 60))
    boxes = np.concatenate((centres, sides), 1) * np.array((width, height, width, height))[:, None]
    return [np.concatenate((boxes, random.uniform(0, 0.7, (batch, 3, 60))), 1).astype(np.float32)]


@pytest.mark.parametrize(
    ("views", "batch", "merges"),
    [
        pytest.param(
            *([View(), View((0, 0, 50, 61), "left"), View((30, 7, 50, 54), "right")], 3, 3), marks=pytest.mark.slow
        ),
        ([View((0, 0, 40, 61), "left"), View((40, 0, 40, 61), "right")], 5, 2),
        ([View((3, 5, 70, 50), "roi")], 2, 1),
        ([View((0, 0, 40, 61)), View((20, 0, 60, 61))], 2, 1),  # more than are merged: as on the host
    ],
)
def test_views_are_merged_on_the_gpu_as_on_the_host(
    gpu: Gpu, tmp_path: Path, views: list[View], batch: int, merges: int
) -> None:
    card, settings = read_card(write_squares(tmp_path / "squares.onnx")), Settings(iou=0.9, max_det=40)
    spec, frames = Preprocess(*SIZE), pictures(4)
    host = HostProgram(
        NullEngine(lambda pixels: overlapping(batch, *pixels.shape[2:])),
        card,
        spec,
        Selection(iou=0.9, max_det=40),
        batch=batch,
    )
    program = CudaProgram(
        CudaNullEngine(overlapping),
        card,
        spec,
        Selection(iou=0.9, max_det=40),
        batch=batch,
        merges=merges,
        keep_frames=True,
    )
    found = []
    for place, runner in ((0, host), (merges, program)):
        viewer = viewer_for(settings, card, spec, lambda frame, latest: views)
        assert viewer is not None
        viewer.merges = place
        rows = [row for frame in frames for group, _ in viewer.rows(frame) for row in group]
        whole = batch // len(views) * len(views)  # frames of a batch are whole, so that rows get the same outputs
        found.append([item.result for item in viewer.join(run(runner, rows, whole))])
    assert len(found[0]) == len(found[1]) == len(frames)
    for expected, here in zip(*found, strict=True):
        assert here.frame == expected.frame and here.views == expected.views
        assert 5 < len(here.detections) == len(expected.detections)
        assert here.detections.class_id.tolist() == expected.detections.class_id.tolist()
        assert here.detections.view is not None and expected.detections.view is not None
        assert here.detections.view.tolist() == expected.detections.view.tolist()
        np.testing.assert_array_equal(here.detections.confidence, expected.detections.confidence)
        np.testing.assert_array_equal(here.detections.xyxy, expected.detections.xyxy)
    program.close()


def test_a_batcher_of_a_model_on_a_gpu(gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of two sizes in batches of up to four; one batch may wait on the GPU while another runs."""
    monkeypatch.setattr(runners, "LIKELY", (80, 61))

    def alike(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        return [scores(1, height, width)[0].repeat(batch, axis=0)]

    model = Model.__new__(Model)
    model.card, model.engine, model._viewer, model._closed = segmenter, CudaNullEngine(alike), None, False
    plan = plan_run(segmenter, Settings(device="cpu", engine="null"), None, None)
    model._plan = replace(plan, settings=plan.settings.model_copy(update={"device": "cuda"}))
    monkeypatch.setattr(model, "program", lambda size: on_cuda(segmenter, size, alike))
    frames = [*pictures(9), *pictures(5, 50, 70)]
    host = HostProgram(
        NullEngine(lambda pixels: alike(1, *pixels.shape[2:])), segmenter, Preprocess(*SIZE), Selection(), batch=1
    )
    expected = [found.result for frame in frames for found in run(host, [frame], 1)]
    with Batcher(model, max_batch_size=4) as batcher:
        assert batcher._runner.ahead == 1
        results = [future.result(30).result for future in [batcher.submit(frame) for frame in frames]]
    for one, other in zip(results, expected, strict=True):
        assert one.masks is not None and other.masks is not None
        assert (one.masks.class_id == other.masks.class_id).mean() > 0.999


def on_both(
    answer: Callable[[int, int, int], list[np.ndarray[Any, Any]]], card: Card, spec: Preprocess, selection: Selection
) -> tuple[HostProgram, CudaProgram]:
    """Programs of two rows on the host and on the GPU whose model gives the same answers."""
    host = HostProgram(NullEngine(lambda pixels: answer(2, *pixels.shape[2:])), card, spec, selection, batch=2)
    return host, CudaProgram(CudaNullEngine(answer), card, spec, selection, batch=2)


def found_by_both(host: Program, program: Program, frames: Sequence[Frame]) -> Iterator[tuple[Detections, Detections]]:
    """What the GPU and the host find in each frame."""
    for expected, found in zip(run(host, frames, 2), run(program, frames, 2), strict=True):
        yield found.result.detections, expected.result.detections


def posed(layout: str, extra: int, batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
    """As `overlapping`, each anchor with `extra` more values."""
    random = np.random.default_rng(8)
    (table,) = overlapping(batch, height, width)
    more = random.uniform(0, width, (batch, extra, 60)).astype(np.float32)
    if layout == "yolov8":
        return [np.concatenate((table, more), 1)]
    boxes, scores, rows = table[:, :4].transpose(0, 2, 1), table[:, 4:].transpose(0, 2, 1), more.transpose(0, 2, 1)
    if layout == "yolov5":
        return [np.concatenate((boxes, np.ones((batch, 60, 1), np.float32), scores, rows), 2)]
    best = scores.max(2, keepdims=True), scores.argmax(2)[..., None].astype(np.float32)
    ends = np.concatenate((boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2), 2)
    return [np.concatenate((ends, *best, rows), 2)]


@pytest.mark.parametrize(("layout", "keypoints"), [("yolov8", (5, 3)), ("yolov5", (4, 2)), ("end2end", (3, 3))])
def test_keypoints_are_those_of_the_host(gpu: Gpu, tmp_path: Path, layout: Any, keypoints: tuple[int, int]) -> None:
    extra, spec, selection = keypoints[0] * keypoints[1], Preprocess(*SIZE), Selection(max_det=40)
    card = replace(read_card(write_squares(tmp_path / "squares.onnx")), task="pose", layout=layout, extra=extra,
                   keypoints=keypoints, skeleton=((0, 1),))  # fmt: skip
    broken: list[bool] = []

    def answer(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        (found,) = posed(layout, extra, batch, height, width)
        if broken:
            (found if layout != "yolov8" else found.transpose(0, 2, 1))[1, :, -1] = np.nan
        return [found]

    host, program = on_both(answer, card, spec, selection)
    frames = [*pictures(4), *pictures(1, 50, 70)]
    for part in (frames[:2], frames[2:4], frames[4:]):
        for here, there in found_by_both(host, program, part):
            assert 5 < len(here) == len(there)
            np.testing.assert_allclose(here.xyxy, there.xyxy, atol=1e-3)
            assert here.keypoints is not None and there.keypoints is not None
            np.testing.assert_allclose(here.keypoints, there.keypoints, atol=1e-3)
            assert here.skeleton == there.skeleton
    program.close()
    broken.append(True)
    for runner in (host, CudaProgram(CudaNullEngine(answer), card, spec, selection, batch=2)):
        with pytest.raises(NonFiniteError, match="of the keypoints of its objects"):
            run(runner, frames[:2], 2)
        runner.close()


@pytest.mark.parametrize("layout", ["yolov8", "end2end"])
@pytest.mark.parametrize("room", ["packed", "rest", "mask", "frame"])
def test_instance_masks_are_those_of_the_host(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any, room: str
) -> None:
    """Also where there are more runs than leave the GPU with the boxes, or than it keeps of a mask or of all masks; and
    of frames of another size."""
    monkeypatch.setattr(memory, "PACKED", 4096 if room in ("packed", "mask") else 10)
    kept, more = 3 if room == "mask" else 1024, 20 if room == "frame" else 4096
    monkeypatch.setattr(memory, "run_room", lambda width: (kept, more))
    monkeypatch.setattr(device_outputs.BoxOutputs, "grow", lambda self: False)
    monkeypatch.setattr(device_outputs, "available_cores", lambda: 3)
    card = replace(read_card(write_squares(tmp_path / "squares.onnx")), task="segment", layout=layout, extra=4,
                   outputs=("boxes", "prototypes"), output_indices=(0, 1))  # fmt: skip
    spec, selection = Preprocess(*SIZE), Selection(max_det=12)

    def answer(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        random = np.random.default_rng(4)
        (found,) = posed(layout, 4, batch, height, width)
        rows = found.transpose(0, 2, 1) if layout == "yolov8" else found
        rows[..., -4:] = random.normal(size=rows[..., -4:].shape)
        return [found, random.normal(size=(batch, 4, height // 4, width // 4)).astype(np.float32)]

    host, program = on_both(answer, card, spec, selection)
    frames = [*pictures(3), *pictures(1, 50, 70)]
    for part in (frames[:2], frames[2:3], frames[3:]):
        for here, there in found_by_both(host, program, part):
            assert 3 < len(here) == len(there)
            assert here.mask is not None and there.mask is not None
            assert here.mask.shape == (len(here), part[0].height, part[0].width)
            assert (here.mask == there.mask).mean() > 0.999
    before = program.ledger.crossed("results"), gpu.copied["d2h"]
    run(program, frames[:2], 2)
    fetched = program.ledger.crossed("results") - before[0] - (gpu.copied["d2h"] - before[1])
    prototypes = 2 * 4 * (SIZE[0] // 4) * (SIZE[1] // 4) * 4  # bytes
    assert 0 < fetched < prototypes if room == "rest" else fetched == (0 if room == "packed" else prototypes)
    program.close()


@pytest.mark.parametrize("short", ["mask", "frame"])
def test_masks_with_many_runs_get_more_room(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    """The first batch of noise is found on the host, the later ones on the GPU if it has the memory, and if what is
    larger can be captured."""
    monkeypatch.setattr(memory, "PACKED", 10)
    monkeypatch.setattr(memory, "run_room", lambda width: (60, 16384) if short == "mask" else (1024, 500))
    card = replace(read_card(write_squares(tmp_path / "squares.onnx")), task="segment", layout="yolov8", extra=4,
                   outputs=("boxes", "prototypes"), output_indices=(0, 1))  # fmt: skip

    def answer(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        random = np.random.default_rng(4)
        (found,) = posed("yolov8", 4, batch, height, width)
        found[:, -4:] = random.normal(size=found[:, -4:].shape)
        return [found, random.normal(size=(batch, 4, height // 4, width // 4)).astype(np.float32)]

    asked, found_here = list[int](), device_outputs.BoxOutputs._found_here

    def failing(self: Any) -> None:
        raise RuntimeError("cannot be captured")

    def counted(self: Any, row: int, *given: Any) -> Any:
        asked.append(row)
        return found_here(self, row, *given)

    monkeypatch.setattr(device_outputs.BoxOutputs, "_found_here", counted)
    for problem in ("", "memory", "capture"):
        host, program = on_both(answer, card, Preprocess(*SIZE), Selection(max_det=12))
        counts = [len(asked)]
        for _ in range(4):
            for here, there in found_by_both(host, program, pictures(2)):
                assert here.mask is not None and there.mask is not None
                assert (here.mask == there.mask).mean() > 0.999
            counts.append(len(asked))
            if problem == "memory":
                gpu.room = 0
            elif problem:
                monkeypatch.setattr(CapturedBatch, "_capture", failing)
        gpu.room = None
        assert counts[1] > counts[0] and (counts[4] > counts[3]) == bool(problem)
        program.close()


@pytest.mark.parametrize(("layout", "agnostic"), [("yolov8", False), ("yolov5", True), ("end2end", False)])
def test_oriented_boxes_are_those_of_the_host(gpu: Gpu, tmp_path: Path, layout: Any, agnostic: bool) -> None:
    card = replace(read_card(write_squares(tmp_path / "squares.onnx")), task="obb", layout=layout, extra=1)
    spec, selection, broken = Preprocess(*SIZE), Selection(iou=0.5, max_det=40, agnostic=agnostic), list[bool]()

    def answer(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        (found,) = posed(layout, 1, batch, height, width)
        rows = found.transpose(0, 2, 1) if layout == "yolov8" else found
        if layout == "end2end":  # these are centres and sides, too
            rows[..., :4] = posed("yolov5", 1, batch, height, width)[0][..., :4]
        rows[..., -1] *= np.pi / width
        if broken:
            rows[:, 3, -1] = np.nan
        return [found]

    for _ in range(2):
        host, program = on_both(answer, card, spec, selection)
        frames = [*pictures(4), *pictures(1, 50, 70)]
        if broken:
            for runner in (host, program):
                with pytest.raises(NonFiniteError):
                    run(runner, frames[:2], 2)
                runner.close()
            continue
        for part in (frames[:2], frames[2:4], frames[4:]):
            for here, there in found_by_both(host, program, part):
                assert 5 < len(here) == len(there)
                assert here.xywhr is not None and there.xywhr is not None
                np.testing.assert_allclose(here.xywhr, there.xywhr, atol=1e-3)
                np.testing.assert_allclose(here.xyxy, there.xyxy, atol=1e-3)
                assert here.class_id.tolist() == there.class_id.tolist()
        program.close()
        broken.append(True)


def test_classes_of_frames_are_those_of_the_host(gpu: Gpu, tmp_path: Path) -> None:
    card = replace(read_card(write_squares(tmp_path / "squares.onnx")), task="classify", layout="classify",
                   activation="softmax")  # fmt: skip
    spec = Preprocess(*SIZE)

    def answer(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        return [np.random.default_rng(2).normal(size=(batch, 3)).astype(np.float32)]

    host = HostProgram(NullEngine(lambda pixels: answer(2, 1, 1)), card, spec, Selection(), batch=2)
    program = CudaProgram(CudaNullEngine(answer), card, spec, Selection(), batch=2)
    found = [[item.result.classification for item in run(runner, pictures(3), 2)] for runner in (host, program)]
    for expected, here in zip(*found, strict=True):
        assert expected is not None and here is not None
        np.testing.assert_array_equal(here.confidence, expected.confidence)
    program.close()


def test_frames_of_several_kinds_take_turns(gpu: Gpu, tmp_path: Path) -> None:
    """Sizes, rotations and views change from batch to batch and within one, with one batch in flight or two; the GPU
    gets what maps boxes to the frame only where it has changed."""
    card = read_card(write_squares(tmp_path / "squares.onnx"))
    spec, selection, batch = Preprocess(96, 64), Selection(conf=0.3, max_det=20), 2
    seen: list[np.ndarray[Any, Any]] = []

    def answer(pixels: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        seen.append(pixels.copy())
        return overlapping(batch, *pixels.shape[2:])

    host = HostProgram(NullEngine(answer), card, spec, selection, batch=batch)
    program = CudaProgram(CudaNullEngine(overlapping), card, spec, selection, batch=batch)
    wide = pictures(2)
    tall = [frame.replace_unchecked(rotation=90) for frame in wide]
    right = [frame.replace_unchecked(view=View((40, 0, 40, 61), "right")) for frame in wide]
    kinds = [wide, pictures(2, 50, 70), tall, [wide[0], tall[1]], right]
    batches = [kinds[kind] for kind in (0, 0, 0, 1, 0, 2, 0, 3, 2, 4, 0, 4, 4, 1, 1, 1, 1)]
    frames = [frame for each in batches for frame in each]
    bytes_sent = []
    for each in batches:  # two in flight
        list(program.submit(each))
        bytes_sent.append(program.ledger.crossed("control"))
    list(program.drain())
    *changed, third, fourth = np.diff(bytes_sent)
    assert third == fourth < min(changed[-2:])  # of four alike, the last two find what the first two have sent
    for expected, found in zip(*(run(each, frames, batch) for each in (host, program)), strict=True):
        one, other = expected.result.detections, found.result.detections
        assert len(one) == len(other) > 2
        np.testing.assert_allclose(one.xyxy, other.xyxy, atol=1e-3)
    seen.clear()
    for each in batches:
        run(host, each, batch)
        run(program, each, batch)
        image = program._captured[program.batch_key(each[0])][0].model.input
        np.testing.assert_allclose(image[..., :3].transpose(0, 3, 1, 2), seen[-1], atol=2e-3)
    program.close()


@pytest.mark.parametrize("task", ["classify", "detect", "semantic"])
def test_results_stay_as_they_are_while_the_next_run(gpu: Gpu, tmp_path: Path, task: str) -> None:
    """Also what is computed when it is first read. Each call of the model says something else."""
    made = read_card(write_squares(tmp_path / "squares.onnx"))
    card = made if task == "detect" else replace(made, task=task, layout=task, activation="none")
    random, (frame,) = np.random.default_rng(7), pictures(1)
    answers: dict[str, Any] = {
        "classify": lambda: random.permutation(np.linspace(0, 1, 30, dtype=np.float32)),
        "detect": lambda: random.uniform(0, [[48]] * 4 + [[0.9]] * 3, (1, 7, 60)).astype(np.float32),
        "semantic": lambda: random.normal(size=(1, 3, 48, 48)).astype(np.float32),
    }
    first = np.atleast_2d(answers[task]())
    program = CudaProgram(
        CudaNullEngine(lambda *shape: [first]), card, Preprocess(96, 96), Selection(conf=0.3, max_det=20), slots=1
    )
    program.warm_up(frame)
    ((captured,),) = program._captured.values()
    held, wanted = list[Result](), list[Any]()
    for _ in range(3):
        captured.model.results[0][...] = answer = answers[task]()
        (found,) = run(program, [frame], 1)
        held.append(found.result)
        if task == "classify":
            wanted.append(np.argsort(-answer))
        else:
            wanted.append(said(found.result).copy())
    for result, expected in zip(held, wanted, strict=True):
        np.testing.assert_array_equal(said(result), expected)
    assert not any(np.array_equal(one, other) for one, other in pairwise(wanted))
    program.close()


def said(result: Result) -> np.ndarray[Any, Any]:
    if result.classification is not None:
        return result.classification.class_id
    return result.detections.xyxy if result.masks is None else result.masks.class_id
