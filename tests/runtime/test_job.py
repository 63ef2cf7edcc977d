"""Batch jobs: shards, and runs that go on where another one was killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import media
from command_line import COMMAND, wait_for
from framefuse import Pipeline
from framefuse.cli.app import main
from framefuse.errors import SinkError, SourceError, UsageError
from framefuse.runtime.job import share

OUTPUTS = ".jsonl", ".csv", ".json"


@pytest.fixture
def clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """a/0.mp4, b/1.mp4, a/2.mp4, ...; and b/0.mp4, a second of that name."""
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        path = Path("clips", "ab"[number % 2], f"{number}.mp4")
        path.parent.mkdir(parents=True, exist_ok=True)
        media.clip(path, 4 + number)
    media.clip(Path("clips/b/0.mp4"), 9)
    return Path("clips")


def job(name: str, source: Any = "clips/**/*.mp4", **options: Any) -> Pipeline:
    options = {"save_jsonl": True, "save_csv": True, "save_json": True, "resume": True} | options
    pipeline = Pipeline(source, "squares", imgsz=64, name=name, project=Path("runs"), **options)
    pipeline.run()
    return pipeline


def outputs(name: str) -> dict[str, bytes]:
    """All but the videos, whose encoder need not repeat itself, and what is of a run rather than of its inputs."""
    paths = [path for path in Path("runs", name).rglob("*") if path.is_file() and path.suffix != ".mp4"]
    return {path.name: path.read_bytes() for path in paths if path.stem not in UNCOMPARED}


UNCOMPARED = "report", "manifest"


def frames(name: str) -> dict[str, int]:
    return {path.stem: len(path.read_text().splitlines()) for path in Path("runs", name).glob("[!m]*.jsonl")}


def note(pipeline: Pipeline) -> str:
    return next(text for text in pipeline.report.choices if text.startswith("resume"))


def test_the_inputs_that_are_complete_are_left_out(clips: Path) -> None:
    first = job("all")
    assert note(first) == "resume: 0 of 6 inputs are complete and skipped"
    assert frames("all") == {"0": 4, "1": 5, "2": 6, "3": 7, "4": 8, "0_2": 9}
    before = outputs("all")
    again = job("all")
    assert (again.report.frames, note(again)) == (0, "resume: 6 of 6 inputs are complete and skipped")
    assert json.loads(Path("runs/all/report.json").read_text())["frames"] == 39  # that of the run that did the work
    assert outputs("all") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda: media.clip(Path("clips/b/0.mp4"), 3), {"0_2": 3}),
        (lambda: os.utime("clips/a/2.mp4", (1, 1)), {"2": 6}),
        (lambda: Path("runs/all/1.csv").unlink(), {"1": 5}),
        (lambda: media.clip(Path("clips/a/5.mp4"), 2), {"5": 2}),
        (lambda: Path("runs/all/manifest.jsonl").write_text("[]\n{"), None),
    ],
)
def test_what_has_changed_is_done_again(clips: Path, change: Callable[[], Any], left: dict[str, int] | None) -> None:
    job("all")
    before = frames("all")
    change()
    again = job("all")
    assert again.report.frames == sum((left or before).values())
    assert frames("all") == before | (left or {})


@pytest.mark.parametrize("options", [{"conf": 0.3}, {"save_json": False}, {"vid_stride": 2}])
def test_other_options_are_another_job(clips: Path, options: dict[str, Any]) -> None:
    job("all")
    assert note(job("all", **options)) == "resume: 0 of 6 inputs are complete and skipped"
    assert note(job("all", queue=7, **options)).startswith("resume: 6 of 6")


@pytest.mark.parametrize(
    "damage",
    [
        {"outputs": [1]},
        {"outputs": [None]},
        {"outputs": {}},
        {"outputs": "0.csv"},
        {"outputs": ["a\0b"]},
        {"stem": 5},
        {"stem": ["0"]},
        {"key": ["0"]},
        "[" * 100_000,
        "\x00\xff",
    ],
)
def test_a_damaged_line_of_a_manifest_says_nothing(clips: Path, damage: Any) -> None:
    source, manifest = "clips/a/*.mp4", Path("runs/all/manifest.jsonl")
    job("all", source)
    first, *rest = manifest.read_text().splitlines()
    first = json.dumps(json.loads(first) | damage) if isinstance(damage, dict) else damage
    manifest.write_text("\n".join([first, *rest]))
    assert note(job("all", source)) == "resume: 2 of 3 inputs are complete and skipped"
    assert note(job("all", source)) == "resume: 3 of 3 inputs are complete and skipped"


def test_a_manifest_of_another_version(clips: Path) -> None:
    source, manifest = "clips/a/*.mp4", Path("runs/all/manifest.jsonl")
    job("all", source)
    entries = [json.loads(line) | {"version": 2, "more": {}} for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert note(job("all", source)) == "resume: 3 of 3 inputs are complete and skipped"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_manifest_that_is_no_file_is_said_before_anything_runs(clips: Path, make: Callable[[Path], Any]) -> None:
    Path("runs/all").mkdir(parents=True)
    make(Path("runs/all/manifest.jsonl"))
    with pytest.raises(SinkError, match=r"manifest\.jsonl is not a file") as caught:
        job("all")
    assert caught.value.remedy and len(list(Path("runs/all").iterdir())) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_manifest_that_may_not_be_read(clips: Path) -> None:
    job("all", "clips/a/0.mp4")
    Path("runs/all/manifest.jsonl").chmod(0)
    code = "import os; from framefuse.sinks.run_folder import *; os.seteuid(65534)\n"
    code += "try:\n    Manifest(Path('runs/all'), str, resume=True)\nexcept SinkError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "manifest.jsonl: Permission denied" in done.stdout and "->" in done.stdout


def test_what_another_run_wrote_over_is_done_again(clips: Path) -> None:
    job("again", "clips/a/0.mp4")
    wanted = outputs("again")
    job("again", "clips/a/0.mp4", conf=0.999)
    assert outputs("again") != wanted
    assert note(job("again", "clips/a/0.mp4")) == "resume: 0 of 1 inputs are complete and skipped"
    assert outputs("again") == wanted
    with Path("runs/again/0.jsonl").open("a") as file:  # as a run that was killed leaves it
        file.write("{")
    job("again", "clips/a/0.mp4")
    assert outputs("again") == wanted


def test_ids_of_what_is_left_are_those_of_the_whole_job(clips: Path) -> None:
    job("tracks", track="bytetrack")
    wanted = outputs("tracks")
    Path("runs/tracks/2.jsonl").unlink()
    assert note(job("tracks", track="bytetrack")) == "resume: 5 of 6 inputs are complete and skipped"
    assert outputs("tracks") == wanted


def test_other_inputs_do_not_take_the_names_of_complete_outputs(clips: Path) -> None:
    job("two", "clips/a/0.mp4")
    first = outputs("two")
    assert note(job("two", "clips/b/0.mp4")) == "resume: 0 of 1 inputs are complete and skipped"
    assert frames("two") == {"0": 4, "0_2": 9} and outputs("two").items() >= first.items()
    assert note(job("two", "clips/a/0.mp4")) == "resume: 1 of 1 inputs are complete and skipped"


def test_images_of_other_folders_do_not_take_the_names_of_complete_outputs(clips: Path) -> None:
    for name, count in (("first", 3), ("second", 5)):
        Path(name).mkdir()
        for number in range(count):
            media.image(Path(name, f"{number}.png"))
        job("both", name)
    assert {path.stem: len(path.read_text().splitlines()) for path in Path("runs/both").glob("images*.jsonl")} == {
        "images": 3,
        "images_2": 5,
    }
    media.image(Path("first", "9.png"))
    job("both", "first")
    assert len(Path("runs/both/images.jsonl").read_text().splitlines()) == 4


def test_a_run_without_resume_can_be_resumed(clips: Path) -> None:
    job("all", resume=False)
    assert note(job("all")).startswith("resume: 6 of 6")


def test_files_that_cannot_be_read(clips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are a partial success, in each run, and tried again in each."""
    Path("clips/a/9.mp4").write_text("no video")
    media.truncate(media.clip(Path("clips/a/8.mp4"), 50), 0.5)
    words = ["predict", "clips/**/*.mp4", "squares", "--imgsz", "64", "--name", "all", "--resume", "--project", "runs"]
    for frame_count in (39, 0):
        assert main([*words, "--json", "--quiet"]) == 5
        report = json.loads(capsys.readouterr().out)
        assert (report["frames"], report["unreadable"]) == (frame_count, 2)
        assert any("9.mp4 skipped: cannot open" in text for text in report["warnings"])
    os.remove("clips/a/9.mp4")
    os.remove("clips/a/8.mp4")
    assert main([*words, "--quiet"]) == 0


def test_images_are_one_input(clips: Path) -> None:
    for number in range(3):
        media.image(clips / "a" / f"{number}.png", number)
    media.image(clips / "b" / "0.png")
    assert note(job("all", "clips/**/*.png")).startswith("resume: 0 of 1")
    names = [image["file_name"] for image in json.loads(Path("runs/all/images.json").read_text())["images"]]
    assert names == ["a/0.png", "a/1.png", "a/2.png", "b/0.png"]
    assert note(job("all", "clips/**/*.png")).startswith("resume: 1 of 1")
    media.image(clips / "b" / "1.png")
    assert job("all", "clips/**/*.png").report.frames == 5


@pytest.mark.slow
def test_shards_are_the_whole(clips: Path) -> None:
    job("all")
    together = {}
    for number in (1, 2, 3):
        part = job("all", shard=f"{number}/3")
        assert (
            part.folder == Path(f"runs/all-{number}of3") and part.report.choices[0] == f"shard {number}/3: 2 of 6 files"
        )
        together |= {name: content for name, content in outputs(f"all-{number}of3").items() if "_" not in name}
    assert {name: content for name, content in outputs("all").items() if "_" not in name}.keys() == together.keys()
    assert note(job("all", shard="2/3")).startswith("resume: 2 of 2")


def test_a_shard_may_be_empty(clips: Path) -> None:
    assert job("all", "clips/a/0.mp4", shard="2/2").report.frames == 0


def test_share() -> None:
    items = list(range(10))
    shards = [share(items, f"{number}/4") for number in range(1, 5)]
    assert shards == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_no_such_shard(shard: str) -> None:
    with pytest.raises(UsageError, match="such as 2/4"):
        Pipeline("x", "squares", shard=shard)


@pytest.mark.parametrize("source", [0, "synthetic://street", "rtsp://host/x", ["a.mp4", 0]])
def test_only_files_have_shards(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    media.clip(Path("a.mp4"), 2)
    for options in ({"shard": "1/2"}, {"resume": True, "save_csv": True}):
        with pytest.raises(UsageError, match="is not a file"):
            Pipeline(source, "squares", **options)


def test_resume_needs_outputs(clips: Path) -> None:
    with pytest.raises(UsageError, match="resume needs outputs"):
        Pipeline("clips", "squares", resume=True)
    with pytest.raises(SourceError, match="no such file"):
        job("all", "nothing.mp4")


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on(clips: Path) -> None:
    """`kill -9` in the midst: the job that is run again gives what one that was not killed gives."""
    for number in range(24):
        shutil.copy("clips/a/4.mp4", f"clips/a/{number + 10}.mp4")
    words = ["predict", "clips/**/*.mp4", "squares", "--imgsz", "64", "--project", "runs", "--quiet", "--resume",
             "--save-csv", "--save-json", "--save-txt", "--save"]  # fmt: skip
    assert main([*words, "--name", "whole"]) == 0
    for _ in range(2):
        before = len(lines("killed"))
        with subprocess.Popen([*COMMAND, *words, "--name", "killed"]) as process:
            wait_for(lambda before=before: len(lines("killed")) > before + 3)
            process.send_signal(signal.SIGKILL)
    assert 6 < len(lines("killed")) < 30
    assert main([*words, "--name", "killed"]) == 0
    assert outputs("killed") == outputs("whole")
    videos = [sorted(path.name for path in Path("runs", name).glob("*.mp4")) for name in ("killed", "whole")]
    assert videos[0] == videos[1] and len(videos[0]) == 30
    assert not list(Path("runs/killed").rglob("*.part"))


def lines(name: str) -> list[str]:
    path = Path("runs", name, "manifest.jsonl")
    return path.read_text().splitlines() if path.exists() else []
