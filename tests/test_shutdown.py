"""A pipeline that is closed at any point of its life ends at once, with its threads, and its outputs are complete."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from framefuse import CallbackSink, Pipeline
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.sources import open_source

FRAMES = 60
CLIP = f"synthetic://street?frames={FRAMES}&size=160x96"
SOON = 20.0
"""Seconds, generous enough for a busy machine; only a hang takes longer."""
OUTPUTS: dict[str, Any] = {"save": True, "save_jsonl": True, "save_json": True, "save_csv": True}


class Hooked:
    """A source that calls a function before each of its frames."""

    def __init__(self, hook: Callable[[int], None]) -> None:
        self._source = open_source(CLIP)
        self.info, self.close, self._hook = self._source.info, self._source.close, hook

    def __iter__(self) -> Iterator[Frame]:
        for number, frame in enumerate(self._source):
            self._hook(number)
            yield frame


def close_from_another_thread(pipeline: Pipeline) -> None:
    thread = threading.Thread(target=pipeline.close, daemon=True)
    thread.start()
    time.sleep(0.02)


POINTS = {
    "before the first frame": ("source", 0),
    "while decoding": ("source", 7),
    "at the last frame": ("source", FRAMES - 1),
    "in the first callback": ("sink", 0),
    "in a callback": ("sink", 9),
    "in the last callback": ("sink", FRAMES - 1),
    "at the first result": ("caller", 0),
    "at a result": ("caller", 9),
    "at the last result, while draining": ("caller", FRAMES - 1),
}


def check_outputs(folder: Path, at_least: int) -> None:
    """They are complete, agree with each other and with the report, and hold at least so many frames."""
    report = json.loads((folder / "report.json").read_text())
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert at_least <= len(lines) == report["frames"]
    assert not list(folder.glob("*.part"))
    for path in folder.glob("*.mp4"):
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) == len(lines)
    for path in folder.glob("*.json"):
        if path.name != "report.json":
            assert len(json.loads(path.read_text())["images"]) == len(lines)


def wait_for_threads() -> None:
    deadline = time.monotonic() + SOON
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("ff-")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def opened(folder: Path, source: Any = CLIP, outputs: dict[str, Any] = OUTPUTS, **options: Any) -> Pipeline:
    """A run that writes into `folder`/run."""
    return Pipeline(source, "squares", imgsz=160, project=str(folder), name="run", **outputs, **options)


@pytest.mark.parametrize("close", [Pipeline.close, close_from_another_thread], ids=["here", "in another thread"])
@pytest.mark.parametrize("point", POINTS)
def test_closed_at_any_point(tmp_path: Path, point: str, close: Callable[[Pipeline], None]) -> None:
    where, when = POINTS[point]

    def hook(number: int) -> None:
        if number == when:
            close(pipeline)

    source = Hooked(hook if where == "source" else lambda number: None)
    called = [lambda: CallbackSink(lambda result, _: hook(result.frame.index) if where == "sink" else None)]
    pipeline = opened(tmp_path, source, sinks=called)
    taken = 0
    started = time.monotonic()
    for result in pipeline:
        taken += 1
        if where == "caller":
            hook(result.frame.index)
    assert time.monotonic() - started < SOON
    check_outputs(tmp_path / "run", taken)
    wait_for_threads()


@pytest.mark.parametrize(
    "delay", [pytest.param(number * 0.01, marks=pytest.mark.slow if number % 2 else ()) for number in range(12)]
)
def test_closed_at_any_time(tmp_path: Path, delay: float) -> None:
    pipeline = opened(tmp_path)
    timer = threading.Timer(delay, pipeline.close)
    timer.start()
    try:
        taken = sum(1 for _ in pipeline)
    except UsageError:  # it was closed before it started
        return
    finally:
        timer.join(SOON)
    check_outputs(tmp_path / "run", taken)
    wait_for_threads()


@pytest.mark.parametrize("taken", [0, 1, 10])
def test_a_caller_that_raises_or_breaks(tmp_path: Path, taken: int) -> None:
    pipeline = opened(tmp_path)
    with pytest.raises(KeyError, match="mine"):
        for number, _ in enumerate(pipeline):
            if number == taken:
                raise KeyError("mine")
    wait_for_threads()
    del pipeline
    check_outputs(tmp_path / "run", taken)


def test_cancelled_by_asyncio(tmp_path: Path) -> None:
    endless = "synthetic://street?frames=100000&size=160x96"
    pipeline = opened(tmp_path, endless, {"save_jsonl": True})

    async def main() -> None:
        with pipeline:
            await asyncio.wait_for(asyncio.to_thread(pipeline.run), 0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    wait_for_threads()
    check_outputs(tmp_path / "run", 0)


def test_interrupted_while_the_stages_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("framefuse.pipeline.decode", stop)
    pipeline = opened(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["frames"], report["error"]["kind"]) == (0, "KeyboardInterrupt")
    with pytest.raises(UsageError, match="already run"):
        pipeline.run()
