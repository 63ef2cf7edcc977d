"""Frames to lower a model with, from any source, through the model's own preprocessing.

No model is scored on frames that it was calibrated on: every second frame of a source calibrates and the others measure
accuracy, unless those of another source do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.lab.evaluation.dataset import Dataset, Key
from framefuse.models.card import Card
from framefuse.runtime.calibration import ATTEMPTS, Picker
from framefuse.sources import Source, SourceOptions, open_spread
from framefuse.sources.source import Frames, PullSource

OPTIONS = SourceOptions(reconnect=ATTEMPTS)


@dataclass(frozen=True)
class Footage:
    """Frames of a source: model inputs to calibrate with, and the keys of other frames to measure accuracy on."""

    uri: str
    inputs: Sequence[NDArray[Any]]
    """(batch, 3, h, w) each."""
    data: Dataset | None
    """The frames to measure accuracy on; it has labels only if it comes from `read_data`."""
    note: str
    """How many frames were taken and how many were skipped."""


def read_footage(source: Any, card: Card, count: int, *, judges: bool = True) -> Footage:
    """About `count` distinct, evenly spread frames to calibrate with, and as many between them to measure accuracy on.

    Args:
        judges: the frames between are needed, and read again later, which a camera cannot do.

    Raises:
        UsageError: too few frames, or all are blank or alike; a live source with `judges`.
        SourceError: the source cannot be read.
    """
    data = read_frames(source, count, first=1, step=2) if judges else None
    reader = read_frames(source, count, step=2).open(()) if judges else open_spread(source, count, OPTIONS)
    picker = Picker(card)
    inputs = picker.collect(reader, count)
    return Footage(reader.info.uri, inputs, data, picker.note(len(inputs)))


def read_data(data: Dataset, card: Card, count: int) -> Footage:
    """The same from data with known ground truth; calibration images are excluded from those that measure accuracy."""
    chosen = list(data.spread(min(count, max(1, len(data) // 2))))
    picker = Picker(card)
    inputs = picker.collect(data.open(chosen), len(chosen))
    used = set(chosen)
    rest = replace(data, keys=[key for key in data.keys if key not in used])
    return Footage(data.uri, inputs, rest, picker.note(len(inputs)))


def read_frames(source: Any, count: int, *, first: int = 0, step: int = 1) -> Dataset:
    """`count` evenly spread frames of a source: of `step * count` every `step`-th, from `first` on.

    They have no labels, and no keys until they are read: whatever keys are asked for, all frames come.

    Raises:
        UsageError: the source is live, so it cannot be read twice.
    """

    def opened(keys: Sequence[Key]) -> Source:
        inner = open_spread(source, step * count, OPTIONS)

        def frames(closed: threading.Event) -> Frames:
            yield from islice(inner, first, None, step)

        return PullSource(inner.info, frames, inner.close, inner.close)

    info = (probe := opened(())).info
    probe.close()
    if info.live:
        message = f"{info.uri} is live, so it cannot show both models the same frames"
        raise UsageError(message, remedy="record a clip and use that, or pass labelled images (--data)")
    return Dataset(info.uri, {}, (), opened, lambda frame: (frame.source_id, frame.index, frame.pts), {}.__getitem__)


def variety(inputs: Sequence[NDArray[Any]]) -> float:
    """How much frames differ from one another, relative to how much the parts of a frame do.

    `median(|g - median of g over frames|) / median(|g - median of g over places|)`, with g the mean grey levels on a
    16 x 16 grid without the padding. It is near 0 for a still camera, whatever passes by, and above 1 for unrelated
    images.

    Args:
        inputs: (batch, 3, h, w) each; the first of each batch counts.
    """
    looks = []
    for values in inputs:
        grey = values[0].mean(0, dtype=np.float32)
        rows, columns = (np.linspace(0, side, 16, endpoint=False).astype(int) for side in grey.shape)
        looks.append(np.add.reduceat(np.add.reduceat(grey, rows), columns, axis=1).ravel() * (256 / grey.size))
    grid = np.stack(looks)
    grid = grid[:, np.ptp(grid, axis=0) > 0]
    within = np.median(np.abs(grid - np.median(grid, axis=1, keepdims=True))) if grid.size else 0
    return float(np.median(np.abs(grid - np.median(grid, axis=0))) / within) if within else 0.0


def noise(card: Card) -> Iterator[NDArray[Any]]:
    """Two inputs of uniform noise, for checks that only depend on the magnitude of values."""
    spec, random = card.preprocess, np.random.default_rng(0)
    shape = (card.batch, 3, spec.height, spec.width)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (spec.mean, spec.std))
    for _ in range(2):
        yield ((random.uniform(0, 255, shape) - mean) / std).astype(card.input_dtype)
