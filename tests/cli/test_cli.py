"""The command line as a user types it: words in any form, what is said of bad ones, and what it exits with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import spawn
from framefuse import __version__
from framefuse.cli.app import app
from framefuse.cli.options import normalise
from framefuse.config import Settings


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("--max_det 5", "--max-det 5"),
        ("--save_txt --no_rect", "--save-txt --no-rect"),
        ("--name=a_b", "--name=a_b"),
        ("--max_det=5 my_clip.mp4", "--max-det=5 my_clip.mp4"),
        ("--imgsz 384 640 clip.mp4", "--imgsz 384,640 clip.mp4"),
        ("--imgsz 384x640", "--imgsz 384x640"),
        ("--classes 0 2 5 --save", "--classes 0,2,5 --save"),
        ("--classes 0,2 3", "--classes 0,2,3"),
        ("--classes", "--classes"),
        ("-- --max_det 5", "-- --max_det 5"),
    ],
)
def test_words_in_the_forms_people_type(typed: str, parsed: str) -> None:
    assert normalise(typed.split()) == parsed.split()


@pytest.mark.slow
def test_every_setting_is_an_option_under_both_spellings(run: Any) -> None:
    code, help_text, _ = run("predict", "--help")
    assert code == 0
    for field, info in Settings.model_fields.items():
        name = field.replace("_", "-")
        assert re.search(rf"--{name}\b", help_text), name
        value = [] if info.annotation is bool else [str(info.default) if info.default is not None else "1"]
        value = {"shard": ["1/1"], "stereo": ["sbs"], "track": ["ocsort"], "save_matte": ["green"]}.get(field, value)
        for spelling in (name, field):
            code, out, _ = run("config", "show", "--json", f"--{spelling}", *value)
            assert (code, json.loads(out)["settings"][field]["from"]) == (0, "command line")


def verbs(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield from verbs(command, *before, name) if hasattr(command, "commands") else [(*before, name)]


@pytest.mark.parametrize("words", list(verbs(typer.main.get_command(app))), ids=" ".join)
def test_help_shows_no_types_of_python(words: tuple[str, ...], run: Any) -> None:
    code, text, _ = run(*words, "--help")
    assert code == 0
    assert not re.search(r"<\w|None\b|\w\[\w|Path |\btuple|\{|\.{4}", text.replace("[OPTIONS]", "")), text


def test_help_and_version_print_on_stdout(run: Any) -> None:
    for words in ([], ["--help"], ["-h"]):
        code, out, err = run(*words)
        assert (code, err) == (0, "")
        assert all(verb in out for verb in ("predict", "demo", "doctor", "models", "config"))
    assert run("--version") == (0, f"framefuse {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "code", "message", "remedy"),
    [
        ("predict", 2, "no source is given", "framefuse predict video.mp4"),
        ("predict a.mp4", 2, "no model is given", "framefuse models get rtdetr-r18"),
        ("predict a.mp4 --max-dett 5", 2, "no such option: --max-dett", "did you mean --max-det?"),
        ("predictt a.mp4", 2, "predict", "framefuse --help"),
        ("predict a.mp4 m.onnx extra", 2, "extra", "framefuse predict --help"),
        ("predict a.mp4 --conf", 2, "--conf", "--help"),
        ("predict a.mp4 --conf 1.5", 2, "--conf is '1.5'", "a number from 0 to 1"),
        ("predict a.mp4 --device gpu", 2, "--device is 'gpu'", "one of auto, cpu, cuda"),
        ("predict a.mp4 --preset fast", 2, "unknown preset 'fast'", "latency, throughput, vr"),
        ("predict a.mp4 --half --precision int8", 2, "conflict", "--half"),
        ("predict a.mp4 m.onnx --model n.onnx", 2, "two models", "leave one"),
        ("predict a.mp4 --stdout --json", 2, "both print on stdout", "leave one"),
        ("predict a.mp4 --config none.yaml", 2, "none.yaml", "framefuse config init"),
        ("predict missing.mp4 squares", 1, "missing.mp4", ""),
        ("predict a.mp4 --classes 99999999999999999999", 2, "99999999999999999999", "class numbers or names"),
        (f"predict a.mp4 {'x' * 300}.onnx", 1, "File name too long", "check the path"),
        ("config", 2, "framefuse config needs a command", "framefuse config init or framefuse config reference"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(run: Any, words: str, code: int, message: str, remedy: str) -> None:
    found, out, err = run(*words.split())
    assert (found, out) == (code, "")
    first, *rest = err.splitlines()
    assert first.startswith("error: ") and message in first
    assert remedy in "\n".join(rest)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "code", "message", "remedy"),
    [
        (["predict", "x" * 300, "squares", "--readers", "3"], 1, "File name too long", "check the path"),
        (["predict", "*.nothing", "squares"], 1, "no image or video in *.nothing", "check the pattern"),
        (["predict", "street?seed=7", "squares"], 1, "no image or video in street?seed=7", "synthetic://street?seed=7"),
        (["predict", "{clip}", "squares", "--imgsz", "100000"], 2, "100000x100000", "another imgsz"),
        (["predict", "{clip}", "squares", "--start", "99"], 1, "beyond the end", "an earlier start"),
        (["predict", "{clip}", "yolov8n.pt"], 1, "no model 'yolov8n.pt'", "yolo export model=yolov8n.pt format=onnx"),
        (
            ["predict", "{clip}", "squares", "--save", "--encode-preset", "no"],
            1,
            "with crf=23 preset=no: Invalid",
            "--encoder",
        ),
        (["predict", "rtsp://", "squares"], 1, "no host", "with any login (name, colon, password, @) before the host"),
        (["predict", "notes.jpg", "squares"], 1, "notes.jpg: not an image of a supported format", "image viewer"),
        (["val", "squares", "--data", "x", "--limit", "0"], 2, "--limit is '0': it should be greater", "framefuse val"),
        (["kernels", "show", "x", "--emit", "wasm"], 2, "--emit is 'wasm': 'wasm' is not one of 'tir'", "kernels show"),
        (["kernels", "show", "draw_box"], 2, "no kernel is named 'draw_box'", "did you mean draw_boxes"),
        (["kernels", "show", "x"], 2, "no kernel is named 'x'", "'framefuse kernels list' names them"),
        (["bench", "engines", "squares", "--engine", "null,x"], 2, "no engine is called 'x'", "openvino"),
        (["bench"], 2, "needs a command", "framefuse bench adaptive or framefuse bench engines"),
        (["val", "scout-n"], 2, "framefuse val needs --data DATA", "framefuse val --help"),
        (["profile", "scout-n", "-o", "."], 1, "cannot write .: it is a folder", "choose another --out"),
        (["parity", "scout-n", "--frames", "9" * 30], 2, "--frames is '" + "9" * 30, "framefuse parity --help"),
        (["predict", "a.mp4", "--project="], 2, "--project is ''", "project takes a path"),
        (["predict", "--conf"], 2, "'--conf' requires an argument", "framefuse predict --help"),
        (["val", "squares", "--data", "truth.json"], 1, "no id or no file_name", "give it an integer id"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(
    run: Any, clip: Path, words: list[str], code: int, message: str, remedy: str
) -> None:
    Path("notes.jpg").write_text("not an image")
    record = {"id": 0, "name": "red"}
    Path("truth.json").write_text(json.dumps({key: [record] for key in ("images", "annotations", "categories")}))
    got, _, err = run(*[word.format(clip=clip) for word in words])
    *_, first, second = err.splitlines()
    assert (got, first.startswith("error"), message in first, remedy in second) == (code, True, True, True), err


def test_debug_shows_the_traceback_wherever_it_stands(run: Any) -> None:
    for words in (["--debug", "predict", "missing.mp4", "squares"], ["predict", "missing.mp4", "squares", "--debug"]):
        code, _, err = run(*words)
        assert code == 1
        assert "Traceback" in err and "error: " in err


def test_passwords_do_not_show(run: Any, tmp_path: Path) -> None:
    Path("run.yaml").write_text("source: rtsp://me:hunter2@localhost:1/live\nmodel: squares\n")
    code, out, _ = run("config", "show", "--config", "run.yaml")
    assert code == 0 and "rtsp://" in out and "hunter2" not in out
    code, out, err = run("--debug", "predict", "--config", "run.yaml", "--reconnect", "0", "--timeout", "2")
    assert code == 1 and "hunter2" not in out + err


@pytest.mark.parametrize(
    "source",
    [
        "rtsp:/me:hunter2@localhost:1/live",
        "rtsp//me:hunter2@localhost:1/live",
        "rtsp:me:hunter2@localhost:1/live",
        "rtps://me:hunter2@localhost:1/live",
        "me:hunter2@localhost:554/live",
        " rtsp://me:hunter2@localhost:1/live",
        '"rtsp://me:hunter2@localhost:1/live"',
        "rtsp:/me:a hunter2@localhost/live",
        "rtmp:/localhost:1/live/hunter2",
        "--classes=rtsp://me:hunter2@localhost",
        "--nope=rtsp://me:hunter2@localhost",
    ],
)
def test_passwords_in_mistyped_addresses_do_not_show(run: Any, source: str) -> None:
    for words in ([source, "-m", "squares"], ["-s", source, "-s", "missing.mp4", "-m", "squares"], ["x.mp4", source]):
        code, out, err = run("--debug", "predict", *words)
        assert code in (1, 2)
        assert "error: " in err and "hunter2" not in out + err


@pytest.mark.parametrize(
    "source",
    [
        "http://me:hunter2@localhost:1/live?pw=hunter2&pin=hunter2;jsessionid=hunter2",
        "rtmp://localhost:1/live/hunter2",
        "srt://localhost:1?streamid=#!::u=me,r=hunter2",
    ],
)
def test_passwords_do_not_show_in_anything_that_a_run_writes(run: Any, source: str) -> None:
    code, out, err = run(
        "predict", source, "squares", "--json", "--save", "--reconnect", "0", "--timeout", "2", "--debug"
    )
    assert code in (1, 3)
    assert "hunter2" not in out + err
    for path in Path().rglob("*"):
        assert "hunter2" not in str(path)
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize("words", [["", "squares"], [" ", "squares"], ["clip.mp4", ""]])
def test_empty_names_mean_nothing(run: Any, words: list[str]) -> None:
    code, _, err = run("predict", *words)
    assert code == (1 if words[1] == "" else 2)
    assert "empty string" in err or "there is no model ''" in err


def test_device_cuda_without_cuda_is_a_missing_capability(clip: Path) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has CUDA")
    done = spawn("predict", clip, "squares", "--device", "cuda")
    assert (done.returncode, done.stdout) == (3, "")
    assert "NVIDIA driver" in done.stderr and "--device cpu" in done.stderr


def test_a_window_needs_opencv_and_nothing_that_is_imported_before_it(clip: Path) -> None:
    """PyAV's libraries would keep OpenCV's windows from opening, so nothing may load it first."""
    modules = "framefuse.cli.console, framefuse.report.bar, framefuse.fleet.fleet, framefuse.pipeline"
    code = f"import sys, {modules}; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    code = "import sys, framefuse.cli.app; sys.modules['cv2'] = None; framefuse.cli.app.main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "predict", clip, "squares", "--show"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "DISPLAY": ":0"})
    assert "OpenCV is not installed" in done.stderr and "pip install opencv-python" in done.stderr


def test_a_window_needs_a_display(clip: Path, tmp_path: Path) -> None:
    """Without one, Qt would abort the process."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    words = [sys.executable, "-m", "framefuse", "predict", clip, "squares", "--show", "--project", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 3 and "there is no display" in done.stderr and "--save" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    code = (
        "import sys, framefuse.cli.app; print(sorted({'numpy', 'av', 'openvino', 'onnx', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_libraries_print_does_not_stand_between_data() -> None:
    """As NVIDIA's decoder does on stdout where a frame is damaged."""
    program = """
import ctypes
import framefuse.cli.app
from framefuse.cli.entry import start

def main():
    print("data")
    library = ctypes.CDLL(None)
    library.puts(b"noise")
    library.fflush(None)
    print("more")
    return 0

framefuse.cli.app.main = main
start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "data\nmore\n", "noise\n")


def test_a_name_cannot_command_the_terminal(run: Any) -> None:
    _, _, err = run("predict", "evil\x1b]0;owned\x07\u202e.mp4", "squares")
    assert "no such file: evil\\x1b]0;owned\\x07\\u202e.mp4" in err
    assert not set("\x1b\x07\u202e") & set(err)
