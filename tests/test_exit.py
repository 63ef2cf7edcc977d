"""Programs that end while a pipeline is running: no crash, the program's own error, complete outputs and a report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

START = """
import sys, threading
from itertools import islice
from framefuse import Pipeline
folder, engine = sys.argv[1:]
def open_pipeline(source="synthetic://street?frames=400&size=160x96"):
    return Pipeline(source, "squares", engine=engine, save_jsonl=True, project=folder, name="run")
"""
ENDINGS = {
    "the iterator is held": ("it = iter(open_pipeline()); next(it)", 0),
    "zip stops first": ("for pair in zip(open_pipeline(), range(5)): pass", 0),
    "sys.exit": ("for result in open_pipeline():\n if result.frame.index == 3: sys.exit(7)", 7),
    "sys.exit with the iterator held": ("it = iter(open_pipeline()); next(it); sys.exit(7)", 7),
    "an error of the user": ("it = iter(open_pipeline()); next(it); raise KeyError('mine')", 1),
    "never started": ("p = open_pipeline()", 0),
    "started, no result taken": ("p = open_pipeline(); it = iter(p)", 0),
    "two at once": (
        "it = iter(open_pipeline()); next(it); other = iter(Pipeline('synthetic://street', 'squares')); next(other)",
        0,
    ),
    "read in a daemon thread": (
        "it = iter(open_pipeline()); next(it); threading.Thread(target=list, args=[it], daemon=True).start()",
        0,
    ),
    "read in a thread": (
        "threading.Thread(target=open_pipeline('synthetic://street?frames=60&size=160x96').run).start()",
        0,
    ),
    "a live source": (
        "it = iter(Pipeline('udp://127.0.0.1:49151', 'squares', engine=engine)); "
        "threading.Thread(target=next, args=[it, None], daemon=True).start()",
        0,
    ),
    "requests without an answer": (
        "import numpy; from framefuse import Batcher; b = Batcher('squares', engine=engine)\n"
        "for _ in range(200): b.submit(numpy.zeros((240, 320, 3), 'uint8'))",
        0,
    ),
    "more requests than there is time for": (
        "import numpy; from framefuse import Batcher; from framefuse.runtime import batcher\n"
        "batcher.EXIT_SECONDS = 2.0; b = Batcher('squares', engine=engine, max_queue=1000)\n"
        "for _ in range(800): b.submit(numpy.zeros((240, 320, 3), 'uint8'))",
        0,
    ),
    "a function that never returns": (
        "from framefuse import Batcher; from framefuse.runtime import batcher; batcher.EXIT_SECONDS = 0.5\n"
        "b = Batcher(lambda items: threading.Event().wait()); b.submit(1)",
        0,
    ),
    "requests that lead to others": (
        "from framefuse import Batcher; inner = Batcher(lambda items: items)\n"
        "outer = Batcher(lambda items: [inner.submit(item).result().result for item in items], max_batch_size=1)\n"
        "for n in range(20): outer.submit(n).add_done_callback(lambda done: done.result())",
        0,
    ),
    "closed in a callback": (
        "from framefuse import CallbackSink\n"
        "p = Pipeline('synthetic://street?frames=50', 'squares', engine=engine, "
        "sinks=[lambda: CallbackSink(lambda *_: p.close())])\n"
        "list(p)",
        0,
    ),
}


@pytest.mark.parametrize(
    ("ending", "engine"),
    [
        *((ending, "openvino") for ending in ENDINGS),
        ("the iterator is held", "onnxruntime"),
        ("sys.exit", "onnxruntime"),
    ],
)
def test_the_end_of_a_program_is_its_own(tmp_path: Path, ending: str, engine: str) -> None:
    code, status = ENDINGS[ending]
    command = [sys.executable, "-c", START + code, str(tmp_path), engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert "terminate called" not in done.stderr
    if status == 1:
        assert done.stderr.strip().endswith("KeyError: 'mine'")
    else:
        assert "Traceback" not in done.stderr
    if (run := tmp_path / "run").exists():
        report = json.loads((run / "report.json").read_text())
        lines = [json.loads(line) for path in run.glob("*.jsonl") for line in path.read_text().splitlines()]
        assert lines and 0 < report["frames"] <= 400
