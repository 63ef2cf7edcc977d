"""Streams and MPEG-TS files that change their codec, PID or frame size without a disconnect."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from framefuse.sources import SourceOptions, open_source
from framefuse.sources.connection import Undecodable, Watch
from framefuse.sources.files import next_program_table
from framefuse.sources.live import open_live
from media import clip, scramble, video
from servers import LARGE, SMALL, Server, UdpSender, mpegts

QUICK = SourceOptions(timeout=2.0, reconnect_max_delay=0.25)
PARTS: dict[str, dict[str, Any]] = {
    "hevc": {"codec": "hevc"},
    "mpeg2video": {"codec": "mpeg2video"},
    "another PID": {"pid": 300},
    "another PID and codec": {"pid": 300, "codec": "hevc"},
}


class Changing:
    """Sends one endless clip after the other for a while; the last one for ever."""

    first = 20

    def __init__(self, *parts: Iterator[bytes]) -> None:
        self._parts = itertools.chain(*(islice(part, self.first) for part in parts[:-1]), parts[-1])
        self._lock = threading.Lock()
        super().__init__()

    def chunks(self) -> Iterator[bytes]:
        return self.paced(self._shared())

    def _shared(self) -> Iterator[bytes]:
        """For a client that connects while another is still served."""
        while True:
            with self._lock:
                chunk = next(self._parts)
            yield chunk


class ChangingUdp(Changing, UdpSender): ...


class ChangingTcp(Changing, Server): ...


@pytest.mark.parametrize("kind", [ChangingUdp, ChangingTcp])
@pytest.mark.parametrize(
    "change", [pytest.param(change, marks=[pytest.mark.slow] if change != "hevc" else []) for change in PARTS]
)
def test_a_live_stream_that_changes_goes_on(kind: Any, change: str) -> None:
    parts = mpegts(SMALL), mpegts(LARGE, **PARTS[change])
    with kind(*parts) as server, closing(open_live(server.url(), QUICK)) as source:
        stop = threading.Timer(20, source.close)
        stop.start()
        found = []
        for frame in source:
            found.append(frame)
            if frame.width == LARGE[0] and frame.index > 40:
                break
        stop.cancel()
    assert found[-1].width == LARGE[0], source.info.notes
    assert all(a.pts < b.pts for a, b in pairwise(found) if a.pts is not None and b.pts is not None)
    # The new video begins with a clean frame: the clip is far from a concealed, gray one.
    assert next(frame for frame in found if frame.width == LARGE[0]).planes[0].std() > 20
    if "PID" in change:  # PyAV passes over the packets of the new one, so the connection is opened anew
        assert any("loss 1: no video for 2 s" in note for note in source.info.notes)
    else:
        assert source.info.drops.get("corrupt", 0) <= 1 and not any("loss" in note for note in source.info.notes)


def test_watch_reopens_only_where_packets_give_no_frames() -> None:
    watch = Watch(0.0, patience=30.0)
    for number in range(200):
        assert not watch.packet(decoded=False, now=number * 0.1)  # joined midway: not damage
    assert not watch.frame(damaged=True, now=20.0)  # before the first clean frame
    assert watch.frame(damaged=False, now=20.0)
    assert watch.frame(damaged=True, now=20.0)  # concealed, as no packet was lost
    assert watch.packet(decoded=False, now=20.1)
    assert not watch.frame(damaged=True, now=20.1)
    for number in range(8):
        watch.packet(decoded=True, now=40.0 + number)  # few packets: a slow stream
    with pytest.raises(Undecodable, match=r"10 packets in 29\.0 s"):
        watch.packet(decoded=True, now=49.0)


def test_watch_gives_up_waiting_for_a_first_frame() -> None:
    watch, finite = Watch(0.0, patience=30.0), Watch(0.0, patience=math.inf)
    with pytest.raises(Undecodable):
        for number in range(400):
            finite.packet(decoded=False, now=number * 0.1)
            watch.packet(decoded=False, now=number * 0.1)
    assert number == 300


def written(path: Path, *parts: dict[str, Any], frames: int = 100) -> Path:
    path.write_bytes(b"".join(b"".join(islice(mpegts(LARGE, **part), frames)) for part in parts))
    return path


@pytest.mark.parametrize(
    ("change", "back"), [*((change, False) for change in PARTS), ("hevc", True), ("mpeg2video", True)]
)
def test_a_file_that_changes_is_read_to_its_end(tmp_path: Path, change: str, back: bool) -> None:
    parts = [{}, PARTS[change], {}] if back else [{}, PARTS[change]]
    source = open_source(written(tmp_path / "changing.ts", *parts))
    total = 100 * len(parts)
    assert total - 3 * len(parts) <= len(list(source)) <= total
    if change != "another PID":  # FFmpeg may see that one at the beginning
        assert len([note for note in source.info.notes if "codec changes" in note]) == len(parts) - 1
    assert source.info.drops.get("corrupt", 0) <= 3 * len(parts)


def test_damage_is_not_a_change_of_codec(tmp_path: Path) -> None:
    path = scramble(written(tmp_path / "damaged.ts", {}, frames=400), 0.2, 0.5)
    source = open_source(path)
    assert 150 < len(list(source)) < 400
    assert not any("codec changes" in note for note in source.info.notes)


def test_a_stream_that_was_cut_in_a_long_group_of_pictures_is_read(tmp_path: Path) -> None:
    """FFmpeg finds no frame size before the first key frame, which is further away than it looks."""
    long = {"g": "400", "keyint_min": "400", "sc_threshold": "0", "preset": "ultrafast"}
    data = video(tmp_path / "whole.ts", frames=1000, size=SMALL, options=long).read_bytes()
    path = tmp_path / "cut.ts"
    path.write_bytes(data[int(len(data) * 0.45) // 188 * 188 :])
    source = open_source(path)
    assert source.info.width is None
    frames = list(source)
    assert len(frames) == 200 and {(frame.width, frame.height) for frame in frames} == {SMALL}


@pytest.mark.parametrize("suffix", ["mov", "flv"])
def test_a_header_without_a_frame_size_is_no_obstacle(tmp_path: Path, suffix: str) -> None:
    path = clip(tmp_path / f"clip.{suffix}")
    data = bytearray(path.read_bytes())
    if suffix == "mov":
        size = data.index(b"avc1", data.index(b"stsd")) + 28
        data[size : size + 4] = bytes(4)
    else:
        for key in (b"width", b"height"):
            value = data.index(key) + len(key) + 1
            data[value : value + 8] = bytes(8)
    path.write_bytes(data)
    assert len(list(open_source(path))) == 50


def test_the_next_program_table_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ts", {})
    at = next_program_table(path, 0)
    assert at and at % 188 == 0 and path.read_bytes()[at : at + 3] == b"\x47\x40\x00"
    assert next_program_table(path, path.stat().st_size - 188) is None
    assert next_program_table(scramble(path, 0, 1), 0) is None
