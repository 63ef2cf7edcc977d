"""Is the what-if of the report true? It says what a run would reach without a stage; here that stage really goes.

    python -m benchmarks.what_if [--rounds 5] [--frames 250]

Two runs are taken apart, each in several rounds: detection alone, and detection that writes an annotated video.
`inference` is replaced by an engine that answers at once with outputs recorded from the real model, so that
post-processing, drawing and writing do the same work as before; `decode` by frames that were decoded beforehand;
`sinks` by writing nothing. Each round runs the whole pipeline and then each replacement; compared are the medians over
rounds of the predicted and of the real frames per second. Results go to benchmarks/results/what_if.json; the last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from numpy.typing import NDArray

from benchmarks.clips import clip
from benchmarks.models import model
from benchmarks.protocol import save
from framefuse import Frame, Pipeline, Report, open_source
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.null import NullEngine
from framefuse.preprocess import Preprocess
from framefuse.runtime.threads import thread_named
from framefuse.sources import SourceInfo

RECORDED = 24
"""Frames kept decoded, and answers kept, to be used in turn."""


class Decoded:
    """A source whose frames lie ready in memory."""

    def __init__(self, frames: Sequence[Frame], count: int, info: SourceInfo) -> None:
        self.info = replace(info, notes=[], drops={})
        self._frames, self._count = frames, count

    def __iter__(self) -> Iterator[Frame]:
        for index, frame in enumerate(islice(cycle(self._frames), self._count)):
            yield replace(frame, index=index, pts=index, arrival=None)

    def close(self) -> None:
        self._count = 0


def recorded_answers(video: Path, weights: Path, shape: tuple[int, int]) -> list[tuple[NDArray[Any], ...]]:
    """The real model's outputs for the first frames."""
    with thread_named("ff-engine"):  # OpenVINO keeps its threads for later engines, and reports know them by this name
        engine = open_engine("openvino", weights, EngineOptions())
        pool = engine.request_pool(1, *shape, 1)
    answers = []
    spec = Preprocess(rectangular=True)
    for frame in islice(open_source(video), RECORDED):
        slot = pool.acquire()
        assert slot is not None
        spec(frame, slot.input[0], memory_format=slot.memory_format)
        pool.submit(slot)
        pool.wait(slot)
        answers.append(tuple(output.copy() for output in slot.outputs))
        pool.release(slot)
    return answers


def run(video: Any, weights: Path, folder: Path | None, frames: int, **options: Any) -> Report:
    if folder is not None:
        options |= {"save": True, "project": folder}
    return Pipeline(video, weights, end=None if not isinstance(video, Path) else frames / 30, **options).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=250)
    args = parser.parse_args()
    video, weights = clip("1080p"), model("yolov8n")
    answers = recorded_answers(video, weights, (384, 640))
    decoded = list(islice(open_source(video), RECORDED))
    info = open_source(video).info
    rows: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.rounds):
            for name in ("detect", "detect and write"):
                folder = Path(scratch) / str(number) if name != "detect" else None
                whole = run(video, weights, folder, args.frames)
                predicted = {what_if.stage: what_if.fps for what_if in whole.what_ifs}
                replay = cycle(answers)
                real = {
                    "inference": run(
                        video,
                        weights,
                        folder,
                        args.frames,
                        engine=NullEngine(lambda batch, replay=replay: next(replay)),
                    ).fps,
                    "decode": run(Decoded(decoded, args.frames, info), weights, folder, args.frames).fps,
                }
                if folder is not None:
                    real["write"] = run(video, weights, None, args.frames).fps
                for stage, fps in real.items():
                    row = rows.setdefault(f"{name}: without {stage}", {"whole": [], "predicted": [], "real": []})
                    row["whole"].append(whole.fps)
                    row["predicted"].append(predicted[stage])
                    row["real"].append(fps)
    table = {}
    print("| run | whole fps | predicted | real | predicted / real |\n|---|---|---|---|---|")
    for name, row in rows.items():
        whole_fps, predicted_fps, real_fps = (median(row[key]) for key in ("whole", "predicted", "real"))
        ratio = median(p / r for p, r in zip(row["predicted"], row["real"], strict=True))
        print(f"| {name} | {whole_fps:.1f} | {predicted_fps:.1f} | {real_fps:.1f} | {ratio:.2f} |")
        table[name] = {
            "whole_fps": round(whole_fps, 1),
            "predicted_fps": round(predicted_fps, 1),
            "real_fps": round(real_fps, 1),
            "predicted_over_real": round(ratio, 3),
            "rounds": {key: [round(value, 1) for value in values] for key, values in row.items()},
        }
    save("what_if", table)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
