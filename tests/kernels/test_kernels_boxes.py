"""Detections: the compiled kernels, on the CPU and on CUDA, against the reference and against plain loops."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_fibres import Fibres
from cuda_on_cpu import install, on_device
from framefuse.cuda import device
from framefuse.cuda.launch_plan import Workspace, graph_memory
from framefuse.errors import CapabilityError, UsageError
from framefuse.kernels import arrays
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes import reference
from framefuse.kernels.boxes.reference import Found

try:
    cp = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""

MAPS = np.array([[1, 1, 0, 0, 1, 1, 640, 640], [1, 1, 0, 140, 3, 3, 1920, 1080]], np.float32)
RELATIVE = np.array([[640, 384, 0, 0, 1, 1, 640, 384], [640, 384, 0, 12, 3, 3, 1920, 1080]], np.float32)


def raw(layout: str, anchors: int, classes: int, seed: int, spread: float = 640) -> NDArray[np.float32]:
    """A random output for two images with many equal scores and some boxes without area."""
    rng = np.random.default_rng(seed)
    parts = [rng.uniform(0, spread, (2, anchors, 2)), rng.uniform(0, 100, (2, anchors, 2))]
    parts[1][rng.random((2, anchors)) < 0.1] = 0
    if layout == "yolov5":
        parts.append(rng.integers(0, 20, (2, anchors, 1)) / 20)
    values = np.concatenate([*parts, rng.integers(0, 20, (2, anchors, classes)) / 20], 2).astype(np.float32)
    return np.ascontiguousarray(values.transpose(0, 2, 1)) if layout == "yolov8" else values


def same(found: Found, expected: Found, tolerance: float = 0) -> None:
    arrays = Found(*(array.get() if hasattr(array, "get") else np.asarray(array) for array in found))
    assert arrays.counts.tolist() == expected.counts.tolist()
    assert arrays.non_finite.tolist() == expected.non_finite.tolist()
    for image, count in enumerate(expected.counts):
        assert arrays.classes[image, :count].tolist() == expected.classes[image, :count].tolist()
        assert arrays.anchors[image, :count].tolist() == expected.anchors[image, :count].tolist()
        for one, other in ((arrays.scores, expected.scores), (arrays.boxes, expected.boxes)):
            np.testing.assert_allclose(one[image, :count], other[image, :count], rtol=0, atol=tolerance)


def cases(layout: str, anchors: tuple[int, ...]) -> list[tuple[list[NDArray[Any]], dict[str, Any]]]:
    """Outputs and options of `detections`."""
    found: list[tuple[list[NDArray[Any]], dict[str, Any]]] = []
    for seed, count in enumerate(anchors):
        rng = np.random.default_rng(seed)
        output = raw(layout, count, int(rng.integers(1, 30)), seed, (640, 640, 100)[seed % 3])
        if seed % 3 == 0 and count:
            output[0][tuple(rng.integers(0, output.shape[1:]))] = rng.choice([np.nan, np.inf, -np.inf])
        options = {
            "conf": 0.3,
            "iou": float(rng.choice([0.0, 0.3, 0.45, 0.7, 1.0])),
            "max_det": int(rng.integers(1, 400)),
            "max_candidates": int(rng.choice([17, 300, 30_000])),
            "agnostic": bool(seed % 2),
            "classes": None if seed % 4 else (0, 2, 99),
        }
        found.append(([output.astype(np.float16 if seed % 5 == 1 else np.float32)], options))
    return found


def run_all(detections: Callable[..., Found], move: Callable[..., Any], anchors: tuple[int, ...]) -> None:
    """Every layout on one implementation."""
    for layout in ("yolov8", "yolov5"):
        for outputs, options in cases(layout, anchors):
            expected = reference.detections(outputs, layout, MAPS, **options)
            same(detections([move(output) for output in outputs], layout, MAPS, **options), expected)
    rng = np.random.default_rng(9)
    rows = np.concatenate(
        (rng.uniform(0, 640, (2, 300, 4)), rng.random((2, 300, 1)), rng.integers(0, 5, (2, 300, 1))), 2
    )
    rows[1, 3, 2] = np.nan
    sides, logits = rng.random((2, 50, 4)).astype(np.float32), rng.normal(0, 2, (2, 50, 37)).astype(np.float32)
    logits[0, 49, 36] = np.inf
    for classes in (None, (1, 3), ()):
        options = {"conf": 0.3, "iou": 0.5, "max_det": 100, "classes": classes}
        for layout, outputs, maps in (
            ("end2end", [rows.astype(np.float32)], MAPS),
            ("detr", [sides, logits], RELATIVE),
        ):
            expected = reference.detections(outputs, layout, maps, **options)
            same(detections([move(output) for output in outputs], layout, maps, **options), expected, 1e-3)


def test_cpu_against_the_reference() -> None:
    run_all(boxes.detections, np.asarray, (0, 1, 33, 255, 256, 257, 700, 64, 300, 1025, 513, 40))


@pytest.fixture
def fibres(monkeypatch: pytest.MonkeyPatch) -> Fibres:
    if shutil.which("g++") is None:
        pytest.skip("g++ stands in for the GPU")
    compiled = install(monkeypatch, Fibres)
    monkeypatch.setattr(boxes_cuda, "BLOCKS", 16)
    arrays._device_table.cache_clear()
    return compiled


def test_cuda_source_on_the_cpu_against_the_reference(fibres: Fibres) -> None:
    run_all(boxes.detections, on_device, (1, 33, 257))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "spread", "iou", "max_det"), [(2, 640, 0.3, 2000), (2, 60, 0.7, 300), (99, 200, 0.5, 300)]
)
def test_cuda_source_on_the_cpu_over_several_chunks(
    fibres: Fibres, classes: int, spread: float, iou: float, max_det: int
) -> None:
    """With many classes nearly all scores are equal, more than a block of `rank` keeps at hand."""
    outputs = [raw("yolov8", 2500, classes, 0, spread)]
    options = {"conf": 0.01, "iou": iou, "max_det": max_det, "classes": None}
    expected = reference.detections(outputs, "yolov8", MAPS, **options)
    same(boxes.detections([on_device(outputs[0])], "yolov8", MAPS, **options), expected)


@pytest.mark.gpu
@pytest.mark.skipif(cp is None, reason=missing)
class TestGpu:
    def test_against_the_reference(self) -> None:
        run_all(boxes.detections, cp.asarray, (0, 1, 33, 255, 256, 257, 700, 64, 300, 1025, 513, 40))

    @pytest.mark.parametrize(
        ("anchors", "spread", "iou", "max_det"),
        [(8400, 60, 0.7, 300), (8400, 3000, 0.3, 8400), (30_000, 640, 0.5, 300), (33_600, 20_000, 0.7, 9000)],
    )
    def test_crowds(self, anchors: int, spread: float, iou: float, max_det: int) -> None:
        """More than a chunk, more than what is kept as bits, and more than `max_candidates`."""
        outputs = [raw("yolov8", anchors, 2, 0, spread)]
        options = {"conf": 0.01, "iou": iou, "max_det": max_det, "classes": None}
        expected = boxes.detections(outputs, "yolov8", MAPS, **options)
        same(boxes.detections([cp.asarray(outputs[0])], "yolov8", MAPS, **options), expected)

    def test_a_chain_where_each_box_hangs_on_the_one_before(self) -> None:
        """Every second box goes, and that is known only after its neighbour has decided."""
        count = 3000
        sides = np.stack((np.arange(count) * 4.0, np.full(count, 9.0), np.full(count, 10.0), np.full(count, 9.0)))
        output = np.concatenate((sides, np.linspace(0.9, 0.3, count)[None]))[None].astype(np.float32)
        maps = np.array([[1, 1, 0, 0, 1, 1, 1e6, 1e6]], np.float32)
        options = {"conf": 0.1, "iou": 0.4, "max_det": count}
        expected = boxes.detections([output], "yolov8", maps, **options)
        assert expected.counts.tolist() == [count // 2]
        same(boxes.detections([cp.asarray(output)], "yolov8", maps, **options), expected)

    def test_a_captured_graph_reads_new_outputs_and_maps(self) -> None:
        first, second = raw("yolov8", 8400, 4, 1), raw("yolov8", 8400, 4, 2)
        device, maps = cp.asarray(first), cp.asarray(MAPS)
        options = {"conf": 0.9, "iou": 0.5, "max_det": 300}
        stream, workspace = cp.cuda.Stream(non_blocking=True), Workspace()
        with stream, graph_memory() as kept:
            out = boxes.detections([device], "yolov8", maps, workspace=workspace, **options)
            stream.begin_capture()
            boxes.detections([device], "yolov8", maps, out=out, workspace=workspace, **options)
            graph = stream.end_capture()
            for output, table in ((first, MAPS), (second, MAPS[::-1].copy()), (first, MAPS)):
                device.set(output)
                maps.set(table)
                graph.launch(stream)
                stream.synchronize()
                same(out, boxes.detections([output], "yolov8", table, **options))
        assert kept

    def test_batch_of_eight(self) -> None:
        outputs = np.concatenate([raw("yolov8", 8400, 4, seed) for seed in range(4)])
        maps = np.tile(MAPS, (4, 1))
        options = {"conf": 0.8, "iou": 0.5, "max_det": 300}
        expected = boxes.detections([outputs], "yolov8", maps, **options)
        same(boxes.detections([cp.asarray(outputs)], "yolov8", maps, **options), expected)


def loop(found: NDArray[np.float32], scores: NDArray[np.float32], classes: Any, iou: float) -> list[int]:
    """torchvision.ops.nms in scalars: float32 arithmetic, one pair after the other, the comparison in float64."""
    kept: list[int] = []
    order = sorted(range(len(found)), key=lambda i: (-scores[i], i))
    zero = np.float32(0)
    for i in order:
        for k in kept:
            if classes is not None and classes[k] != classes[i]:
                continue
            (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = found[k], found[i]
            width = max(min(ax2, bx2) - max(ax1, bx1), zero)
            height = max(min(ay2, by2) - max(ay1, by1), zero)
            shared = width * height
            union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
            if union != 0 and float(shared / union) > iou:
                break
        else:
            kept.append(i)
    return kept


def random_boxes(rng: np.random.Generator, count: int, spread: float) -> NDArray[np.float32]:
    corner = rng.uniform(0, spread, (count, 2))
    return np.concatenate((corner, corner + rng.uniform(0, 60, (count, 2))), axis=1).astype(np.float32)


@pytest.mark.slow
def test_nms_of_ten_thousand_random_cases() -> None:
    """Ties of scores, overlaps equal to the threshold, boxes without area and turned inside out, duplicates."""
    rng = np.random.default_rng(0)
    for case in range(10_000):
        count = int(rng.integers(0, 12 if case % 20 else 80))
        found = random_boxes(rng, count, float(rng.choice([20, 200])))
        if case % 3 == 0:
            found = np.round(found / 8) * 8  # many equal overlaps, many without area
        if case % 5 == 0 and count:
            found[rng.integers(0, count, count // 3)] = found[0]
        if case % 7 == 0 and count:
            found[-1] = found[-1, [2, 3, 0, 1]]
        scores = rng.integers(0, 6, count).astype(np.float32) / 5
        classes = rng.integers(0, 3, count).astype(np.int32) if case % 2 else None
        iou = float(rng.choice([0.0, 0.1, 0.2, 0.25, 1 / 3, 0.45, 0.5, 0.6, 0.7, 0.9, 1.0]))
        expected = reference.nms(found, scores, classes, iou=iou)
        assert boxes.nms(found, scores, classes, iou=iou).tolist() == expected.tolist(), case
        if case % 10 == 0:
            assert expected.tolist() == loop(found, scores, classes, iou), case


@pytest.mark.parametrize("iou", [0.1, 0.2, 0.3, 0.6, 0.7, 0.9])
def test_overlap_equal_to_the_threshold(iou: float) -> None:
    """The overlap of these boxes rounds to float32(iou), which may lie above or below iou itself."""
    found = np.array([[0, 0, 10, 100], [0, 0, 10, 100 * iou]], np.float32)
    overlap = found[1, 3] / np.float32(100)
    kept = boxes.nms(found, np.ones(2, np.float32), iou=iou)
    assert len(kept) == (1 if float(overlap) > iou else 2)


@pytest.mark.parametrize("spread", [40, 640, 20_000])
def test_nms_of_thirty_thousand_boxes(spread: float) -> None:
    rng = np.random.default_rng(0)
    found, scores = random_boxes(rng, 30_000, spread), rng.integers(0, 500, 30_000).astype(np.float32)
    expected = reference.nms(found, scores, None, iou=0.7, max_det=300)
    assert boxes.nms(found, scores, iou=0.7, max_det=300).tolist() == expected.tolist()


def test_nms_leaves_out_what_is_not_finite_and_takes_any_score() -> None:
    found = np.array([[0, 0, 9, 9], [0, 0, np.nan, 9], [50, 0, 59, 9], [70, 0, 79, 9], [90, 0, 99, 9]], np.float32)
    scores = np.array([-0.0, 1, np.inf, 0.0, -3], np.float32)
    assert boxes.nms(found, scores, iou=0.5).tolist() == [0, 3, 4]


def test_nms_writes_to_out() -> None:
    out = np.full(9, -1, np.int32)
    found = np.array([[0, 0, 9, 9], [0, 0, 9, 8], [50, 0, 59, 9]], np.float32)
    kept = boxes.nms(found, np.array([1, 2, 3], np.float32), iou=0.5, out=out)
    assert kept.base is out and out[:3].tolist() == [2, 1, -1]


def test_rotated_boxes_without_angle_are_boxes() -> None:
    rng = np.random.default_rng(3)
    for turn in (0.0, np.pi, -np.pi):
        found, scores = random_boxes(rng, 300, 200) + np.float32([0, 0, 1, 1]), rng.random(300).astype(np.float32)
        size = found[:, 2:] - found[:, :2]
        angles = np.full((300, 1), turn, np.float32)
        rotated = np.concatenate((found[:, :2] + size / 2, size, angles), 1)
        expected = reference.nms(found, scores, iou=0.3123)
        assert boxes.nms(rotated, scores, iou=0.3123).tolist() == expected.tolist()


def test_rotated_nms_against_the_reference() -> None:
    rng = np.random.default_rng(4)
    for case in range(150):
        count = int(rng.integers(0, 50))
        sides = (rng.uniform(0, 60, (count, 2)), rng.uniform(1, 60, (count, 2)), rng.uniform(-7, 7, (count, 1)))
        found = np.concatenate(sides, 1).astype(np.float32)
        if case % 4 == 0 and count > 3:
            found[1] = found[0]
        scores, classes = rng.random(count).astype(np.float32), rng.integers(0, 2, count).astype(np.int32)
        expected = reference.nms(found, scores, classes, iou=0.3)
        assert boxes.nms(found, scores, classes, iou=0.3).tolist() == expected.tolist()


def test_area_shared_by_rotated_boxes() -> None:
    square, diamond = np.array([0, 0, 2, 2, 0]), np.array([0, 0, 2, 2, np.pi / 4])
    assert reference.rotated_intersection(square, diamond) == pytest.approx(8 * (np.sqrt(2) - 1))
    assert reference.rotated_intersection(square, np.array([3, 0, 2, 2, 0])) == 0
    assert reference.rotated_intersection(diamond, np.array([0, 0, 9, 9, 1])) == pytest.approx(4)


def test_a_view_with_pitch_and_a_read_only_output() -> None:
    output = np.zeros((2, 9, 400), np.float32)
    output[:, :, 37:337] = raw("yolov8", 300, 5, 0)
    view = output[:, :, 37:337]
    view.flags.writeable = False
    options = {"conf": 0.3, "iou": 0.5, "max_det": 100}
    expected = reference.detections([view], "yolov8", MAPS, **options)
    same(boxes.detections([view], "yolov8", MAPS, **options), expected)
    out = boxes.Found.make(2, 100, np.empty)
    assert boxes.detections([view], "yolov8", MAPS, out=out, **options) is out
    same(out, expected)


def test_finite_values_whose_sum_overflows_are_finite() -> None:
    output = np.full((1, 9, 300), 3e38, np.float32)
    output[:, 4:] = 0
    found = boxes.detections([output], "yolov8", MAPS[:1], conf=0.5, iou=0.5, max_det=9)
    assert found.non_finite.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "yolov9000"}, "yolov9000"),
        ({"outputs": [np.zeros((1, 4, 9), np.float32)]}, r"\(1, 4, 9\)"),
        ({"outputs": [np.zeros((84, 9), np.float32)]}, r"\(84, 9\)"),
        ({"outputs": [np.zeros((1, 84, 9), np.float64)]}, "float64"),
        ({"outputs": [np.zeros((1, 9, 84), np.float32).transpose(0, 2, 1)]}, "strides"),
        ({"outputs": [np.zeros((1, 84, 9), np.float32)] * 2}, "2"),
        ({"maps": MAPS}, "2 images"),
        ({"maps": MAPS[0]}, r"\(8,\)"),
        ({"max_det": 0}, "max_det 0"),
        ({"iou": 1.5}, "iou 1.5"),
        ({"out": boxes.Found.make(1, 8, np.empty)}, r"\(1, 8, 4\)"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "outputs": [np.zeros((1, 84, 9), np.float32)],
        "layout": "yolov8",
        "maps": MAPS[:1],
        "conf": 0.25,
        "iou": 0.7,
        "max_det": 9,
    }
    boxes.detections(**good)
    with pytest.raises(UsageError, match=message):
        boxes.detections(**{**good, **change})
