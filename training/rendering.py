"""Renders the worlds of a recipe into arrays on disk, with a pool of processes. Needs NumPy only.

python -m training.rendering scout-n body-n --cache runs/train/frames
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from framefuse.common.keypoints import COCO_KEYPOINTS
from framefuse.errors import SinkError
from framefuse.world import World
from training.command import count, run
from training.portraits import Portraits

LENGTH = 900
"""Frames of a world; the rendered ones are drawn from its whole schedule, calm and crowded."""
NONE, IGNORED = -1, -2
"""Class of a row without an object, and of an object that is too occluded or too small to count."""


@dataclass(frozen=True)
class Render:
    """What to render: `frames` frames from each of `worlds` worlds with the seeds seed, seed + 1, ..."""

    scene: str
    """Of `framefuse.world`, or portraits."""
    worlds: int
    frames: int
    split: str = "train"
    size: tuple[int, int] = (640, 360)
    """Width and height; in stereo, of both eyes together."""
    seed: int = 0
    stereo: str = "none"
    objects: int = 48
    """Rows for the objects of a frame."""
    busy: bool = False
    """Three of four worlds have a fixed complexity, more often high than low, instead of the schedule, because crowded
    frames teach more."""
    complexity: float | None = None
    """Fixed complexity of all worlds, 0 is calm; None: the schedule."""
    shapes: bool = False
    """Whether masks and keypoints of the objects are kept, too."""

    @property
    def count(self) -> int:
        return self.worlds * self.frames

    @property
    def name(self) -> str:
        eyes = "" if self.stereo == "none" else f"-{self.stereo}"
        size = f"{self.size[0]}x{self.size[1]}"
        shapes = "-shapes" * self.shapes
        return f"{self.scene}-{self.split}{eyes}-{size}-{self.seed}-{self.worlds}x{self.frames}{shapes}"

    @property
    def masked(self) -> bool:
        """Whether there is a mask for each frame."""
        return self.scene in ("bodies", "portraits") or self.shapes

    def world(self, number: int) -> World | Portraits:
        """World `number`, counted from 0."""
        seed = self.seed + number
        if self.scene == "portraits":
            return Portraits(seed, self.size, self.split)
        complexity = self.complexity
        if self.busy and seed % 4:
            complexity = float(np.random.default_rng([seed, 1]).random() ** 0.5)
        settings: Any = {"split": self.split, "stereo": self.stereo, "complexity": complexity}
        return World(scene=self.scene, seed=seed, frames=LENGTH, size=self.size, **settings)


def complete(what: Render, cache: Path) -> Path | None:
    """The folder of a rendering if it is complete and of this version of the world, else None."""
    folder = cache / what.name
    try:
        facts = json.loads((folder / "facts.json").read_text())
    except (OSError, ValueError):
        return None
    return folder if facts.items() >= _identity(what).items() else None


def _identity(what: Render) -> dict[str, Any]:
    version = Portraits.version if what.scene == "portraits" else World.version
    known: dict[str, Any] = json.loads(json.dumps({"render": asdict(what), "world": version}))
    return known


def render(what: Render, cache: Path, *, processes: int | None = None) -> Path:
    """Render into `cache / what.name` unless it is already complete; returns that folder.

    The folder has images.npy (f, h, w, 3) uint8 RGB, boxes.npy (f, m, 4) float32 x1 y1 x2 y2, classes.npy (f, m)
    int8, complexity.npy (f,) float32, masks.npy (f, h, w) uint8 if `Render.masked`, and, once complete, facts.json.
    With `shapes`, masks.npy has the number of the object of each pixel, its row + 1, and keypoints.npy (f, m, 17, 3)
    float32 its x, y, v.

    Raises:
        SinkError: the disk is full, or the folder cannot be written.
    """
    if (folder := complete(what, cache)) is not None:
        return folder
    try:
        return _render(what, cache, processes)
    except OSError as error:
        shutil.rmtree(cache / what.name, ignore_errors=True)
        raise SinkError(
            f"{what.count} frames cannot be rendered into {cache / what.name}: {error.strerror or error}",
            remedy="free some space, or choose another --cache",
        ) from error


def _render(what: Render, cache: Path, processes: int | None) -> Path:
    target = cache / what.name
    facts = target / "facts.json"
    target.mkdir(parents=True, exist_ok=True)
    facts.unlink(missing_ok=True)
    width, height = what.size
    shapes: dict[str, tuple[tuple[int, ...], type]] = {
        "images": ((height, width, 3), np.uint8),
        "boxes": ((what.objects, 4), np.float32),
        "classes": ((what.objects,), np.int8),
        "complexity": ((), np.float32),
    }
    if what.masked:
        shapes["masks"] = ((height, width), np.uint8)
    if what.shapes:
        shapes["keypoints"] = ((what.objects, len(COCO_KEYPOINTS), 3), np.float32)
    for name, (shape, dtype) in shapes.items():
        path = target / f"{name}.npy"
        open_memmap(path, "w+", dtype, (what.count, *shape)).flush()
        with path.open("r+b") as file:  # a full disk raises here; in a memory map it would crash
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    jobs = [(what, target, world) for world in range(what.worlds)]
    if processes == 1:
        for job in jobs:
            _render_world(*job)
    else:
        # A training that runs at the same time has priority.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, spawn, initializer=os.nice, initargs=(10,)) as pool:
            list(pool.map(_render_world, *zip(*jobs, strict=True)))
    partial = target / "facts.partial"
    partial.write_text(json.dumps({**_identity(what), "names": what.world(0).names}))
    partial.replace(facts)
    return target


def _render_world(what: Render, target: Path, number: int) -> None:
    """Render the frames of one world into its rows."""
    world = what.world(number)
    rows = {path.stem: np.load(path, mmap_mode="r+") for path in target.glob("*.npy")}
    indices = np.random.default_rng(what.seed + number).choice(LENGTH, what.frames, replace=False)
    for row, index in enumerate(sorted(indices), start=number * what.frames):
        snapshot = world[int(index)]
        truth = snapshot.truth
        # The most visible first, in case there are more objects than rows.
        order = np.argsort(-truth.visibility, kind="stable")[: what.objects]
        rows["images"][row] = snapshot.image
        rows["boxes"][row, : len(order)] = truth.boxes[order]
        rows["classes"][row] = NONE
        rows["classes"][row, : len(order)] = np.where(truth.ignored, IGNORED, truth.class_id)[order]
        rows["complexity"][row] = truth.complexity
        if what.shapes:
            numbers = np.zeros(len(truth.boxes) + 1, np.uint8)
            numbers[order + 1] = np.arange(1, len(order) + 1)
            rows["masks"][row] = numbers[truth.instances]
            rows["keypoints"][row, : len(order)] = truth.keypoints[order]
        elif "masks" in rows:
            rows["masks"][row] = truth.class_mask


def main() -> None:
    """The command line."""
    from training.recipe import RECIPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=RECIPES)
    parser.add_argument("--cache", type=Path, default=Path("runs/train/frames"))
    parser.add_argument("--processes", type=count, help="default: one per core")
    options = parser.parse_args()
    # The first rendering of each recipe, then the second of each, and so on: trainings can start with the first.
    parts = zip_longest(*(RECIPES[name].everything for name in options.names))
    for what in dict.fromkeys(what for part in parts for what in part if what is not None):
        begin = time.monotonic()
        folder = render(what, options.cache, processes=options.processes)
        seconds = time.monotonic() - begin
        print(f"{folder}: {what.count} frames in {seconds:.1f} s, {what.count / seconds:.0f} per second", flush=True)


if __name__ == "__main__":
    run(main)
