"""Rendered frames with their ground truth in the memory of the training device.

A loader that decodes and copies would starve a GPU; 20,000 frames of 640x360 are 14 GB, so all of them fit there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from framefuse.errors import SourceError
from training.rendering import Render, complete


@dataclass(frozen=True)
class Frames:
    """Frames and their ground truth, all on one device."""

    images: Tensor
    """(f, h, w, 3) uint8 RGB."""
    boxes: Tensor
    """(f, m, 4) float32 x1 y1 x2 y2 in pixels; 0 in rows without an object."""
    classes: Tensor
    """(f, m) int64; rendering.NONE in rows without an object, rendering.IGNORED for ignored objects."""
    complexity: Tensor
    """(f,) float32 0..1."""
    masks: Tensor | None
    """(f, h, w) uint8: classes, or with `Render.shapes` object rows + 1; 0 is background. None: without masks."""
    names: dict[int, str]
    world: int
    """Version of the synthetic world."""
    keypoints: Tensor | None = None
    """(f, m, 17, 3) float32 x, y, v."""
    painted: bool = False
    """Whether they are of portraits.py, not of the synthetic world."""

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def load(cls, folder: Path, device: str | torch.device) -> Frames:
        """Read the output of `rendering.render` in chunks, so that the host never holds it twice.

        Raises:
            SourceError: the folder is incomplete or damaged.
        """
        try:
            facts = json.loads((folder / "facts.json").read_text())
        except (OSError, ValueError) as error:
            raise SourceError(f"{folder} has no complete rendering", remedy="render it again") from error
        held: dict[str, Tensor] = {}
        try:
            for path in folder.glob("*.npy"):
                stored = np.load(path, mmap_mode="r")
                dtype = torch.from_numpy(np.empty(0, stored.dtype)).dtype
                whole = torch.empty(stored.shape, dtype=dtype, device=device)
                for start in range(0, len(stored), 512):
                    whole[start : start + 512] = torch.from_numpy(np.array(stored[start : start + 512])).to(device)
                held[path.stem] = whole
            return cls(
                images=held["images"],
                boxes=held["boxes"],
                classes=held["classes"].long(),
                complexity=held["complexity"],
                masks=held.get("masks"),
                names={int(number): name for number, name in facts["names"].items()},
                world=facts["world"],
                keypoints=held.get("keypoints"),
                painted=facts["render"]["scene"] == "portraits",
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SourceError(
                f"{folder} is damaged: {type(error).__name__}: {error}", remedy="remove it and render it again"
            ) from error


class Supply:
    """The training data: all complete renderings; others join when another process completes them.

    Raises:
        SourceError: the first rendering is not complete within `patience` seconds.
    """

    def __init__(self, renders: Iterable[Render], cache: Path, device: str, *, patience: float = 0.0) -> None:
        self.waiting, self.cache, self.device = list(renders), cache, device
        self.frames: list[Frames] = []
        wait_for(self.waiting[0], cache, patience)
        self.refresh()

    def refresh(self) -> list[str]:
        """Load newly completed renderings; returns their names."""
        ready = [what for what in self.waiting if complete(what, self.cache)]
        for what in ready:
            self.frames.append(Frames.load(self.cache / what.name, self.device))
            self.waiting.remove(what)
        return [what.name for what in ready]

    def pick(self, chance: float, *, largest: bool = False, painted: bool = False) -> Frames:
        """A rendering chosen by `chance` in 0..1, weighted by number of frames; `largest`: of the largest size;
        `painted`: of painted frames, too."""
        offered = [frames for frames in self.frames if painted or not frames.painted]
        widest = max(frames.images.shape[2] for frames in offered)
        offered = [frames for frames in offered if not largest or frames.images.shape[2] == widest]
        place = chance * sum(len(frames) for frames in offered)
        for frames in offered:
            place -= len(frames)
            if place < 0:
                return frames
        return offered[-1]


def wait_for(what: Render, cache: Path, patience: float) -> Path:
    """Wait for a rendering to be complete; returns its folder.

    Raises:
        SourceError: it is not complete after `patience` seconds.
    """
    end = time.monotonic() + patience
    while (folder := complete(what, cache)) is None:
        if time.monotonic() >= end:
            raise SourceError(
                f"{cache / what.name} is not complete after {patience:.0f} s",
                remedy="render it first: python -m training.rendering NAME",
            )
        time.sleep(0.5)
    return folder
