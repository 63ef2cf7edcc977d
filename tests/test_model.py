"""A Model stays open: for images, and for one Pipeline after another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fake_gpu import Gpu
from framefuse import CallbackSink, Model, Pipeline, Settings, draw
from framefuse.engines import EngineOptions, open_engine
from framefuse.errors import CapabilityError, SourceError, UsageError
from framefuse.frame import Frame
from framefuse.models import find_model
from framefuse.sources import open_source

STREET = "synthetic://street?seed=1&frames=6&size=640x384&complexity=1"


@pytest.fixture(scope="module")
def images() -> list[Any]:
    """BGR images with many objects."""
    return [frame.to_bgr() for frame in open_source(STREET)]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model("scout-n", precision="fp32") as opened:
        yield opened


def boxes(result: Any) -> list[Any]:
    found = result.detections
    return [*found.xyxy.tolist(), found.confidence.tolist(), found.class_id.tolist()]


def test_an_image_gives_what_a_pipeline_gives(model: Model, images: list[Any]) -> None:
    expected = list(Pipeline(images, "scout-n", precision="fp32"))
    assert sum(len(result.detections) for result in expected) > 60
    for image, result in zip(images, expected, strict=True):
        assert boxes(model(image)) == boxes(result)
    assert [boxes(result) for result in model(images)] == list(map(boxes, expected))
    assert [boxes(result) for result in model(np.stack(images))] == list(map(boxes, expected))
    assert [result.frame.index for result in model(images)] == list(range(6))


def test_small_boxes_are_left_out(images: list[Any]) -> None:
    with Model("scout-n", precision="fp32", min_area=1500) as model:
        found = model(images)
    sides = np.concatenate([result.detections.xywh[:, 2:] for result in found])
    assert len(sides) and sides.prod(axis=1).min() >= 1499
    assert list(map(boxes, found)) == [
        boxes(one) for one in Pipeline(images, model="scout-n", precision="fp32", min_area=1500)
    ]


def test_every_kind_of_image(model: Model, images: list[Any], tmp_path: Path) -> None:
    picture = Image.fromarray(images[0][..., ::-1])
    picture.save(tmp_path / "image.png")
    kinds = [
        images[0],
        np.concatenate([images[0], images[0][..., :1]], axis=2),
        picture,
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        Frame.from_array(images[0]),
    ]
    found = model(kinds)
    assert len(found[0].detections) > 5
    assert [boxes(result) for result in found] == [boxes(found[0])] * len(kinds)
    assert len(model(images[0][..., 0]).detections) > 0


def test_images_of_many_sizes_keep_their_order(model: Model, images: list[Any]) -> None:
    many = [image[:height] for image in images[:2] for height in (384, 200, 97)]
    for result, image in zip(model(many), many, strict=True):
        assert boxes(result) == boxes(model(image))
        assert result.detections.xyxy.max(initial=0) <= 640
        assert (result.frame.width, result.frame.height) == image.shape[1::-1]


def test_several_pipelines_leave_it_open(model: Model, images: list[Any]) -> None:
    expected = [boxes(result) for result in model(images)]
    for _ in range(2):
        assert [boxes(result) for result in Pipeline(images, model)] == expected
    next(iter(Pipeline(images, model)))  # abandoned
    assert [boxes(result) for result in model(images)] == expected


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_an_engine_is_not_closed_by_its_pipelines(engine: str, images: list[Any]) -> None:
    opened = open_engine(engine, find_model("scout-n"), EngineOptions(precision="fp32"))
    first, second = (list(Pipeline(images, "scout-n", engine=opened)) for _ in range(2))
    assert list(map(boxes, first)) == list(map(boxes, second))
    opened.close()


def test_a_pipeline_takes_its_settings_and_may_override_them(images: list[Any]) -> None:
    with Model("scout-n", conf=0.6, engine="onnxruntime") as model:
        some, more = Pipeline(images, model).run(), Pipeline(images, model, conf=0.1).run()
        assert some.detections == sum(len(result.detections) for result in model(images))
        assert some.detections < more.detections
        with pytest.raises(UsageError, match="engine and settings of its own"):
            Pipeline(images, model, engine="openvino")
        with pytest.raises(UsageError, match="engine and settings of its own"):
            Pipeline(images, model, settings=Settings())
        with pytest.raises(CapabilityError, match="the engine given was opened for cpu"):
            Pipeline(images, model, device="cuda")


def test_threads_take_turns_and_pipelines_run_beside_them(model: Model, images: list[Any]) -> None:
    expected = [boxes(result) for result in model(images)]
    wrong: list[Any] = []

    def call(number: int) -> None:
        if number % 2:
            found = [model(image[:200]) for image in images] and model(images)
        else:
            found = list(Pipeline(images, model))
        if [boxes(result) for result in found] != expected:
            wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (None, UsageError, "None is not an image"),
        ("clip.mp4", UsageError, "a Pipeline reads videos"),
        ("missing.png", SourceError, "no such file"),
        ("http://host:80/image.png", SourceError, "a Pipeline reads addresses"),
        (np.zeros((4, 4, 7), np.uint8), UsageError, "shape"),
        (np.zeros((4, 4), np.float32), UsageError, "float32"),
        (np.zeros((0, 4, 3), np.uint8), SourceError, "no pixels"),
    ],
)
def test_what_is_no_image(model: Model, image: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model(image)
    with pytest.raises(error, match=message):
        model([np.zeros((64, 64, 3), np.uint8), image])
    assert model([]) == []


def test_objects_are_cut_from_the_image(model: Model, images: list[Any]) -> None:
    result = model(images[0])
    for number, one in enumerate(result.detections):
        left, top = np.floor(one.xyxy[:2]).astype(int)
        right, bottom = np.ceil(one.xyxy[2:]).astype(int)
        assert (result.crop(number) == images[0][top:bottom, left:right, ::-1]).all()
    with pytest.raises(IndexError):
        result.crop(len(result.detections))
    found: list[Any] = []
    callback = CallbackSink(lambda result, frame: found.append(result.crop(0, frame)), needs_frame=True)
    kept = list(Pipeline(images, model, sinks=[lambda: callback]))
    assert len(found) == len(images) and (found[0] == result.crop(0)).all()
    with pytest.raises(UsageError, match="keeps no frames"):
        kept[0].crop(0)


def test_objects_are_drawn_on_the_image(model: Model, images: list[Any]) -> None:
    result = model(images[0])
    drawn = draw(result)
    plain = images[0][..., ::-1]
    assert (drawn.shape, drawn.dtype) == (plain.shape, np.uint8)
    left, top, right, bottom = result.detections.xyxy.round().astype(int)[0]
    edges = np.abs(drawn.astype(int) - plain)[top : bottom + 1, left : right + 1].max(2)
    assert edges.max() > 50 and (model(images[0]).pixels.to_rgb() == plain).all()
    found: list[Any] = []
    callback = CallbackSink(lambda result, frame: found.append(draw(result, frame)), needs_frame=True)
    kept = list(Pipeline(images[:1], model, sinks=[lambda: callback]))
    assert (found[0] == drawn).all()
    with pytest.raises(UsageError, match="keeps no frames"):
        draw(kept[0])


def test_the_text_of_a_result_has_no_pixels(model: Model, images: list[Any]) -> None:
    result = model(images[0])
    assert result.pixels is not None and "Frame(" not in repr(result)


def test_closed() -> None:
    model = Model("squares")
    assert "3 classes" in repr(model) and model.names[0] == "red"
    model.close()
    model.close()
    with pytest.raises(UsageError, match="is closed"):
        model(np.zeros((64, 64, 3), np.uint8))


def test_on_cuda(gpu: Gpu, images: list[Any]) -> None:
    small = [image[:96, :160] for image in images[:3]]
    with Model("scout-n", device="cuda", engine="null") as model:
        assert [len(result.detections) for result in model(small)] == [0] * 3
        assert Pipeline(small, model).run().frames == 3
        assert len(model(small[0]).detections) == 0
