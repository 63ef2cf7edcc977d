"""Sinks: what they write is read back - by PyAV, json, csv, Pillow - also after errors and on a full disk."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from framefuse.errors import SinkError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import SINKS, Sink, SinkContext, open_sink
from framefuse.sinks.draw import class_colour, encode_colour
from framefuse.sinks.encoders import choose_encoder, nvenc_refuses, options_of
from framefuse.sinks.picture import planes_of
from framefuse.sinks.run_folder import UniqueNames, make_run_folder
from framefuse.sinks.sink_set import SinkSet, stem_of
from framefuse.sources import SourceInfo

NAMES = {0: "person", 1: "bicycle", 2: 'traffic "light", ü'}
MS = Fraction(1, 1000)


def detections(*rows: tuple[float, ...]) -> Detections:
    """Rows of x1, y1, x2, y2, confidence, class_id."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), NAMES)


ONE = detections((10, 20, 60, 50, 0.875, 1))
NONE = detections()


def gray_yuv(width: int, height: int, *, name: str = "yuv420p", value: int = 100, seed: int | None = None) -> list[Any]:
    """Planes of a flat picture, or of noise that does not compress."""
    pixels = PIXEL_FORMATS[name]
    shapes = pixels.plane_shapes(width, height)
    if seed is not None:
        rng = np.random.default_rng(seed)
        return [rng.integers(0, 256, shape).astype(np.uint8) for shape in shapes]
    scale = 1 << (pixels.bits - 8 + pixels.shift)
    levels = [value, 128, 128] if pixels.layout != "packed" else [value]
    return [np.full(shape, level * scale, pixels.dtype) for shape, level in zip(shapes, levels, strict=False)]


def frame(index: int = 0, width: int = 96, height: int = 64, *, pts: int | str | None = "ms", **more: Any) -> Frame:
    name = more.pop("name", "yuv420p")
    coded = (height, width) if more.get("rotation") in (90, 270) else (width, height)
    planes = gray_yuv(*coded, name=name, seed=more.pop("seed", None))
    time = index * 40 if pts == "ms" else pts
    more.setdefault("time_base", MS)
    return Frame(tuple(planes), PIXEL_FORMATS[name], index=index, pts=time, source_id="clip.mp4", **more)  # type: ignore[arg-type]


def result(of: Frame, found: Detections = ONE) -> Result:
    return Result(FrameInfo.of(of), found)


def context(folder: Path, *, stem: str = "clip", **info: Any) -> SinkContext:
    return SinkContext(folder, SourceInfo(info.pop("uri", "clip.mp4"), info.pop("kind", "file"), **info), NAMES, stem)


def run(sink: Sink, where: SinkContext, frames: list[Frame], found: Detections = ONE) -> Sink:
    sink.open(where)
    try:
        for one in frames:
            sink.write(result(one, found), one)
    finally:
        sink.close()
    sink.close()  # twice is allowed
    return sink


def decoded(path: Path) -> list[av.VideoFrame]:
    with av.open(path) as container:
        return list(container.decode(video=0))


def times(path: Path) -> list[Any]:
    return [one.pts * one.time_base for one in decoded(path)]  # type: ignore[operator]


def boxes_of(path: Path) -> list[str]:
    """Names of the top-level boxes of an MP4."""
    data, at, found = path.read_bytes(), 0, []
    while at + 8 <= len(data):
        found.append(data[at + 4 : at + 8].decode("latin1"))
        at += max(8, int.from_bytes(data[at : at + 4], "big"))
    assert at == len(data), "the file ends inside a box"
    return found


def audio_packets(path: Path) -> list[tuple[Fraction, bytes]]:
    with av.open(path) as container:
        stream = container.streams.audio[0]
        return [
            (packet.pts * packet.time_base, bytes(packet))  # type: ignore[operator]
            for packet in container.demux(stream)
            if packet.size
        ]


def make_clip(path: Path, *, seconds: float = 2, audio: str | None = "aac", start: int = 0) -> Path:
    """A 25 fps clip with a tone."""
    with av.open(path, "w") as container:
        video: Any = container.add_stream("mpeg4", rate=25)
        video.width, video.height = 96, 64
        sound: Any = container.add_stream(audio, rate=48000, layout="stereo") if audio else None
        for i in range(round(seconds * 25)):
            picture = av.VideoFrame(96, 64, "yuv420p")
            for plane in planes_of(picture):
                plane[:] = 100
            picture.pts, picture.time_base = start + i, Fraction(1, 25)
            container.mux(video.encode(picture))
        if sound:
            formats = {"pcm_u8": ("u8", np.uint8), "libmp3lame": ("fltp", np.float32), "aac": ("fltp", np.float32)}
            name, dtype = formats[audio or ""]
            tone = (100 * np.sin(np.arange(round(seconds * 48000)) / 20) + 128).astype(np.uint8)
            samples = tone if dtype == np.uint8 else (tone.astype(np.float32) - 128) / 256
            shaped: Any = np.stack([samples, samples])
            block = av.AudioFrame.from_ndarray(
                shaped if name == "fltp" else shaped.T.reshape(1, -1), format=name, layout="stereo"
            )
            block.sample_rate, block.pts, block.time_base = 48000, start * 1920, Fraction(1, 48000)
            container.mux(sound.encode(block))
            container.mux(sound.encode(None))
        container.mux(video.encode(None))
    return path


def frames_of(path: Path) -> list[Frame]:
    pixels = PIXEL_FORMATS["yuv420p"]
    with av.open(path) as container:
        pictures: list[Any] = list(container.decode(video=0))
    return [
        Frame(planes_of(one), pixels, i, one.pts, one.time_base, str(path), owner=one) for i, one in enumerate(pictures)
    ]


# Video


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
    assert np.abs(luma[35:45, 30:50].astype(int) - 100).max() < 12, "inside the box the picture is untouched"


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


@pytest.mark.parametrize(
    "stamps,expected,note",
    [
        ([-100, -60, -20, 20], [0, 40, 80, 120], "moved by 0.100 s"),
        ([60000, 60040, 60080], [0, 40, 80], "moved by -60.000 s"),
        ([0, 40, 40, 30, 160], [0, 40, 41, 42, 160], "2 frames not later"),
        ([1000, 1040, None, None, 1160], [1000, 1040, 1080, 1120, 1160], "2 frames without a time"),
        ([1000, 1040, None, None], [1000, 1040, 1080, 1120], "2 frames without a time"),
        ([2000, 2040, 3, 43], [2000, 2040, 2080, 2120], "time jumped back 1 times"),
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
    assert "do not know pcm_u8" in sink.notes[0]
    with av.open(sink.paths[0]) as container:
        assert not container.streams.audio
    gone = run(open_sink("video"), context(tmp_path, stem="gone", path=tmp_path / "deleted.mp4"), frames_of(clip))
    assert "audio left out" in gone.notes[0]
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
def test_video_of_tiny_pictures(tmp_path: Path, size: tuple[int, int]) -> None:
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
    # The top left corner of the picture as shown is bright; here is where that corner is coded.
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
        picture = next(container.decode(stream))
        assert picture.colorspace == code
        assert picture.color_range == (2 if full_range else 1)
        assert stream.sample_aspect_ratio == Fraction(4, 3)


def test_video_goes_on_in_a_second_file_when_the_size_changes(tmp_path: Path) -> None:
    frames = [frame(i) for i in range(5)] + [frame(i, 64, 96) for i in range(5, 9)]
    sink = run(open_sink("video"), context(tmp_path), frames)
    assert [path.name for path in sink.paths] == ["clip.mp4", "clip_2.mp4"]
    assert "became 64x96" in sink.notes[0]
    assert [len(decoded(path)) for path in sink.paths] == [5, 4]
    assert times(sink.paths[1]) == [i * 40 * MS for i in range(5, 9)]


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
    assert "as mpeg4 needs" in sink.notes[0]


def test_the_encoder_is_the_gpus_where_it_opens() -> None:
    assert choose_encoder("auto", None) == ("libx264", "encoder libx264: on the CPU, where the run is")
    assert choose_encoder("mpeg4", 0) == ("mpeg4", "encoder mpeg4: as asked")
    name, reason = choose_encoder("auto", 0)
    why = nvenc_refuses(0)
    if why is None:
        assert (name, reason) == ("h264_nvenc", "encoder h264_nvenc: the GPU has one")
    else:
        assert (name, reason) == ("libx264", f"encoder libx264: on the CPU, since {why}")
        assert "NVENC" in why


def test_x264s_words_for_nvenc() -> None:
    found = options_of("h264_nvenc", 23, "ultrafast", 1)
    assert found == {"rc": "vbr", "cq": "23", "b": "0", "preset": "p1", "gpu": "1"}
    assert options_of("hevc_nvenc", 20, "p6", None)["preset"] == "p6"
    assert options_of("libx264", 20, "fast", 0) == {"crf": "20", "preset": "fast"}


def test_video_encoder_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="no video encoder 'h266'") as caught:
        open_sink("video", encoder="h266").open(context(tmp_path))
    assert "libx264" in str(caught.value) and "mpeg4" in str(caught.value)
    with pytest.raises(SinkError, match=r"refuses 96x64.*nonsense"):
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
    """SIGKILL in the middle: all but the last second of video, and every line."""
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_sinks import *
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
    assert len(decoded(tmp_path / "clip.mp4")) >= 220
    lines = (tmp_path / "clip.jsonl").read_text().splitlines()
    assert [json.loads(line)["frame"] for line in lines] == list(range(250))
    assert len(list(csv.reader((tmp_path / "clip.csv").read_text().splitlines()))) == 251


# Text


def test_jsonl_is_the_documented_object(tmp_path: Path) -> None:
    found = detections((1.005, 2, 30.12345, 40, 0.98766, 2), (0, 0, 5, 5, 0.25, 7))
    frames = [frame(0), frame(3, pts=None)]
    sink = open_sink("jsonl")
    sink.open(context(tmp_path))
    sink.write(result(frames[0], found), None)
    first = (tmp_path / "clip.jsonl").read_text()
    assert first.endswith("\n"), "each line is on disk when write returns"
    sink.write(result(frames[1], NONE), None)
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "clip.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "frame": 0,
            "pts": 0.0,
            "width": 96,
            "height": 64,
            "detections": [
                {"xyxy": [1.0, 2.0, 30.12, 40.0], "confidence": 0.9877, "class_id": 2, "class": NAMES[2]},
                {"xyxy": [0.0, 0.0, 5.0, 5.0], "confidence": 0.25, "class_id": 7, "class": "7"},
            ],
        },
        {"frame": 3, "pts": None, "width": 96, "height": 64, "detections": []},
    ]
    assert list(lines[0]) == ["frame", "pts", "width", "height", "detections"]


def test_csv_has_a_row_for_each_detection(tmp_path: Path) -> None:
    found = detections((1, 2, 30.12345, 40, 0.98766, 2), (0, 0, 5, 5, 0.25, 0))
    run(open_sink("csv"), context(tmp_path), [frame(2), frame(3, pts=None)], found)
    rows = list(csv.DictReader((tmp_path / "clip.csv").read_text().splitlines()))
    assert len(rows) == 4
    assert rows[0] == {
        "frame": "2", "pts": "0.08", "class_id": "2", "class": NAMES[2], "confidence": "0.9877",
        "x1": "1.0", "y1": "2.0", "x2": "30.12", "y2": "40.0", "source": "clip.mp4",
    }  # fmt: skip
    assert rows[2]["pts"] == ""


def test_coco_loads_and_is_complete(tmp_path: Path) -> None:
    sink = open_sink("coco")
    sink.open(context(tmp_path))
    for i, found in enumerate([ONE, NONE, detections((0, 0, 10, 20, 0.5, 0), (1, 1, 3, 4, 0.4, 2))]):
        sink.write(result(frame(i), found), None)
    assert not (tmp_path / "clip.json").exists()
    sink.close()
    sink.close()
    data = json.loads((tmp_path / "clip.json").read_text())
    assert data["categories"] == [{"id": number, "name": name} for number, name in NAMES.items()]
    assert [image["id"] for image in data["images"]] == [1, 2, 3]
    assert data["images"][1] | {"width": 96, "height": 64, "frame": 1, "seconds": 0.04} == data["images"][1]
    assert data["annotations"][0] == {
        "id": 1, "image_id": 1, "category_id": 1, "bbox": [10.0, 20.0, 50.0, 30.0], "score": 0.875,
        "area": 1500.0, "iscrowd": 0,
    }  # fmt: skip
    assert [(row["id"], row["image_id"]) for row in data["annotations"]] == [(1, 1), (2, 3), (3, 3)]
    assert os.listdir(tmp_path) == ["clip.json"]


def test_coco_of_nothing_is_valid(tmp_path: Path) -> None:
    run(open_sink("coco"), context(tmp_path), [])
    data = json.loads((tmp_path / "clip.json").read_text())
    assert data["images"] == data["annotations"] == []


@pytest.mark.parametrize("confidence", [False, True])
def test_yolo_labels_are_normalised(tmp_path: Path, confidence: bool) -> None:
    sink = open_sink("yolo_txt", confidence=confidence)
    sink.open(context(tmp_path))
    sink.write(result(frame(4)), None)
    sink.write(result(frame(5), NONE), None)
    sink.close()
    numbers = [float(word) for word in (tmp_path / "labels/clip_4.txt").read_text().split()]
    expected = [1, 35 / 96, 35 / 64, 50 / 96, 30 / 64] + [0.875] * confidence
    assert numbers == pytest.approx(expected, abs=1e-6)
    assert (tmp_path / "labels/clip_5.txt").read_text() == ""


# Images


@pytest.mark.parametrize("name", ["rgb24", "bgr24", "bgra", "gray", "gray16", "yuv420p", "yuv444p10", "rgb48"])
def test_images_are_annotated_one_by_one(tmp_path: Path, name: str) -> None:
    pixels = PIXEL_FORMATS[name]
    rgb = pixels.layout == "packed"
    one = frame(name=name, matrix="rgb" if rgb else "bt601", full_range=True)
    sink = open_sink("images")
    sink.open(context(tmp_path, kind="images"))
    for source in ("a/photo.png", "b/photo.jpg", "c/photo.png"):
        named = Frame(one.planes, pixels, source_id=source, matrix=one.matrix, full_range=True)
        sink.write(result(named), named)
    sink.close()
    assert sorted(os.listdir(tmp_path)) == ["photo.png", "photo_2.jpg", "photo_3.png"]
    with Image.open(tmp_path / "photo.png") as picture:
        picture.load()
        found = np.asarray(picture).astype(int)
    assert found.shape == (64, 96, 3)
    assert np.abs(found[49, 20:50] - class_colour(1)).max() == 0
    assert np.abs(found[40, 30:50] - 100).max() <= 2
    with Image.open(tmp_path / "photo_2.jpg") as picture:
        assert picture.format == "JPEG"
        assert np.abs(np.asarray(picture).astype(int)[49, 20:50] - class_colour(1)).max() < 24


def test_images_are_upright(tmp_path: Path) -> None:
    one = frame(rotation=90)
    one.planes[0][-16:, :16] = 220
    sink = run(open_sink("images"), context(tmp_path), [one], NONE)
    assert sink.paths == [tmp_path]
    with Image.open(tmp_path / "clip_0.png") as picture:
        found = np.asarray(picture)
    assert found.shape == (64, 96, 3) and found[:14, :14].min() > 200 and found[:, 20:].max() < 120


# Choosing, folders, several at once


def test_open_sink_by_name() -> None:
    for name in SINKS:
        options = {"function": print} if name == "callback" else {}
        sink = open_sink(name, **options)
        assert sink.name == name
    with pytest.raises(UsageError, match="no sink is called 'mp3'") as caught:
        open_sink("mp3")
    assert "jsonl" in str(caught.value)


def test_callback_and_null(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def note(one: Result, of: Frame | None) -> None:
        seen.append((one.frame.index, of is not None))

    for needs_frame in (False, True):
        run(open_sink("callback", function=note, needs_frame=needs_frame), context(tmp_path), [frame(0), frame(1)])
    assert seen == [(0, False), (1, False), (0, True), (1, True)]
    null: Any = run(open_sink("null"), context(tmp_path), [frame(0), frame(1)])
    assert (null.frames, null.detections) == (2, 2)


def test_run_folders_are_numbered(tmp_path: Path) -> None:
    project = tmp_path / "runs" / "predict"
    assert [make_run_folder(project).name for _ in range(3)] == ["predict", "predict2", "predict3"]
    assert [make_run_folder(project, "night").name for _ in range(2)] == ["night", "night2"]
    assert make_run_folder(project, "night", exist_ok=True).name == "night"


def test_run_folders_are_never_shared(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    found: list[Path] = []

    def make() -> None:
        start.wait()
        found.extend(make_run_folder(tmp_path) for _ in range(10))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 80


@pytest.mark.parametrize("exist_ok", [False, True])
def test_run_folder_that_cannot_be_made(tmp_path: Path, exist_ok: bool) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=r"cannot make the run folder .*file"):
        make_run_folder(tmp_path / "file", exist_ok=exist_ok)
    with pytest.raises(SinkError, match="cannot make the run folder /proc/"):
        make_run_folder(Path("/proc/runs"), exist_ok=exist_ok)


def test_unique_names() -> None:
    names = UniqueNames()
    assert [names.take(name) for name in ("a", "a", "A", "a_2", "b")] == ["a", "a_2", "A_3", "a_2_2", "b"]


@pytest.mark.parametrize(
    "uri,kind,path,stem",
    [
        ("/data/My clip.v2.mp4", "file", "/data/My clip.v2.mp4", "My_clip.v2"),
        ("rtsp://cam-1.local:554/live/main?x=1", "live", None, "cam-1.local_554_live_main_x_1"),
        ("0", "camera", None, "camera_0"),
        ("/dev/video2", "camera", None, "dev_video2"),
        ("photos/*.jpg", "images", None, "images"),
        ("array", "array", None, "array"),
        ("...", "file", "...", "file"),
    ],
)
def test_stems_are_safe_file_names(uri: str, kind: str, path: str | None, stem: str) -> None:
    assert stem_of(SourceInfo(uri, kind, path=None if path is None else Path(path))) == stem


def test_sink_set_gives_each_source_its_own_files(tmp_path: Path) -> None:
    sources = [SourceInfo(f"{folder}/clip.mp4", "file", path=Path(f"{folder}/clip.mp4")) for folder in "ab"]
    images = SourceInfo("photos", "images")
    made: list[str] = []

    def make(source: SourceInfo) -> list[Sink]:
        made.append(source.uri)
        return [open_sink("jsonl"), open_sink("null")]

    with SinkSet(make, tmp_path, NAMES) as sinks:
        for i in range(3):
            for source in sources:
                info = FrameInfo(i, i, MS, 96, 64, source.uri)
                sinks.write(Result(info, ONE), None, source)
        for i in range(3):
            sinks.write(Result(FrameInfo(i, None, MS, 96, 64, f"photos/{i}.jpg"), ONE), None, images)
        sinks.end(sources[0].uri)
    assert made == ["a/clip.mp4", "b/clip.mp4", "photos"]
    assert sinks.paths == [tmp_path / "clip.jsonl", tmp_path / "clip_2.jsonl", tmp_path / "images.jsonl"]
    assert [len(path.read_text().splitlines()) for path in sinks.paths] == [3, 3, 3]


def test_sink_set_goes_on_without_a_sink_that_fails(tmp_path: Path) -> None:
    def fail(one: Result, _: Frame | None) -> None:
        if one.frame.index == 2:
            raise ValueError("the callback's own")

    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    sinks = SinkSet(lambda _: [open_sink("callback", function=fail), open_sink("jsonl")], tmp_path, NAMES)
    errors = []
    for i in range(4):
        try:
            sinks.write(result(frame(i)), None, source)
        except ValueError as error:
            errors.append((i, str(error)))
    sinks.close()
    sinks.close()
    assert errors == [(2, "the callback's own")]
    assert len((tmp_path / "clip.jsonl").read_text().splitlines()) == 4


def test_sink_set_reports_an_output_that_cannot_be_opened_and_writes_the_others(tmp_path: Path) -> None:
    (tmp_path / "clip.csv").mkdir()
    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    sinks = SinkSet(lambda _: [open_sink("csv"), open_sink("jsonl")], tmp_path, NAMES)
    with pytest.raises(SinkError, match=r"clip\.csv"):
        sinks.write(result(frame(0)), None, source)
    sinks.write(result(frame(1)), None, source)
    sinks.close()
    assert (tmp_path / "clip.jsonl").read_text().count("\n") >= 1
