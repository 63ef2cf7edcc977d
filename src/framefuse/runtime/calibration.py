"""Model inputs from the frames of a source, for engines and tools that calibrate on them."""

import hashlib
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import counted
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.models.card import Card
from framefuse.preprocess import Preprocess
from framefuse.sources import Source

ATTEMPTS = 3
"""Attempts to connect to a camera. Few, because a user is waiting for the model."""
FEWEST = 8
"""Minimum number of different frames: percentiles of activations over fewer describe only those frames."""
FLAT = 4.0
"""A frame whose grey levels span less than this is blank."""


def collect(reader: Source, card: Card, count: int) -> tuple[list[NDArray[Any]], str]:
    """Up to `count` model inputs (batch, 3, height, width) from a source, which is closed afterwards, without blank and
    identical frames; and how many frames were taken and how many were skipped.

    Raises:
        UsageError: too few frames are left.
        SourceError: the source cannot be read.
    """
    spec = replace(card.preprocess, rectangular=card.preprocess.rectangular and card.dynamic_size)
    inputs: list[NDArray[Any]] = []
    seen: set[bytes] = set()
    flat = same = total = 0
    with closing(reader):
        for frame in reader:
            total += 1
            values, span = _model_input(frame, spec, card)
            if span < FLAT:
                flat += 1
            elif (digest := hashlib.blake2b(values.tobytes()).digest()) in seen:
                same += 1
            else:
                seen.add(digest)
                inputs.append(values)
            if frame.lease is not None:
                frame.lease.release()
            if len(inputs) >= count:
                break
    skipped = [f"{n} {what}" for n, what in ((flat, "blank"), (same, "identical")) if n]
    note = counted(len(inputs), "frame") + (f"; skipped: {', '.join(skipped)}" if skipped else "")
    if len(inputs) < FEWEST:
        source = reader.info.uri
        message = f"{source} is not enough to calibrate with: {note}"
        if total and flat == total:
            message = f"all {total} frames of {source} are black or a single colour"
        elif same and len(inputs) <= 1:
            message = f"all {total} frames of {source} are identical"
        remedy = f"use a source with at least {FEWEST} different frames, like those the model will see"
        raise UsageError(message, remedy=remedy)
    return inputs, note


def _model_input(frame: Frame, spec: Preprocess, card: Card) -> tuple[NDArray[Any], float]:
    """The model input with the frame in every row, and the span of its grey levels."""
    placement = spec.place(frame.width, frame.height)
    width, height = placement.size
    values = np.empty((card.batch, 3, height, width), card.input_dtype)
    spec(frame, values[0], placement)
    values[1:] = values[0]
    left, top, across, down = placement.content
    shown = values[0, :, max(0, top) : top + down, max(0, left) : left + across].astype(np.float32)
    spread = (shown.max((1, 2)) - shown.min((1, 2))) * np.abs(np.array(spec.std, np.float32))
    return values, spread.max()
