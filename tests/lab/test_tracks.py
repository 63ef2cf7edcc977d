"""Scores of tracks: by hand, against trackeval's own reading of MOTChallenge files, and through the pipeline."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("trackeval")

import trackeval

from framefuse.cli.app import main
from framefuse.errors import CapabilityError, DecodeError, FramefuseError, SourceError, UsageError
from framefuse.lab.evaluation import Labels, open_data, validate
from framefuse.lab.evaluation.counters import TrackCounter
from framefuse.prediction import Detections
from framefuse.tracking import open_tracker
from framefuse.world import World

STREET = "synthetic://street?seed=3&frames=48&size=320x192&split=test&complexity=0.6"
A, B = [10, 10, 50, 50], [100, 100, 140, 140]


def labels(
    boxes: list[list[float]], ids: list[int], crowd: tuple[int, ...] = (), kinds: list[int] | None = None
) -> Labels:
    xyxy = np.array(boxes, np.float64).reshape(-1, 4)
    ignored = np.isin(np.arange(len(boxes)), crowd)
    kind = np.array(kinds or [0] * len(boxes), np.int64)
    return Labels(xyxy, kind, ignored, np.ones(len(boxes)), (640, 480), track_id=np.array(ids, np.int64))


def found(boxes: Any, ids: Any, kinds: Any = None) -> Detections:
    xyxy = np.array(boxes, np.float32).reshape(-1, 4)
    kind = np.zeros(len(xyxy), np.int64) if kinds is None else np.array(kinds, np.int64)
    return Detections(xyxy, np.full(len(xyxy), 0.9, np.float32), kind, tracker_id=np.array(ids, np.int64))


def test_an_id_that_changes_halfway() -> None:
    counter = TrackCounter(["a"])
    for frame in range(10):
        counter.add("clip", labels([A], [7]), found([A], [1 if frame < 5 else 2]))
    scores = counter.scores()
    assert (scores.deta, scores.id_switches, scores.objects, scores.identities) == (1, 1, 10, 1)
    assert scores.assa == pytest.approx(0.5) and scores.hota == pytest.approx(0.5**0.5)
    assert scores.mota == pytest.approx(0.9) and scores.idf1 == pytest.approx(0.5)
    assert len(scores.curves["HOTA"]) == 19


def test_boxes_without_a_track_are_misses() -> None:
    counter = TrackCounter(["a"])
    for frame in range(4):
        counter.add("clip", labels([A, B], [1, 2]), found([A, B], [5, -1 if frame else 6]))
    scores = counter.scores()
    assert scores.deta == pytest.approx(5 / 8) and scores.mota == pytest.approx(5 / 8)


def test_objects_that_do_not_count() -> None:
    """Who finds them is not wrong, and who does not has missed nothing; a box beside them is wrong."""
    counter = TrackCounter(["a"])
    counter.add("clip", labels([A, B], [1, 2], crowd=(1,)), found([A, B, [300, 300, 340, 340]], [5, 6, 7]))
    counter.add("clip", labels([A, B], [1, 2], crowd=(1,)), found([A], [5]))
    scores = counter.scores()
    assert scores.deta == pytest.approx(2 / 3) and scores.objects == 2 and scores.identities == 1


def test_classes_and_sequences_are_apart() -> None:
    counter = TrackCounter(["a", "b", "none"])
    for sequence in ("first", "second"):  # the same ids mean others there
        counter.add(sequence, labels([A, B], [1, 1], kinds=[0, 1]), found([A, B], [3, 3], [0, 0]))
    scores = counter.scores()
    assert scores.identities == 4 and scores.objects == 4
    assert scores.by_class["a"] == (2, pytest.approx((1 / 2 * 1) ** 0.5))
    assert scores.by_class["b"] == (2, 0) and scores.by_class["none"] == (0, None)


def test_nothing_at_all_scores_0() -> None:
    counter = TrackCounter(["a"])
    assert counter.scores().hota == 0
    counter.add("clip", labels([], []), found([], []))
    assert counter.scores().objects == 0
    counter.add("clip", labels([A], [1]), found([], []))
    assert (counter.scores().mota, counter.scores().objects) == (0, 1)


def test_perfect_tracks_of_the_world_score_1() -> None:
    data = open_data(STREET)
    counter = TrackCounter(list(data.names.values()))
    for key in data.keys:
        known = data.labels(key)
        assert known.track_id is not None
        counter.add("world", known, found(known.xyxy, known.track_id + 10, known.class_id))
    scores = counter.scores()
    assert (scores.hota, scores.deta, scores.assa, scores.mota, scores.idf1) == (1, 1, 1, 1, 1)
    assert scores.id_switches == 0 and scores.identities > 5


def write_mot(folder: Path, world: World, *, images: bool = True) -> Path:
    """A sequence of MOTChallenge with the people of a world; what is hidden is marked as a distractor (8)."""
    (folder / "img1").mkdir(parents=True)
    (folder / "gt").mkdir()
    rows = []
    person = next(number for number, name in world.names.items() if name == "person")
    for snapshot in world:
        path = folder / "img1" / f"{snapshot.index + 1:06d}.jpg"
        image = Image.fromarray(snapshot.image) if images else Image.new("RGB", world.size)
        image.save(path, quality=90)
        truth = snapshot.truth
        for row, (x1, y1, x2, y2) in enumerate(truth.boxes.tolist()):
            if truth.class_id[row] == person:
                kind = 8 if truth.ignored[row] else 1
                box = f"{x1:g},{y1:g},{x2 - x1:g},{y2 - y1:g}"
                rows.append(f"{snapshot.index + 1},{truth.track_id[row]},{box},{int(kind == 1)},{kind},1")
    rows.append("1,99999,3,3,20,20,0,11,1")  # an occluder, which is not read
    (folder / "gt" / "gt.txt").write_text("\n".join(rows) + "\n")
    size = f"imWidth={world.size[0]}\nimHeight={world.size[1]}"
    length = f"frameRate={world.fps}\nseqLength={len(world)}"
    (folder / "seqinfo.ini").write_text(f"[Sequence]\nname={folder.name}\nimDir=img1\n{length}\n{size}\nimExt=.jpg\n")
    return folder


@pytest.fixture(scope="module")
def mot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("MOT")
    for seed in (3, 4):
        address = f"synthetic://street?seed={seed}&frames=30&size=320x192&split=test&complexity=0.9"
        write_mot(folder / f"MOT17-0{seed}-DPM", World.parse(address))
    return folder


def test_perfect_tracks_of_a_mot_folder_score_100(mot: Path) -> None:
    data = open_data(mot / "MOT17-03-DPM")
    counter = TrackCounter(list(data.names.values()))
    times = []
    source = data.open(data.keys)
    for frame in source:
        times.append(frame.pts * frame.time_base)  # type: ignore[operator]
        known = data.labels(frame.index)
        assert known.track_id is not None and 99999 not in known.track_id
        counter.add(frame.source_id, known, found(known.xyxy, known.track_id, known.class_id))
    source.close()
    assert times == [Fraction(number, 30) for number in range(30)]
    scores = counter.scores()
    assert 100 * scores.hota == 100 and scores.idf1 == scores.mota == 1
    assert scores.identities >= 3


def test_perfect_boxes_of_a_mot_folder_through_a_tracker(mot: Path) -> None:
    data = open_data(mot / "MOT17-03-DPM")
    counter, tracker = TrackCounter(list(data.names.values())), open_tracker("bytetrack")
    for key in data.keys:
        known = data.labels(key)
        seen = tracker.update(found(known.xyxy, [-1] * len(known.xyxy)), key / 30)
        counter.add("sequence", known, seen)
    scores = counter.scores()
    assert scores.hota > 0.85 and scores.id_switches <= 1


@pytest.mark.parametrize("seed", [0, 1])
def test_scores_equal_those_that_trackeval_reads_from_files(mot: Path, tmp_path: Path, seed: int) -> None:
    """Noisy tracks of two sequences, with boxes on distractors: the whole of trackeval as a benchmark uses it."""
    rng = np.random.default_rng(seed)
    counter = TrackCounter(["person"])
    output = tmp_path / "trackers" / "MOT17-train" / "ours" / "data"
    output.mkdir(parents=True)
    gt = tmp_path / "gt" / "MOT17-train"
    gt.mkdir(parents=True)
    for folder in sorted(mot.iterdir()):
        (gt / folder.name).symlink_to(folder)
        data = open_data(folder)
        rows = []
        for key in data.keys:
            known = data.labels(key)
            assert known.track_id is not None
            kept = rng.random(len(known.xyxy)) < 0.85
            boxes = np.round(known.xyxy[kept] + rng.normal(0, 2, (int(kept.sum()), 4)), 1)
            boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
            ids = known.track_id[kept] * 2 + (key // 11) % 2
            boxes, ids = np.vstack([boxes, [5, 5, 30, 60]]), np.append(ids, 100_000)
            counter.add(str(folder), known, found(boxes, ids))
            rows += [
                f"{key + 1},{number},{x1},{y1},{x2 - x1},{y2 - y1},1,-1,-1,-1\n"
                for number, (x1, y1, x2, y2) in zip(ids, boxes, strict=True)
            ]
        (output / f"{folder.name}.txt").write_text("".join(rows))
    (tmp_path / "seqmap.txt").write_text("name\n" + "".join(f"{folder.name}\n" for folder in sorted(mot.iterdir())))
    quiet = {"PRINT_CONFIG": False}
    places = {"GT_FOLDER": str(tmp_path / "gt"), "TRACKERS_FOLDER": str(tmp_path / "trackers")}
    options = {**quiet, **places, "SEQMAP_FILE": str(tmp_path / "seqmap.txt"), "SPLIT_TO_EVAL": "train"}
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = trackeval.datasets.MotChallenge2DBox(options)
        names = ["PRINT_RESULTS", "OUTPUT_SUMMARY", "OUTPUT_DETAILED", "PLOT_CURVES", "TIME_PROGRESS"]
        evaluator = trackeval.Evaluator({**dict.fromkeys(names, False), **quiet})
        metrics = [trackeval.metrics.HOTA(), trackeval.metrics.CLEAR(quiet), trackeval.metrics.Identity(quiet)]
        results, _ = evaluator.evaluate([dataset], metrics)
    theirs = results["MotChallenge2DBox"]["ours"]["COMBINED_SEQ"]["pedestrian"]
    ours = counter.scores()
    for name in ("HOTA", "DetA", "AssA"):
        assert getattr(ours, name.lower()) == pytest.approx(np.mean(theirs["HOTA"][name]), abs=1e-4)
    assert ours.mota == pytest.approx(theirs["CLEAR"]["MOTA"], abs=1e-4)
    assert ours.id_switches == theirs["CLEAR"]["IDSW"] and ours.fragments == theirs["CLEAR"]["Frag"]
    assert ours.idf1 == pytest.approx(theirs["Identity"]["IDF1"], abs=1e-4)
    assert 0.2 < ours.hota < 0.9 and ours.id_switches


@pytest.mark.parametrize("tracker", ["bytetrack", pytest.param("ocsort", marks=pytest.mark.slow)])
def test_val_on_the_world(tracker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["val", "scout-n", "--data", STREET, "--track", tracker, "--project", str(tmp_path), "--limit", "24"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert f"tracked by {tracker}; scored are its boxes with confidence above 0.25" in err
    head, row, *_ = out.splitlines()
    assert " ".join(head.split()) == "model engine precision input MB HOTA DetA AssA MOTA IDF1 switches CPU ms"
    assert 5 < float(row.split()[5]) < 100
    (run,) = json.loads((tmp_path / "val" / "scores.json").read_text())["runs"]
    tracks = run["scores"]["tracks"]
    assert run["scores"]["tracker"] == tracker and run["scores"]["boxes"] is None and run["scores"]["frames"] == 24
    assert f"{100 * tracks['hota']:.1f}" == row.split()[5]
    assert "HOTA is the geometric mean" in (tmp_path / "val" / "val.md").read_text()
    assert len(list((tmp_path / "val").glob("*.png"))) == 1
    person = next(line for line in out.splitlines() if line.startswith("person"))
    assert int(person.split()[1]) == tracks["by_class"]["person"][0]


@pytest.mark.slow
def test_val_on_a_folder_of_sequences(mot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["val", "scout-n", "--data", str(mot), "--track", "bytetrack", "--project", str(tmp_path), "--json"]
    assert main(words) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    scores = run["scores"]
    assert scores["frames"] == 60 and scores["names"] == ["person"]
    assert scores["tracks"]["objects"] > 20 and 0 <= scores["tracks"]["hota"] < 1
    parts = [validate("scout-n", folder, track="bytetrack").tracks for folder in sorted(mot.iterdir())]
    assert sum(part.objects for part in parts if part) == scores["tracks"]["objects"]
    assert sum(part.id_switches for part in parts if part) == scores["tracks"]["id_switches"]


def test_a_mot_folder_scores_boxes_too(mot: Path) -> None:
    scores = validate("scout-n", mot / "MOT17-03-DPM", limit=10)
    assert scores.boxes is not None and scores.tracks is None and scores.frames == 10


def test_data_without_identities(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "0.png")
    image = {"id": 1, "file_name": "0.png", "width": 64, "height": 64}
    box = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 20, 20]}
    content = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "person"}]}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="without identities"):
        validate("scout-n", tmp_path / "truth.json", track="bytetrack")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackeval", None)
    with pytest.raises(CapabilityError, match=r"trackeval is not installed\n.*framefuse\[val\]"):
        TrackCounter(["a"])


def _without_images(folder: Path) -> None:
    (folder / "img1" / "000002.jpg").unlink()


def _gt(text: str) -> Any:
    return lambda folder: (folder / "gt" / "gt.txt").write_text(text)


def _ini(text: str) -> Any:
    return lambda folder: (folder / "seqinfo.ini").write_text(text)


SEQUENCE = "[Sequence]\nframeRate=30\nseqLength=3\nimWidth=64\nimHeight=64\n"


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (_without_images, SourceError, "has 2 images .*says 3"),
        (lambda folder: (folder / "gt" / "gt.txt").unlink(), SourceError, "cannot read .*gt.txt: No such file"),
        (_gt("1,1,2,3\n\n"), DecodeError, "fewer than 7 numbers"),
        (_gt("1,1,2,3,4,5,one,1\n"), DecodeError, "gt.txt cannot be used"),
        (_gt("1,1,2,3,nan,5,1,1\n"), DecodeError, "gt.txt cannot be used"),
        (_gt("9,1,2,3,4,5,1,1\n"), DecodeError, r"not in 1\.\.3"),
        (_gt("1.5,1,2,3,4,5,1,1\n"), DecodeError, r"not in 1\.\.3"),
        (_gt("1,1,2,3,4,5,1,1\n1,1,9,9,4,5,1,1\n"), DecodeError, "occurs twice"),
        (_ini("nonsense"), DecodeError, "seqinfo.ini cannot be used"),
        (_ini(SEQUENCE.replace("=30", "=0")), DecodeError, "above 0"),
        (_ini(SEQUENCE.replace("=30", "=fast")), DecodeError, "seqinfo.ini cannot be used"),
        (_ini(SEQUENCE.replace("frameRate", "rate")), DecodeError, "seqinfo.ini cannot be used"),
    ],
)
def test_bad_sequences(tmp_path: Path, damage: Any, error: type[FramefuseError], match: str) -> None:
    folder = write_mot(tmp_path / "bad", World.parse("synthetic://street?frames=3&size=64x64"), images=False)
    open_data(folder)
    damage(folder)
    with pytest.raises(error, match=match):
        open_data(folder)


def test_rows_of_the_first_challenge_have_no_class(tmp_path: Path) -> None:
    folder = write_mot(tmp_path / "old", World.parse("synthetic://street?frames=3&size=64x64"), images=False)
    for text in ("1,4,2,3,10,10,1,-1,-1,-1\n2,4,2,3,10,10,1,-1,-1,-1\n", "1,4,2,3,10,10,1\n2,4,2,3,10,10,1\n"):
        (folder / "gt" / "gt.txt").write_text(text)
        known = open_data(folder).labels(1)
        assert known.xyxy.tolist() == [[2, 3, 12, 13]] and known.track_id.tolist() == [4]  # type: ignore[union-attr]
        assert not known.crowd.any()
    (folder / "gt" / "gt.txt").write_text("\n")
    assert len(open_data(folder).labels(1).xyxy) == 0


@pytest.mark.parametrize(("name", "crowd"), [("MOT17-02", [2, 8]), ("MOT20-01", [2, 6, 8])])
def test_classes_that_do_not_count(tmp_path: Path, name: str, crowd: list[int]) -> None:
    folder = write_mot(tmp_path / name, World.parse("synthetic://street?frames=1&size=64x64"), images=False)
    rows = [f"1,{kind},{kind},3,10,10,{int(kind == 1)},{kind},1\n" for kind in (1, 2, 3, 6, 8, 11)]
    (folder / "gt" / "gt.txt").write_text("".join(rows))
    known = open_data(folder).labels(0)
    assert known.track_id is not None and known.track_id[known.crowd].tolist() == crowd
    assert known.track_id[~known.crowd].tolist() == [1]


def test_images_of_a_sequence_are_its_own(mot: Path) -> None:
    with pytest.raises(UsageError, match="leave --images out"):
        open_data(mot, mot)
