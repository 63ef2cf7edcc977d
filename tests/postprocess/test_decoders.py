"""Networks that leave their decoding to others, against loops over their formulas, and through a Pipeline."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from test_heads import SIZE, model

from framefuse import Pipeline
from framefuse.errors import CardError
from framefuse.models.card import read_card
from framefuse.models.layouts import UNDECODED
from framefuse.postprocess.decoders import DECODERS, decoded, grid, strides_of
from framefuse.preprocess import Preprocess

SHAPE = 64, 96
"""Height and width."""


def cells(strides: tuple[int, ...], size: tuple[int, int] = SHAPE) -> list[tuple[int, int, int]]:
    """Column, row and stride of each cell."""
    return [
        (column, row, stride)
        for stride in strides
        for row in range(math.ceil(size[0] / stride))
        for column in range(math.ceil(size[1] / stride))
    ]


def filled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows[rows[:, 4] > 0]


def test_grids() -> None:
    for strides in ((8, 16, 32), (8, 16, 32, 64)):
        for size in (SHAPE, (320, 320), (70, 50)):
            assert grid(size, strides).tolist() == [list(map(float, cell)) for cell in cells(strides, size)]
            assert strides_of(len(cells(strides, size)), size) == strides
    assert strides_of(100, SHAPE) is None


def test_yolox() -> None:
    rng, places = np.random.default_rng(0), cells((8, 16, 32))
    raw = rng.normal(0, 1, (2, len(places), 8)).astype(np.float32)
    raw[:, :, 4:] = rng.random((2, len(places), 4))
    raw[1, 3, 4] = np.nan
    found = decoded("yolox", [raw], SHAPE, 0.5)
    expected = [
        [(x + column) * stride, (y + row) * stride, math.exp(w) * stride, math.exp(h) * stride, *rest]
        for (x, y, w, h, *rest), (column, row, stride) in zip(raw[0].tolist(), places, strict=True)
        if rest[0] > 0.5
    ]
    np.testing.assert_allclose(filled(found[0]), expected, rtol=1e-5)
    assert np.isnan(found[1]).any(), "what is not finite is left for the check of the values"


def test_cards_and_decoders_have_the_same_layouts() -> None:
    assert set(DECODERS) == set(UNDECODED)


def test_other_anchors_are_refused() -> None:
    with pytest.raises(CardError, match="returned 100 anchors for an input of 96x64"):
        decoded("yolox", [np.zeros((1, 100, 8), np.float32)], SHAPE, 0.5)


@pytest.mark.parametrize("strides", [(8, 16, 32), (8, 16, 32, 64)])
def test_nanodet(strides: tuple[int, ...]) -> None:
    rng, places = np.random.default_rng(1), cells(strides)
    raw = rng.normal(0, 2, (1, len(places), 3 + 32)).astype(np.float32)
    raw[:, :, :3] = rng.random((1, len(places), 3))
    expected = []
    for row, (column, line, stride) in zip(raw[0], places, strict=True):
        if row[:3].max() <= 0.7:
            continue
        sides = []
        for logits in row[3:].reshape(4, 8).astype(float):
            weights = np.exp(logits) / np.exp(logits).sum()
            sides.append(stride * sum(number * weight for number, weight in enumerate(weights)))
        half = 0.5 if len(strides) == 3 else 0
        x, y = (column + half) * stride, (line + half) * stride
        x1, y1, x2, y2 = x - sides[0], y - sides[1], x + sides[2], y + sides[3]
        expected.append([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, 1, *row[:3]])
    np.testing.assert_allclose(filled(decoded("nanodet", [raw], SHAPE, 0.7)[0]), expected, rtol=1e-4, atol=1e-4)


def test_centerface() -> None:
    heat, sides, offsets, marks = (np.zeros((1, n, 16, 24), np.float32) for n in (1, 2, 2, 4))
    heat[0, 0, 5, 7], sides[0, :, 5, 7], offsets[0, :, 5, 7] = 0.9, np.log((4, 3)), (0.25, 0.5)
    marks[0, :, 5, 7] = 0.5, 0.25, 1, 0
    (row,) = filled(decoded("centerface", [heat, sides, offsets, marks], SHAPE, 0.5)[0])
    x, y, wide, high = (7 + 0.5 + 0.5) * 4, (5 + 0.25 + 0.5) * 4, 12, 16
    left, top = x - wide / 2, y - high / 2
    points = [left + 0.25 * wide, top + 0.5 * high, left, top + high]
    np.testing.assert_allclose(row, [x, y, wide, high, 1, 0.9, *points], rtol=1e-5)


@pytest.mark.parametrize("logits", [False, True])
def test_centernet(logits: bool) -> None:
    heat, sides, offsets = (np.full((1, n, 16, 24), 0.01, np.float32) for n in (2, 2, 2))
    heat[0, 1, 5, 7], heat[0, 1, 5, 8], heat[0, 0, 15, 23] = 0.9, 0.8, 0.7
    sides[0, :, 5, 7], offsets[0, :, 5, 7] = (6, 3), (0.5, 0.25)
    if logits:
        heat = np.log(heat / (1 - heat))
    rows = filled(decoded("centernet", [heat, sides, offsets], SHAPE, 0.5)[0])
    assert len(rows) == 2, "a lower neighbour is no peak, also of another class it would be"
    best = rows[rows[:, 6] > 0][0]
    np.testing.assert_allclose(best, [30, 21, 24, 12, 1, 0, 0.9], rtol=1e-5)


@pytest.mark.parametrize("layout", DECODERS)
def test_nothing_is_found(layout: str) -> None:
    count = len(cells((8, 16, 32)))
    outputs = {
        "yolox": [np.full((2, count, 7), -9, np.float32)],
        "nanodet": [np.full((2, count, 35), -9, np.float32)],
        "centerface": [np.full((2, n, 16, 24), -9, np.float32) for n in (1, 2, 2, 10)],
        "centernet": [np.full((2, n, 16, 24), -9, np.float32) for n in (3, 2, 2)],
    }[layout]
    found = decoded(layout, outputs, SHAPE, 0.25)
    assert found.shape[:2] == (2, 1) and not found.any()


def one(path: Path, name: str, **card: Any) -> Any:
    image = path / "image.png"
    Image.fromarray(np.full((2 * SIZE, 2 * SIZE, 3), 90, np.uint8)).save(image)
    (result,) = Pipeline(image, path / name, precision="fp32", conf=0.5)
    return result.detections


def test_yolox_is_told_from_decoded_boxes_by_running_it(tmp_path: Path) -> None:
    raw = np.full((1, 84, 7), -3, np.float32)
    raw[0, :, 4:] = 0
    raw[0, 9] = 0.5, 0.5, math.log(2), math.log(3), 0.9, 0.1, 0.95  # column 1, row 1, stride 8
    network = model(tmp_path / "yolox.onnx", raw, task="detect")
    card = read_card(network)
    assert card.layout == "yolox" and "test run" in card.origin["layout"]
    assert (card.preprocess.fit, card.preprocess.channel_order, card.preprocess.std) == ("corner", "bgr", (1, 1, 1))
    found = one(tmp_path, "yolox.onnx")
    assert found[0].name == "dog" and len(found) == 1
    np.testing.assert_allclose(found.xyxy[0], np.array((12 - 8, 12 - 12, 12 + 8, 12 + 12)) * 2, atol=1e-3)
    raw[0, :, :4] = 20, 20, 10, 10
    assert read_card(model(tmp_path / "pixels.onnx", raw, task="detect")).layout == "yolov5"


def test_heat_maps_through_a_pipeline(tmp_path: Path) -> None:
    heat, sides, offsets, marks = (np.zeros((1, n, 16, 16), np.float32) for n in (1, 2, 2, 10))
    heat[0, 0, 8, 8], sides[0, :, 8, 8], marks[0, ::2, 8, 8] = 0.9, np.log(4), 0.5
    model(tmp_path / "face.onnx", heat, sides, offsets, marks, task="", names={0: "face"})
    network = tmp_path / "face.onnx"
    import onnx

    built = onnx.load(network)
    del built.metadata_props[:]
    onnx.save(built, network)
    card = read_card(network)
    assert (card.layout, card.task, card.keypoints) == ("centerface", "pose", (5, 2))
    found = one(tmp_path, "face.onnx")
    np.testing.assert_allclose(found.xyxy, [[52, 52, 84, 84]], atol=1e-3)
    np.testing.assert_allclose(found.keypoints[0, 0], (52, 68, 1), atol=1e-3)
    with pytest.raises(CardError, match="not those of layout centernet"):
        network.with_suffix(".yaml").write_text("layout: centernet\n")
        read_card(network)


def test_a_corner_is_where_yolox_puts_an_image() -> None:
    place = Preprocess(width=640, height=640, fit="corner").place(1920, 1080)
    assert place.content == (0, 0, 640, 360) and place.size == (640, 640)
    place = Preprocess(width=640, height=640, fit="corner", rectangular=True).place(1920, 1080)
    assert place.content == (0, 0, 640, 360) and place.size == (640, 384)
