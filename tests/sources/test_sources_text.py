"""Titles, tags and headers that are not UTF-8, and lists whose items raise anything at all."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from framefuse import Pipeline
from framefuse.sources import SourceOptions, files, open_source
from framefuse.sources.live import open_live
from media import clip
from servers import SMALL, mpegts

TITLE = "Caf?TITLE?"


def titled(path: Path, codec: str = "libx264") -> Path:
    """A clip whose title is "Café" in Latin-1 and not in UTF-8."""
    clip(path, codec=codec, title=TITLE)
    data = path.read_bytes()
    assert TITLE.encode() in data
    path.write_bytes(data.replace(TITLE.encode(), b"Caf\xe9 \xff\xfe\x80\xe9\xe9"))
    return path


@pytest.mark.parametrize(
    ("suffix", "codec"), [("mp4", "libx264"), ("mkv", "libx264"), ("flv", "libx264"), ("avi", "mpeg4")]
)
def test_a_video_whose_title_is_not_utf8_is_read(tmp_path: Path, suffix: str, codec: str) -> None:
    path = titled(tmp_path / f"titled.{suffix}", codec)
    assert len(list(open_source(path))) == 50


def test_the_annotated_copy_of_such_a_video_is_complete(tmp_path: Path) -> None:
    path = titled(tmp_path / "titled.mp4")
    report = Pipeline(path, "squares", save=True, project=str(tmp_path), name="run").run()
    assert report.frames == 50 and (tmp_path / "run" / "titled.mp4").exists()


def test_a_latin_1_icy_name_is_no_obstacle() -> None:
    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:  # the reader may go before it has all
                    client.recv(4096)
                    client.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\nicy-name: Caf\xe9\r\n\r\n")
                    for chunk in islice(mpegts(SMALL), 100):
                        client.sendall(chunk)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with closing(open_live(url, SourceOptions(timeout=5.0, reconnect=0))) as source:
            assert len(list(islice(source, 20))) == 20


def test_a_folder_survives_whatever_one_file_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        clip(tmp_path / name, frames=5)
    opened = files.open_container

    def fails(path: Path, *rest: Any) -> Any:
        if path.name == "b.mp4":
            raise RuntimeError("a decoder of another project has a bug")
        return opened(path, *rest)

    monkeypatch.setattr(files, "open_container", fails)
    source = open_source(tmp_path)
    assert {Path(frame.source_id).name for frame in source} == {"a.mp4", "c.mp4"}
    assert source.info.drops == {"unreadable": 1}
    assert any(
        "b.mp4 skipped: RuntimeError: a decoder of another project has a bug" in note for note in source.info.notes
    )


def test_a_file_that_fails_midway_does_not_end_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.mp4", "b.mp4"):
        clip(tmp_path / name, frames=5)
    timed = files.Video._timed

    def fails(self: Any, frames: Any, start: Any) -> Any:
        yield from islice(timed(self, frames, start), 3)
        if Path(self.info.uri).name == "a.mp4":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(files.Video, "_timed", fails)
    source = open_source(tmp_path)
    assert [Path(frame.source_id).name for frame in source] == ["a.mp4"] * 3 + ["b.mp4"] * 3
    assert any("a.mp4 skipped: UnicodeDecodeError" in note for note in source.info.notes)


def test_a_list_survives_an_address_that_is_wrong(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", frames=5)
    source = open_source([str(path), "synthetic://street?colour=7", str(path)])
    assert len(list(source)) == 10
    assert any("synthetic://street?colour=7 skipped" in note for note in source.info.notes)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg command")
def test_a_video_made_by_the_ffmpeg_command(tmp_path: Path) -> None:
    plain, path = clip(tmp_path / "plain.mp4"), tmp_path / "x.avi"
    command = ["ffmpeg", "-loglevel", "error", "-i", plain, "-c", "copy", "-metadata", b"title=Caf\xe9", path]
    subprocess.run(command, check=True)
    assert len(list(open_source(path))) == 50
