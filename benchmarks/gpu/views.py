"""Times the views of 4K frames on a GPU, from surfaces that are there (NV12) to merged boxes on the host.

    python -m benchmarks.gpu.views [MODEL.onnx]

- `whole frame`: no views
- `15 tiles and whole frame`: a grid of 3x5 and the frame, which fill a batch of 16
- `two eyes`: both halves of a 3840x1920 side-by-side frame, by `stereo="sbs"`
- `two crops, one after the other`: the same halves as frames of their own, cut without a copy, in batches of 1

A call of `Model` is one frame at a time: median and p99. `Pipeline` takes the same frames one after another: frames/s.
Graph launches are counted where CuPy launches them. `device_us` is the captured graphs of a frame alone, `stages_us`
their stages as events in the graph time them. The record views_gpu is written after each row. The last line of the
output is JSON.
"""

import argparse
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import save
from framefuse import Model, Pipeline
from framefuse.cuda import device
from framefuse.engines import requests
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.runtime.cuda import captured_batch
from framefuse.sources import SourceInfo
from framefuse.sources.source import Frames, PullSource

SURFACES = 8
RUNS, SECONDS = 200, 2.0
GROUPS = ("CUDA kernel", "engine cudnn", "program", "CUDA program", "model call", "pipeline", "views")


class Launches:
    """Counts launches of captured graphs, from here on."""

    def __init__(self) -> None:
        self.count = 0
        make = requests.capture

        def capture(stream: Any, run: Any) -> Any:
            graph = make(stream, run)
            return _Counted(graph, self)

        captured_batch.capture = capture  # type: ignore[assignment]


class _Counted:
    def __init__(self, graph: Any, of: Launches) -> None:
        self._graph, self._of = graph, of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def launch(self, stream: Any) -> None:
        self._of.count += 1
        self._graph.launch(stream)


def surfaces(width: int, height: int) -> list[Frame]:
    """NV12 frames on the GPU: a benchmark scene of 1920x1080, each pixel four times."""
    from benchmarks.gpu.program import images

    cp = device.cupy()
    made = []
    for index, image in enumerate(images(SURFACES, noise=False)):
        luma, chroma = image[:1080], image[1080:].reshape(540, 960, 2)
        planes = tuple(cp.asarray(np.ascontiguousarray(plane.repeat(2, 0).repeat(2, 1)[:rows]))
                       for plane, rows in ((luma, height), (chroma, height // 2)))  # fmt: skip
        frame = Frame(planes, PIXEL_FORMATS["nv12"], index)
        assert (frame.width, frame.height) == (width, height)
        made.append(frame)
    return made


def halves(frame: Frame) -> list[Frame]:
    """Left and right half as frames whose planes are those of the frame."""
    luma, chroma = frame.planes
    middle = frame.width // 2
    parts = ((luma[:, :middle], chroma[:, : middle // 2]), (luma[:, middle:], chroma[:, middle // 2 :]))
    return [replace(frame, planes=planes) for planes in parts]


def again(frames: Sequence[Frame], count: int) -> PullSource:
    """A source that yields the same surfaces again and again."""
    first = frames[0]

    def shown(closed: threading.Event) -> Frames:
        for index, frame in enumerate(itertools.islice(itertools.cycle(frames), count)):
            if closed.is_set():
                return
            yield frame.replace_unchecked(index=index)

    return PullSource(SourceInfo("surfaces", "array", first.width, first.height, frames=count), shown)


def in_turn(call: Callable[[Frame], int], frames: Sequence[Frame], launches: Launches) -> dict[str, Any]:
    """Latency of one frame at a time; `call` returns how many objects it found."""
    for frame in frames:
        call(frame)
    begun, times, boxes = launches.count, [], 0
    for frame in itertools.islice(itertools.cycle(frames), RUNS):
        started = time.perf_counter()
        boxes += call(frame)
        times.append((time.perf_counter() - started) * 1e6)
    return {
        "median_us": float(np.median(times)), "p99_us": float(np.quantile(times, 0.99)), "boxes": boxes / RUNS,
        "launches": (launches.count - begun) / RUNS,
    }  # fmt: skip


def on_device(captured: Any, launches: float) -> dict[str, Any]:
    """Microseconds that the graphs of a frame take, alone, and those of their stages."""
    cp = device.cupy()
    start, stop, times = cp.cuda.Event(), cp.cuda.Event(), []
    for _ in range(60):
        start.record(captured._stream)
        for launch in captured._launches:
            launch()
        stop.record(captured._stream)
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    stages = []
    for _ in range(20):
        for launch in captured._timed_launches:
            launch()
        captured._stream.synchronize()
        marks = itertools.pairwise(captured._marks)
        stages.append([cp.cuda.get_elapsed_time(begin, end) * 1e3 for begin, end in marks])
    return {
        "device_us": float(np.median(times[10:])) * launches,
        "stages_us": [float(value) * launches for value in np.median(stages, axis=0)],
    }


def rate(results: Iterator[Any]) -> float:
    """Results a second, from the first to the last."""
    next(results)
    started, count = time.perf_counter(), sum(1 for _ in results)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    launches = Launches()
    wide, stereo = surfaces(3840, 2160), surfaces(3840, 1920)
    crops = [half for frame in stereo for half in halves(frame)]
    cases: dict[str, tuple[dict[str, Any], list[Frame]]] = {
        "whole frame": ({}, wide),
        "15 tiles and whole frame": ({"tiles": "3x5"}, wide),
        "two eyes": ({"stereo": "sbs"}, stereo),
        "two crops, one after the other": ({}, crops),
    }
    result: dict[str, Any] = {"model": options.model.name, "rows": []}
    for case, (views, frames) in cases.items():
        shown = {id(frame): halves(frame) if frames is crops else [frame] for frame in (*wide, *stereo)}
        with Model(options.model, device="cuda", engine="cudnn", **views) as opened:

            def call(frame: Frame, opened: Model = opened, shown: dict[int, list[Frame]] = shown) -> int:
                return sum(len(opened(each).detections) for each in shown[id(frame)])

            row = {"case": case, **in_turn(call, stereo if frames is crops else frames, launches)}
            captured = next(iter(opened._program._captured.values()))[0]  # type: ignore[attr-defined]
            row |= {"rows_a_launch": int(captured.model.input.shape[0]), **on_device(captured, row["launches"])}
            each = 2 if frames is crops else 1
            count = int(each * SECONDS * 1e6 / row["median_us"]) + 2
            row["fps"] = rate(iter(Pipeline(again(frames, count), opened, **views))) / each
            result["engine"] = f"{opened.engine.name} {opened.engine.precision}"
        result["rows"].append(row)
        save("views_gpu", result, *GROUPS)


if __name__ == "__main__":
    main()
