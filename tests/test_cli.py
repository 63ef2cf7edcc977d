"""The command line as a user meets it: what it prints where, and what it exits with."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import av
import pytest

from framefuse import __version__
from framefuse.cli import demo, main
from framefuse.cli.config import commented_yaml
from framefuse.cli.options import normalise
from framefuse.cli.reference import markdown
from framefuse.config import Settings, load_settings
from framefuse.models.clip import squares_clip

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "framefuse"]


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "clip.mp4"
    squares_clip(path, frames=12, size=(320, 240), seed=1)
    return path


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than a pipe holds the results of."""
    path = tmp_path_factory.mktemp("cli") / "long.mp4"
    squares_clip(path, frames=400, size=(160, 120), seed=1)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write below the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process; exit code, stdout and stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def spawn(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60)


# -- the words -------------------------------------------------------------------------------------------------------


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


def test_every_setting_is_an_option_under_both_spellings(run: Any) -> None:
    code, help_text, _ = run("predict", "--help")
    assert code == 0
    for field, info in Settings.model_fields.items():
        name = field.replace("_", "-")
        assert re.search(rf"--{name}\b", help_text), name
        value = [] if info.annotation is bool else [str(info.default) if info.default is not None else "1"]
        for spelling in (name, field):
            code, out, _ = run("config", "show", "--json", f"--{spelling}", *value)
            assert (code, json.loads(out)["settings"][field]["from"]) == (0, "command line")


# -- exit codes and messages -----------------------------------------------------------------------------------------


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
        ("predict a.mp4 --max-dett 5", 2, "no such option: --max-dett", "did you mean --max-det?"),
        ("predictt a.mp4", 2, "predict", "framefuse --help"),
        ("predict a.mp4 m.onnx extra", 2, "extra", "framefuse predict --help"),
        ("predict a.mp4 --conf", 2, "--conf", "--help"),
        ("predict a.mp4 --conf 1.5", 2, "--conf is '1.5'", "a number from 0 to 1"),
        ("predict a.mp4 --device gpu", 2, "--device is 'gpu'", "one of auto, cpu, cuda"),
        ("predict a.mp4 --preset fast", 2, "no preset is called 'fast'", "latency, throughput, vr"),
        ("predict a.mp4 --half --precision int8", 2, "contradict", "--half"),
        ("predict a.mp4 m.onnx --model n.onnx", 2, "two models", "leave one"),
        ("predict a.mp4 --stdout --json", 2, "both print on stdout", "leave one"),
        ("predict a.mp4 --config none.yaml", 2, "none.yaml", "framefuse config init"),
        ("predict missing.mp4", 1, "missing.mp4", ""),
        ("predict a.mp4 --classes 99999999999999999999", 2, "99999999999999999999", "from 0 to 65535"),
        (f"predict a.mp4 {'x' * 300}.onnx", 1, "File name too long", "check the path"),
        ("config", 2, "Missing command", "framefuse config --help"),
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
        (["predict", "x" * 300, "--readers", "3"], 1, "File name too long", "check the path"),
        (["predict", "*.nothing", "squares"], 1, "no image or video in *.nothing", "check the pattern"),
        (["predict", "{clip}", "squares", "--imgsz", "100000"], 2, "100000x100000", "another imgsz"),
        (["predict", "{clip}", "squares", "--start", "99"], 1, "beyond the end", "an earlier start"),
        (["predict", "{clip}", "yolov8n.pt"], 1, "no model 'yolov8n.pt'", "yolo export model=yolov8n.pt format=onnx"),
        (["predict", "{clip}", "--save", "--encode-preset", "no"], 1, "with crf=23 preset=no: Invalid", "--encoder"),
        (["predict", "rtsp://"], 1, "no host", "write scheme://host:port/path, a login (name, colon, password, @)"),
        (["predict", "notes.jpg"], 1, "notes.jpg: it is no image, or damaged", "image viewer"),
        (["val", "squares", "--data", "x", "--limit", "0"], 2, "--limit is '0': it should be greater", "framefuse val"),
        (["kernels", "show", "x", "--emit", "wasm"], 2, "--emit is 'wasm': 'wasm' is not one of 'tir'", "kernels show"),
        (["bench"], 2, "Missing command", "framefuse bench --help"),
        (["predict", "--conf"], 2, "'--conf' requires an argument", "framefuse predict --help"),
        (["val", "squares", "--data", "truth.json"], 1, "no id or no file_name", "give it a whole number"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(
    run: Any, clip: Path, words: list[str], code: int, message: str, remedy: str
) -> None:
    Path("notes.jpg").write_text("no picture")
    record = {"id": 0, "name": "red"}
    Path("truth.json").write_text(json.dumps({key: [record] for key in ("images", "annotations", "categories")}))
    got, _, err = run(*[word.format(clip=clip) for word in words])
    *_, first, second = err.splitlines()
    assert (got, first.startswith("error"), message in first, remedy in second) == (code, True, True, True), err


def test_debug_shows_the_traceback_wherever_it_stands(run: Any) -> None:
    for words in (["--debug", "predict", "missing.mp4"], ["predict", "missing.mp4", "--debug"]):
        code, _, err = run(*words)
        assert code == 1
        assert "Traceback" in err and "error: " in err


def test_passwords_do_not_show(run: Any, tmp_path: Path) -> None:
    Path("run.yaml").write_text("source: rtsp://me:hunter2@localhost:1/live\n")
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
    for words in ([source], ["-s", source, "-s", "missing.mp4"], ["x.mp4", source]):
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
    code, out, err = run("predict", source, "--json", "--save", "--reconnect", "0", "--timeout", "2", "--debug")
    assert code in (1, 3)
    assert "hunter2" not in out + err
    for path in Path().rglob("*"):
        assert "hunter2" not in str(path)
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize("words", [[""], [" "], ["clip.mp4", ""]])
def test_empty_names_mean_nothing(run: Any, words: list[str]) -> None:
    code, _, err = run("predict", *words)
    assert code == (2 if len(words) == 1 else 1)
    assert "empty text" in err or "there is no model ''" in err


def test_device_cuda_without_cuda_is_a_missing_capability(clip: Path) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has CUDA")
    done = spawn("predict", clip, "--device", "cuda")
    assert (done.returncode, done.stdout) == (3, "")
    assert "NVIDIA driver" in done.stderr and "--device cpu" in done.stderr


def test_a_window_needs_opencv_and_nothing_that_is_imported_before_it(clip: Path) -> None:
    """PyAV's libraries would keep OpenCV's windows from opening, so nothing may load it first."""
    code = "import sys, framefuse.cli.run, framefuse.fleet, framefuse.pipeline; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    code = "import sys, framefuse.cli; sys.modules['cv2'] = None; framefuse.cli.main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, "predict", clip, "--show"], capture_output=True, text=True)
    assert "OpenCV is not installed" in done.stderr and "pip install opencv-python" in done.stderr


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    code = "import sys, framefuse.cli; print(sorted({'numpy', 'av', 'openvino', 'onnx', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- predict ---------------------------------------------------------------------------------------------------------


def test_predict_writes_lines_and_a_report(run: Any, clip: Path) -> None:
    code, out, err = run("predict", clip)
    folder = Path("runs/predict/predict")
    assert (code, out) == (0, "")
    assert "12 frames" in err and str(folder / "report.html") in err
    assert len((folder / "clip.jsonl").read_text().splitlines()) == 12
    assert json.loads((folder / "report.json").read_text())["frames"] == 12
    assert not list(folder.glob("*.mp4"))


def test_options_reach_the_run(run: Any, clip: Path) -> None:
    words = ["--vid_stride", "3", "--classes", "0", "2", "--max-det", "1", "--save", "--no-save-jsonl", "--name", "x"]
    code, out, _ = run("predict", "--source", clip, "-m", "squares", *words, "--json", "--quiet")
    report = json.loads(out)
    assert (code, report["frames"]) == (0, 4)
    assert set(report["detections_per_class"]) <= {"red", "blue"}
    assert report["detections"] <= 4
    assert [path.name for path in Path("runs/predict/x").glob("clip*")] == ["clip.mp4"]


def test_one_file_holds_a_whole_run(run: Any, clip: Path) -> None:
    Path("run.yaml").write_text(f"source: {clip}\nmodel: squares\npreset: vr\nend: 0.2\nproject: out\nname: a\n")
    code, _, err = run("predict", "--config", "run.yaml", "--quiet")
    assert (code, err) == (0, "")
    assert 1 <= len(Path("out/a/clip.jsonl").read_text().splitlines()) < 12


def test_stdout_holds_nothing_but_lines(clip: Path) -> None:
    done = spawn("predict", clip, "--stdout")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [row["frame"] for row in rows] == list(range(12))
    assert "12 frames" in done.stderr
    assert not Path("runs").exists()


def test_quiet_prints_nothing(clip: Path) -> None:
    done = spawn("predict", clip, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict {long} --stdout", ""),
        ("predict {long} --stdout --debug", ""),
        ("predict {long} --stdout --save-csv --save", "runs/predict/predict/long.csv"),
        ("predict {long} --json", "400 frames"),
        ("--help", ""),
        ("config reference", ""),
        ("doctor --json", ""),
    ],
)
def test_a_reader_that_goes_away_ends_the_run_without_a_word(long: Path, words: str, said: str) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen([*COMMAND, *words.format(long=long).split()], stdout=writing, stderr=-1) as process:
        os.close(writing)
        if "--stdout" in words:
            assert os.read(reading, 1) == b"{"
        os.close(reading)
        assert process.stderr is not None
        err = process.stderr.read().decode()
    assert process.returncode == 128 + signal.SIGPIPE
    assert said in err and bool(said) == bool(err)
    assert "error" not in err and "Traceback" not in err and "ended" not in err
    if "--save" in words:
        rows = Path("runs/predict/predict/long.csv").read_text().splitlines()
        frames = {row.partition(",")[0] for row in rows[1:]}
        with av.open("runs/predict/predict/long.mp4") as video:
            assert len(frames) == sum(1 for _ in video.decode(video=0)) < 400


@pytest.mark.parametrize(
    ("redirection", "words", "code", "message"),
    [
        (">&-", "predict {clip}", 0, ""),
        (">&- 2>&- <&-", "predict {clip} --save", 0, ""),
        ("2>&-", "predict missing.mp4", 1, ""),
        (">&-", "predict {clip} --stdout", 1, "cannot write on stdout: Bad file descriptor"),
        (">/dev/full", "predict {clip}", 0, ""),
        (">/dev/full", "predict {clip} --stdout", 1, "cannot write on stdout: No space left on device"),
        (">/dev/full", "--help", 1, "cannot write on stdout: No space left on device"),
        ("2>/dev/full", "predict {clip}", 0, ""),
        ("2>/dev/full", "predict {clip} --conf 2", 2, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(
    clip: Path, redirection: str, words: str, code: int, message: str
) -> None:
    line = shlex.join([*COMMAND, *words.format(clip=clip).split()])
    done = subprocess.run(["sh", "-c", f"{line} {redirection}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr
    if "--save" in words:  # no message went into the file that got the number of a closed stream
        with av.open("runs/predict/predict/clip.mp4") as video:
            assert sum(1 for _ in video.decode(video=0)) == 12


IMPORTING = """
import os, signal, sys
from framefuse.entry import start

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            {action}

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["predict", {clip!r}]
start()
"""
KILL = "os.kill(os.getpid(), signal.{})"


@pytest.mark.parametrize(
    ("module", "action"),
    [
        ("typer", KILL.format("SIGINT")),
        ("typer", KILL.format("SIGTERM")),
        ("openvino", KILL.format("SIGINT")),
        # So C extensions treat what happens while they are imported.
        ("openvino", f"\n            try: {KILL.format('SIGINT')}\n            except: raise ImportError('half')"),
        ("numpy", f"\n            try: {KILL.format('SIGINT')}\n            except: raise ImportError('half')"),
        ("openvino", f"\n            try: {KILL.format('SIGINT')}\n            except: pass"),
    ],
)
def test_interrupted_while_importing(clip: Path, module: str, action: str) -> None:
    code = IMPORTING.format(module=module, action=action, clip=str(clip))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
    assert not Path("runs").exists() or not list(Path("runs").rglob("*.jsonl"))


def test_interrupted_while_waiting_for_a_pipe(run: Any) -> None:
    os.mkfifo("pipe.mp4")
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timer = threading.Timer(1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    timer.start()
    try:
        assert run("predict", "pipe.mp4") == (130, "", "error: interrupted\n")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_interrupted_while_a_server_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
        with subprocess.Popen([*COMMAND, "predict", address], stderr=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                err = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert err.endswith("error: interrupted\n") and "Traceback" not in err


@pytest.mark.parametrize("scheme", ["rtsp", "http"])
@pytest.mark.parametrize("quiet", [False, True])
def test_what_a_silent_server_is_waited_for_is_said(scheme: str, quiet: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}://me:secret@127.0.0.1:{server.getsockname()[1]}/live"
        words = ["predict", address, "--timeout", "4", "--reconnect", "0", *(["--quiet"] if quiet else [])]
        done = spawn(*words)
    assert done.returncode == 1 and "secret" not in done.stderr
    waiting = "no answer for 3 s; it counts as lost without data for 4 s (option timeout)"
    assert (waiting in done.stderr) != quiet
    assert "gave no picture, failures in a row: 1: no data for 4 s" in done.stderr
    assert not quiet or len(done.stderr.splitlines()) == 2  # the error and its remedy


def test_that_a_server_cannot_be_reached_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
    with subprocess.Popen([*COMMAND, "predict", address], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        time.sleep(1)  # in which it is tried again more than once
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[1]
    assert said == f"{address}: no picture yet: Connection refused; it is tried again for ever (option reconnect)\n"
    assert "tried again" not in rest


def test_a_signal_after_another_thread_freed_the_engine() -> None:
    code = """
import gc, os, signal, threading
from framefuse.engines import EngineOptions, open_engine
from framefuse.models import find_model

engines = [open_engine("openvino", find_model("squares"), EngineOptions())]
thread = threading.Thread(target=lambda: (engines.clear(), gc.collect()))
thread.start()
thread.join()
signal.signal(signal.SIGUSR1, lambda number, frame: print("handled"))
os.kill(os.getpid(), signal.SIGUSR1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "handled\n")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_further_signals_change_nothing(long: Path, count: int) -> None:
    with subprocess.Popen([*COMMAND, "predict", long, "--stdout"], stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in [signal.SIGINT, signal.SIGTERM, *[signal.SIGINT] * 3][:count]:
            process.send_signal(number)
            time.sleep(0.02)  # signals of the same number that wait are one
        err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_was_done(long: Path, tmp_path: Path, number: signal.Signals) -> None:
    words = ["predict", long, "--stdout", "--save", "--save-jsonl"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()  # it runs, and stops soon: nobody reads what else it prints
        process.send_signal(number)
        err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err
    folder = tmp_path / "runs/predict/predict"
    lines = [json.loads(line) for line in (folder / "long.jsonl").read_text().splitlines()]
    with av.open(folder / "long.mp4") as video:
        frames = sum(1 for _ in video.decode(video=0))
    assert 0 < len(lines) < 400
    assert frames == len(lines)
    assert json.loads((folder / "report.json").read_text())["error"]["kind"] == "KeyboardInterrupt"


# -- demo, doctor, models, config ------------------------------------------------------------------------------------


def test_demo_finds_what_is_there_and_writes_everything(run: Any) -> None:
    code, out, err = run("demo", "--frames", "30")
    assert (code, out) == (0, "")
    objects, detections, right = map(int, re.search(r"truth +(\d+) objects, (\d+) detections, (\d+) of", err).groups())
    assert objects > 90
    assert right > demo.COLLAPSE["precision"] * detections and right > demo.COLLAPSE["recall"] * objects
    truth = json.loads(next(Path("runs/demo/demo/input").glob("*.json")).read_text())
    assert sum(not row["iscrowd"] for row in truth["annotations"]) == objects
    written = {path.suffix for path in Path("runs/demo/demo").rglob("*.*")}
    assert written >= {".mp4", ".jsonl", ".csv", ".json", ".txt", ".html"}


def test_demo_fails_when_nothing_is_found(run: Any) -> None:
    code, _, err = run("demo", "--frames", "6", "--engine", "null", "--quiet")
    assert code == 4
    assert "recall 0.000" in err


def test_demo_is_held_to_what_the_model_has_reached(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Settings()
    held, loose = demo.required(demo.FRAMES, usual), demo.required(30, usual)
    assert all(0 < demo.RECORDED[name] - held[name] <= 0.03 and loose[name] < held[name] for name in held)
    assert demo.required(demo.FRAMES, Settings(conf=0.5)) == demo.required(demo.FRAMES, Settings(imgsz=[320])) == loose
    assert demo.required(demo.FRAMES, Settings(engine="onnxruntime", precision="fp32")) == held
    monkeypatch.setattr(demo, "FRAMES", 6)
    monkeypatch.setattr(demo, "RECORDED", {"precision": 1.5, "recall": 0.5})
    code, _, err = run("demo", "--frames", "6", "--quiet")
    assert code == 4
    assert "at least 1.480 and 0.480 were expected" in err


def test_doctor_says_what_works(run: Any) -> None:
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    rows = {row["name"]: row for row in found["checks"]}
    assert code == 0
    assert all(rows[name]["status"] == "PASS" for name in ("kernels", "decode", "engine null", "engine openvino"))
    assert all(row["remedy"] for row in rows.values() if row["status"] != "PASS")
    assert found["facts"]["framefuse"] == __version__
    if rows["nvidia driver"]["status"] == "ABSENT":
        for name in ("engine cudnn", "engine onnxruntime-tensorrt", "cuda", "nvdec"):
            assert "no NVIDIA driver" in rows[name]["detail"] and "framefuse[cuda13]" in rows[name]["remedy"]


def test_doctor_names_the_extra_of_an_engine_that_is_absent() -> None:
    extras = {"onnxruntime": "ort", "torch": "torch", "tvm": "tvm"}
    code = f"import sys, framefuse.cli; sys.modules.update(dict.fromkeys({list(extras)})); " + (
        "framefuse.cli.main(['doctor', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    rows = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for package, extra in extras.items():
        found = rows[f"engine {package}"]
        assert (found["status"], found["remedy"]) == ("ABSENT", f"pip install 'framefuse[{extra}]'")
        assert package in found["detail"]
    assert rows["onnxruntime packages"]["remedy"] == "install it again"


def test_doctor_in_words(run: Any) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert re.search(r"^PASS +engine openvino", out, re.MULTILINE)


def test_doctor_exits_with_3_when_the_core_does_not_work() -> None:
    code = "import sys, framefuse.cli; sys.modules['openvino'] = None; sys.exit(framefuse.cli.main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert re.search(r"^ABSENT +engine openvino", done.stdout, re.MULTILINE)
    assert re.search(r"^PASS +engine null", done.stdout, re.MULTILINE)
    assert "the core does not work here: engine openvino" in done.stderr


def test_doctor_warns_of_two_onnxruntimes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"{package}-9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    row = next(row for row in json.loads(run("doctor", "--json")[1])["checks"] if row["name"] == "onnxruntime packages")
    assert row["status"] == "FAIL" and "overwrite each other" in row["detail"] and "pip uninstall" in row["remedy"]


def test_models_lists_names_and_explains_one(run: Any) -> None:
    assert "squares" in run("models")[1]
    code, out, _ = run("models", "squares", "--json")
    facts = json.loads(out)
    assert (code, facts["names"]["value"]) == (0, "3: red, green, blue")
    assert facts["names"]["from"] == "onnx metadata names"
    assert "letterbox" in run("models", "squares")[1]
    code, out, err = run("models", "missing.onnx")
    assert (code, out) == (1, "") and "missing.onnx" in err


def test_config_show_names_the_origin_of_each_value(run: Any) -> None:
    Path("run.yaml").write_text("preset: latency\nconf: 0.3\n")
    code, out, _ = run("config", "show", "-c", "run.yaml", "--iou", "0.5")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["conf"] == "0.3 file run.yaml, line 2"
    assert rows["iou"] == "0.5 command line"
    assert rows["streams"] == "1 preset latency"
    assert rows["max_det"] == "300 default"


def test_config_init_writes_a_file_that_changes_nothing(run: Any, tmp_path: Path) -> None:
    code, out, err = run("config", "init")
    assert (code, out) == (0, "") and "framefuse.yaml" in err
    text = Path("framefuse.yaml").read_text()
    assert load_settings(Path("framefuse.yaml")).settings == Settings()
    Path("all.yaml").write_text(re.sub(r"^# (\w+: )", r"\1", text, flags=re.MULTILINE).replace("preset: latency", ""))
    effective = load_settings(Path("all.yaml"))
    assert effective.settings == Settings(save_jsonl=True)
    assert set(effective.origin.values()) != {"default"}
    assert run("config", "init")[0] == 2
    assert run("config", "init", "--force")[0] == 0
    assert text == commented_yaml("framefuse.yaml")


def test_the_committed_option_reference_is_up_to_date(run: Any) -> None:
    code, out, _ = run("config", "reference")
    assert (code, out) == (0, markdown())
    assert (ROOT / "docs/options.md").read_text() == out, "framefuse config reference > docs/options.md"
