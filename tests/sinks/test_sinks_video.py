"""The video sink: what it writes is read back by PyAV - times, audio, colour, boxes - also after errors and a kill."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import sink_frames
from framefuse.errors import SinkError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.sinks import open_sink
from framefuse.sinks.draw import class_colour, encode_colour
from framefuse.sinks.images import planes_of
from framefuse.sinks.mp4 import Encoding, Mp4File
from framefuse.sinks.video import choose_encoder, encoder_options, nvenc_refuses
from reading import decoded
from sink_frames import (
    MS,
    NONE,
    audio_packets,
    boxes_of,
    context,
    detections,
    frame,
    frames_of,
    make_clip,
    result,
    run,
    times,
)


def test_video_plays_everywhere_and_shows_the_boxes(tmp_path: Path) -> None:
    sink = run(open_sink("video", crf=10), context(tmp_path, fps=Fraction(25)), [frame(i) for i in range(60)])
    assert sink.paths == [tmp_path / "clip.mp4"]
    assert sink.notes == []
    assert sorted(os.listdir(tmp_path)) == ["clip.mp4"]
    assert boxes_of(sink.paths[0])[:2] == ["ftyp", "moov"]
    assert "moof" not in boxes_of(sink.paths[0])
    with av.open(sink.paths[0]) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 25
        assert (stream.width, stream.height) == (96, 64)
    assert times(sink.paths[0]) == [Fraction(i, 25) for i in range(60)]
    expected = encode_colour(class_colour(1), "bt601", False)
    luma, u, v = planes_of(decoded(sink.paths[0])[7])
    for plane, role, row, columns in ((luma, "y", 49, (30, 58)), (u, "u", 24, (15, 28)), (v, "v", 24, (15, 28))):
        assert np.abs(plane[row, slice(*columns)].astype(int) - expected[role]).max() < 24, role
    assert np.abs(luma[35:45, 30:50].astype(int) - 100).max() < 12, "inside the box the frame is untouched"


@pytest.mark.parametrize(
    "time_base,stamps",
    [
        (Fraction(1001, 30000), list(range(40))),
        (Fraction(1, 90000), [126000 + 3003 * i for i in range(40)]),
        (Fraction(1, 1000), [517 + 33 * i + 7 * (i % 5) for i in range(40)]),
        (Fraction(1, 1_000_000_000), [16_683_333 * i for i in range(40)]),
        (Fraction(1, 12800), [0, 512, 513, 40000, 200000]),
    ],
    ids=["ntsc", "starts at 1.4 s", "variable", "nanoseconds", "gaps"],
)
@pytest.mark.parametrize("preset", ["ultrafast", "medium"])
def test_video_keeps_times_exactly(tmp_path: Path, time_base: Fraction, stamps: list[int], preset: str) -> None:
    frames = [frame(i, pts=stamp, time_base=time_base) for i, stamp in enumerate(stamps)]
    sink = run(open_sink("video", preset=preset), context(tmp_path), frames)
    assert times(sink.paths[0]) == [stamp * time_base for stamp in stamps]
    assert sink.notes == []


@pytest.mark.parametrize("preset", ["ultrafast", "medium", "veryslow"])
@pytest.mark.parametrize(
    ("ticks", "seconds", "repeats"),
    [(90_000, [0, 0.04, 7 * 3600, 7 * 3600 + 0.04], 3), (90_000, [0, 86400, 100 * 3600, 300 * 3600], 10 + 34 + 90),
     (1_000_000_000, [0, 0.04, 2.2, 2.24], 3), (1000, [0, 40 * 86400], 77)],
)  # fmt: skip
def test_video_keeps_times_across_long_gaps(
    tmp_path: Path, ticks: int, seconds: list[float], repeats: int, preset: str
) -> None:
    """A camera that is off for the night; MP4 holds 31 bits of ticks between two frames."""
    stamps = [round(second * ticks) for second in seconds]
    frames = [frame(i, pts=stamp, time_base=Fraction(1, ticks)) for i, stamp in enumerate(stamps)]
    sink = run(open_sink("video", preset=preset), context(tmp_path), frames)
    found = times(sink.paths[0])
    assert set(found) >= {Fraction(stamp, ticks) for stamp in stamps}
    assert found == sorted(found) and found[-1] == Fraction(stamps[-1], ticks)
    assert len(found) == len(stamps) + repeats
    assert f"{repeats:,} repeated frames to fill gaps over" in sink.notes[0]


def test_video_shows_the_last_frame_in_a_gap(tmp_path: Path) -> None:
    frames = [frame(i, pts=stamp, time_base=Fraction(1, 90000)) for i, stamp in enumerate([0, 9 * 3600 * 90000])]
    frames[1].planes[0][:] = 200
    sink = run(open_sink("video", crf=5), context(tmp_path), frames, NONE)
    brightness = [int(planes_of(one)[0].mean()) for one in decoded(sink.paths[0])]
    assert [value > 150 for value in brightness] == [False] * 5 + [True]


def test_video_shortens_a_gap_of_years(tmp_path: Path) -> None:
    stamps = [0, 9 * 365 * 86400 * 90000, 9 * 365 * 86400 * 90000 + 3600]
    frames = [frame(i, pts=stamp, time_base=Fraction(1, 90000)) for i, stamp in enumerate(stamps)]
    sink = run(open_sink("video"), context(tmp_path), frames)
    found = times(sink.paths[0])
    assert found[-1] - found[-2] == Fraction(1, 25) and len(found) == 1003
    assert "1 gap shortened to 7,961" in sink.notes[1]


@pytest.mark.parametrize(
    "stamps,expected,note",
    [
        ([-100, -60, -20, 20], [0, 40, 80, 120], "shifted by 0.100 s"),
        ([60000, 60040, 60080], [0, 40, 80], "shifted by -60.000 s"),
        ([0, 40, 40, 30, 160], [0, 40, 41, 42, 160], "2 frames delayed, as the pts did not increase"),
        ([1000, 1040, None, None, 1160], [1000, 1040, 1080, 1120, 1160], "2 frames without pts"),
        ([1000, 1040, None, None], [1000, 1040, 1080, 1120], "2 frames without pts"),
        ([2000, 2040, 3, 43], [2000, 2040, 2080, 2120], "pts jumped back 1 time;"),
    ],
    ids=["negative", "late start", "backwards", "missing", "missing at the end", "jump"],
)
def test_video_mends_times_and_says_so(
    tmp_path: Path, stamps: list[int | None], expected: list[int], note: str
) -> None:
    frames = [frame(i, pts=stamp) for i, stamp in enumerate(stamps)]
    sink = run(open_sink("video"), context(tmp_path, fps=Fraction(25)), frames)
    assert times(sink.paths[0]) == [stamp * MS for stamp in expected]
    assert len(sink.notes) == 1 and note in sink.notes[0]


def test_video_without_any_times_uses_the_frame_rate(tmp_path: Path) -> None:
    frames = [frame(i, pts=None) for i in range(5)]
    known = run(open_sink("video"), context(tmp_path, fps=Fraction(30000, 1001), stem="known"), frames)
    assert times(known.paths[0]) == [Fraction(1001 * i, 30000) for i in range(5)]
    assert known.notes == []
    thinned = run(open_sink("video"), context(tmp_path, fps=Fraction(25), stem="thinned"), frames[::2])
    assert times(thinned.paths[0]) == [Fraction(i, 25) for i in (0, 2, 4)]
    unknown = run(open_sink("video"), context(tmp_path, stem="unknown"), frames)
    assert times(unknown.paths[0]) == [Fraction(i, 30) for i in range(5)]
    assert "30 fps assumed" in unknown.notes[0]


@pytest.mark.parametrize("audio,suffix", [("aac", ".mp4"), ("aac", ".ts"), ("libmp3lame", ".mkv")])
def test_video_copies_the_audio_packets(tmp_path: Path, audio: str, suffix: str) -> None:
    clip = make_clip(tmp_path / f"clip{suffix}", audio=audio)
    sink = run(open_sink("video"), context(tmp_path, stem="out", path=clip), frames_of(clip))
    assert sink.notes == []
    wanted, found = audio_packets(clip), audio_packets(sink.paths[0])
    data = [packet for _, packet in found]
    # MPEG-TS wraps each AAC packet in a header (ADTS) that MP4 does not have.
    assert [packet[7:] if suffix == ".ts" else packet for _, packet in wanted] == data
    apart = max(abs(a - b) for (a, _), (b, _) in zip(wanted, found, strict=True))
    assert apart <= (0 if suffix == ".mp4" else MS)
    assert len(decoded(sink.paths[0])) == 50


def test_video_of_a_part_gets_the_audio_of_that_part(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.mp4", seconds=8)
    part = [one for one in frames_of(clip) if 5 <= (one.seconds or 0) < 6]
    sink = run(open_sink("video"), context(tmp_path, stem="out", path=clip), part)
    moved = Fraction(5)
    assert times(sink.paths[0]) == [Fraction(i, 25) for i in range(25)]
    packets = audio_packets(sink.paths[0])
    whole = audio_packets(clip)
    wanted = [one for one in whole if 5 - Fraction(1024, 48000) < one[0] < 6]
    assert [data for _, data in packets] == [data for _, data in wanted]
    assert max(abs(a + moved - b) for (a, _), (b, _) in zip(packets, wanted, strict=True)) <= Fraction(1, 48000)


def test_video_leaves_out_audio_that_mp4_cannot_hold(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.avi", audio="pcm_u8")
    sink = run(open_sink("video"), context(tmp_path, stem="out", path=clip), frames_of(clip))
    assert "do not support pcm_u8" in sink.notes[0]
    with av.open(sink.paths[0]) as container:
        assert not container.streams.audio
    gone = run(open_sink("video"), context(tmp_path, stem="gone", path=tmp_path / "deleted.mp4"), frames_of(clip))
    assert "audio omitted" in gone.notes[0]
    assert len(decoded(gone.paths[0])) == 50


def test_video_pads_odd_sizes(tmp_path: Path) -> None:
    one = frame(width=97, height=63)
    one.planes[0][:, -1] = 180
    sink = run(open_sink("video", crf=1), context(tmp_path), [one] * 2, NONE)
    assert "97x63 padded to 98x64" in sink.notes[0]
    luma = planes_of(decoded(sink.paths[0])[0])[0]
    assert luma.shape == (64, 98)
    assert np.abs(luma[:, 96:].astype(int) - 180).max() < 8
    assert np.abs(luma[:, :94].astype(int) - 100).max() < 8


@pytest.mark.parametrize("size", [(2, 2), (17, 31), (1, 1)])
def test_video_of_tiny_frames(tmp_path: Path, size: tuple[int, int]) -> None:
    sink = run(open_sink("video"), context(tmp_path), [frame(i, *size) for i in range(3)])
    assert len(decoded(sink.paths[0])) == 3


@pytest.mark.parametrize("name", sorted(PIXEL_FORMATS))
def test_video_from_every_pixel_format(tmp_path: Path, name: str) -> None:
    try:
        av.VideoFormat(name + ("le" if PIXEL_FORMATS[name].bits > 8 else ""))
    except ValueError:
        pytest.skip("FFmpeg has no such format")
    rgb = PIXEL_FORMATS[name].layout == "packed" or name.startswith("gbr")
    one = frame(name=name, matrix="rgb" if rgb else "bt601", full_range=rgb)
    if name.startswith("gbr"):
        for plane in one.planes:
            plane[:] = one.planes[0][0, 0]
    sink = run(open_sink("video", crf=1), context(tmp_path), [one], NONE)
    luma, u, v = planes_of(decoded(sink.paths[0])[0])
    expected = 16 + 100 * 219 / 255 if rgb else 100
    assert np.abs(luma - expected).max() < 4
    assert max(np.abs(u.astype(int) - 128).max(), np.abs(v.astype(int) - 128).max()) < 4


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_video_and_boxes_are_upright(tmp_path: Path, rotation: int) -> None:
    one = frame(width=96, height=64, rotation=rotation)
    # The top left corner of the frame as displayed is bright; this is its coded position.
    corner = {0: (slice(0, 16), slice(0, 16)), 90: (slice(-16, None), slice(0, 16))}
    corner |= {180: (slice(-16, None), slice(-16, None)), 270: (slice(0, 16), slice(-16, None))}
    one.planes[0][corner[rotation]] = 220
    sink = run(open_sink("video", crf=5), context(tmp_path), [one], detections((40, 30, 90, 60, 0.5, 1)))
    luma, u, _ = planes_of(decoded(sink.paths[0])[0])
    assert luma.shape == (64, 96)
    assert luma[2:14, 2:14].min() > 200 and np.abs(luma[40:, 20:30].astype(int) - 100).max() < 12
    colour = encode_colour(class_colour(1), "bt601", False)
    assert np.abs(u[29, 22:44].astype(int) - colour["u"]).max() < 24


@pytest.mark.parametrize("matrix,code", [("bt601", 6), ("bt709", 1), ("bt2020", 9)])
@pytest.mark.parametrize("full_range", [False, True])
def test_video_carries_the_colour_description(tmp_path: Path, matrix: Any, code: int, full_range: bool) -> None:
    one = frame(matrix=matrix, full_range=full_range, sample_aspect_ratio=Fraction(4, 3))
    sink = run(open_sink("video"), context(tmp_path), [one])
    with av.open(sink.paths[0]) as container:
        stream = container.streams.video[0]
        av_frame = next(container.decode(stream))
        assert av_frame.colorspace == code
        assert av_frame.color_range == (2 if full_range else 1)
        assert stream.sample_aspect_ratio == Fraction(4, 3)


def test_video_goes_on_in_a_second_file_when_the_size_changes(tmp_path: Path) -> None:
    frames = [frame(i) for i in range(5)] + [frame(i, 64, 96) for i in range(5, 9)]
    sink = run(open_sink("video"), context(tmp_path), frames)
    assert [path.name for path in sink.paths] == ["clip.mp4", "clip_2.mp4"]
    assert "changed to 64x96" in sink.notes[0]
    assert [len(decoded(path)) for path in sink.paths] == [5, 4]
    assert times(sink.paths[1]) == [i * 40 * MS for i in range(5, 9)]


def test_video_that_changes_its_size_with_every_frame_makes_few_files(tmp_path: Path) -> None:
    sizes = [(96 + 2 * i, 64) if i % 2 else (64, 97) for i in range(30)]
    sink = run(open_sink("video"), context(tmp_path), [frame(i, *size) for i, size in enumerate(sizes)])
    assert [path.name for path in sink.paths] == ["clip.mp4", *(f"clip_{number}.mp4" for number in range(2, 9))]
    assert [time for path in sink.paths for time in times(path)] == [i * 40 * MS for i in range(30)]
    last = decoded(sink.paths[-1])
    assert {(one.width, one.height) for one in last} == {(96 + 14, 64)} and len(last) == 23
    assert "clip_8.mp4: the frames keep changing; all from here on are scaled to 110x64" in sink.notes


@pytest.mark.parametrize("size", [(192, 128), (48, 32), (64, 128), (300, 20), (95, 63), (1, 1)])
def test_video_scales_frames_of_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: Any) -> None:
    """In the middle, between black bars, with the boxes, and in the colours of the file."""
    monkeypatch.setattr("framefuse.sinks.video.FILES", 1)
    width, height = size
    box = detections((0, 0, width, height, 0.5, 1)) if min(size) > 60 else NONE
    changed = frame(1, *size, matrix="bt709", full_range=True)
    sink = run(open_sink("video", crf=5), context(tmp_path), [frame(0), changed], box)
    luma, u, _ = (plane.astype(int) for plane in planes_of(decoded(sink.paths[0])[1]))
    scale = min(96 / width, 64 / height)
    across, along = width * scale, height * scale
    expected = 16 + 100 * 219 / 255
    assert abs(luma[32, 48] - expected) < 6
    if along < 58:
        assert luma[: int(32 - along / 2) - 3].max() < 24 and luma[int(32 + along / 2) + 3 :].max() < 24
    if across < 88:
        assert luma[:, : int(48 - across / 2) - 3].max() < 24 and luma[:, int(48 + across / 2) + 3 :].max() < 24
    if box is not NONE:
        assert abs(u[16, round(24 - across / 4)] - 128) > 20 > abs(u[16, 24] - 128)  # its left edge, and inside


def test_video_never_writes_into_the_decoders_planes(tmp_path: Path) -> None:
    frames = [frame(i) for i in range(3)]
    for one in frames:
        for plane in one.planes:
            plane.flags.writeable = False
    run(open_sink("video"), context(tmp_path), frames)


def test_video_with_another_encoder(tmp_path: Path) -> None:
    frames = [frame(i, pts=3003 * i, time_base=Fraction(1, 90000)) for i in range(10)]
    sink = run(open_sink("video", encoder="mpeg4"), context(tmp_path, fps=Fraction(30000, 1001)), frames)
    with av.open(sink.paths[0]) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"
    assert times(sink.paths[0]) == [Fraction(1001 * i, 30000) for i in range(10)]
    assert "as mpeg4 requires" in sink.notes[0]


def test_the_encoder_is_the_gpus_where_it_opens() -> None:
    assert choose_encoder("auto", None) == ("libx264", "encoder libx264: the run is on the CPU")
    assert choose_encoder("mpeg4", 0) == ("mpeg4", "encoder mpeg4: as requested")
    name, reason = choose_encoder("auto", 0)
    why = nvenc_refuses(0)
    if why is None:
        assert (name, reason) == ("h264_nvenc", "encoder h264_nvenc: supported by the GPU")
    else:
        assert (name, reason) == ("libx264", f"encoder libx264: on the CPU, because {why}")
        assert "NVENC" in why


def test_x264s_words_for_nvenc() -> None:
    rate = Fraction(25)
    found, _ = encoder_options("h264_nvenc", crf=23, preset="ultrafast", rate=rate, gpu=1)
    assert found == {"rc": "vbr", "cq": "23", "b": "0", "preset": "p1", "gpu": "1"}
    assert encoder_options("hevc_nvenc", crf=20, preset="p6", rate=rate)[0]["preset"] == "p6"
    found, threads = encoder_options("libx264", crf=20, preset="fast", rate=rate, threads=3, gpu=0)
    assert found.items() >= {"crf": "20", "preset": "fast"}.items() and "gpu" not in found and threads == 3


@pytest.mark.parametrize(("rate", "low_latency", "held"), [(60, True, 0), (2, False, 0), (60, False, 1)])
def test_frames_that_the_encoder_holds_back(rate: int, low_latency: bool, held: int, tmp_path: Path) -> None:
    """None on request, and none of a slow video, of which a few frames are many seconds."""
    options, threads = encoder_options("libx264", rate=Fraction(rate), threads=4, low_latency=low_latency)
    facts = Fraction(1, rate), Fraction(rate), 256, 144, "bt709", False, Fraction(1)
    sliced = options.get("tune") == "zerolatency"
    file = Mp4File(tmp_path / "out.mp4", Encoding("libx264", options, threads, *facts, slices=sliced))
    seen = list[int]()
    for index in range(12):
        for plane in file.planes():
            plane[:] = 20 * index
        file.encode(index, Fraction(0))
        seen.append(file._stream.frames)
    file.close(Fraction(0))
    assert len(decoded(tmp_path / "out.mp4")) == 12
    behind = 12 - seen[-1]
    assert behind == 0 if not held else behind >= held


def test_video_encoder_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="no video encoder 'h266'") as caught:
        open_sink("video", encoder="h266").open(context(tmp_path))
    assert "libx264" in str(caught.value) and "mpeg4" in str(caught.value)
    with pytest.raises(SinkError, match=r"rejects 96x64.*nonsense"):
        run(open_sink("video", preset="nonsense"), context(tmp_path), [frame()])
    assert os.listdir(tmp_path) == []


def test_video_without_a_frame_leaves_no_file(tmp_path: Path) -> None:
    assert run(open_sink("video"), context(tmp_path), []).paths == []
    assert os.listdir(tmp_path) == []


def test_video_is_playable_after_an_error_upstream(tmp_path: Path) -> None:
    def broken() -> Iterator[Frame]:
        yield from (frame(i) for i in range(30))
        raise KeyboardInterrupt

    sink = open_sink("video")
    sink.open(context(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        try:
            for one in broken():
                sink.write(result(one), one)
        finally:
            sink.close()
    assert len(decoded(sink.paths[0])) == 30
    assert boxes_of(sink.paths[0])[:2] == ["ftyp", "moov"]


def test_video_and_jsonl_survive_a_kill(tmp_path: Path) -> None:
    """After SIGKILL, all but the last second of video and every line of text survive."""
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(sink_frames.__file__).parent)!r})
from fractions import Fraction
from pathlib import Path
from framefuse.sinks import open_sink
from sink_frames import context, frame, result
where = context(Path({str(tmp_path)!r}), fps=Fraction(25))
sinks = [open_sink("video"), open_sink("jsonl"), open_sink("csv")]
for sink in sinks:
    sink.open(where)
for i in range(250):
    one = frame(i)
    for sink in sinks:
        sink.write(result(one), one)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert len(decoded(tmp_path / "clip.mp4.part")) >= 220
    lines = (tmp_path / "clip.jsonl.part").read_text().splitlines()
    assert [json.loads(line)["frame"] for line in lines] == list(range(250))
    assert len(list(csv.reader((tmp_path / "clip.csv.part").read_text().splitlines()))) == 251
