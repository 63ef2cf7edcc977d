"""Every object as an image of its own."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framefuse import Pipeline
from framefuse.errors import SinkError, UsageError
from framefuse.frame import Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import SinkContext
from framefuse.sinks.images import CropsSink, folder_of
from framefuse.sources import SourceInfo, open_source
from training.squares_clip import squares_clip

COLOURS = {"red": 0, "green": 1, "blue": 2}


def test_crops_of_a_video_show_their_objects(tmp_path: Path) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=4, size=(320, 240))
    pipeline = Pipeline(tmp_path / "clip.mp4", "squares", save_crop=True, project=tmp_path / "runs")
    results = list(pipeline)
    assert pipeline.folder is not None
    crops = sorted((pipeline.folder / "crops").glob("*/*"))
    assert len(crops) == sum(len(result.detections) for result in results) > 4
    assert {crop.parent.name for crop in crops} <= set(COLOURS) and crops[0].name.startswith("clip_0_")
    for crop in crops:
        with Image.open(crop) as image:
            middle = np.asarray(
                image.crop((image.width // 3, image.height // 3, image.width * 2 // 3, image.height * 2 // 3))
            )
        assert middle.mean((0, 1)).argmax() == COLOURS[crop.parent.name]
    assert pipeline.folder / "crops" in [Path(path) for path in pipeline.report.outputs]


def test_frames_and_labels_are_a_data_set(tmp_path: Path) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=4, size=(320, 240))
    Image.new("RGB", (320, 240)).save(tmp_path / "a.png")
    source = [tmp_path / "clip.mp4", tmp_path / "a.png"]
    options: dict[str, Any] = {"save_txt": True, "project": tmp_path / "runs"}
    whole = Pipeline(source, "squares", save_frames=True, name="all", **options)
    results = list(whole)
    assert whole.folder is not None
    images, labels = ({path.stem: path for path in (whole.folder / name).iterdir()} for name in ("images", "labels"))
    assert images.keys() == labels.keys() == {*(f"clip_{number}" for number in range(4)), "a"}
    *_, frame = islice(open_source(tmp_path / "clip.mp4"), 3)
    with Image.open(images["clip_2"]) as image:
        assert np.abs(np.asarray(image).astype(int) - frame.to_rgb()).mean() < 2
    assert len(labels["clip_1"].read_text().splitlines()) == len(results[1].detections)
    hits = Pipeline(source, "squares", save_hits=True, name="hits", **options)
    hits.run()
    assert hits.folder is not None
    assert {path.stem for path in (hits.folder / "images").iterdir()} == images.keys() - {"a"}


def test_crops_of_images_are_named_after_them(tmp_path: Path) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=1, size=(320, 240))
    (first,) = Pipeline(tmp_path / "clip.mp4", "squares", end=0.02)
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (320, 240)).save(tmp_path / name)
    pipeline = Pipeline([tmp_path / "a.png", tmp_path / "b.jpg"], "squares", save_crop=True, project=tmp_path / "runs")
    assert len(first.detections) and pipeline.run().detections == 0
    assert pipeline.folder is not None and list((pipeline.folder / "crops").iterdir()) == []


def written(
    tmp_path: Path, *boxes: list[float], names: Any = None, source: str = "frame.png", link: bool = False
) -> Any:
    folder = tmp_path / "run"
    folder.mkdir()
    if link:
        (tmp_path / "elsewhere").mkdir()
        (folder / "crops").symlink_to(tmp_path / "elsewhere")
    sink, info = CropsSink(), SourceInfo(source, "images")
    sink.open(SinkContext(folder, info))
    image = np.arange(60 * 80, dtype=np.uint8).reshape(60, 80, 1).repeat(3, axis=2)
    frame = Frame.from_array(image, source_id=source)
    count = len(boxes)
    found = Detections(
        np.array(boxes, np.float32).reshape(count, 4), np.ones(count, np.float32), np.arange(count), names or {}
    )
    sink.write(Result(FrameInfo.of(frame), found), frame)
    sink.close()
    return sorted(path for path in (folder / "crops").rglob("*") if path.is_file())


def test_a_crop_covers_every_pixel_that_its_box_touches(tmp_path: Path) -> None:
    crops = written(tmp_path, [10.2, 5.9, 20.1, 6.05], [0, 0, 80, 60], [79.5, 59.5, 80, 60])
    sizes = []
    for crop in crops:
        with Image.open(crop) as image:
            sizes.append(image.size)
    assert sizes == [(11, 2), (80, 60), (1, 1)]
    assert [crop.relative_to(tmp_path / "run").as_posix() for crop in crops] == [
        "crops/0/frame_0.jpg", "crops/1/frame_1.jpg", "crops/2/frame_2.jpg",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["traffic light", "../../etc", "a/b", "..", "", "\x1b[31m", "x" * 300])
def test_class_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    found = folder_of(name)
    assert "/" not in found and found not in ("", ".", "..") and found.isprintable()
    (crop,) = written(tmp_path, [1, 1, 9, 9], names={0: name})
    assert crop.parent == tmp_path / "run" / "crops" / found


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="symbolic link"):
        written(tmp_path, [1, 1, 9, 9], link=True)


def test_segmenters_have_no_objects(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="save_crop was asked for"):
        Pipeline([np.zeros((48, 64, 3), np.uint8)], "body-n", save_crop=True)
