"""Engines among threads and processes: first use by several threads at once, forks, spawned children, asyncio."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SECONDS = 120
PRELUDE = """
import asyncio, multiprocessing, os, sys, threading
import framefuse

SOURCE, MODEL, ENGINE = "synthetic://street?frames=4&size=320x240", "squares", sys.argv[1]

def count(engine=ENGINE):
    return sum(1 for _ in framefuse.Pipeline(SOURCE, MODEL, engine=engine))
"""
THREADS = """
counts = {}
threads = [threading.Thread(target=lambda n=n: counts.update({n: count()})) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(counts.items()))
"""
FORK = """
print(count(), flush=True)
if (child := os.fork()) == 0:
    try:
        print(count(), flush=True)
    except framefuse.FramefuseError as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
FORK_WHILE_OPEN = """
import signal
import numpy as np

model, pipeline = framefuse.Model(MODEL, engine=ENGINE), framefuse.Pipeline(SOURCE, MODEL, engine=ENGINE)
image = np.zeros((240, 320, 3), np.uint8)
model(image)
for use in (lambda: model(image), lambda: list(pipeline)):
    if (child := os.fork()) == 0:
        signal.alarm(60)
        try:
            use()
            print("works", flush=True)
        except framefuse.FramefuseError as error:
            print(error.message, flush=True)
        model.close()
        pipeline.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(len(list(pipeline)), len(model([image])))
"""
SPAWN = """
if __name__ == "__main__":
    print(count())
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(count, [ENGINE, ENGINE]))
"""
ASYNCIO = """
async def main():
    return await asyncio.gather(*(asyncio.to_thread(count) for _ in range(3)))

print(asyncio.run(main()))
"""


@pytest.fixture(params=["openvino", "onnxruntime", "null"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param != "null":
        pytest.importorskip(request.param)
    return str(request.param)


def run(script: str, engine: str, folder: Path) -> str:
    path = folder / "program.py"
    path.write_text(PRELUDE + script)
    command = [sys.executable, str(path), engine]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


@pytest.mark.parametrize("attempt", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_threads_that_open_their_first_pipeline_together(engine: str, attempt: int, tmp_path: Path) -> None:
    assert run(THREADS, engine, tmp_path) == "[(0, 4), (1, 4), (2, 4), (3, 4)]\n"


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torch", "null"])
def test_a_child_forked_after_a_run_works_or_says_why_not(engine: str, tmp_path: Path) -> None:
    if engine != "null":
        pytest.importorskip(engine)
    parent, child = run(FORK, engine, tmp_path).split("\n", 1)
    assert parent == "4"
    if engine in ("openvino", "torch"):
        assert child.startswith(f"EngineError engine {engine}: its threads stayed in process")
        assert "multiprocessing.get_context('spawn')" in child
    else:
        assert child == "4\n"


def test_what_a_parent_has_opened_works_in_a_forked_child_or_says_why_not(engine: str, tmp_path: Path) -> None:
    *children, parent = run(FORK_WHILE_OPEN, engine, tmp_path).splitlines()
    assert parent == "4 1"
    if engine == "openvino":
        assert [child.startswith("engine openvino: its threads stayed in process") for child in children] == [True] * 2
    else:
        assert children == ["works"] * 2


def test_a_forked_child_takes_another_engine_by_itself(tmp_path: Path) -> None:
    if not all(map(importlib.util.find_spec, ("openvino", "onnxruntime"))):
        pytest.skip("two engines are needed")
    assert run(FORK, "auto", tmp_path) == "4\n4\n"


def test_spawned_children(engine: str, tmp_path: Path) -> None:
    assert run(SPAWN, engine, tmp_path) == "4\n[4, 4]\n"


def test_asyncio(engine: str, tmp_path: Path) -> None:
    assert run(ASYNCIO, engine, tmp_path) == "[4, 4, 4]\n"
