"""Frames spread over a source: over all of it, whatever its kind, and the same ones each time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from framefuse.errors import SourceError
from framefuse.sources import SourceOptions, open_source, open_spread

FPS = 25


def video(path: Path, frames: int) -> Path:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            image = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number % 200, np.uint8), format="rgb24")
            image.pts, image.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("clips")
    return {frames: video(folder / f"{frames}.mp4", frames) for frames in (10, 90, 1200)}


def numbers(source: Any, count: int, options: SourceOptions | None = None) -> list[int]:
    """Numbers of the frames in their file."""
    return [round((frame.seconds or 0) * FPS) for frame in open_spread(source, count, options)]


@pytest.mark.parametrize(
    ("frames", "count", "expected"),
    [
        (10, 3, [1, 5, 8]),
        (10, 7, [0, 2, 3, 5, 6, 7, 9]),  # not the first seven
        (10, 20, list(range(10))),
        (90, 4, [11, 33, 56, 78]),
        (90, 64, [(2 * n + 1) * 90 // 128 for n in range(64)]),
        (1200, 4, [150, 450, 750, 1050]),  # so far apart that each is sought
    ],
)
def test_a_video_is_covered(clips: dict[int, Path], frames: int, count: int, expected: list[int]) -> None:
    found = numbers(clips[frames], count)
    assert found == pytest.approx(expected, abs=frames / count / 8)
    assert found == numbers(clips[frames], count)


def test_what_is_sought_is_what_is_read(clips: dict[int, Path]) -> None:
    every = {frame.pts: frame.planes[0].copy() for frame in open_source(clips[1200])}
    for frame in open_spread(clips[1200], 4):
        np.testing.assert_array_equal(frame.planes[0], every[frame.pts])


def test_a_part_of_a_video_is_covered(clips: dict[int, Path]) -> None:
    found = numbers(clips[1200], 4, SourceOptions(start=40, end=44))
    assert 1000 <= min(found) < 1025 and 1075 <= max(found) < 1100
    assert min(numbers(clips[1200], 2, SourceOptions(start=10))) >= 250  # by seeking


def test_every_file_of_a_folder_has_its_share(clips: dict[int, Path]) -> None:
    shares: dict[str, int] = {}
    for frame in open_spread(clips[10].parent, 12):
        shares[Path(frame.source_id).name] = shares.get(Path(frame.source_id).name, 0) + 1
    assert shares == {"10.mp4": 4, "90.mp4": 4, "1200.mp4": 4}
    names = [Path(frame.source_id).name for frame in open_spread([*clips.values()], 1)]
    assert names == ["90.mp4"]


def test_a_length_that_is_not_stated_is_counted(clips: dict[int, Path], tmp_path: Path) -> None:
    raw = tmp_path / "raw.h264"
    with av.open(str(clips[90])) as source, av.open(str(raw), "w", format="h264") as made:
        stream = made.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                made.mux(packet)
    assert open_source(raw).info.frames is None
    assert [frame.index for frame in open_spread(raw, 3)] == pytest.approx([15, 45, 75], abs=4)


def test_images_arrays_and_worlds() -> None:
    images = [np.full((8, 8, 3), number, np.uint8) for number in range(10)]
    assert [int(frame.planes[0][0, 0, 0]) for frame in open_spread(images, 2)] == [2, 7]
    assert len(list(open_spread(iter(images), 4))) == 4  # its length is not known: the first ones
    found = [frame.pts for frame in open_spread("synthetic://street?frames=4000&size=64x48", 4)]
    assert found == [500, 1500, 2500, 3500]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        open_spread(tmp_path / "none.mp4", 4)
    source = open_spread("synthetic://street?frames=9&size=64x48", 4)
    next(iter(source))
    source.close()
    assert list(source) == []
