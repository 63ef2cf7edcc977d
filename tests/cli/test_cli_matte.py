"""framefuse matte: videos in, mattes out, compared with the exact masks of the synthetic world."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import media
from framefuse.sinks.images import planes_of
from framefuse.sources import segments
from framefuse.world import World
from media import video
from reading import decoded

EYES: dict[str, Any] = {
    "scene": "bodies",
    "seed": 3,
    "split": "test",
    "frames": 8,
    "size": (1280, 640),
    "stereo": "sbs",
}
ADDRESS = "synthetic://bodies?seed=3&split=test&frames=8&size=1280x640&stereo=sbs"


def test_the_matte_is_that_of_the_world(run: Any, tmp_path: Path) -> None:
    code, out, err = run("matte", ADDRESS, "people.mp4", "--json")
    assert code == 0 and json.loads(out)["outputs"] == ["people.mp4"]
    assert "choice   stereo sbs: its address says so" in err and "people.mp4" in err
    world = World(**EYES)
    frames = decoded(tmp_path / "people.mp4")
    assert len(frames) == 8
    inside = outside = 0
    for index, one in enumerate(frames):
        found, truth = planes_of(one)[0] > 125, world[index].truth.class_mask > 0
        inside, outside = inside + (found & truth).sum(), outside + (found | truth).sum()
    assert inside / outside > 0.94
    assert json.loads((tmp_path / "runs/matte/matte/report.json").read_text())["outputs"] == ["people.mp4"]
    assert "href='../../../people.mp4'" in (tmp_path / "runs/matte/matte/report.html").read_text()


def test_both_eyes_of_a_video_are_found_by_its_name(run: Any, tmp_path: Path) -> None:
    clip = tmp_path / "party_180_LR.mp4"
    with av.open(clip, "w") as container:
        stream: Any = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 640, 320, "yuv420p"
        world = World(**EYES | {"size": (640, 320)})
        for snapshot in world:
            image = np.ascontiguousarray(snapshot.image)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    code, _, err = run("matte", clip, "--mode", "green")
    assert code == 0 and "stereo sbs: the name ends in _180_LR" in err
    assert len(decoded(tmp_path / "runs/matte/matte/party_green_180_LR.mp4")) == 8
    code, _, err = run("matte", clip, "--mode", "packed")
    assert code == 0
    assert len(decoded(tmp_path / "runs/matte/matte2/party_FISHEYE190_alpha.mp4")) == 8


def test_several_decoders_write_what_one_writes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "AHEAD_SECONDS", 0.3)
    monkeypatch.setattr(segments, "AHEAD_WORTH", 1)
    options = {"g": "10", "bf": "2", "x264-params": "open-gop=0:scenecut=0"}
    video(tmp_path / "clip.mp4", frames=60, options=options, audio=True)
    for readers in ("1", "3"):
        code, _, err = run("matte", "clip.mp4", f"{readers}.mp4", "--readers", readers, "--start", "0.5")
        assert code == 0 and ("3 decoders read the file side by side" in err) == (readers == "3")
    assert (tmp_path / "1.mp4").read_bytes() == (tmp_path / "3.mp4").read_bytes()
    assert len(decoded(tmp_path / "3.mp4")) == 47


def test_fisheye_videos_have_rectilinear_views(run: Any, tmp_path: Path) -> None:
    """Named as one, this is none, but it shows what is written; the report says why."""
    for name in ("party_FISHEYE190", "party_SBS"):
        with av.open(tmp_path / f"{name}.mp4", "w") as container:
            stream: Any = container.add_stream("libx264", rate=30)
            stream.width, stream.height, stream.pix_fmt = 640, 320, "yuv420p"
            for index in range(3):
                image = np.ascontiguousarray(World(**EYES | {"size": (640, 320)})[index].image)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
    code, _, err = run("matte", tmp_path / "party_FISHEYE190.mp4", "--matte-view", "auto")
    assert code == 0 and "matte view rectilinear: fisheye190, the name ends in _FISHEYE190" in err
    assert len(decoded(tmp_path / "runs/matte/matte/party_gray_FISHEYE190.mp4")) == 3
    code, _, err = run("matte", tmp_path / "party_SBS.mp4", "--matte-view", "auto")
    assert code == 0 and "matte view" not in err
    code, _, err = run("matte", tmp_path / "party_SBS.mp4", "--matte-view", "rectilinear")
    assert code == 2 and "neither VR180 nor fisheye" in err and "leave it out" in err


def test_one_eye_has_no_other(run: Any) -> None:
    address = "synthetic://bodies?frames=1&size=64x64"
    for stereo in ("auto", "left"):
        code, _, err = run("matte", address, "--matte-eyes", "1", "--stereo", stereo)
        assert code == 0 and "matte_eyes without effect" in err
    code, _, err = run("matte", "synthetic://bodies?frames=1&size=128x64&stereo=sbs", "--matte-eyes", "1")
    assert code == 0 and "without effect" not in err


def test_objects_are_cut_out_too(run: Any, tmp_path: Path) -> None:
    address = "synthetic://street?seed=2&frames=3&size=1280x720&complexity=0.8"
    code, _, _ = run("matte", address, "out.mp4", "--model", "scout-n-seg")
    assert code == 0
    world = World(scene="street", seed=2, frames=3, size=(1280, 720), complexity=0.8)
    found, truth = planes_of(decoded(tmp_path / "out.mp4")[0])[0] > 125, world[0].truth.class_mask > 0
    assert (found & truth).sum() > 0.7 * (found | truth).sum()
    code, _, err = run("matte", address, "none.mp4", "--model", "scout-n-seg", "--conf", "1")
    assert code == 0 and not (planes_of(decoded(tmp_path / "none.mp4")[0])[0] > 125).any(), err


def test_a_model_of_one_channel_gives_its_matte(run: Any, tmp_path: Path) -> None:
    image, alpha = ((name, TensorProto.FLOAT, ["b", count, 64, 64]) for name, count in (("image", 3), ("alpha", 1)))
    node = helper.make_node("ReduceMean", ["image"], ["alpha"], axes=[1])
    ends = [[helper.make_tensor_value_info(*one)] for one in (image, alpha)]
    graph = helper.make_graph([node], "mean", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    (tmp_path / "m.yaml").write_text("task: semantic\nnames: [person]\nfit: stretch\n")
    address = "synthetic://bodies?seed=3&split=test&frames=2&size=64x64"
    code, out, err = run("matte", address, "out.mp4", "--model", "m.onnx", "--matte-steady", "0")
    assert (code, out) == (0, ""), err
    image = World(scene="bodies", seed=3, split="test", frames=2, size=(64, 64))[0].image
    grey = np.asarray(image).mean(axis=2) * 219 / 255 + 16
    assert np.abs(planes_of(decoded(tmp_path / "out.mp4")[0])[0] - grey).mean() < 12
    code, _, err = run("predict", address, "m.onnx")
    assert code == 2 and "has one class, so its output is a matte" in err and "framefuse matte" in err


def test_images_become_images(run: Any, tmp_path: Path) -> None:
    for index in range(2):
        Image.fromarray(np.ascontiguousarray(World(**EYES)[index].image)).save(tmp_path / f"{index}.png")
    code, _, err = run("matte", "*.png", "--mode", "alpha", "--stereo", "sbs")
    assert code == 0, err
    with Image.open(tmp_path / "runs/matte/matte/mattes/1.png") as image:
        assert image.mode == "RGBA" and image.size == (1280, 640)
    code, _, err = run("matte", "0.png", "out.mp4", "--mode", "png")
    assert code == 2 and "png writes a folder of images" in err


def test_several_videos_have_no_out(run: Any, tmp_path: Path) -> None:
    for name in "ab":
        video(tmp_path / f"{name}.mp4", frames=2)
    code, _, err = run("matte", "[ab].mp4", "out.mp4")
    assert code == 2 and "OUT is for one video, and SOURCE names 2" in err
    assert not (tmp_path / "out.mp4").exists() and not list(tmp_path.glob("runs/**/*.mp4"))


def test_a_file_of_that_name_is_not_overwritten(run: Any, tmp_path: Path) -> None:
    (tmp_path / "out.mp4").write_text("mine")
    code, _, err = run("matte", ADDRESS, "out.mp4")
    assert code == 2 and "error: out.mp4 exists\n" in err
    assert (tmp_path / "out.mp4").read_text() == "mine"


def test_the_suffix_has_to_be_that_of_what_is_written(run: Any, tmp_path: Path) -> None:
    address = ADDRESS.replace("frames=8", "frames=2")
    code, _, err = run("matte", address, "out.mp4", "--mode", "alpha")
    assert code == 2 and "end it in .mov, or leave OUT out" in err
    code, _, err = run("matte", address, "none/out.mp4")
    assert code == 1 and "there is no folder none\n  -> choose another OUT" in err
    assert not (tmp_path / "runs").exists()


def test_a_video_for_browsers(run: Any, tmp_path: Path) -> None:
    address = ADDRESS.replace("frames=8", "frames=2")
    code, _, err = run("matte", address, "out.webm", "--mode", "alpha", "--encode-preset", "fast")
    assert code == 0 and "encode_preset without effect: VP9 has no such option" in err
    assert len(decoded(tmp_path / "out.webm")) == 2
    code, _, err = run("matte", address, "out.webm", "--mode", "green")
    assert code == 2 and "end it in .mp4" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--mode", "alpha", "--crf", "18"],
            "crf without effect: ProRes, which stores transparency, has no such option",
        ),
        (
            ["--mode", "png", "--crf", "18", "--encode-preset", "fast"],
            "crf and encode_preset without effect: PNG has no",
        ),
        (["--mode", "green", "--crf", "18"], ""),
    ],
)
def test_options_without_effect_are_named(run: Any, words: list[str], said: str) -> None:
    code, _, err = run("matte", ADDRESS.replace("frames=8", "frames=2"), *words)
    assert code == 0 and (said in err if said else "without effect" not in err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "scout-n"], "gives no masks"),
        (["--mode", "violet"], "violet"),
        (["--classes", "zebra"], "zebra"),
        (["--stereo", "up"], "stereo"),
        (["--mode", "packed", "--stereo", "left"], "it is no video file"),
    ],
)
def test_what_cannot_be_done_is_said(run: Any, words: list[str], message: str) -> None:
    address = ADDRESS.replace("&stereo=sbs", "").replace("frames=8", "frames=1")
    code, out, err = run("matte", address, *words)
    assert code != 0 and out == "" and message in err and "Traceback" not in err and "bug" not in err


@pytest.mark.parametrize(
    ("source", "words", "message"),
    [
        ("clip.mp4", [], "clip.mp4 cannot be packed with its mattes: its eyes are not seen side by side"),
        ("clip.mp4", ["--stereo", "sbs"], "clip.mp4 cannot be packed with its mattes: nothing says that it is VR180"),
        ("*.mp4", [], "2 sources cannot be packed with its mattes: its eyes are not seen side by side"),
        ("a.png", ["--stereo", "sbs"], "a.png cannot be packed with its mattes: it is no video file"),
        ("a_180_LR.png", ["--stereo", "sbs"], "a_180_LR.png cannot be packed with its mattes: it is no video file"),
        ("rtsp://127.0.0.1:1/x_180_LR", [], "a live source cannot be packed with its mattes: it is no video file"),
    ],
)
def test_what_cannot_be_packed_is_refused_before_the_model_is_opened(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: list[str], message: str
) -> None:
    for name in ("clip", "clip2"):
        video(tmp_path / f"{name}.mp4", frames=2)
    for name in ("a", "a_180_LR"):
        Image.new("RGB", (64, 48)).save(tmp_path / f"{name}.png")
    opened: list[Any] = []
    monkeypatch.setattr("framefuse.pipeline.open_engine", lambda *given: opened.append(given))
    code, _, err = run("matte", source, "--mode", "packed", *words)
    assert code == 1 and message in err and "choose another mode, such as green" in err
    assert ("name VR video" in err) == ("no video file" not in err)
    assert not opened and not Path("runs").exists()


def test_a_file_of_options_names_the_model_and_the_mode(run: Any) -> None:
    options = Path("run.yaml")
    options.write_text("model: body-n-2\nsave_matte: green\n")
    code, out, _ = run("matte", "synthetic://bodies?frames=1&size=64x64", "-c", options, "--json")
    report = json.loads(out)
    assert code == 0 and report["model"]["name"] == "body-n-2" and "synthetic_green.mp4" in str(report["outputs"])
    options.write_text("save_matte: alpha\n")
    code, _, err = run("matte", "synthetic://bodies?frames=1&size=64x64", "out.webm", "-c", options)
    assert code == 0 and Path("out.webm").exists(), err
    options.write_text("mode: green\n")
    code, _, err = run("matte", "synthetic://bodies?frames=1", "-c", options)
    assert code == 2 and "unknown setting 'mode' (file run.yaml, line 1)\n  -> for mattes, use save_matte" in err


def test_predict_saves_mattes_too(run: Any, tmp_path: Path) -> None:
    address = ADDRESS.replace("frames=8", "frames=2")
    code, _, err = run("predict", address, "body-n", "--save-matte", "green", "--stereo", "sbs", "--no-save-jsonl")
    assert code == 0, err
    report = json.loads((tmp_path / "runs/predict/predict/report.json").read_text())
    assert [Path(path).name for path in report["outputs"]] == ["synthetic_green.mp4"]


def test_the_command_line_wins_over_the_environment(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEFUSE_SAVE_MATTE", "blur")
    address = ADDRESS.replace("frames=8", "frames=1")
    assert run("matte", address)[0] == run("matte", address, "--mode", "green")[0] == 0
    assert sorted(path.name for path in tmp_path.glob("runs/matte/*/*.mp4")) == [
        "synthetic_blur.mp4",
        "synthetic_green.mp4",
    ]


def test_the_source_is_never_overwritten(run: Any, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"mine")
    code, _, err = run("matte", clip, clip, "--exist-ok")
    assert code != 0 and "it is an input of this command" in err and "choose another OUT" in err
    assert clip.read_bytes() == b"mine"


def test_out_is_checked_before_the_run(run: Any, tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    for target, message in (("no/out.mp4", "there is no folder no"), ("folder.mp4", "it is a folder")):
        code, out, err = run("matte", ADDRESS, target, "--exist-ok")
        assert (code, out) == (1, "") and message in err and "choose another OUT" in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.mp4"]


@pytest.mark.parametrize(
    ("make", "message"),
    [(media.audio_only, "has no video"), (media.without_key_frames, "nothing in clip.mp4 could be decoded")],
)
def test_videos_without_a_frame(run: Any, tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    make(tmp_path / "clip.mp4")
    code, out, err = run("matte", "clip.mp4", "out.mp4")
    assert (code, out) == (1, "") and message in err and "  -> " in err and "bug" not in err
    assert not (tmp_path / "out.mp4").exists()


def test_a_video_of_one_frame_of_odd_eyes(run: Any, tmp_path: Path) -> None:
    media.video(tmp_path / "one_180_LR.mkv", frames=1, size=(130, 65), pixel_format="yuv444p")
    code, _, err = run("matte", "one_180_LR.mkv", "out.mp4")
    assert code == 0 and "130x65 padded to 130x66" in err
    assert len(decoded(tmp_path / "out.mp4")) == 1


def test_photos_keep_their_own_mattes_and_take_no_out(run: Any, tmp_path: Path) -> None:
    Image.fromarray(np.ascontiguousarray(World(**EYES)[0].image)).save(tmp_path / "0.png")
    code, _, err = run("matte", "0.png", "out.mp4")
    assert code == 2 and "images become images" in err
    code, _, err = run("matte", ADDRESS, "--roi", "0,0,1,0,1,1")
    assert code != 0


def test_an_annotated_video_and_a_transparent_one(run: Any, tmp_path: Path) -> None:
    address = "synthetic://street?seed=2&frames=2&size=640x360"
    code, _, err = run("predict", address, "scout-n-seg", "--save", "--save-matte", "alpha")
    assert code == 0, err
    assert sorted(path.suffix for path in (tmp_path / "runs/predict/predict").glob("synthetic*")) == [".mov", ".mp4"]
