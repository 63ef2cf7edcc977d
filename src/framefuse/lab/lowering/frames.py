"""Frames to lower a model with, from any source, through the model's own preprocessing.

Half of them calibrate and the other half measure accuracy, so that no model is scored on frames that it was fitted to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.lab.evaluation.dataset import Dataset, Key, Labels
from framefuse.models.card import Card
from framefuse.prediction import FrameInfo
from framefuse.runtime.calibration import ATTEMPTS, Picker, inspect, stride
from framefuse.sources import Source, SourceInfo, SourceOptions, open_source
from framefuse.sources.pull import Frames, PullSource


@dataclass(frozen=True)
class Footage:
    """Frames of a source: model inputs to calibrate with, and the keys of other frames to measure accuracy on."""

    uri: str
    inputs: Sequence[NDArray[Any]]
    """(batch, 3, h, w) each."""
    data: Dataset
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
    info = inspect(source)
    if info.live and judges:
        raise UsageError(
            f"{info.uri} is live, so it cannot show both models the same frames",
            remedy="record a clip and calibrate with that, or pass labelled images (--data)",
        )
    step = stride(info, 2 * count)
    data = _reopenable(source, info, step)
    keys: list[Key] = []
    reader = open_source(source, SourceOptions(vid_stride=step, reconnect=ATTEMPTS))
    picker = Picker(card)
    inputs = picker.collect(reader, info.uri, count, lambda frame: keys.append(_key(FrameInfo.of(frame))))
    return Footage(info.uri, inputs, replace(data, keys=keys), picker.note(len(inputs)))


def read_data(data: Dataset, card: Card, count: int) -> Footage:
    """The same from data with known ground truth; calibration images are excluded from those that measure accuracy."""
    chosen = list(data.spread(min(count, max(1, len(data) // 2))))
    picker = Picker(card)
    inputs = picker.collect(data.open(chosen), data.uri, len(chosen))
    used = set(chosen)
    rest = replace(data, keys=[key for key in data.keys if key not in used])
    return Footage(data.uri, inputs, rest, picker.note(len(inputs)))


def _key(frame: FrameInfo) -> str:
    return f"{frame.source_id}#{frame.index}"


def _reopenable(source: Any, info: SourceInfo, stride: int) -> Dataset:
    def only(keys: Sequence[Key]) -> Source:
        inner, wanted = open_source(source, SourceOptions(vid_stride=stride, reconnect=ATTEMPTS)), set(keys)

        def frames(closed: threading.Event) -> Frames:
            left = len(wanted)
            for frame in inner:
                if _key(FrameInfo.of(frame)) in wanted:
                    left -= 1
                    yield frame
                    if not left:
                        return
                elif frame.lease is not None:
                    frame.lease.release()

        facts = SourceInfo(**{**vars(inner.info), "frames": len(keys)})
        return PullSource(facts, frames, release=inner.close, interrupt=inner.close)

    return Dataset(info.uri, {}, (), only, _key, _no_labels)


def _no_labels(key: Key) -> Labels:
    raise UsageError(f"the truth of {key} is not known")


def noise(card: Card) -> Iterator[NDArray[Any]]:
    """Two inputs of uniform noise, for checks that only depend on the magnitude of values."""
    spec, random = card.preprocess, np.random.default_rng(0)
    shape = (card.batch, 3, spec.height, spec.width)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (spec.mean, spec.std))
    for _ in range(2):
        yield ((random.uniform(0, 255, shape) - mean) / std).astype(card.input_dtype)


__all__ = ["Footage", "noise", "read_data", "read_footage"]
