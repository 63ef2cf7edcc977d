"""kernels.nms and the detr layouts on a GPU: against torchvision, the reference, and our own CPU kernels."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import numpy as np
import pytest

from cuda_fibres import Fibres
from cuda_on_cpu import install, on_device
from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import record_launches
from framefuse.errors import CapabilityError, UsageError
from framefuse.kernels import arrays, reference
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes.reference import Found

try:
    cp = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""
gpu = [pytest.mark.gpu, pytest.mark.skipif(cp is None, reason=missing)]

MAPS = np.array([[640, 640, 10, 20, 1.5, 1.25, 900, 800]], np.float32)


def random_case(rng: np.random.Generator, most: int = 60) -> tuple[Any, Any, Any, float]:
    """Boxes with ties, without area, upside down, and copies of each other."""
    count = int(rng.integers(0, most))
    corner = rng.integers(0, 40, (count, 2)) * rng.choice([0.25, 1.0, 7.3])
    size = rng.integers(-1 if rng.random() < 0.1 else 0, 30, (count, 2)) * rng.choice([0.5, 1.0])
    found = np.concatenate((corner, corner + size), 1).astype(np.float32)
    if count > 4:
        found[: count // 4] = found[count // 4]
    scores = (rng.integers(0, 8, count) / 8 if rng.random() < 0.5 else rng.random(count)).astype(np.float32)
    classes = rng.integers(0, 3, count) if rng.random() < 0.7 else None
    return found, scores, classes, float(rng.choice([0.0, 0.3, 0.45, 0.5, 0.7, 1.0]))


def rotated_case(rng: np.random.Generator, count: int) -> tuple[Any, Any, Any]:
    centre, size = rng.uniform(0, 60, (count, 2)), rng.uniform(2, 30, (count, 2))
    found = np.concatenate((centre, size, rng.uniform(-4, 4, (count, 1))), 1).astype(np.float32)
    return found, rng.random(count).astype(np.float32), rng.integers(0, 3, count)


@pytest.fixture
def fibres(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ stands in for the GPU")
    install(monkeypatch, Fibres)
    monkeypatch.setattr(boxes_cuda, "BLOCKS", 8)
    monkeypatch.setattr(boxes_cuda, "COMPARING", 2)
    arrays._device_table.cache_clear()


@pytest.mark.usefixtures("fibres")
def test_source_on_the_cpu_against_the_reference() -> None:
    rng = np.random.default_rng(3)
    for case in range(12):
        found, scores, classes, iou = random_case(rng)
        expected = reference.nms(found, scores, classes, iou=iou)
        labels = None if classes is None else on_device(classes)
        assert boxes.nms(on_device(found), on_device(scores), labels, iou=iou).tolist() == expected.tolist(), case
    count = 1500  # a window after the first chunk
    corner, size = rng.uniform(0, 400, (count, 2)), rng.uniform(1, 60, (count, 2))
    found = np.concatenate((corner, corner + size), 1).astype(np.float32)
    scores = rng.permutation(np.linspace(0, 1, count, dtype=np.float32))
    expected = boxes.nms(found, scores, iou=0.4)
    assert boxes.nms(on_device(found), on_device(scores), iou=0.4).tolist() == expected.tolist()
    for count in (1, 40):
        found, scores, classes = rotated_case(rng, count)
        expected = reference.nms(found, scores, classes, iou=0.3)
        kept = boxes.nms(on_device(found), on_device(scores), on_device(classes), iou=0.3)
        assert kept.tolist() == expected.tolist()


@pytest.mark.usefixtures("fibres")
def test_rotated_boxes_like_each_other() -> None:
    """All corners of one lie on the sides of the other. With these, rounding makes the clipped polygon one of 10."""
    shapes = [(12.106407, 25.368269, -1.1371201), (13.374812, 24.215944, 0.40242571)]
    found = np.array([(100 * place, 50, *shape) for place, shape in enumerate(shapes)] * 3, np.float32)
    found[4:, 2:] *= np.float32(1 + 2**-23)
    scores = np.linspace(1, 0.5, len(found), dtype=np.float32)
    assert boxes.nms(found, scores, iou=0.9).tolist() == [0, 1]
    assert boxes.nms(on_device(found), on_device(scores), iou=0.9).tolist() == [0, 1]


@pytest.mark.usefixtures("fibres")
def test_count_of_values_that_are_not_finite() -> None:
    values = np.random.default_rng(9).normal(size=(3, 20_000)).astype(np.float32)
    values[0, [0, 9_999, 19_999]] = np.nan, np.inf, -np.inf
    values[2, 17_000:17_040] = np.nan
    counts = np.array([0, 5, 0], np.int32)
    kernel.launch(
        "count_non_finite_f32", values=on_device(values), image_pitch=20_000, n=3, size=20_000, counts=on_device(counts)
    )
    assert counts.tolist() == [3, 5, 40]


def heads(rng: np.random.Generator, queries: int = 300, classes: int = 80) -> list[tuple[str, list[Any], str | None]]:
    """Every kind of detr output: what it is, arrays, activation."""
    centre = rng.random((1, queries, 2)).astype(np.float32)
    sides = np.concatenate((centre, rng.random((1, queries, 2)).astype(np.float32) / 4), 2)
    logits = rng.normal(-2, 2, (1, queries, classes)).astype(np.float32)
    scores = rng.random((1, queries)).astype(np.float32)
    labels = rng.integers(0, classes, (1, queries))
    corners = np.sort(rng.random((1, queries, 2, 2)).astype(np.float32), axis=2).reshape(1, queries, 4)
    both = np.concatenate((sides, logits), 2)
    return [
        ("two, sigmoid", [sides, logits], None),
        ("two, softmax", [sides, logits], "softmax"),
        ("one, none", [np.concatenate((sides, rng.random(logits.shape).astype(np.float32)), 2)], None),
        ("one, softmax", [both], "softmax"),
        ("one, sigmoid", [both], "sigmoid"),
        ("three, integers", [labels, corners, scores], None),
        ("three, floats", [labels.astype(np.float32), corners, scores], None),
    ]


def check_heads(move: Any, back: Any) -> None:
    rng = np.random.default_rng(5)
    options: dict[str, Any] = {"conf": 0.3, "iou": 0.5, "max_det": 100}
    for classes in (None, (1, 5, 7, 11)):
        for name, outputs, activation in heads(rng):
            expected = reference.detections(outputs, "detr", MAPS, classes=classes, activation=activation, **options)
            outputs = [move(output) for output in outputs]
            found = boxes.detections(outputs, "detr", MAPS, classes=classes, activation=activation, **options)
            found = Found(*map(back, found))
            count = int(expected.counts[0])
            assert found.counts.tolist() == expected.counts.tolist() and count, (name, classes)
            np.testing.assert_allclose(found.scores[0, :count], expected.scores[0, :count], rtol=2e-6, err_msg=name)
            np.testing.assert_array_equal(found.classes[0, :count], expected.classes[0, :count], err_msg=name)
            np.testing.assert_allclose(found.boxes[0, :count], expected.boxes[0, :count], rtol=1e-5, err_msg=name)


@pytest.mark.usefixtures("fibres")
def test_detr_source_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_kernels_cuda_nms.heads", lambda rng: SMALL(rng, 33, 7))
    check_heads(on_device, np.asarray)


SMALL = heads


@pytest.mark.usefixtures("fibres")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_end2end_source_on_the_cpu(dtype: Any) -> None:
    """Rows may be padded; anchors with a value that is not finite are counted."""
    rng = np.random.default_rng(1)
    corners = np.sort(rng.random((2, 50, 2, 2)), axis=2).reshape(2, 50, 4)
    parts = corners, rng.random((2, 50, 1)), rng.integers(0, 9, (2, 50, 1)), rng.random((2, 50, 1))
    rows = np.concatenate(parts, 2).astype(dtype)
    rows[0, 3, 5], rows[1, 7, 4], rows[1, 9, 0] = np.nan, np.inf, np.nan
    options: dict[str, Any] = {"conf": 0.3, "iou": 0.5, "max_det": 30}
    maps = np.repeat(MAPS, 2, axis=0)
    for classes in (None, (1, 5, 7)):
        for output in (rows, np.ascontiguousarray(rows[:, :, :6])):
            expected = reference.detections([output], "end2end", maps, classes=classes, **options)
            found = boxes.detections([on_device(output)], "end2end", maps, classes=classes, **options)
            assert found.counts.tolist() == expected.counts.tolist() and expected.counts.min() > 0
            assert found.non_finite.tolist() == expected.non_finite.tolist() == [1, 2]
            for image, count in enumerate(expected.counts):
                np.testing.assert_array_equal(found.scores[image, :count], expected.scores[image, :count])
                np.testing.assert_array_equal(found.classes[image, :count], expected.classes[image, :count])
                np.testing.assert_allclose(found.boxes[image, :count], expected.boxes[image, :count], rtol=1e-5)


class TestGpu:
    pytestmark = gpu

    def test_threads_on_one_stream(self) -> None:
        """CuPy's default stream is that of all threads; what one finds is not mixed up with what another does."""
        rng, wrong = np.random.default_rng(3), list[int]()

        def work(found: Any, scores: Any, expected: list[int]) -> None:
            there = cp.asarray(found), cp.asarray(scores)
            for turn in range(200):
                if boxes.nms(*there, iou=0.5).tolist() != expected:
                    wrong.append(turn)

        threads = []
        for _ in range(4):
            corner, size = rng.uniform(0, 400, (500, 2)), rng.uniform(1, 60, (500, 2))
            found = np.concatenate((corner, corner + size), 1).astype(np.float32)
            scores = rng.permutation(np.linspace(0, 1, 500, dtype=np.float32))
            threads.append(
                threading.Thread(target=work, args=(found, scores, boxes.nms(found, scores, iou=0.5).tolist()))
            )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_ten_thousand_random_cases_are_those_of_torchvision(self) -> None:
        torch = pytest.importorskip("torch")
        ops = pytest.importorskip("torchvision.ops")
        rng = np.random.default_rng(11)
        total = 0
        for case in range(10_000):
            found, scores, classes, iou = random_case(rng)
            names = np.zeros(len(found), np.int64) if classes is None else classes
            b, s = torch.from_numpy(found).cuda(), torch.from_numpy(scores).cuda()
            # torchvision orders equal scores as it likes: ours are ordered already.
            order = np.argsort(-scores, kind="stable")
            expected: list[int] = []
            for name in np.unique(names):
                index = order[names[order] == name]
                falling = torch.arange(len(index), 0, -1, dtype=torch.float32)
                kept = ops.nms(torch.from_numpy(found[index]), falling, iou)
                expected += index[kept.numpy()].tolist()
            rank = np.empty(len(found), int)
            rank[order] = np.arange(len(found))
            expected.sort(key=lambda k: rank[k])
            labels = None if classes is None else torch.from_numpy(classes).cuda()
            torch.cuda.synchronize()
            assert boxes.nms(b, s, labels, iou=iou).tolist() == expected, case
            total += len(expected)
        print(f"10,000 cases, {total} boxes kept, all as torchvision")

    @pytest.mark.parametrize("spread", [100.0, 3000.0])
    def test_thirty_thousand_boxes(self, spread: float) -> None:
        torch = pytest.importorskip("torch")
        ops = pytest.importorskip("torchvision.ops")
        rng = np.random.default_rng(2)
        corner, size = rng.uniform(0, spread, (30_000, 2)), rng.uniform(1, 60, (30_000, 2))
        found = np.concatenate((corner, corner + size), 1).astype(np.float32)
        scores = rng.permutation(np.linspace(0, 1, 30_000, dtype=np.float32))
        expected = ops.nms(torch.from_numpy(found).cuda(), torch.from_numpy(scores).cuda(), 0.5).cpu().numpy()
        kept = boxes.nms(cp.asarray(found), cp.asarray(scores), iou=0.5).get()
        np.testing.assert_array_equal(kept, expected)

    def test_rotated(self) -> None:
        rng = np.random.default_rng(4)
        for count in (1, 3, 50, 150):
            found, scores, classes = rotated_case(rng, count)
            expected = reference.nms(found, scores, classes, iou=0.3)
            kept = boxes.nms(cp.asarray(found), cp.asarray(scores), cp.asarray(classes), iou=0.3)
            assert kept.get().tolist() == expected.tolist()
        found, scores, _ = rotated_case(rng, 9_000)
        found[:, :2] *= 40
        expected = boxes.nms(found, scores, iou=0.4)
        kept = boxes.nms(cp.asarray(found), cp.asarray(scores), iou=0.4).get()
        assert len(set(kept.tolist()) ^ set(expected.tolist())) <= 2  # areas agree to rounding

    def test_what_is_not_finite_any_score_and_no_box(self) -> None:
        found = np.array([[0, 0, 9, 9], [0, 0, np.nan, 9], [0, 0, 9, 8], [50, 0, 60, 9], [0, 50, 5, 60]], np.float32)
        scores = np.array([900, 5, 3, -2, -np.inf], np.float32)
        assert boxes.nms(cp.asarray(found), cp.asarray(scores), iou=0.5).tolist() == [0, 3]
        assert boxes.nms(cp.zeros((0, 4), np.float32), cp.zeros(0, np.float32), iou=0.5).tolist() == []

    def test_in_a_graph_with_out(self) -> None:
        rng = np.random.default_rng(7)
        found, scores, _, _ = random_case(rng, 1000)
        b, s = cp.asarray(found), cp.asarray(scores)
        out = cp.zeros(len(found), np.int32), cp.zeros(1, np.int32)
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.Device().synchronize()
        with stream:
            plan = record_launches(boxes.nms, b, s, iou=0.5, out=out)
            stream.begin_capture()
            plan()
            with pytest.raises(UsageError, match="before the capture"):
                boxes.nms(b, s, iou=0.5, out=out)
            graph = stream.end_capture()
            out[0].fill(-1)
            graph.launch(stream)
            stream.synchronize()
        expected = reference.nms(found, scores, iou=0.5)
        assert out[0][: int(out[1][0])].tolist() == expected.tolist()

    def test_what_cannot_be_used(self) -> None:
        b, s = cp.zeros((3, 4), np.float32), cp.zeros(3, np.float32)
        with pytest.raises(UsageError, match="float32"):
            boxes.nms(b, s.astype(np.float16), iou=0.5)
        with pytest.raises(UsageError, match="int64"):
            boxes.nms(b, s, s, iou=0.5)
        with pytest.raises(UsageError, match="pair"):
            boxes.nms(b, s, iou=0.5, out=cp.zeros(3, np.int32))
        with pytest.raises(UsageError, match="scores"):
            boxes.nms(b, cp.zeros(2, np.float32), iou=0.5)

    def test_every_kind_of_detr_output(self) -> None:
        check_heads(cp.asarray, cp.asnumpy)
