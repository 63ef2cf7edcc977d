"""One video that the processes of a fleet share by segments."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from framefuse import Fleet, Pipeline
from framefuse.errors import SourceError
from framefuse.sources import segments
from media import cuttable, damage_units


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a second at most. The fleet cuts, not its workers."""
    monkeypatch.setattr(segments, "SECONDS", 1)
    monkeypatch.setattr(segments, "AHEAD_SECONDS", 0.5)
    monkeypatch.setattr(segments, "WORTH", 2)


@pytest.mark.parametrize(("share", "readers"), [(1.0, 2), pytest.param(0.6, 1, marks=pytest.mark.slow)])
def test_the_segments_of_a_video_are_shared(tmp_path: Path, share: float, readers: int) -> None:
    """By workers of which each reads several at once; also where the video ends before its header says."""
    clip = cuttable(tmp_path / "clip.mkv", frames=300)
    clip.write_bytes(clip.read_bytes()[: int(clip.stat().st_size * share)])
    options: dict[str, Any] = {"save_jsonl": True, "save_parquet": True, "imgsz": [160], "conf": 0.1}
    fleet = Fleet(clip, "squares", devices=["cpu"] * 2, project=tmp_path, name="fleet", readers=readers, **options)
    report = fleet.run()
    single = Pipeline(str(clip), "squares", device="cpu", project=tmp_path, name="single", readers=1, **options).run()
    assert report.frames == single.frames and fleet._segments is not None
    assert len(fleet._segments.taken) > (6 if share == 1 else 2)
    assert (tmp_path / "fleet" / "clip.jsonl").read_text() == (tmp_path / "single" / "clip.jsonl").read_text()
    merged, expected = (parquet.read_table(tmp_path / name / "clip.parquet") for name in ("fleet", "single"))
    assert merged.equals(expected) and merged.num_rows > report.frames
    assert (
        "of 1 input " in report.table() and not report.errors and not list((tmp_path / "fleet").glob("*_cpu/*.jsonl"))
    )
    assert any("header states" in text for text in report.warnings) == (share < 1)


@pytest.mark.slow
def test_segments_of_a_worker_that_cannot_start_are_read_by_others(tmp_path: Path) -> None:
    clip = cuttable(tmp_path / "clip.mp4", frames=200)
    report = Fleet(clip, "squares", devices=["cuda:7", "cpu"], project=tmp_path, name="fleet", save_jsonl=True).run()
    assert report.frames == 200 and report.workers[0].error is not None
    assert len((tmp_path / "fleet" / "clip.jsonl").read_text().splitlines()) == 200


@pytest.mark.slow
def test_the_segments_of_a_killed_worker_are_missed(tmp_path: Path) -> None:
    clip = cuttable(tmp_path / "clip.mp4", frames=1500)
    fleet = Fleet(clip, "squares", devices=["cpu", "cpu"], project=tmp_path, name="fleet", save_jsonl=True)

    def kill(frames: int) -> None:
        if fleet._workers[0].facts.frames:
            fleet._workers[0]._process.kill()

    report = fleet.run(kill)
    assert report.errors and not list((tmp_path / "fleet").glob("*.jsonl"))
    assert len((tmp_path / "fleet" / "1_cpu" / "clip.jsonl").read_text().splitlines()) == report.workers[1].frames > 0
    assert any("results are missing" in text for text in report.warnings)


def test_what_an_interrupted_worker_has_begun_is_missed(tmp_path: Path) -> None:
    """Also if it comes when all segments were taken: their ends are not there."""
    clip = cuttable(tmp_path / "clip.mp4", frames=600)
    fleet = Fleet(clip, "squares", devices=["cpu", "cpu"], project=tmp_path, name="fleet", save_jsonl=True)

    def interrupt(frames: int) -> None:
        if fleet._segments is not None and fleet._segments.over:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):  # they may be faster
        fleet.run(interrupt)
    parts = [len(path.read_text().splitlines()) for path in (tmp_path / "fleet").glob("*_cpu/clip.jsonl")]
    merged = tmp_path / "fleet" / "clip.jsonl"
    assert sum(parts) > 0 if not merged.exists() else len(merged.read_text().splitlines()) == 600


def test_results_that_could_not_be_written_are_missed(tmp_path: Path) -> None:
    """What was decoded has not therefore been written."""
    clip = cuttable(tmp_path / "clip.mp4", frames=300)
    fleet = Fleet(clip, "squares", devices=["cpu", "cpu"], project=tmp_path, name="fleet", exist_ok=True,
                  save_jsonl=True, save_parquet=True)  # fmt: skip
    (tmp_path / "fleet" / "0_cpu" / "clip.parquet").mkdir(parents=True)  # where a file should be
    (tmp_path / "fleet" / "1_cpu").mkdir()
    (tmp_path / "fleet" / "1_cpu" / "other.jsonl").write_text("of an earlier run\n")
    report = fleet.run()
    assert report.errors and not [*(tmp_path / "fleet").glob("*.jsonl"), *(tmp_path / "fleet").glob("*.parquet")]
    assert any("results are missing" in text for text in report.warnings)
    (tmp_path / "fleet" / "0_cpu" / "clip.parquet").rmdir()
    assert not fleet.run().errors
    assert len((tmp_path / "fleet" / "clip.jsonl").read_text().splitlines()) == 300
    assert (tmp_path / "fleet" / "1_cpu" / "other.jsonl").read_text() == "of an earlier run\n"


def test_a_video_that_is_gone(tmp_path: Path) -> None:
    clip = cuttable(tmp_path / "clip.mp4", frames=100)
    fleet = Fleet(clip, "squares", devices=["cpu", "cpu"], project=tmp_path, name="fleet", save_jsonl=True)
    clip.unlink()
    with pytest.raises(SourceError, match="No such file"):
        fleet.run()
    assert (tmp_path / "fleet" / "fleet.json").exists()


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_damaged_is_said_of_the_whole_video(tmp_path: Path, late: bool) -> None:
    """And nothing else, although no process has read all of it."""
    clip = cuttable(tmp_path / "clip.mp4", frames=300)
    damage_units(clip, *(range(290, 300) if late else range(150, 160)))
    given: dict[str, Any] = {"project": tmp_path, "save_jsonl": True, "imgsz": [160]}
    report = Fleet(clip, "squares", devices=["cpu", "cpu"], name="fleet", **given).run()
    with Pipeline(clip, "squares", device="cpu", name="single", readers=1, **given) as single:
        frames = sum(1 for _ in single)
        said = [text for text in single.sources[0].info.notes if "header states" in text]
    assert report.frames == frames and not report.unreadable
    assert [text for text in report.warnings if "header states" in text] == [f"{clip}: {text}" for text in said] != []


def test_videos_whose_results_are_large_are_not_shared(tmp_path: Path) -> None:
    clip = cuttable(tmp_path / "clip.mp4", frames=100)
    assert Fleet(clip, "squares", devices=["cpu", "cpu"], save_jsonl=True)._shares_segments
    masks = Fleet(clip, "body-n", devices=["cpu", "cpu"], save_jsonl=True)
    assert not masks._shares_segments and len(masks._ranges) == 2
