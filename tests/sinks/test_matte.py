"""Videos of mattes, read back by PyAV."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from framefuse.errors import SinkError, UsageError
from framefuse.frame import Frame
from framefuse.prediction import Matte, MattePart
from framefuse.sinks import open_sink
from framefuse.sinks.draw import encode_colour
from framefuse.sinks.images import planes_of
from framefuse.sinks.repair import repair_folder
from reading import decoded
from sink_frames import NONE, audio_packets, context, frame, make_clip, result


def begun(folder: Path, mode: str, frames: list[Frame], stem: str = "clip", **info: Any) -> Any:
    """Frames whose right half is foreground, given to a sink."""
    sink: Any = open_sink("matte", mode=mode, crf=8, stereo=info.pop("stereo", "sbs"))
    sink.open(context(folder, stem=stem, **info))
    for one in frames:
        alpha = np.zeros((8, 12), np.float32)
        alpha[:, 6:] = 1
        part = MattePart((0, 0, one.width, one.height), alpha)
        sink.write(replace(result(one, NONE), matte=Matte((part,), (one.width, one.height), 1.0)), one)
    return sink


def written(folder: Path, mode: str, frames: list[Frame], stem: str = "clip", **info: Any) -> Any:
    """The sink, closed."""
    sink = begun(folder, mode, frames, stem, **info)
    sink.close()
    return sink


def sides(planes: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """The values of the planes on the left and on the right."""
    return [tuple(round(float(np.median(plane[:, columns]))) for plane in planes)
            for columns in (slice(0, 20), slice(-20, None))]  # fmt: skip


GREEN = tuple(encode_colour((0, 255, 0), "bt601", False)[role] for role in "yuv")


@pytest.mark.parametrize(
    ("mode", "left", "right"),
    [
        ("gray", (16, 128, 128), (235, 128, 128)),
        ("green", GREEN, (100, 128, 128)),
        ("blur", (100, 128, 128), (100, 128, 128)),
    ],
)
@pytest.mark.parametrize("size", [(96, 64), (97, 63)])
def test_modes(tmp_path: Path, mode: str, left: tuple[int, ...], right: tuple[int, ...], size: tuple[int, int]) -> None:
    sink = written(tmp_path, mode, [frame(i, *size) for i in range(5)])
    assert [path.name for path in sink.paths] == [f"clip_{mode}.mp4"]
    for one in decoded(sink.paths[0]):
        for found, expected in zip(sides(planes_of(one)), (left, right), strict=True):
            assert np.abs(np.subtract(found, expected)).max() <= 2, (mode, found)


def test_overlay_tints_the_foreground_only(tmp_path: Path) -> None:
    left, right = sides(planes_of(decoded(written(tmp_path, "overlay", [frame()]).paths[0])[0]))
    assert np.abs(np.subtract(left, (100, 128, 128))).max() <= 2
    assert right[2] > 150, "red"


def test_a_blurred_background_keeps_no_detail(tmp_path: Path) -> None:
    noisy = frame(seed=3)
    before, after = noisy.planes[0], planes_of(decoded(written(tmp_path, "blur", [noisy]).paths[0])[0])[0]
    assert after[:, :20].std() < before[:, :20].std() / 3
    assert after[:, -20:].std() > before[:, -20:].std() / 2


def test_alpha_is_transparent(tmp_path: Path) -> None:
    sink = written(tmp_path, "alpha", [frame(i) for i in range(3)])
    assert [path.name for path in sink.paths] == ["clip_alpha.mov"]
    with av.open(sink.paths[0]) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("prores", "yuva444p12le")
        assert stream.codec_context.codec_tag == "ap4h", "ProRes 4444, which FFmpeg decodes to 12 bits"
        images = [one.to_ndarray(format="rgba") for one in container.decode(video=0)]
    assert len(images) == 3
    assert images[0][:, :20, 3].max() == 0 and images[0][:, -20:, 3].min() == 255


def test_alpha_for_browsers(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.mp4", audio="aac")
    sink: Any = open_sink("matte", mode="alpha", encoder="libvpx-vp9", crf=8)
    sink.open(context(tmp_path, path=clip, kind="file"))
    for index in range(4):
        one = frame(index)
        alpha = np.zeros((8, 12), np.float32)
        alpha[:, 6:] = 1
        part = MattePart((0, 0, one.width, one.height), alpha)
        sink.write(replace(result(one, NONE), matte=Matte((part,), (one.width, one.height), 1.0)), one)
    sink.close()
    assert [path.name for path in sink.paths] == ["clip_alpha.webm"] and not list(tmp_path.glob("*.part"))
    assert any("encoded as Opus: a WebM may not have aac" in note for note in sink.notes)
    decoder = av.CodecContext.create("libvpx-vp9", "r")  # the usual one leaves transparency out
    with av.open(sink.paths[0]) as container:
        assert [stream.codec_context.name for stream in container.streams] == ["vp9", "opus"]
        images = [one for packet in container.demux(video=0) for one in decoder.decode(packet)]
    assert len(images) == 4 and {one.format.name for one in images} == {"yuva420p"}
    for left, right in (sides(planes_of(one)) for one in images):
        assert left[3] == 0 and right[3] == 255
    with av.open(sink.paths[0]) as container:
        assert sum(one.samples for one in container.decode(audio=0)) > 0


def test_an_encoder_without_transparency_is_refused() -> None:
    with pytest.raises(UsageError, match="stores no transparency"):
        open_sink("matte", mode="alpha", encoder="libx265")


@pytest.mark.parametrize(
    ("stem", "name"),
    [("a_180_LR", "a_green_180_LR.mp4"), ("a.b", "a.b_green.mp4"), ("a_180_LR_2", "a_2_green_180_LR.mp4")],
)
def test_what_players_read_stays_at_the_end_of_the_name(tmp_path: Path, stem: str, name: str) -> None:
    assert [path.name for path in written(tmp_path, "green", [frame()], stem).paths] == [name]


def test_sound_is_kept(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "tone.mp4")
    (tmp_path / "out").mkdir()
    for mode in ("gray", "alpha"):
        sink = written(tmp_path / "out", mode, [frame(i) for i in range(50)], path=clip)
        assert [data for _, data in audio_packets(sink.paths[0])] == [data for _, data in audio_packets(clip)]


def eyes(tmp_path: Path, name: str) -> Any:
    path = tmp_path / f"{name}.mp4"
    path.touch()
    return {"stem": name, "path": path, "uri": str(path)}


def test_mattes_are_packed_into_the_corners(tmp_path: Path) -> None:
    """Each eye is 200 pixels across; the right half of the whole frame, the right eye, is foreground."""
    sink = written(tmp_path, "packed", [frame(0, 400, 200)], **eyes(tmp_path, "a_FISHEYE190"))
    assert [path.name for path in sink.paths] == ["a_FISHEYE190_alpha.mp4"]
    luma = planes_of(decoded(sink.paths[0])[0])[0].astype(int)
    assert luma[5, 5] > 225 and luma[195, 5] > 225 and luma[5, 395] > 225 and luma[195, 395] > 225, "the right eye"
    assert luma[5, 200] < 25 and luma[195, 200] < 25, "the left eye"
    assert np.abs(luma[100, [20, 100, 300, 380]] - 100).max() < 5, "the picture stays"
    assert np.abs(luma[60:140, 20:180] - 100).max() < 8


def test_vr180_becomes_fisheye(tmp_path: Path) -> None:
    sink = written(tmp_path, "packed", [frame(0, 400, 200)], **eyes(tmp_path, "a_180_LR"))
    assert [path.name for path in sink.paths] == ["a_FISHEYE190_alpha.mp4"]
    luma = planes_of(decoded(sink.paths[0])[0])[0].astype(int)
    assert np.abs(luma[100, [20, 100, 300, 380]] - 100).max() < 8
    assert luma[100, [2, 197, 202, 397]].max() < 25, "the outermost five degrees are black"


@pytest.mark.parametrize(
    ("name", "stereo", "why"),
    [("a_180", None, "side by side"), ("a_180_LR", "left", "side by side"), ("a_LR", "sbs", "VR180 or fisheye")],
)
def test_other_videos_are_not_packed(tmp_path: Path, name: str, stereo: str | None, why: str) -> None:
    with pytest.raises(SinkError, match=why):
        written(tmp_path, "packed", [frame(0, 400, 200)], stereo=stereo, **eyes(tmp_path, name))


def test_results_without_mattes_are_an_error(tmp_path: Path) -> None:
    for name in ("matte", "matte_images"):
        sink: Any = open_sink(name)
        sink.open(context(tmp_path, stem=name))
        with pytest.raises(SinkError, match="needs mattes"):
            sink.write(result(frame(), NONE), frame())
        sink.close()


def test_a_new_size_goes_on_in_a_second_file(tmp_path: Path) -> None:
    sink = written(tmp_path, "alpha", [frame(0), frame(1, 64, 48), frame(2, 64, 48)])
    assert [path.name for path in sink.paths] == ["clip_alpha.mov", "clip_2_alpha.mov"]
    assert [len(decoded(path)) for path in sink.paths] == [1, 2]


@pytest.mark.parametrize("mode", ["gray", "alpha"])
def test_what_a_killed_run_leaves_can_be_completed(tmp_path: Path, mode: str) -> None:
    left = tmp_path / "left"
    left.mkdir()
    sink = begun(tmp_path, mode, [frame(i) for i in range(75)])
    (part,) = tmp_path.glob("*.part")
    shutil.copy(part, left)
    sink.close()
    (repair,) = repair_folder(left)
    assert "completed as" in repair.done
    (video,) = left.iterdir()
    assert video.name == sink.paths[0].name and 40 <= len(decoded(video)) <= 75
    with av.open(str(video)) as container:
        assert container.streams.video[0].pix_fmt == ("yuva444p12le" if mode == "alpha" else "yuv420p")


@pytest.mark.parametrize(
    ("mode", "left", "right"),
    [
        ("png", 0, 255),
        ("gray", 0, 255),
        ("alpha", (98, 98, 98, 0), (98, 98, 98, 255)),
        ("green", (0, 255, 0), (98, 98, 98)),
        ("blur", (98, 98, 98), (98, 98, 98)),
        ("overlay", (98, 98, 98), (176, 69, 109)),
    ],
)
def test_images_become_images(tmp_path: Path, mode: str, left: Any, right: Any) -> None:
    sink: Any = open_sink("matte_images", mode=mode)
    sink.open(context(tmp_path, stem="clip"))
    for one in (frame(0), frame(1, 97, 63)):
        alpha = np.zeros((8, 12), np.float32)
        alpha[:, 6:] = 1
        part = MattePart((0, 0, one.width, one.height), alpha)
        sink.write(replace(result(one, NONE), matte=Matte((part,), (one.width, one.height), 1.0)), one)
    sink.close()
    for name, size in (("clip_0.png", (96, 64)), ("clip_1.png", (97, 63))):
        with Image.open(tmp_path / "mattes" / name) as image:
            assert image.size == size
            pixels = np.asarray(image).astype(int)
        assert np.abs(pixels[20, 5] - left).max() <= 2 and np.abs(pixels[20, -5] - right).max() <= 2


def test_images_are_not_packed(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="packed into videos"):
        open_sink("matte_images", mode="packed").open(context(tmp_path))
