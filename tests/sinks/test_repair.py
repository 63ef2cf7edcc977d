"""Outputs of runs that were killed: what is left, and what `framefuse repair` makes of it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import av
import pytest

import media
from command_line import COMMAND
from framefuse.cli.app import main
from framefuse.errors import SinkError
from framefuse.sinks import open_sink
from framefuse.sinks.records import HEADER
from framefuse.sinks.repair import repair_folder
from framefuse.sinks.run_folder import FolderLock
from reading import decoded
from sink_frames import NONE, context, detections, frame, result

LOST_SECONDS = 1


def unfinished(folder: Path, frames: int = 6) -> Path:
    """COCO outputs of a run that ended without `close`."""
    run = folder.parent / "run"
    run.mkdir(exist_ok=True)
    sink = open_sink("coco")
    sink.open(context(run))
    for index in range(frames):
        found = NONE if index % 3 == 2 else detections((1, 2, 30, 40, 0.5, 0), (5, 6, 50, 60, 0.25, 2))
        sink.write(result(frame(index), found), None)
    shutil.copytree(run, folder, dirs_exist_ok=True)
    sink.close()
    return folder


def coco(folder: Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((folder / "clip.json").read_text())
    return found


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return unfinished(tmp_path / "killed")


def test_coco_of_a_killed_run(killed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(killed)]) == 0
    assert capfd.readouterr().out == f"{killed}/clip.coco.part: completed, 6 frames\n"
    found = coco(killed)
    assert [image["frame"] for image in found["images"]] == list(range(6))
    assert [row["image_id"] for row in found["annotations"]] == [1, 1, 2, 2, 4, 4, 5, 5]
    assert len(found["categories"]) == 3
    assert [path.name for path in killed.iterdir()] == ["clip.json"]
    assert main(["repair", str(killed)]) == 0
    assert capfd.readouterr().out == f"nothing to repair in {killed}\n"


def test_coco_that_ends_anywhere(tmp_path: Path) -> None:
    """Cut after each byte of the last two lines: what is whole before the cut is kept, and the rest is not there."""
    content = (unfinished(tmp_path / "whole") / "clip.coco.part").read_bytes()
    begin = content.rfind(b"\n", 0, content.rfind(b"\n", 0, -1))
    for end in range(begin, len(content) + 1):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "clip.coco.part").write_bytes(content[:end])
        list(repair_folder(folder))
        found = coco(folder)
        assert 6 - 2 <= len(found["images"]) <= 6
        assert len(found["annotations"]) == [0, 2, 4, 4, 6, 8, 8][len(found["images"])]
        for rows in found["images"], found["annotations"]:
            assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))
        assert [path.name for path in folder.iterdir()] == ["clip.json"]


def test_coco_whose_end_was_being_written(killed: Path) -> None:
    (killed / "clip.json.part").write_text('{"categories": [')
    list(repair_folder(killed))
    assert len(coco(killed)["images"]) == 6
    assert [path.name for path in killed.iterdir()] == ["clip.json"]


def test_a_name_does_not_decide_the_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "x: not repaired: y"
    folder.mkdir()
    (folder / "empty.mp4").touch()
    assert main(["repair", str(folder)]) == 0
    (folder / "a: not repaired: b.mp4").touch()
    assert main(["repair", str(folder)]) == 0


def test_coco_that_holds_nothing_yet(tmp_path: Path) -> None:
    header = (unfinished(tmp_path / "none", frames=0) / "clip.coco.part").read_bytes()
    for content, left in ((header, []), (header[:20], ["clip.coco.part"])):
        (tmp_path / "none" / "clip.coco.part").write_bytes(content)
        assert list(repair_folder(tmp_path / "none")) == []
        assert [path.name for path in (tmp_path / "none").iterdir()] == left


def test_lines_and_copies(tmp_path: Path) -> None:
    line = '{"schema": 2, "frame": 0}\n'
    (tmp_path / "clip.jsonl").write_text(line + '{"sch')
    (tmp_path / "clip.csv").write_text("frame,pts\n0,0.0\n")
    (tmp_path / "next.jsonl.part").write_text(line + '{"sch')
    (tmp_path / "next.csv.part").write_text(",".join(HEADER) + "\n")
    (tmp_path / "empty.mp4").touch()
    assert list(map(str, repair_folder(tmp_path))) == [
        f"{tmp_path}/clip.jsonl: 5 bytes of an unfinished last line removed",
        f"{tmp_path}/empty.mp4: removed: it is empty",
        f"{tmp_path}/next.csv.part: completed as next.csv",
        f"{tmp_path}/next.jsonl.part: completed as next.jsonl; 5 bytes of an unfinished last line removed",
    ]
    assert not list(tmp_path.glob("*.part"))
    assert (tmp_path / "next.jsonl").read_text() == line
    assert (tmp_path / "clip.jsonl").read_text() == line


def test_files_of_others_stay_as_they_are(tmp_path: Path) -> None:
    """Somebody may name a folder that is not of a run."""
    outside = tmp_path / "outside"
    outside.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    fragmented = {"movflags": "+empty_moov+delay_moov+default_base_moof"}
    media.video(folder / "others.mp4", container_options=fragmented)
    media.truncate(media.video(folder / "cut.mp4"), 0.5)
    (folder / "text.mp4").write_text("no video")
    (folder / "download.mp4.part").write_bytes(b"half")
    (folder / "photo.png.part").write_bytes(b"half")
    (folder / "notes.json.part").write_text('{"a": 1')
    (folder / "table.csv").write_text("a,b\n1,2")
    (folder / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}')
    (folder / "lines.jsonl.part").write_text('{"a": 1}\n{"a": 2}')
    (folder / "index.mp4.index.part").write_text("an index")
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "folder.mp4").mkdir()
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert list(repair_folder(folder)) == []
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert outside.read_text() == "precious"


def test_a_run_that_still_writes_is_left_alone(killed: Path) -> None:
    lock = FolderLock(killed)
    with pytest.raises(SinkError, match="another run is writing"):
        list(repair_folder(killed))
    lock.release()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="there is no folder"):
        list(repair_folder(tmp_path / "none"))


@pytest.fixture(params=["SIGKILL", "SIGKILL medium", "SIGHUP"])
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The folder of a run with every output that a signal ended in its midst."""
    name, _, preset = str(request.param).partition(" ")
    words = ["predict", "synthetic://street?frames=3000&size=320x240", "squares", "--engine", "null", "--quiet",
             "--save", "--save-jsonl", "--save-csv", "--save-json", "--save-cvat",
             "--encode-preset", preset or "ultrafast", "--project", str(tmp_path), "--name", "run"]  # fmt: skip
    # Under nohup, SIGHUP is ignored, and children inherit that.
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen([*COMMAND, *words], preexec_fn=heard)
    lines = tmp_path / "run" / "synthetic.jsonl.part"
    begun = time.monotonic()
    while not lines.exists() or lines.read_bytes().count(b"\n") < 60:
        assert process.poll() is None
        assert time.monotonic() - begun < 60
        time.sleep(0.02)  # another process writes the file, and nothing tells when
    process.send_signal(getattr(signal, name))
    process.wait(30)
    yield tmp_path / "run", name


@pytest.mark.slow
def test_nothing_but_the_last_second_of_the_video_is_lost(ended: tuple[Path, str]) -> None:
    folder, name = ended
    list(repair_folder(folder))
    lines = [json.loads(line) for line in (folder / "synthetic.jsonl").read_text().splitlines()]
    images = json.loads((folder / "synthetic.json").read_text())["images"]
    frames = len(decoded(folder / "synthetic.mp4"))
    assert abs(len(images) - len(lines)) <= 1
    labels = ElementTree.parse(folder / "synthetic.cvat.xml").getroot().findall("image")
    assert abs(len(labels) - len(lines)) <= 1
    assert len(lines) - frames <= (LOST_SECONDS * 30 if name == "SIGKILL" else 0)
    with av.open(str(folder / "synthetic.mp4")) as container:
        assert container.streams.video[0].frames == frames  # a plain MP4, with its index
        assert "comment" not in container.metadata
    assert not list(folder.glob("*.part"))
    assert (folder / "report.html").exists() == (name == "SIGHUP")
