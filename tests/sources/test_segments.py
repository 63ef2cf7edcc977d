"""A long video that is read in segments side by side gives what it gives when it is read in one piece."""

from __future__ import annotations

import json
import threading
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import pytest

from framefuse import Pipeline
from framefuse.config import Settings
from framefuse.errors import DecodeError, SourceError
from framefuse.runtime.readers import share
from framefuse.sources import segments
from framefuse.sources.cuts import PACKETS, Cuts
from framefuse.sources.segments import Segmented, SegmentedSource, worth_cutting
from framefuse.sources.source import SourceOptions
from media import cuttable, damage_units, rgb_image, truncate

FRAMES = 100


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SECONDS", 1)
    monkeypatch.setattr(segments, "WORTH", 2)


def found(path: Path, folder: Path, **options: Any) -> tuple[list[Any], str, list[str]]:
    """Index, pts and boxes of each frame, the JSONL file, and the notes."""
    with Pipeline(path, "squares", project=folder, save_jsonl=True, imgsz=[160], conf=0.1, **options) as pipeline:
        frames = [(one.frame.index, one.frame.pts, one.detections.xyxy.tolist()) for one in pipeline]
        assert pipeline.folder is not None
        return frames, (pipeline.folder / f"{path.stem}.jsonl").read_text(), pipeline.sources[0].info.notes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {}),
        ("a.mkv", {}),
        pytest.param("a.webm", {"codec": "libvpx-vp9", "options": {"g": "10"}}, marks=pytest.mark.slow),
        pytest.param(
            "hevc.mp4",
            {"codec": "libx265", "options": {"x265-params": "keyint=10:open-gop=0:log-level=none"}},
            marks=pytest.mark.slow,
        ),
        ("ntsc.mp4", {"rate": Fraction(30000, 1001)}),
    ],
)  # fmt: skip
def test_everything_is_as_in_one_piece(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = cuttable(tmp_path / name, **options)
    whole, lines, notes = found(path, tmp_path / "whole", track="bytetrack", readers=1)
    cut, cut_lines, cut_notes = found(path, tmp_path / "cut", track="bytetrack", readers=3)
    assert [index for index, *_ in cut] == list(range(FRAMES))
    assert cut == whole
    assert cut_lines == lines
    assert any(json.loads(line)["detections"] for line in lines.splitlines())
    assert cut_notes == notes


@pytest.mark.parametrize("bounds", [{"start": 0.5}, {"end": 2.9}, {"start": 1.04, "end": 3.2}])
def test_a_part_of_a_video(tmp_path: Path, bounds: dict[str, float]) -> None:
    path = cuttable(tmp_path / "a.mp4")
    whole, cut = (found(path, tmp_path / str(readers), readers=readers, **bounds)[0] for readers in (1, 4))
    assert cut == whole


def test_a_video_is_cut_where_it_can_be(tmp_path: Path) -> None:
    path = cuttable(tmp_path / "a.mp4")
    cuts = Cuts(path, SourceOptions())
    assert (cuts.seconds, cuts.after(cuts.seconds / 2), cuts.after(cuts.seconds)) == (4, 2, None)
    cuts.close()
    assert share(path, Settings(readers=3), cut=True) == Segmented(path, 3)
    assert share([path], Settings(readers=3), cut=True) == Segmented(path, 3)
    assert share(path, Settings(), cut=True) == path  # one decoder keeps a CPU busy
    assert share(path, Settings(readers=3)) == path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("short.mp4", {"frames": 20}),
        ("open.mp4", {"options": {"g": "10", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}}),
        ("rare.mp4", {"options": {"g": "1000", "x264-params": "scenecut=0"}}),
        ("stream.ts", {}),
        ("raw.avi", {"codec": "mpeg4", "options": {"g": "10"}}),
    ],
)
def test_others_are_read_in_one_piece(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = cuttable(tmp_path / name, **options)
    assert not worth_cutting(path, SourceOptions())
    assert not worth_cutting(tmp_path / "missing.mp4", SourceOptions())


@pytest.mark.parametrize(
    "options",
    [
        {"save": True},
        {"adaptive": True},
        {"tiles": "2x2"},
        {"vid_stride": 2},
        {"save_crop": True, "track": "bytetrack"},
    ],
)
def test_what_needs_frames_in_order_gets_them_so(tmp_path: Path, options: dict[str, Any]) -> None:
    path = cuttable(tmp_path / "a.mp4")
    with Pipeline(path, "squares", project=tmp_path, readers=3, **options) as pipeline:
        assert not isinstance(pipeline.sources[0], segments.SegmentedSource)


def test_a_truncated_video(tmp_path: Path) -> None:
    """What is there comes, and the loss is said, as in one piece."""
    path = truncate(cuttable(tmp_path / "a.mkv", frames=400), 0.7)
    whole, _, notes = found(path, tmp_path / "whole", readers=1)
    cut, _, cut_notes = found(path, tmp_path / "cut", readers=3)
    assert cut == whole
    assert any("header states" in note for note in notes)
    assert any("header states" in note for note in cut_notes)


@pytest.mark.parametrize("readers", [1, 3])
def test_nothing_that_can_be_decoded(tmp_path: Path, readers: int) -> None:
    path = damage_units(cuttable(tmp_path / "a.mp4"), *range(FRAMES))
    with Pipeline(path, "squares", readers=readers, imgsz=[160]) as pipeline:
        assert isinstance(pipeline.sources[0], SegmentedSource) == (readers > 1)
        with pytest.raises(DecodeError, match="nothing in"):
            list(pipeline)


def test_behind_a_long_group_of_pictures_a_video_is_cut_again(tmp_path: Path) -> None:
    options = {"g": "1000", "forced-idr": "1", "x264-params": "scenecut=0"}
    path, keys = tmp_path / "a.mp4", (0, 25, 50, 50 + PACKETS + 75)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(keys[-1] + 25):
            frame = av.VideoFrame.from_ndarray(rgb_image(number), format="rgb24")
            if number in keys:
                frame.pict_type = av.video.frame.PictureType.I
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    source, found = Segmented(path, 2).open(SourceOptions()), []
    while (segment := source.segment()) is not None:
        found.append(len(list(segment)))
    assert found == [25, 25, PACKETS + 75, 25]


def test_the_last_segments_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SECONDS", 4)
    monkeypatch.setattr(segments, "AHEAD_SECONDS", Fraction(2, 5))
    source = Segmented(cuttable(tmp_path / "a.mp4", frames=500), 2).open(SourceOptions(start=4))
    frames = [sum(1 for _ in part) for part in iter(source.segment, None)]
    assert frames == sorted(frames, reverse=True) and sum(frames) == 400
    assert frames[0] == 100 and frames[-3:] == [10, 10, 10]


def test_leaving_early_ends_all_readers(tmp_path: Path) -> None:
    path = cuttable(tmp_path / "a.mp4", frames=400)
    pipeline = Pipeline(path, "squares", readers=4, imgsz=[160])
    for _ in zip(range(30), pipeline, strict=False):
        pass
    pipeline.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ff-decode")]


def test_a_reader_that_cannot_open_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cuttable(tmp_path / "a.mp4", frames=400)
    with Pipeline(path, "squares", readers=2, imgsz=[160]) as pipeline:

        def fails(path: Path, options: SourceOptions) -> Any:
            raise SourceError(f"cannot read {path}")

        monkeypatch.setattr(pipeline.sources[0], "_open", partial(fails, path, SourceOptions()))
        with pytest.raises(SourceError, match=r"a\.mp4"):
            for _ in pipeline:
                pass
