"""Merging views on a GPU: the same objects as `postprocess.merge` on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_on_cpu import on_device
from framefuse.cuda import device
from framefuse.errors import CapabilityError
from framefuse.frame import View
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes.cuda import LOOK, Merged, merge_views
from framefuse.kernels.boxes.reference import Found
from framefuse.postprocess.merge import edges, merge
from framefuse.prediction import Detections

try:
    cp = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""

SIZE = 960, 540


def objects(rng: np.random.Generator, views: list[View], most: int) -> list[Detections]:
    """What each view sees of the same objects: cut at its edges, a little moved, sometimes of another class."""
    centres, sides = rng.uniform(0, SIZE, (3 * most, 2)), rng.uniform(8, 260, (3 * most, 2))
    scene = np.concatenate((centres - sides / 2, centres + sides / 2), 1)
    labels, found = rng.integers(0, 3, len(scene)), []
    for view in views:
        x, y, width, height = view.region or (0, 0, *SIZE)
        seen = (scene + rng.uniform(-6, 6, scene.shape)).clip((x, y, x, y), (x + width, y + height) * 2)
        rows = np.flatnonzero(np.all(seen[:, 2:] - seen[:, :2] > 4, axis=1))
        rows = rng.permutation(rows)[:most]
        scores = np.sort(rng.integers(1, 64, len(rows)).astype(np.float32) / 64)[::-1]
        classes = np.where(rng.random(len(rows)) < 0.9, labels[rows], rng.integers(0, 3, len(rows)))
        found.append(Detections(seen[rows].astype(np.float32), scores, classes, {}))
    return found


def looks(frames: list[list[View]], batch: int) -> np.ndarray[Any, Any]:
    table = np.full((batch, LOOK), -1, np.int32)
    row = 0
    for frame, views in enumerate(frames):
        for number, view in enumerate(views):
            table[row] = *edges(view, SIZE), frame, number, 0
            row += 1
    return table


def padded(parts: list[Detections], batch: int, max_det: int) -> Found:
    found = Found.make(batch, max_det, lambda shape, dtype: np.full(shape, 77, dtype))
    found.counts[:] = 5  # rows without a view are not read
    for row, part in enumerate(parts):
        count = len(part)
        found.boxes[row, :count], found.scores[row, :count] = part.xyxy, part.confidence
        found.classes[row, :count], found.counts[row] = part.class_id, count
    return found


def check(to_device: Any, to_host: Any, frames: list[list[View]], most: int, seed: int, agnostic: bool) -> None:
    rng = np.random.default_rng(seed)
    parts = [objects(rng, views, most) for views in frames]
    batch, widest = sum(map(len, frames)) + 1, max(map(len, frames))
    found = padded([part for frame in parts for part in frame], batch, most + 3)
    empty = Merged.make(len(frames), most + 3, lambda shape, dtype: np.full(shape, 99, dtype))
    out = Merged(*map(to_device, empty))
    merge_views(Found(*map(to_device, found)), to_device(looks(frames, batch)), widest, agnostic=agnostic, out=out)
    merged = Merged(*map(to_host, out))
    for number, (frame, views) in enumerate(zip(parts, frames, strict=True)):
        expected = merge(frame, views, SIZE, max_det=most + 3, agnostic=agnostic)
        count = merged.counts[number]
        assert count == len(expected)
        assert merged.scores[number, :count].tolist() == expected.confidence.tolist()
        assert merged.boxes[number, :count].tolist() == expected.xyxy.tolist()
        assert merged.classes[number, :count].tolist() == expected.class_id.tolist()
        assert expected.view is not None
        assert merged.views[number, :count].tolist() == expected.view.tolist()


TILES = [View((x, y, 360, 300), f"tile {x} {y}") for y in (0, 240) for x in (0, 300, 600)]
CASES = [
    ([[View(), *TILES], [View()], TILES], 24),
    ([[View((0, 0, 480, 540)), View((480, 0, 480, 540))]] * 3, 7),
    ([[View((7, 3, 501, 477))], [View((1, 1, 13, 11)), View()]], 9),
]


@pytest.mark.usefixtures("fibres")
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize(("frames", "most"), CASES)
def test_source_on_the_cpu_against_the_host(
    monkeypatch: pytest.MonkeyPatch, frames: list[list[View]], most: int, agnostic: bool
) -> None:
    monkeypatch.setattr(boxes_cuda, "BLOCKS", 8)
    monkeypatch.setattr(boxes_cuda, "COMPARING", 2)
    monkeypatch.setattr(boxes_cuda, "COMPARED", 2)
    monkeypatch.setattr(boxes_cuda, "WRITING", 2)
    for seed in range(3):
        check(on_device, np.asarray, frames, most, seed, agnostic)


@pytest.mark.gpu
@pytest.mark.skipif(cp is None, reason=missing)
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize(("frames", "most"), [*CASES, ([[View(), *TILES] * 2], 297)])
def test_kernel_against_the_host(frames: list[list[View]], most: int, agnostic: bool) -> None:
    for seed in range(20):
        check(cp.asarray, cp.asnumpy, frames, most, seed, agnostic)
