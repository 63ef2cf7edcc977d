"""Model inputs from the frames of a source, for engines and tools that calibrate on them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import counted
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.models.card import Card
from framefuse.sources import Source, SourceOptions, open_spread

ATTEMPTS = 3
"""Attempts to connect to a camera. Few, because a user is waiting for the model."""
FEWEST = 8
"""Minimum number of different frames: percentiles of activations over fewer describe only those frames."""
FLAT = 4.0
"""A frame whose grey levels span less than this is blank."""


def read_inputs(source: Any, card: Card, count: int, options: SourceOptions) -> list[NDArray[Any]]:
    """About `count` different model inputs (batch, 3, height, width), evenly spread over a source that is read with
    these options.

    Raises:
        UsageError: too few frames are left without blank and identical ones.
        SourceError: the source cannot be read.
    """
    return Picker(card).collect(open_spread(source, count, replace(options, reconnect=ATTEMPTS)), count)


class Picker:
    """Turns frames into model inputs; skips blank frames and frames identical to an earlier one."""

    def __init__(self, card: Card) -> None:
        self._spec = replace(card.preprocess, rectangular=card.preprocess.rectangular and card.dynamic_size)
        self._shape = (card.batch, 3)
        self._dtype = np.dtype(card.input_dtype)
        self._seen: set[bytes] = set()
        self.flat = self.same = self.total = 0

    def collect(self, reader: Source, count: int) -> list[NDArray[Any]]:
        """Up to `count` model inputs from a source, which is closed afterwards.

        Raises:
            UsageError: too few frames are left without blank and identical ones.
            SourceError: the source cannot be read.
        """
        inputs: list[NDArray[Any]] = []
        try:
            for frame in reader:
                if (values := self.take(frame)) is not None:
                    inputs.append(values)
                if frame.lease is not None:
                    frame.lease.release()
                if len(inputs) >= count:
                    break
        finally:
            reader.close()
        self.check(reader.info.uri, len(inputs))
        return inputs

    def take(self, frame: Frame) -> NDArray[Any] | None:
        """The model input (batch, 3, height, width) with the frame in every row; None if the frame is skipped."""
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
        remedy = f"use a source with at least {FEWEST} different frames, like those the model will see"
        if self.total and self.flat == self.total:
            raise UsageError(f"all {self.total} frames of {source} are black or a single colour", remedy=remedy)
        if self.total and self.same and taken <= 1:
            raise UsageError(f"all {self.total} frames of {source} are identical", remedy=remedy)
        raise UsageError(f"{source} is not enough to calibrate with: {self.note(taken)}", remedy=remedy)

    def note(self, taken: int) -> str:
        skipped = [f"{n} {what}" for n, what in ((self.flat, "blank"), (self.same, "identical")) if n]
        return counted(taken, "frame") + (f"; skipped: {', '.join(skipped)}" if skipped else "")
