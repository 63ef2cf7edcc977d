"""Model inputs from the frames of a source, for engines and tools that calibrate on them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.models.card import Card
from framefuse.sources import SourceInfo, SourceOptions, open_source

LONGEST = 3000
"""Of a long source this many frames are looked at: all of a film would take as long as watching a part of it."""
ATTEMPTS = 3
"""To reach a camera: somebody waits for the model."""
FEWEST = 8
"""Percentiles of activations over fewer different pictures are those of these pictures."""
FLAT = 4.0
"""A picture whose grey levels differ by less than this shows nothing."""


def read_inputs(source: Any, card: Card, count: int) -> list[NDArray[Any]]:
    """About `count` different model inputs (batch, 3, height, width), evenly spread over a source.

    Raises:
        UsageError: too few frames, or all of them show nothing or the same.
        SourceError: the source cannot be read.
    """
    opened = open_source(source, SourceOptions(reconnect=ATTEMPTS))
    info = opened.info
    opened.close()
    picker = Picker(card)
    inputs: list[NDArray[Any]] = []
    reader = open_source(source, SourceOptions(vid_stride=stride(info, count), reconnect=ATTEMPTS))
    try:
        for frame in reader:
            if (values := picker.take(frame)) is not None:
                inputs.append(values)
            if frame.lease is not None:
                frame.lease.release()
            if len(inputs) >= count:
                break
    finally:
        reader.close()
    picker.check(info.uri, len(inputs))
    return inputs


def stride(info: SourceInfo, count: int) -> int:
    """Frames from one that is taken to the next, so that `count` of them spread over a source."""
    known = LONGEST if info.frames is None else min(info.frames, LONGEST)
    return 1 if info.live else max(1, known // count)


class Picker:
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
