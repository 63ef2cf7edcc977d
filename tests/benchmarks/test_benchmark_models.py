"""The benchmark models cost exactly what the published architectures cost, and behave like detectors."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import openvino
import pytest

from benchmarks.model_graph import Cost, cost
from benchmarks.models import calibration_images, model
from benchmarks.protocol import Stats, measure

pytestmark = pytest.mark.slow  # the weights of each model take seconds to make
Image = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    """From the benchmarks' cache, where each is made again when what makes it has changed."""
    return {
        "yolov8n": model("yolov8n"),
        "yolov8n_static": model("yolov8n", dynamic=False),
        "yolov5s": model("yolov5s"),
    }


@pytest.fixture(scope="module")
def sessions(files: dict[str, Path]) -> dict[str, onnxruntime.InferenceSession]:
    return {name: onnxruntime.InferenceSession(path) for name, path in files.items()}


def image(index: int, height: int) -> Image:
    """A frame of the scene (1, 3, height, 640); heights below 640 have less padding above and below."""
    margin = (640 - height) // 2
    return np.ascontiguousarray(calibration_images()[index : index + 1, :, margin : 640 - margin])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("yolov8n", Cost(3_151_904, 4_371_993_600)), ("yolov5s", Cost(7_225_885, 8_216_780_800))],
)
def test_cost_is_that_of_the_published_architecture(files: dict[str, Path], name: str, expected: Cost) -> None:
    """Published, fused, at 640x640: YOLOv8n 3,151,904 parameters, 8.7 GFLOP; YOLOv5s 7,225,885 and 16.4 GFLOP."""
    assert cost(files[name]) == expected


@pytest.mark.parametrize("height", [640, 384])
@pytest.mark.parametrize("name", ["yolov8n", "yolov5s"])
def test_engines_agree_and_shapes_follow_the_image(
    files: dict[str, Path], sessions: dict[str, onnxruntime.InferenceSession], name: str, height: int
) -> None:
    cells = sum(height * 640 // stride**2 for stride in (8, 16, 32))
    x = image(1, height)
    (result,) = sessions[name].run(None, {"images": x})
    assert result.shape == ((1, 84, cells) if name == "yolov8n" else (1, 3 * cells, 85))
    network = openvino.compile_model(files[name], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(network(x)[0], result, rtol=1e-3, atol=0.2)  # boxes are pixels, up to 640


def test_batch_is_dynamic(sessions: dict[str, onnxruntime.InferenceSession]) -> None:
    batch = np.concatenate([image(0, 384), image(1, 384)])
    (together,) = sessions["yolov8n"].run(None, {"images": batch})
    (alone,) = sessions["yolov8n"].run(None, {"images": batch[1:]})
    np.testing.assert_allclose(together[1:], alone, atol=0.01)


def test_the_same_seed_gives_the_same_weights(files: dict[str, Path]) -> None:
    """Dynamic and static were built one after the other, each from the seed."""
    dynamic, static = (
        {item.name: item.raw_data for item in onnx.load(files[name]).graph.initializer}
        for name in ("yolov8n", "yolov8n_static")
    )
    weights = [name for name in dynamic if name.endswith((".weight", ".bias"))]
    assert len(weights) == 2 * 63
    assert all(dynamic[name] == static[name] for name in weights)


def test_static_export_equals_the_dynamic_one(sessions: dict[str, onnxruntime.InferenceSession]) -> None:
    assert sessions["yolov8n_static"].get_inputs()[0].shape == [1, 3, 640, 640]
    x = image(2, 640)
    results = [sessions[name].run(None, {"images": x})[0] for name in ("yolov8n", "yolov8n_static")]
    np.testing.assert_allclose(results[0], results[1], atol=0.01)


@pytest.mark.parametrize("height", [640, 384])
@pytest.mark.parametrize("name", ["yolov8n", "yolov5s"])
def test_a_frame_has_a_plausible_number_of_boxes(
    sessions: dict[str, onnxruntime.InferenceSession], name: str, height: int
) -> None:
    counts = []
    for index in range(0, len(calibration_images()), 2):
        (output,) = sessions[name].run(None, {"images": image(index, height)})
        rows = output[0].T if name == "yolov8n" else output[0]
        scores = rows[:, 4:] if name == "yolov8n" else rows[:, 4:5] * rows[:, 5:]
        counts.append(len(kept(rows[:, :4], scores)))
    assert 5 <= np.mean(counts) <= 50


def kept(xywh: Image, scores: Image, confidence: float = 0.25, iou: float = 0.7) -> list[int]:
    """Greedy NMS per class, best first."""
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    start, end = xywh[:, :2] - xywh[:, 2:] / 2, xywh[:, :2] + xywh[:, 2:] / 2
    keep: list[int] = []
    for candidate in sorted(np.flatnonzero(best > confidence), key=lambda row: -best[row]):
        rivals = [row for row in keep if classes[row] == classes[candidate]]
        size = np.clip(np.minimum(end[rivals], end[candidate]) - np.maximum(start[rivals], start[candidate]), 0, None)
        shared = size.prod(axis=1)
        union = xywh[rivals, 2:].prod(axis=1) + xywh[candidate, 2:].prod() - shared
        if not (shared / union > iou).any():
            keep.append(int(candidate))
    return keep


def test_metadata_says_what_the_model_is(files: dict[str, Path]) -> None:
    keys = {item.key: item.value for item in onnx.load(files["yolov8n"]).metadata_props}
    assert (keys["task"], keys["stride"], keys["imgsz"]) == ("detect", "32", "[640, 640]")
    assert keys["names"].startswith("{0: 'person', 1: 'bicycle'")


def test_statistics_of_known_times() -> None:
    stats = Stats.of([1.0, 2.0, 3.0, 4.0])
    assert (stats.runs, stats.mean, stats.min, stats.max, stats.median) == (4, 2.5, 1.0, 4.0, 2.5)
    assert stats.std == pytest.approx(math.sqrt(5 / 3))
    assert stats.fps == pytest.approx(400)


def test_peers_are_interleaved_and_warm_ups_are_not_counted() -> None:
    calls: list[str] = []
    result = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, warmups=3, runs=5)
    assert [sorted(calls[i : i + 2]) for i in range(0, len(calls), 2)] == [["a", "b"]] * 8
    assert result["a"].wall.runs == 5 and result["a"].device is None
