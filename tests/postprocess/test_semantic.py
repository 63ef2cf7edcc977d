"""Segmenters: what their card says, masks in source pixels, drawn, written and scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from framefuse import Pipeline
from framefuse.errors import CardError, DecodeError, NonFiniteError, UsageError
from framefuse.frame import PIXEL_FORMATS
from framefuse.lab.evaluation import open_data, validate
from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.counters import OTHER, PixelCounter
from framefuse.models.card import read_card
from framefuse.postprocess import class_masks
from framefuse.prediction import Detections, Masks
from framefuse.preprocess import Preprocess
from framefuse.sinks.draw import Annotator
from segmenter import NAMES, write_segmenter


def image(width: int, height: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Grey with a red and a green rectangle, RGB, and its class mask."""
    truth = np.zeros((height, width), np.uint8)
    truth[height // 4 : height // 2, width // 8 : width // 2] = 1
    truth[height // 2 : height - height // 8, width // 2 : width - width // 5] = 2
    colours = np.array([(120, 120, 120), (230, 60, 60), (50, 210, 60)], np.uint8)
    return colours[truth], truth


def outlined(rectangle: np.ndarray[Any, Any], category: int) -> dict[str, Any]:
    """A rectangle of an image as an annotation of COCO."""
    y, x = np.nonzero(rectangle)
    x1, y1, x2, y2 = int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1
    row = {"image_id": 1, "category_id": category, "bbox": [x1, y1, x2 - x1, y2 - y1]}
    return {**row, "segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]]}


def agreement(found: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> float:
    return float((found == truth).mean())


@pytest.mark.parametrize(("width", "height"), [(96, 64), (384, 256), (640, 361), (200, 333)])
@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_masks_are_in_source_pixels(tmp_path: Path, width: int, height: int, stride: int, engine: str) -> None:
    model = write_segmenter(tmp_path / "seg.onnx", stride=stride)
    pixels, truth = image(width, height)
    (result,) = Pipeline([pixels[..., ::-1]], model, engine=engine, precision="fp32")
    assert result.masks is not None
    assert result.masks.class_id.shape == (height, width)
    assert result.masks.class_id.dtype == np.uint8
    assert len(result.detections) == 0
    edge = 4 * stride * max(width / 96, height / 64) * (width + height) / (width * height)
    assert agreement(result.masks.class_id, truth) > 1 - edge


def test_batches_and_the_null_engine(tmp_path: Path) -> None:
    model = write_segmenter(tmp_path / "seg.onnx")
    images = [image(200, 100 + number)[0][..., ::-1] for number in range(5)]
    single, batched = (
        [result.masks.class_id for result in Pipeline(images, model, batch=batch) if result.masks] for batch in (1, 2)
    )
    assert [found.shape for found in single] == [(100 + number, 200) for number in range(5)]
    assert all(agreement(a, b) > 0.999 for a, b in zip(single, batched, strict=True))
    (result,) = Pipeline(images[:1], model, engine="null")
    assert result.masks is not None
    assert not result.masks.class_id.any()


def test_shares_say_how_much_of_the_image_a_class_covers() -> None:
    masks = Masks(np.array([[0, 0, 2, 2], [0, 0, 2, 7]], np.uint8), NAMES)
    assert masks.shares() == {"background": 0.5, "green": 0.375, "7": 0.125}


def test_what_predict_writes(tmp_path: Path) -> None:
    model = write_segmenter(tmp_path / "seg.onnx")
    pixels, truth = image(192, 128)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    pipeline = Pipeline(
        tmp_path / "one.png", model, save=True, save_jsonl=True, save_json=True, project=tmp_path / "runs"
    )
    pipeline.run()
    assert pipeline.folder is not None
    (lines,) = pipeline.folder.glob("*.jsonl")
    line = json.loads(lines.read_text())
    assert line["detections"] == []
    assert line["shares"]["red"] == pytest.approx((truth == 1).mean(), abs=0.01)

    assert "Detections" not in (pipeline.folder / "report.html").read_text()
    assert "detection" not in pipeline.report.summary()

    drawn = np.asarray(Image.open(pipeline.folder / "one.png")).astype(int)
    changed = np.abs(drawn - pixels).max(axis=2) > 8
    assert agreement(changed, truth > 0) > 0.98  # the background stays as it is

    (boxes,) = set(pipeline.folder.glob("*.json")) - {pipeline.folder / "report.json"}
    coco = json.loads(boxes.read_text())
    rows = {row["category_id"]: row for row in coco["annotations"]}
    assert sorted(rows) == [2, 3]
    assert agreement(needed("faster_coco_eval").mask.decode(rows[3]["segmentation"]), truth == 2) > 0.98
    left, top, wide, high = rows[2]["bbox"]
    assert np.abs(np.array([left, top, wide, high]) - [24, 32, 72, 32]).max() <= 2

    Image.fromarray(pixels).save(tmp_path / "runs" / "one.png")
    scores = validate(model, boxes, images=tmp_path / "runs")  # what it found, against that
    assert scores.miou == 1 and scores.names == ["background", "red", "green"]


def test_a_legend_names_the_colours_that_are_seen() -> None:
    pixels, truth = image(640, 360)
    truth[:8, 600:] = 3

    def rows(names: dict[int, str]) -> int:
        """Of the left edge, where the image shows the background, that were drawn on."""
        target = pixels.copy()
        annotator = Annotator(640, 360, PIXEL_FORMATS["rgb24"])
        annotator.draw([target], Detections.none(names), Masks(truth, names))
        return int((target[:, :4] != pixels[:, :4]).any(axis=(1, 2)).sum())

    three = rows(NAMES | {3: "sky", 4: "nowhere"})
    assert 30 < three < 90
    assert rows(NAMES | {3: "Background"}) == three * 2 // 3
    assert rows(dict.fromkeys(range(4), "background")) == 0


def test_masks_are_drawn_into_video_of_odd_size(tmp_path: Path) -> None:
    from framefuse.sources import SourceOptions
    from framefuse.sources.images import open_arrays

    model = write_segmenter(tmp_path / "seg.onnx")
    pixels, truth = image(193, 127)
    source = open_arrays([pixels[..., ::-1]] * 3, SourceOptions())
    source.info.kind = "file"
    pipeline = Pipeline(source, model, save=True, crf=5, project=tmp_path / "runs")
    pipeline.run()
    assert pipeline.folder is not None
    (written,) = pipeline.folder.glob("*.mp4")
    with av.open(written) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 3
    changed = np.abs(frames[0][:127, :193].astype(int) - pixels).max(axis=2) > 25
    assert agreement(changed, truth > 0) > 0.95


def test_a_coco_folder_with_outlines_is_scored(tmp_path: Path) -> None:
    model = write_segmenter(tmp_path / "seg.onnx")
    pixels, truth = image(192, 128)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    content: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "one.png", "width": 192, "height": 128}],
        "categories": [{"id": 5, "name": "Green"}, {"id": 9, "name": "red"}, {"id": 11, "name": "blue"}],
        "annotations": [],
    }
    content["annotations"] = [outlined(truth == 2, 5), outlined(truth == 1, 9)]
    (tmp_path / "truth.json").write_text(json.dumps(content))
    scores = validate(model, tmp_path / "truth.json", precision="fp32")
    assert scores.task == "semantic"
    assert scores.names == ["background", "Green", "red"]
    assert scores.pixels is not None
    assert min(value or 0 for value in scores.pixels.by_class.values()) > 0.95
    assert scores.miou == scores.value
    assert scores.notes == ["not scored, because the model does not have them: blue"]

    for outline in ({"size": [4, 4], "counts": [16]}, {"counts": "?"}, "none", [["a"] * 6]):
        content["annotations"][0]["segmentation"] = outline
        (tmp_path / "odd.json").write_text(json.dumps(content))
        with pytest.raises(DecodeError, match="segmentation that cannot be read"):
            validate(model, tmp_path / "odd.json")

    for row in content["annotations"]:
        del row["segmentation"]
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="has no masks"):
        validate(model, tmp_path / "boxes.json")


Category = dict[str, Any]
RED, GREEN = {"name": "red"}, {"name": "green"}


def coco(folder: Path, red: Category, green: Category, *others: Category) -> Path:
    """An image, and its outlines as annotations of the first two categories."""
    pixels, truth = image(192, 128)
    Image.fromarray(pixels).save(folder / "one.png")
    content = {
        "images": [{"id": 1, "file_name": "one.png", "width": 192, "height": 128}],
        "categories": [{"id": number + 1, **category} for number, category in enumerate((red, green, *others))],
        "annotations": [outlined(truth == number, number) for number in (1, 2)],
    }
    path = folder / "truth.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "categories",
    [
        (RED, GREEN),
        (RED, GREEN, {"name": "Background"}),
        (RED, GREEN, {"name": "_background_", "supercategory": "red"}),
        (RED | {"supercategory": "red"}, GREEN | {"supercategory": "green"}),  # as some writers do
        (RED | {"supercategory": "background"}, GREEN | {"supercategory": "background"}),
        (RED | {"supercategory": "thing"}, GREEN | {"supercategory": "thing"}),
        (RED | {"supercategory": "green"}, GREEN),  # the model knows both
        (RED | {"supercategory": None}, GREEN | {"supercategory": [1]}),
        ({"name": "rose", "supercategory": "red"}, {"name": "leaf", "supercategory": "Green"}),
        ({"name": "rose", "supercategory": "Red"}, {"name": "leaf", "supercategory": "green"}, RED, {"name": "GREEN"}),
        (RED, GREEN, {"name": "Red"}, {"name": "green_"}),
    ],
)
def test_categories_and_supercategories_by_their_names(tmp_path: Path, categories: tuple[Category, ...]) -> None:
    scores = validate(write_segmenter(tmp_path / "seg.onnx"), coco(tmp_path, *categories), precision="fp32")
    assert scores.pixels is not None
    assert [name.casefold() for name in scores.names] == ["background", "red", "green"]
    assert min(value or 0 for value in scores.pixels.by_class.values()) > 0.95


def test_joined_files_share_their_supercategories(tmp_path: Path) -> None:
    rose, leaf = {"name": "rose"}, {"name": "leaf"}
    files = []
    for name, categories in {"a": (rose | {"supercategory": "red"}, leaf), "b": (rose, leaf)}.items():
        (tmp_path / name).mkdir()
        files.append(coco(tmp_path / name, *categories))
    for order in (files, files[::-1]):
        scores = validate(write_segmenter(tmp_path / "seg.onnx"), order, precision="fp32")
        assert scores.names == ["background", "red"]
        assert scores.pixels is not None and (scores.pixels.by_class["red"] or 0) > 0.95


def test_more_categories_than_a_mask_tells_apart(tmp_path: Path) -> None:
    path = coco(tmp_path, RED, GREEN, *({"name": f"other {number}"} for number in range(253)))
    with pytest.raises(UsageError, match="has 255 categories, but masks hold at most 254"):
        validate(write_segmenter(tmp_path / "seg.onnx"), path)


def test_iou_by_hand(tmp_path: Path) -> None:
    card = read_card(write_segmenter(tmp_path / "seg.onnx"))
    names = {0: "a", 1: "b", 2: "c"}
    data = replace(open_data("synthetic://bodies"), mask_names=names, mask_groups={})
    counter = PixelCounter(replace(card, names=names), data)
    truth = np.array([[0, 0, 0, 0, 1, 1, OTHER]], np.uint8)
    found = np.array([[0, 0, 1, OTHER, 1, 0, 0]], np.uint8)
    counter.count(truth, found)
    scores = counter.scores()
    assert scores.by_class == {"a": 2 / 5, "b": 1 / 3, "c": None}
    assert scores.miou == pytest.approx((2 / 5 + 1 / 3) / 2)
    assert scores.accuracy == pytest.approx(3 / 6)
    assert scores.confusion == [[2, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]


# -- cards -------------------------------------------------------------------------------------------------------------


def test_card_of_a_segmenter(tmp_path: Path) -> None:
    card = read_card(write_segmenter(tmp_path / "a.onnx"))
    assert (card.task, card.layout, dict(card.names)) == ("semantic", "semantic", NAMES)
    fixed = read_card(write_segmenter(tmp_path / "b.onnx", dynamic=False, stride=4))
    assert fixed.layout == "semantic"
    plain = write_segmenter(tmp_path / "c.onnx", dynamic=False, task=None)
    with pytest.raises(CardError, match="has no known layout") as error:
        read_card(plain)
    assert "task: semantic" in str(error.value.remedy)
    (tmp_path / "c.yaml").write_text("layout: semantic\n")
    assert read_card(plain).task == "semantic"


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("task: pose\nkeypoints: [17, 3]", "no known layout"),
        ("task: detect\nlayout: semantic", "contradict each other"),
        ("layout: yolov8", "contradict each other"),
        ("names: [a, b]", "2 class names are given, but the outputs have 3 classes"),
    ],
)
def test_bad_cards(tmp_path: Path, card: str, message: str) -> None:
    model = write_segmenter(tmp_path / "seg.onnx", dynamic=False)
    (tmp_path / "seg.yaml").write_text(card + "\n")
    with pytest.raises(CardError, match=message):
        read_card(model)


def test_what_a_segmenter_cannot_give(tmp_path: Path) -> None:
    model = write_segmenter(tmp_path / "seg.onnx")
    with pytest.raises(UsageError, match="save_txt was asked for"):
        Pipeline([image(96, 64)[0]], model, save_txt=True)


def test_scores_that_are_not_numbers(tmp_path: Path) -> None:
    scores = np.zeros((1, 3, 8, 12), np.float32)
    scores[0, 1, 2, 3] = np.nan
    with pytest.raises(NonFiniteError):
        class_masks(scores, [Preprocess(96, 64).place(96, 64)])
    with pytest.raises(CardError, match="8x12 scores for an input of 96x64"):
        class_masks(np.zeros((1, 3, 12, 8), np.float32), [Preprocess(96, 64).place(96, 64)])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["background", "head", "torso"], ["background", "head", "torso"]),
        (["background", "person", "sky"], ["background", "person"]),
    ],
)
def test_the_world_of_bodies(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    model = write_segmenter(tmp_path / "seg.onnx")
    (tmp_path / "seg.yaml").write_text(f"names: [{', '.join(names)}]\n")
    scores = validate(model, "synthetic://bodies?seed=1&frames=20&size=320x192&split=test", limit=4)
    assert scores.names == expected
    assert scores.pixels is not None
    assert 0 < scores.miou < 1  # it knows colours, not bodies
    counted = np.array(scores.pixels.confusion).sum()
    assert counted == 4 * 320 * 192 if "person" in names else counted < 4 * 320 * 192
