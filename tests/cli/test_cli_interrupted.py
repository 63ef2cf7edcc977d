"""Interrupted runs, at any time, and servers that are silent or not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import pytest

from command_line import COMMAND, spawn

IMPORTING = """
import os, signal, sys
from framefuse.cli.entry import start

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            {action}

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["predict", {clip!r}, "squares"]
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
        assert run("predict", "pipe.mp4", "squares") == (130, "", "error: interrupted\n")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_interrupted_while_a_server_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
        with subprocess.Popen([*COMMAND, "predict", address, "squares"], stderr=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                err = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert err.endswith("error: interrupted\n") and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rtsp", "http"])
def test_what_a_silent_server_is_waited_for_is_said(scheme: str) -> None:
    """Both cases at the same time, since each waits for four seconds."""

    def predict(quiet: bool) -> subprocess.CompletedProcess[str]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"{scheme}://me:secret@127.0.0.1:{server.getsockname()[1]}/live"
            return spawn(
                "predict", address, "squares", "--timeout", "4", "--reconnect", "0", *(["--quiet"] if quiet else [])
            )

    with ThreadPoolExecutor(2) as pool:
        every = list(pool.map(predict, (False, True)))
    for quiet, done in zip((False, True), every, strict=True):
        assert done.returncode == 1 and "secret" not in done.stderr
        waiting = "no answer for 3 s; the connection counts as lost after 4 s (option timeout)"
        assert (waiting in done.stderr) != quiet
        assert "delivered no frame, consecutive failures: 1: no data for 4 s" in done.stderr
        assert not quiet or len(done.stderr.splitlines()) == 2  # the error and its remedy


def test_that_a_server_cannot_be_reached_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
    with subprocess.Popen([*COMMAND, "predict", address, "squares"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        time.sleep(1)  # in which it retries more than once
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[1]
    assert said == f"{address}: no frame yet: Connection refused; retrying without limit (option reconnect)\n"
    assert "retrying" not in rest


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


@pytest.mark.parametrize("count", [5, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 3))])
def test_further_signals_change_nothing(long: Path, count: int) -> None:
    with subprocess.Popen([*COMMAND, "predict", long, "squares", "--stdout"], stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in [signal.SIGINT, signal.SIGTERM, *[signal.SIGINT] * 3][:count]:
            process.send_signal(number)
            time.sleep(0.02)  # signals of the same number that wait are one
        err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]])
def test_an_interrupted_run_keeps_what_was_done(long: Path, tmp_path: Path, numbers: list[signal.Signals]) -> None:
    words = ["predict", long, "squares", "--stdout", "--save", "--save-jsonl"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()  # it runs, and stops soon: nobody reads what else it prints
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.02)  # two at once may arrive in either order
        err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err
    folder = tmp_path / "runs/predict/predict"
    lines = [json.loads(line) for line in (folder / "long.jsonl").read_text().splitlines()]
    with av.open(folder / "long.mp4") as video:
        frames = sum(1 for _ in video.decode(video=0))
    assert 0 < len(lines) < 400
    assert frames == len(lines)
    report = json.loads((folder / "report.json").read_text())
    assert report["error"]["kind"] == "KeyboardInterrupt"
    assert report["frames"] == len(lines)
    assert report["detections"] == sum(len(line["detections"]) for line in lines)
