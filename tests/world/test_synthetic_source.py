"""synthetic:// as a source, and `framefuse synth`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from framefuse import open_source
from framefuse.cli.app import main
from framefuse.errors import UsageError
from framefuse.lab.evaluation.data import open_data
from framefuse.sources import SourceOptions
from framefuse.world import World

URI = "synthetic://street?seed=5&frames=40&size=320x180&fps=30000/1001&complexity=0.8"


def test_frames_are_tagged_planes_with_exact_times() -> None:
    source = open_source(URI)
    assert (source.info.width, source.info.height, source.info.frames) == (320, 180, 40)
    assert source.info.fps == Fraction(30000, 1001) and source.info.kind == "synthetic" and not source.info.live
    frames = list(source)
    assert len(frames) == 40
    for number, frame in enumerate(frames):
        assert frame.format.name == "yuv420p" and frame.matrix == "bt709" and not frame.full_range
        assert frame.pts is not None and frame.pts * frame.time_base == number * Fraction(1001, 30000)
        assert frame.index == number
    assert not [note for note in source.info.notes if "assumed" in note]


def test_planes_are_the_image() -> None:
    frame = next(iter(open_source(URI)))
    image = World.parse(URI)[0].image.astype(float)
    luma = image @ np.array([0.2126, 0.7152, 0.0722]) * 219 / 255 + 16
    assert np.abs(frame.planes[0] - luma).max() <= 2


def test_start_end_and_stride() -> None:
    source = open_source(URI, SourceOptions(start=0.5, end=1.0, vid_stride=4))
    frames = list(source)
    seconds = [frame.pts * frame.time_base for frame in frames if frame.pts is not None]
    everything = [number * Fraction(1001, 30000) for number in range(40)]
    assert seconds == [at for at in everything if Fraction(1, 2) <= at < 1][::4]
    assert [frame.index for frame in frames] == [4 * k for k in range(len(frames))]
    assert source.info.frames == len(frames)
    assert list(open_source(URI, SourceOptions(start=99))) == []


def test_close_ends_it() -> None:
    source = open_source(URI)
    iterator = iter(source)
    next(iterator)
    source.close()
    assert list(iterator) == []


def test_bad_addresses_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="did you mean frames"):
        open_source("synthetic://street?frame=40")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth") / "deep" / "clip"
    assert main(["synth", URI, "--out", str(out), "--images", "--quiet"]) == 0
    return out


def test_synth_writes_every_frame(written: Path) -> None:
    with av.open(str(written / "street-train-5.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.frames == 40 and stream.average_rate == Fraction(30000, 1001)
        frames = list(container.decode(stream))
    assert len(frames) == 40
    assert frames[0].colorspace == 1
    assert [frame.pts * frame.time_base for frame in frames if frame.pts is not None and frame.time_base] == [
        number * Fraction(1001, 30000) for number in range(40)
    ]
    assert len(list(written.glob("*.png"))) == 40


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools' own
def test_coco_round_trip(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coco = COCO(str(written / "street-train-5.json"))
    world = World.parse(URI)
    assert coco.dataset["info"]["synthetic_version"] == World.version
    assert len(coco.imgs) == 40
    assert {category["id"] - 1: category["name"] for category in coco.dataset["categories"]} == world.names
    for image_id, image in list(coco.imgs.items())[::13]:
        truth = world[image["frame"]].truth
        rows = coco.imgToAnns[image_id]
        assert (written / image["file_name"]).exists()
        assert len(rows) == len(truth.boxes)
        for row, annotation in enumerate(rows):
            mask = coco.annToMask(annotation)
            assert np.array_equal(mask, truth.instances == row + 1)
            assert annotation["area"] == mask.sum()
            x, y, width, height = annotation["bbox"]
            assert [x, y, x + width, y + height] == truth.boxes[row].tolist()
            assert annotation["iscrowd"] == int(truth.ignored[row])
            assert annotation["track_id"] == truth.track_id[row]
    perfect = [
        {"image_id": row["image_id"], "category_id": row["category_id"], "bbox": row["bbox"], "score": 0.9}
        for row in coco.dataset["annotations"]
        if not row["iscrowd"]
    ]
    evaluation = COCOeval(coco, coco.loadRes(perfect), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1.0)
    capsys.readouterr()


def test_synth_takes_a_scene_without_the_scheme(tmp_path: Path) -> None:
    assert main(["synth", "street?seed=3&frames=2&size=64x64", "--out", str(tmp_path), "--quiet"]) == 0
    assert (tmp_path / "street-train-3.mp4").exists()


def test_synth_does_not_overwrite(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (written / "street-train-5.json").read_bytes()
    assert main(["synth", URI, "--out", str(written)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert (written / "street-train-5.json").read_bytes() == before


def test_synth_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", "synthetic://street?framez=3", "--out", str(tmp_path)]) == 2
    assert "did you mean frames" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["synth", URI, "--out", str(tmp_path / "file" / "sub")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools' own
def test_bodies_truth_is_of_persons_and_their_parts(tmp_path: Path) -> None:
    uri = "synthetic://bodies?seed=2&frames=3&size=256x96&stereo=sbs&complexity=1"
    assert main(["synth", uri, "--out", str(tmp_path), "--quiet"]) == 0
    found = COCO(str(tmp_path / "bodies-train-2.json"))
    world = World.parse(uri)
    names = {row["id"] - 1: row["name"] for row in found.dataset["categories"]}
    assert names == {**world.names, 0: "person"}
    assert {row.get("supercategory") for row in found.dataset["categories"] if row["id"] > 1} == {"person"}
    assert found.dataset["annotations"]
    for image_id, image in found.imgs.items():
        truth = world[image["frame"]].truth
        persons = [row for row in found.imgToAnns[image_id] if row["category_id"] == 1]
        assert [row["bbox"][:2] for row in persons] == truth.boxes[:, :2].tolist()
        for number in range(1, len(world.names)):
            parts = [found.annToMask(row) for row in found.imgToAnns[image_id] if row["category_id"] == number + 1]
            assert np.array_equal(np.sum([*parts, np.zeros((96, 256))], axis=0), truth.class_mask == number)


def test_a_written_world_means_the_same_as_the_world(tmp_path: Path) -> None:
    uri = "synthetic://bodies?seed=2&frames=3&size=256x96&complexity=1"
    assert main(["synth", uri, "--out", str(tmp_path), "--quiet"]) == 0
    written, drawn = open_data(tmp_path), open_data(uri)
    masks = [data.labels(2).class_mask for data in (written, drawn)]
    assert masks[0] is not None and masks[1] is not None
    painted, exact = masks[0](), masks[1]()
    number = {name: value for value, name in written.mask_names.items()}
    for value, name in drawn.mask_names.items():
        assert np.array_equal(painted == number[name], exact == value), name
    assert written.mask_groups == {"person": set(range(1, 9))}
