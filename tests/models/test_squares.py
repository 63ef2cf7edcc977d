"""The squares detector and its clip: every square is found where it is, and nothing else is found."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from framefuse.errors import ModelError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.postprocess import postprocess
from framefuse.preprocess import Placement
from training.squares import DTYPES, write_squares
from training.squares_clip import Truth, squares_clip, squares_scene

GREY = 110
COLOURS = [(228, 60, 52), (30, 200, 50), (40, 76, 228)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squares(tmp_path_factory.mktemp("model") / "squares.onnx")


def session(model: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def detect(output: NDArray[np.float32], size: tuple[int, int]) -> Truth:
    """Detections of an image of `size` (width, height) that is itself the model input."""
    found = postprocess([output], "yolov8", [Placement(size, size, (0, 0, *size))], conf=0.25, iou=0.7, max_det=300)
    count = int(found.counts[0])
    return [(int(c), *b) for c, b in zip(found.classes[0, :count], found.boxes[0, :count].tolist(), strict=True)]


def planar(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255))


def assert_same(found: Truth, truth: Truth, tolerance: float) -> None:
    """Same classes and boxes, in any order, each side within `tolerance` pixels."""
    assert len(found) == len(truth), (sorted(found), sorted(truth))
    for class_id, *box in truth:
        distances = [np.abs(np.subtract(box, other)).max() for c, *other in found if c == class_id]
        assert min(distances, default=np.inf) <= tolerance, (class_id, box, found)


def draw(image: NDArray[np.uint8], x: int, y: int, width: int, height: int, colour: Any) -> None:
    image[y : y + height, x : x + width] = colour


@pytest.mark.parametrize("side", [12, 16, 17, 40, 100, 200, 236])
def test_squares_of_every_size_at_every_phase(model: Path, side: int) -> None:
    run = session(model)
    for class_id, colour in enumerate(COLOURS):
        image = np.full((384, 640, 3), GREY, np.uint8)
        x, y = 8 + 3 * class_id, 13 + 5 * class_id
        draw(image, x, y, side, side, colour)
        draw(image, 640 - side, 384 - side, side, side, colour)  # touches two borders
        truth: Truth = [(class_id, x, y, x + side, y + side), (class_id, 640 - side, 384 - side, 640, 384)]
        assert_same(detect(run.run(None, {"images": planar(image)})[0], (640, 384)), truth, 1.0)


def test_what_is_not_a_saturated_square_is_not_found(model: Path) -> None:
    rng = np.random.default_rng(0)
    run = session(model)
    grey = np.repeat(rng.integers(0, 256, (384, 640, 1), np.uint8), 3, axis=2)
    dull = rng.integers(90, 140, (384, 640, 3)).astype(np.uint8)
    padding = np.full((384, 640, 3), 114, np.uint8)
    for colour, position in (((230, 220, 40), 20), ((150, 120, 110), 120), ((250, 250, 250), 220)):
        draw(padding, position, 40, 60, 60, colour)  # yellow, dull red, white
    draw(padding, 20, 200, 200, 40, COLOURS[0])  # a bar
    draw(padding, 320, 200, 6, 6, COLOURS[1])  # a speck
    for image in (grey, dull, padding):
        assert detect(run.run(None, {"images": planar(image)})[0], (640, 384)) == []


def test_neighbours_of_different_colour_are_kept_apart(model: Path) -> None:
    image = np.full((256, 320, 3), GREY, np.uint8)
    for class_id, colour in enumerate(COLOURS):
        draw(image, 40 + 64 * class_id, 80, 64, 64, colour)
    truth: Truth = [(c, 40 + 64 * c, 80, 104 + 64 * c, 144) for c in range(3)]
    assert_same(detect(session(model).run(None, {"images": planar(image)})[0], (320, 256)), truth, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_input_types_and_fixed_shapes(tmp_path: Path, dtype: Any) -> None:
    path = write_squares(tmp_path / "fixed.onnx", dynamic=False, size=(256, 320), dtype=dtype)
    card = read_card(path)
    assert card.layout == "yolov8" and not card.dynamic_size and card.input_dtype == dtype
    assert (card.preprocess.height, card.preprocess.width) == (256, 320)
    image = np.full((256, 320, 3), GREY, np.uint8)
    draw(image, 33, 47, 90, 90, COLOURS[2])
    normalised = (image.transpose(2, 0, 1)[None] / card.preprocess.std[0]).astype(DTYPES[dtype])
    found = detect(session(path).run(None, {"images": normalised})[0], (320, 256))
    assert_same(found, [(2, 33, 47, 123, 137)], 1.0)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_openvino_equals_onnxruntime(model: Path, precision: str) -> None:
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(str(model), "CPU", {"INFERENCE_PRECISION_HINT": precision})
    run = session(model)
    for size in ((640, 384), (320, 320)):
        images = [image.copy() for image, _ in squares_scene(2, size, seed=5)]
        batch = np.concatenate([planar(image) for image in images])
        expected = run.run(None, {"images": batch})[0]
        found = compiled(batch)[0]
        assert found.shape == expected.shape == (2, 7, size[0] * size[1] // 64)
        for row in range(2):
            assert_same(detect(found[row : row + 1], size), detect(expected[row : row + 1], size), 0.5)


def test_nan_in_the_image_reaches_the_output(model: Path) -> None:
    image = planar(np.full((64, 64, 3), GREY, np.uint8))
    image[0, 0, 20, 20] = np.nan
    assert np.isnan(session(model).run(None, {"images": image})[0]).any()


def test_card_of_the_model(model: Path) -> None:
    card = read_card(model)
    assert card.names == {0: "red", 1: "green", 2: "blue"} and card.layout == "yolov8"
    assert card.dynamic_size and card.dynamic_batch and card.preprocess.stride == 32
    assert (card.preprocess.width, card.preprocess.height) == (640, 640)


@pytest.mark.parametrize("size", [(640, 384), (384, 640)])
def test_clip_truth_is_what_is_found(model: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "clip.mp4"
    truths = squares_clip(path, frames=12, size=size, fps=Fraction(30000, 1001), seed=2)
    run = session(model)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == Fraction(30000, 1001) and stream.codec_context.color_range == 1
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) == len(truths) == 12
    for image, truth in zip(frames, truths, strict=True):
        assert len(truth) == 6
        assert_same(detect(run.run(None, {"images": planar(image)})[0], size), truth, 1.5)


def test_scene_is_seeded_moves_and_stays_inside() -> None:
    first = [truth for _, truth in squares_scene(20, (320, 192), seed=7)]
    assert first == [truth for _, truth in squares_scene(20, (320, 192), seed=7)]
    assert first != [truth for _, truth in squares_scene(20, (320, 192), seed=8)]
    boxes = np.array([[box for _, *box in truth] for truth in first])
    assert (boxes >= 0).all() and (boxes <= (320, 192, 320, 192)).all()
    steps = np.abs(np.diff(boxes, axis=0))
    assert steps.max() < 5 and steps.sum() > 10


def test_clip_with_sound_and_another_pixel_format(tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    squares_clip(path, frames=10, size=(160, 96), audio=True, pix_fmt="yuv444p10le")
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv444p10le"
        assert sum(frame.samples for frame in container.decode(audio=0)) >= 16_000


def test_the_shipped_file_is_what_the_source_writes(tmp_path: Path) -> None:
    written, shipped = (onnx.load(path) for path in (write_squares(tmp_path / "model.onnx"), find_model("squares")))
    assert written.graph == shipped.graph


def test_find_model(tmp_path: Path) -> None:
    path = find_model("squares")
    assert find_model(path) == find_model(str(path)) == path
    with pytest.raises(ModelError, match="did you mean 'squares'"):
        find_model("square")
    with pytest.raises(ModelError, match=r"check the path.* or pass a name"):
        find_model("yolo.onnx")
    (tmp_path / "yolov8n.onnx").touch()
    with pytest.raises(ModelError, match=r"did you mean .*yolov8n.onnx"):
        find_model(tmp_path / "yolo8n.onnx")
