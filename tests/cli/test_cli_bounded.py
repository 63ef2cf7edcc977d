"""Models that take long to compile, or never answer: a signal ends the command, and a time-out the run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from command_line import COMMAND, spawn, wait_for
from endless_models import write_deep, write_endless

pytestmark = pytest.mark.slow

ENGINES = ["openvino", "onnxruntime"]
LIBRARY = """
import sys
import framefuse

try:
    for result in framefuse.Pipeline("images", "endless.onnx", engine=sys.argv[1], precision="fp32", request_timeout=1):
        print(result.frame.index, flush=True)
except framefuse.FramefuseError as error:
    print(error.stage, error.message)
"""


@pytest.fixture
def endless() -> list[str]:
    """The words of a run that finds two results, and no third: two images are dark, and the others bright."""
    Path("images").mkdir()
    for number, grey in enumerate((0, 0, 255, 255)):
        Image.new("RGB", (160, 96), (grey,) * 3).save(f"images/{number}.png")
    model = write_endless(Path("endless.onnx"))
    return ["predict", "images", str(model), "--precision", "fp32", "--save-csv", "--project", "out"]


def written() -> list[str]:
    """Names of the images in the results."""
    paths = list(Path("out").glob("*/*.jsonl*"))
    return [json.loads(line)["source"] for path in paths for line in path.read_text().splitlines()]


@contextmanager
def command(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that does not outlive the test, whatever it does about signals."""
    with subprocess.Popen([*COMMAND, *map(str, words)], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def threads_of(process: int) -> list[str]:
    return [path.read_text().strip() for path in Path(f"/proc/{process}/task").glob("*/comm")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_compilation(number: signal.Signals) -> None:
    words = [
        "predict",
        "synthetic://street?frames=3&size=160x96",
        write_deep(Path("deep.onnx")),
        "--engine",
        "openvino",
    ]
    with command(*words) as process:
        wait_for(lambda: "ff-engine" in threads_of(process.pid))
        time.sleep(0.5)  # for the compiler to be at work, which nothing tells
        process.send_signal(number)
        started = time.monotonic()
        err = process.communicate(timeout=60)[1]
    assert time.monotonic() - started < 5
    assert (process.returncode, err) == (130, "error: interrupted\n")


def test_a_compilation_without_an_end_is_an_error() -> None:
    """In the process of the command, since what compiles goes on."""
    words = [
        "predict",
        "synthetic://street?frames=3&size=160x96",
        write_deep(Path("deep.onnx")),
        "--load-timeout",
        "0.5",
    ]
    started = time.monotonic()
    done = spawn(*words, "--engine", "openvino")
    assert time.monotonic() - started < 20
    assert done.returncode == 1
    assert "engine openvino has not loaded the model within 0.5 s (option load_timeout)" in done.stderr


@pytest.mark.parametrize("engine", [pytest.param("openvino", marks=pytest.mark.slow), "onnxruntime"])
def test_a_request_without_an_end_is_an_error(endless: list[str], engine: str) -> None:
    pytest.importorskip(engine)
    done = spawn(*endless, "--engine", engine, "--save-jsonl", "--request-timeout", "1")
    assert done.returncode == 1
    assert "the engine has not answered a request for 1 s (option request_timeout)" in done.stderr
    assert "--request-timeout" in done.stderr.splitlines()[-1]
    assert [Path(name).name for name in written()] == ["0.png", "1.png"]
    report = json.loads(next(Path("out").glob("*/report.json")).read_text())
    assert (report["error"]["kind"], report["frames"]) == ("EngineError", 2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_ends_after_a_request_without_an_end(endless: list[str], engine: str) -> None:
    pytest.importorskip(engine)
    done = subprocess.run([sys.executable, "-c", LIBRARY, engine], capture_output=True, text=True, timeout=60)
    said = "program the engine has not answered a request for 1 s (option request_timeout)"
    assert (done.stdout.splitlines(), done.returncode) == (["0", "1", said], 0), done.stderr


@pytest.mark.parametrize("signals", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_signals_during_a_request_without_an_end(endless: list[str], signals: int) -> None:
    """One signal is enough; the second ends the wait for the engine."""
    with command(*endless, "--save-jsonl") as process:
        wait_for(lambda: len(written()) == 2)
        started = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            time.sleep(1)  # as a user who sees that the first signal was not enough
        err = process.communicate(timeout=60)[1]
    assert time.monotonic() - started < (15 if signals == 1 else 4)
    assert process.returncode == 130 and "Traceback" not in err
    assert [Path(name).name for name in written()] == ["0.png", "1.png"]
    if signals == 1:
        report = json.loads(next(Path("out").glob("*/report.json")).read_text())
        assert report["error"]["kind"] == "KeyboardInterrupt"
