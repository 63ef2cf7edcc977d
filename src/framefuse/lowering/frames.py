"""Frames to lower a model with: half of them calibrate, the other half judge, so that nothing is judged by what it was
fitted to. They come from any source, through the model's own preprocessing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.evaluation.data import Dataset, Key, Labels
from framefuse.frame import Frame
from framefuse.models.card import Card
from framefuse.prediction import FrameInfo
from framefuse.sources import Source, SourceInfo, SourceOptions, open_source
from framefuse.sources.pull import Frames, PullSource

LONGEST = 3000
"""Of a long source this many frames are looked at: all of a film would take as long as watching a part of it."""
ATTEMPTS = 3
"""To reach a camera: somebody waits for the model."""
FEWEST = 8
"""Percentiles of activations over fewer different pictures are those of these pictures."""
FLAT = 4.0
"""A picture whose grey levels differ by less than this shows nothing."""


@dataclass(frozen=True)
class Footage:
    """Frames of a source: model inputs to calibrate with, and the keys of others to judge by."""

    uri: str
    inputs: Sequence[NDArray[Any]]
    """(batch, 3, h, w) each."""
    data: Dataset
    """The frames to judge by. Their truth is not known: it has no labels."""
    note: str
    """How many frames were taken, and what was passed over."""


def read_footage(source: Any, card: Card, count: int, *, judges: bool = True) -> Footage:
    """About `count` different frames to calibrate with, evenly spread, and as many between them to judge by.

    Args:
        judges: the frames between will be shown again; a camera cannot do that.

    Raises:
        UsageError: too few frames, or all of them show nothing or the same; a camera that would have to judge.
        SourceError: the source cannot be read.
    """
    opened = open_source(source, SourceOptions(reconnect=ATTEMPTS))
    info = opened.info
    opened.close()
    if info.live and judges:
        raise UsageError(
            f"{info.uri} is live: it cannot show both models the same frames",
            remedy="record a clip and calibrate with that, or judge by labelled pictures (--data)",
        )
    known = LONGEST if info.frames is None else min(info.frames, LONGEST)
    stride = 1 if info.live else max(1, known // (2 * count))
    data = _reopenable(source, info, stride)
    inputs, keys = [], []
    reader = open_source(source, SourceOptions(vid_stride=stride, reconnect=ATTEMPTS))
    picker = _Picker(card)
    try:
        for number, frame in enumerate(reader):
            if number % 2:
                keys.append(_key(FrameInfo.of(frame)))
            elif (values := picker.take(frame)) is not None:
                inputs.append(values)
            if frame.lease is not None:
                frame.lease.release()
            if len(inputs) >= count and len(keys) >= count:
                break
    finally:
        reader.close()
    picker.check(info.uri, len(inputs))
    return Footage(info.uri, inputs, replace(data, keys=keys), picker.note(len(inputs)))


def read_data(data: Dataset, card: Card, count: int) -> Footage:
    """The same from data whose truth is known: the pictures that calibrate are taken out of those that judge."""
    chosen = list(data.spread(min(count, max(1, len(data) // 2))))
    picker = _Picker(card)
    inputs = []
    reader = data.open(chosen)
    try:
        for frame in reader:
            if (values := picker.take(frame)) is not None:
                inputs.append(values)
            if frame.lease is not None:
                frame.lease.release()
    finally:
        reader.close()
    picker.check(data.uri, len(inputs))
    used = set(chosen)
    rest = replace(data, keys=[key for key in data.keys if key not in used])
    return Footage(data.uri, inputs, rest, picker.note(len(inputs)))


class _Picker:
    """Turns frames into model inputs; passes over those that show nothing, or what another has shown."""

    def __init__(self, card: Card) -> None:
        self._spec = replace(card.preprocess, rectangular=card.preprocess.rectangular and card.dynamic_size)
        self._shape = (card.batch, 3)
        self._dtype = np.dtype(card.input_dtype)
        self._seen: set[bytes] = set()
        self.flat = self.same = self.total = 0

    def take(self, frame: Frame) -> NDArray[Any] | None:
        """The input (batch, 3, h, w) with the frame in every row, or None."""
        self.total += 1
        placement = self._spec.place(frame.width, frame.height)
        width, height = placement.size
        values = np.empty((*self._shape, height, width), self._dtype)
        self._spec(frame, values[0], placement)
        values[1:] = values[0]
        left, top, across, down = placement.content
        shown = values[0, :, max(0, top) : top + down, max(0, left) : left + across].astype(np.float32)
        spread = (shown.max((1, 2)) - shown.min((1, 2))) * np.abs(np.array(self._spec.std, np.float32))
        if spread.max() < FLAT:
            self.flat += 1
            return None
        digest = hashlib.blake2b(values.tobytes()).digest()
        if digest in self._seen:
            self.same += 1
            return None
        self._seen.add(digest)
        return values

    def check(self, source: str, taken: int) -> None:
        if taken >= FEWEST:
            return
        remedy = f"give a source that shows at least {FEWEST} different pictures like those the model will see"
        if self.total and self.flat == self.total:
            raise UsageError(
                f"all {self.total} calibration frames of {source} are black or of one colour", remedy=remedy
            )
        if self.total and self.same and taken <= 1:
            raise UsageError(f"all {self.total} calibration frames of {source} are identical", remedy=remedy)
        raise UsageError(
            f"{source} has {taken} usable calibration frames, {FEWEST} are needed ({self.note(taken)})", remedy=remedy
        )

    def note(self, taken: int) -> str:
        passed = [f"{n} {what}" for n, what in ((self.flat, "of one colour"), (self.same, "shown before")) if n]
        return f"{taken} frames" + (f"; passed over: {', '.join(passed)}" if passed else "")


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
    """Inputs of uniform noise, for what depends on the size of values only."""
    spec, random = card.preprocess, np.random.default_rng(0)
    shape = (card.batch, 3, spec.height, spec.width)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (spec.mean, spec.std))
    for _ in range(2):
        yield ((random.uniform(0, 255, shape) - mean) / std).astype(card.input_dtype)


__all__ = ["Footage", "noise", "read_data", "read_footage"]
