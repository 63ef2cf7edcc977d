"""Views on the CPU: what tiles find in 4K frames, what they cost, and both beside SAHI.

    python -m benchmarks.views [--peer-python PYTHON] [--parts accuracy sahi preprocess eyes whole]

- `accuracy`: mAP by size of object, of the whole frame alone and with tiles of 640 pixels at native resolution, on two
  synthetic streets of 3840x2160. In `far` most objects are 8 to 64 pixels long, as large in a tile as those on which
  the models were trained; in `near` most are larger than the overlap, so that merging could lose them.
- `sahi`: frames/s of a clip of `far`, from file to merged boxes, and the mAP of these boxes (confidence 0.25 and more);
  INT8 rows read one file, the shipped one
- `preprocess`: a 4K frame into one model input, and tiles of it into eight
- `eyes`: both eyes of a 3840x1920 side-by-side frame, against two crops of it one after the other
- `whole`: a frame with one view of all of it, against no views: time and allocations

What is compared takes turns within each round, in a new order each time; ratios are medians over rounds. SAHI and its
peers are processes that wait between their turns, in an environment that benchmarks/peers/env.sh makes on first use.
The record is views; the last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import protocol
from benchmarks.clips import CACHE, cached
from benchmarks.cpu.accuracy import drawn_once
from benchmarks.cpu.end_to_end import TIMEOUT_SECONDS
from benchmarks.models import model as benchmark_model
from benchmarks.peers.sliced import OVERLAP, PEERS, TILE
from framefuse import Model, Pipeline, View
from framefuse.cli.synth import write_clip
from framefuse.frame import Frame
from framefuse.lab.evaluation import open_data, validate
from framefuse.lab.evaluation.counters import BoxCounter
from framefuse.models import find_model
from framefuse.prediction import Detections
from framefuse.preprocess import Preprocess
from framefuse.runtime.tiles import Tiles
from framefuse.sources import SourceInfo, open_source
from framefuse.sources.source import Frames, PullSource
from framefuse.world import World

NEAR = "synthetic://street?size=3840x2160&frames=300&split=test&complexity=1"
FAR = f"{NEAR}&far=8&density=8"
WORLDS = {"far": (FAR, 4, 2), "near": (NEAR, 8, 2)}
"""Address, seeds, and frames of each seed."""
FIRST_SEED = 9001
LOOKS: dict[str, dict[str, Any]] = {"whole frame": {}, "tiles and whole frame": {"tiles": f"{TILE}:{OVERLAP}"}}
CLIP = f"{FAR.replace('frames=300', 'frames=9')}&seed={FIRST_SEED}"
EYES = "synthetic://bodies?size=3840x1920&stereo=sbs&frames=300&split=test"
MODELS = ("scout-n", "scout-s")
GROUPS = ("model", "CPU kernel", "program", "pipeline", "model call", "views", "engine openvino", "evaluation",
          "synthetic world", "peer")  # fmt: skip

Row = dict[str, Any]
Turn = Callable[[], float]


def take_turns(peers: Mapping[str, Turn], rounds: int, against: str) -> dict[str, Row]:
    """Frames/s of each peer, its median over rounds, and that of the ratios to the peer `against`."""
    order, names = random.Random(0), list(peers)
    runs: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            runs[name].append(peers[name]())
    return {
        name: {"fps": median(runs[name]), "of_each_round": runs[name],
               "ratio": median(a / b for a, b in zip(runs[name], runs[against], strict=True))}
        for name in peers
    }  # fmt: skip


def rate(results: Iterator[Any]) -> float:
    """Frames/s from the first result to the last."""
    next(results)
    start, count = time.perf_counter(), 0
    for _ in results:
        count += 1
    return count / (time.perf_counter() - start)


def accuracy(models: Sequence[str]) -> list[Row]:
    """A row for each world, model and look."""
    rows = []
    for world, (address, seeds, frames) in WORLDS.items():
        data = open_data([f"{address}&seed={seed}" for seed in range(FIRST_SEED, FIRST_SEED + seeds)])
        data = drawn_once(data, seeds * frames)
        labels = {key: replace(data.labels(key), class_mask=None) for key in data.keys}  # masks are large
        data = replace(data, labels=labels.__getitem__)
        areas = np.concatenate([each.area[~each.crowd] for each in labels.values()])
        sides = np.concatenate([(e.xyxy[:, 2:] - e.xyxy[:, :2]).max(1)[~e.crowd] for e in labels.values()])
        facts = {
            "world": world, "address": address, "seeds": seeds, "frames": len(labels), "objects": len(areas),
            "small": int((areas < 32**2).sum()), "large": int((areas >= 96**2).sum()),
            "sides": np.percentile(sides, (10, 50, 90)).tolist(),
        }  # fmt: skip
        for model in models:
            for look, options in LOOKS.items():
                scores = validate(model, data, max_det=1000, **options)
                boxes = scores.boxes
                assert boxes is not None
                row = facts | {"model": model, "look": look, "engine": f"{scores.engine} {scores.precision}"}
                row |= {"map50_95": boxes.map50_95, "map50": boxes.map50, "by_size": boxes.by_size}
                row |= {"precision": boxes.precision, "recall": boxes.recall}
                print(world, model, look, row["by_size"], file=sys.stderr)
                rows.append(row)
    return rows


def sliced_clip() -> Path:
    """The clip that framefuse and SAHI read."""

    def write(partial: Path) -> None:
        with TemporaryDirectory(dir=partial.parent) as folder:
            video, _ = write_clip(World.parse(CLIP), Path(folder) / "far")
            video.rename(partial)

    return cached(CACHE / "far.mp4", write, "views")


class Peer:
    """A process of benchmarks/peers/sliced.py."""

    def __init__(self, name: str, python: Path, clip: Path, model: Path) -> None:
        command = [python, "-m", "benchmarks.peers.sliced", name, "--clip", clip, "--model", model]
        self._process = subprocess.Popen(
            command, cwd=protocol.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.last: Row = {}
        self._said: list[str] = []
        threading.Thread(target=lambda: self._said.extend(self._process.stderr or ()), daemon=True).start()

    def __call__(self) -> float:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError("".join(self._said[-5:]))
        self.last = json.loads(answer)
        return float(self.last["fps"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def sahi(python: Path, model: str, rounds: int) -> Row:
    """A row for each peer: speed, and the mAP of its boxes."""
    clip, path = sliced_clip(), find_model(model)
    folder = CACHE / f"{model}_openvino_model"
    if not folder.exists():
        command = [python, "-m", "benchmarks.peers.openvino_folders", path, "--out", CACHE]
        subprocess.run(command, cwd=protocol.ROOT, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    files = {"SAHI, OpenVINO": folder} | {name: find_model(f"{model}-int8") for name in PEERS if "INT8" in name}
    peers = {
        name: Peer(name, Path(sys.executable) if name.startswith("framefuse") else python, clip, files.get(name, path))
        for name in PEERS
    }
    try:
        for peer in peers.values():
            peer()  # loads the model
        rows = take_turns(peers, rounds, "SAHI, ONNX Runtime")
    finally:
        for peer in peers.values():
            peer.close()
    data, card = open_data(CLIP), find_model(model)
    labels = [data.labels(key) for key in data.keys]
    for name, peer in peers.items():
        counter = BoxCounter(list(data.names.values()), max_det=1000)  # the model has the classes of the world
        for truth, found in zip(labels, peer.last["boxes"], strict=True):
            table = np.array(found, np.float64).reshape(-1, 6)
            counter.add(truth, Detections(table[:, :4], table[:, 4], table[:, 5].astype(int)))
        scores = counter.scores()
        rows[name] |= {
            "cpu_ms_per_frame": peer.last["cpu_ms_per_frame"], "packages": peer.last["packages"],
            "map50_95": scores.map50_95, "by_size": scores.by_size, "precision": scores.precision,
            "recall": scores.recall, "boxes_per_frame": sum(map(len, peer.last["boxes"])) / len(labels),
        }  # fmt: skip
    return {"clip": CLIP, "model": card.stem, "tiles": f"{TILE}:{OVERLAP}", "peers": rows}


def preprocess(runs: int) -> Row:
    """Milliseconds of one 4K frame into a model input, of eight tiles of it, and of copying as many bytes."""
    frame = next(iter(open_source(CLIP)))
    spec = Preprocess(TILE, TILE)
    with Model("scout-n") as model:
        pool = model.engine.request_pool(1, TILE, TILE, 1)
        slot = pool.acquire()
        assert slot is not None
        inputs = [np.empty_like(slot.input[0]) for _ in range(8)]
        layout = slot.memory_format
        pool.release(slot)
    source = np.zeros_like(inputs[0])
    grids = {
        "8 tiles of 640 pixels": Tiles(0, 0, TILE, OVERLAP).of((0, 0, frame.width, frame.height))[8:16],
        "8 tiles, 2x4, that cover the frame": Tiles(2, 4, 0, OVERLAP).of((0, 0, frame.width, frame.height)),
    }

    def fill(rows: Sequence[Frame]) -> Callable[[], None]:
        def run() -> None:
            for row, out in zip(rows, inputs, strict=False):
                spec(row, out, memory_format=layout)

        return run

    def copy(count: int) -> Callable[[], None]:
        def run() -> None:
            for out in inputs[:count]:
                np.copyto(out, source)

        return run

    tiles = {name: [frame.replace_unchecked(view=View(region)) for region in grid] for name, grid in grids.items()}
    peers = {"whole frame": fill([frame]), **{name: fill(rows) for name, rows in tiles.items()}}
    peers |= {"copy of 1 input": copy(1), "copy of 8 inputs": copy(8)}
    found = protocol.measure(peers, warmups=5, runs=runs)
    rows = {name: {"ms": item.wall.median, "inputs": 1 if name in ("whole frame", "copy of 1 input") else 8}
            for name, item in found.items()}  # fmt: skip
    for row in rows.values():
        row["ratio"] = row["ms"] / rows["whole frame"]["ms"]
        row["ns_per_pixel"] = row["ms"] * 1e6 / (row["inputs"] * TILE * TILE)
    return {"dtype": str(inputs[0].dtype), "memory_format": layout, "bytes": inputs[0].nbytes, "rows": rows}


def eyes(models: Sequence[str], rounds: int, frames: int = 12) -> list[Row]:
    """A row for each model: frames/s of both eyes, in four ways, and of the network alone."""
    world = World.parse(EYES)
    pictures = [np.ascontiguousarray(world[index].image[..., ::-1]) for index in (100, 150, 200)]
    shown = [pictures[index % len(pictures)] for index in range(frames)]
    half = pictures[0].shape[1] // 2
    rows = []
    for name in models:
        path = benchmark_model(name) if name == "yolov8n" else find_model(name)
        with Model(path) as one, Model(path, stereo="sbs") as both, Model(path, preset="throughput") as fast:
            pool = one.engine.request_pool(1, TILE, TILE, 1)

            def network(pool: Any = pool) -> Iterator[None]:
                for _ in shown:
                    for _ in "lr":
                        slot = pool.acquire()
                        pool.submit(slot)
                        pool.wait(slot)
                        pool.release(slot)
                    yield None

            def crops(model: Model = one) -> Iterator[Any]:
                return ([model(image[:, :half]), model(image[:, half:])] for image in shown)

            def pairs() -> Iterator[Any]:
                yield from (crop for image in shown for crop in (image[:, :half], image[:, half:]))

            def separate(model: Model = fast) -> float:
                return rate(iter(Pipeline(pairs(), model))) / 2

            peers: dict[str, Turn] = {
                "two crops, one after the other": lambda: rate(crops()),
                "one call, stereo": lambda both=both: rate(both(image) for image in shown),
                "Pipeline, stereo": lambda fast=fast: rate(iter(Pipeline(iter(shown), fast, stereo="sbs"))),
                "Pipeline of the crops": separate,
                "the network alone": lambda: rate(network()),
            }
            for peer in peers.values():
                peer()
            found = take_turns(peers, rounds, "two crops, one after the other")
        rows.append({"model": path.stem, "engine": f"{one.engine.name} {one.engine.precision}", "peers": found})
    return rows


def arrays(frames: Sequence[Frame], count: int) -> PullSource:
    """A source that yields the same frames again and again."""

    def shown(closed: threading.Event) -> Frames:
        for index in range(count):
            yield frames[index % len(frames)].replace_unchecked(index=index)

    return PullSource(SourceInfo("arrays", "array", frames[0].width, frames[0].height, frames=count), shown)


def whole(rounds: int, frames: int = 120) -> list[Row]:
    """A row for each engine: a frame with a view of all of it, against no views."""
    pictures = list(islice(open_source("synthetic://street?size=1920x1080&frames=4&split=test&complexity=1"), 4))
    ways: dict[str, dict[str, Any]] = {"no views": {}, "one whole view": {"views": lambda frame, latest: [View()]}}
    rows = []
    for title, engine in (("scout-n", "auto"), ("no network (engine null)", "null")):
        with Model("scout-n", preset="throughput", engine=engine) as model:

            def opened(way: str, count: int, model: Model = model) -> Pipeline:
                return Pipeline(arrays(pictures, count), model, **ways[way])

            # Without a network a frame takes a twentieth of the time.
            count = frames if engine == "auto" else 20 * frames
            peers: dict[str, Turn] = {way: lambda way=way, n=count: rate(iter(opened(way, n))) for way in ways}
            for peer in peers.values():
                peer()
            found = take_turns(peers, rounds, "no views")
            for way, row in found.items():
                row |= allocated(opened(way, frames))
        rows.append({"what": title, "peers": found})
    return rows


def allocated(pipeline: Pipeline) -> Row:
    """Most memory that Python's allocators and NumPy held at a time during a run, beyond what it began with."""
    results = iter(pipeline)
    next(results)
    tracemalloc.start()
    for _ in results:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"peak_kib": peak / 1024}


def peer_python(given: Path | None) -> Path:
    """The interpreter of the peers' environment, which is made if there is none."""
    if given is not None:
        return Path(os.path.abspath(given))
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "framefuse" / "peers"
    python = folder / "bin" / "python"
    if not python.exists():
        script = protocol.ROOT / "benchmarks" / "peers" / "env.sh"
        subprocess.run(["bash", script, folder], check=True, env={**os.environ, "PYTHON": sys.executable})
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("accuracy", "sahi", "preprocess", "eyes", "whole")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="of accuracy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", type=Path, help="default: an environment in the user's cache")
    options = parser.parse_args()
    jobs: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: accuracy(options.models),
        "sahi": lambda: sahi(peer_python(options.peer_python), "scout-n", min(3, options.rounds)),
        "preprocess": lambda: preprocess(20 * options.rounds),
        "eyes": lambda: eyes(("scout-n", "yolov8n"), options.rounds),
        "whole": lambda: whole(options.rounds),
    }
    found: dict[str, Any] = {"world": World.version}
    for part in options.parts:
        started = time.perf_counter()
        found[part] = jobs[part]()
        print(f"{part}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
        protocol.save("views", found, *GROUPS)


if __name__ == "__main__":
    main()
