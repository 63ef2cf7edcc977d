"""Several decoders of one video give the frames that one gives, in order, and hold no more of them than they may."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from framefuse import Pipeline
from framefuse.config import Settings, settings_from
from framefuse.errors import SourceError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.runtime import plan, readers
from framefuse.runtime.ahead import Ahead
from framefuse.runtime.memory import predict, surface
from framefuse.runtime.plan import RunPlan, plan_run
from framefuse.runtime.readers import open_sources
from framefuse.sources import open_source, segments
from framefuse.sources.ffmpeg import HostDecoder
from framefuse.sources.segments import Segmented, Spacing, spacing
from framefuse.sources.source import SourceOptions
from media import rgb_image, scramble, truncate, video

CLOSED = {"g": "10", "bf": "3", "x264-params": "open-gop=0:scenecut=0"}
FRAMES = 100


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "AHEAD_SECONDS", 0.5)
    monkeypatch.setattr(segments, "AHEAD_WORTH", 2)


def clip(path: Path, **options: Any) -> Path:
    return video(path, **{"frames": FRAMES, "rate": 25, "size": (160, 120), "options": CLOSED, **options})


def odd(path: Path) -> Path:
    """Key frames at odd distances, B frames between."""
    with av.open(str(path), "w") as container:
        options = {"g": "1000", "bf": "3", "forced-idr": "1", "x264-params": "scenecut=0"}
        stream: Any = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(rgb_image(number, 160, 120), format="rgb24")
            if number in (1, 2, 13, 20, 41, 43, 84):
                frame.pict_type = av.video.frame.PictureType.I
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def opened(path: Path, waiting: int = 100, count: int = 3, **options: Any) -> Ahead:
    (source,) = open_sources(Segmented(path, count, waiting), Settings(device="cpu", **options), 1)
    assert isinstance(source, Ahead)
    return source


def same(path: Path, waiting: int = 100, **options: Any) -> list[str]:
    """Compare all that is known of frames and the file; the notes."""
    source, alone = opened(path, waiting, **options), open_source(path, SourceOptions(**options))
    assert source.info.frames == alone.info.frames
    number = 0
    for number, (one, other) in enumerate(zip(source, alone, strict=True), 1):  # noqa: B007
        for name in ("index", "pts", "time_base", "rotation", "source_id", "connection", "matrix", "full_range"):
            assert getattr(one, name) == getattr(other, name), (number, name)
        for plane, wanted in zip(one.planes, other.planes, strict=True):
            np.testing.assert_array_equal(plane, wanted)
    assert number
    assert source.info.notes == alone.info.notes
    assert source.info.drops == alone.info.drops
    assert not threads()
    return alone.info.notes


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ff-decode")]


@pytest.mark.parametrize("waiting", [1, 7, 100])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {}),
        ("a.mkv", {"rate": Fraction(30000, 1001)}),
        ("vp9.webm", {"codec": "libvpx-vp9", "options": {"g": "10"}}),
        ("hevc.mp4", {"codec": "libx265", "options": {"x265-params": "keyint=10:open-gop=0:log-level=none"}}),
        ("ten.mp4", {"pixel_format": "yuv420p10le"}),
        ("late.mp4", {"pts": range(500, 700, 2)}),
    ],
)
def test_frames_are_those_of_one_decoder(tmp_path: Path, name: str, options: dict[str, Any], waiting: int) -> None:
    same(clip(tmp_path / name, **options), waiting)


@pytest.mark.parametrize("options", [{}, {"start": 0.5}, {"end": 2.9}, {"start": 1.04, "end": 3.2}, {"vid_stride": 3}])
def test_odd_distances_and_parts(tmp_path: Path, options: dict[str, Any]) -> None:
    path = odd(tmp_path / "odd.mp4")
    same(path, **options)
    same(path, 2, **options)


def test_a_damaged_segment(tmp_path: Path) -> None:
    path = scramble(clip(tmp_path / "a.mkv", frames=400), 0.4, 0.5)
    assert any("damaged" in note for note in same(path))


def test_a_truncated_video(tmp_path: Path) -> None:
    path = truncate(clip(tmp_path / "a.mkv", frames=400), 0.7)
    assert any("header states" in note for note in same(path))


def test_no_more_frames_wait_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, wrap = list[int](), HostDecoder.wrap

    def counted(self: HostDecoder, *given: Any, **more: Any) -> Any:
        decoded.append(1)
        return wrap(self, *given, **more)

    monkeypatch.setattr(HostDecoder, "wrap", counted)
    source = opened(clip(tmp_path / "a.mp4", frames=200), 4, 3)
    for number, _ in enumerate(source, 1):
        if number % 20 == 3:
            before = -1
            while before != len(decoded):  # until all that may be decoded has been
                before = len(decoded)
                time.sleep(0.05)
            assert number < len(decoded) <= number + 3 * (4 + 1)
    assert len(decoded) == 200


def test_closing_in_the_middle_from_another_thread(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", frames=400)
    for after in (0, 1, 30):
        source, seen = opened(path, 5), list[int]()

        def read(frames: Iterator[Any] = iter(source), seen: list[int] = seen) -> None:
            seen.extend(frame.index for frame in frames)

        for _ in range(after):
            next(iter(source))
        reader = threading.Thread(target=read)
        reader.start()
        source.close()
        reader.join(5)
        assert not reader.is_alive() and not threads()
        source.close()
        assert seen == list(range(after, after + len(seen)))


def test_an_error_comes_when_it_is_its_turn(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4")
    source, turns = opened(path, 100, 2), [0]

    def fails() -> Any:
        raise SourceError(f"cannot read {path}")

    source._source._open = fails  # type: ignore[assignment]
    seen = list[int]()
    with pytest.raises(SourceError, match=r"a\.mp4"):
        seen.extend(frame.index for frame in source)
    for frame in opened(path, 100, 2):
        turns.append(frame.index)
    assert not threads()


def test_leaving_a_run_early_ends_all_decoders(tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", frames=400)
    with Pipeline(path, "squares", readers=4, imgsz=[160], vid_stride=2) as pipeline:
        assert isinstance(pipeline.sources[0], Ahead)
        for _ in zip(range(30), pipeline, strict=False):
            pass
    assert not threads()
