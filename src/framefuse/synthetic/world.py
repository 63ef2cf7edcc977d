"""World: a seeded scene. `world[i]` draws frame i, and says exactly what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framefuse.synthetic.chance import Split
from framefuse.synthetic.living import BODY_PARTS
from framefuse.synthetic.traffic import NAMES

IGNORED_BELOW = 0.25
"""An object of which less than this share is visible is no fair question: ground truth marks it as crowd."""
SMALLEST_SIDE = 4
"""Pixels; a visible extent below this on either side is marked as crowd too."""


@dataclass(frozen=True)
class Truth:
    """What is in one frame. Rows are objects with at least one visible pixel, those behind first."""

    boxes: NDArray[np.float32]
    """(n, 4) x1, y1, x2, y2: edges of the visible pixels' extent."""
    class_id: NDArray[np.int64]
    """(n,)"""
    track_id: NDArray[np.int64]
    """(n,) from 1; the same object has the same number in every frame, and in both eyes."""
    visibility: NDArray[np.float32]
    """(n,) visible pixels over all pixels of the object, hidden ones and those outside the picture included."""
    instances: NDArray[np.uint16]
    """(h, w): 0 background, k + 1 where row k is visible."""
    class_mask: NDArray[np.uint8]
    """(h, w): 0 background; street: class_id + 1; bodies: index into the world's `names`."""
    complexity: float
    """0 calm .. 1 crowded: how much of the scene's crowd is there."""
    disparity: NDArray[np.float32] | None = None
    """(h, w) pixels by which a point lies further left in the right eye than in the left; stereo only."""

    @property
    def ignored(self) -> NDArray[np.bool_]:
        """(n,) too hidden (visibility < 0.25) or too small (a side below 4 pixels) to be asked for."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        result: NDArray[np.bool_] = (self.visibility < IGNORED_BELOW) | (
            sides.min(axis=1, initial=np.inf) < SMALLEST_SIDE
        )
        return result


@dataclass(frozen=True)
class Snapshot:
    """One frame of a world."""

    index: int
    picture: NDArray[np.uint8]
    """(h, w, 3) RGB"""
    truth: Truth


@dataclass(frozen=True)
class World:
    """A seeded scene with exact ground truth. Any frame can be asked for, in any order: same index, same bytes.

    The scene does not depend on the resolution: at another size of the same shape the same things are at the same
    places.

    Args:
        scene: "street": ten classes of moving objects; "bodies": people close to the camera, by body part.
        frames: length. The complexity schedule (calm, crowded, calm) stretches over it, or over about 40 s of it.
        size: (width, height) of the picture in pixels.
        split: "train", "val" and "test" share no texture, no shape parameter, no colour and no schedule.
        complexity: fixed 0..1 instead of the schedule.
        stereo: "sbs": left and right eye side by side in one picture, each half as wide. Scene "bodies" only.

    Raises:
        UsageError: a value is of another kind, or outside its range.
    """

    scene: str = "street"
    seed: int = 0
    frames: int = 900
    size: tuple[int, int] = (1280, 720)
    fps: Fraction = Fraction(30)
    split: Split = "train"
    complexity: float | None = None
    stereo: str = "none"
    _drawn: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    version: ClassVar[int] = 5
    """Of look and difficulty. Scores are comparable within one version only."""

    def __post_init__(self) -> None:
        from framefuse.synthetic.address import check, numbers

        fps, size = numbers(self.fps, self.size)
        object.__setattr__(self, "fps", fps)
        object.__setattr__(self, "size", size)
        check(self)

    @classmethod
    def parse(cls, uri: str) -> World:
        """World of an address: synthetic://street?seed=7&frames=900&size=1920x1080&fps=30&split=test.

        Raises:
            UsageError: an unknown scene or key (the nearest is named), or a wrong value.
        """
        from framefuse.synthetic.address import parse

        return cls(**parse(uri))

    @property
    def names(self) -> dict[int, str]:
        """Class names: of `class_id` in the street; of `class_mask` in bodies, 0 being the background."""
        return dict(enumerate(NAMES if self.scene == "street" else BODY_PARTS))

    @property
    def object_names(self) -> dict[int, str]:
        """Names of `class_id`: what boxes are of."""
        return dict(enumerate(NAMES if self.scene == "street" else NAMES[:1]))

    @property
    def seconds(self) -> float:
        """Length."""
        return float(self.frames / self.fps)

    def __len__(self) -> int:
        return self.frames

    def __iter__(self) -> Iterator[Snapshot]:
        return (self[index] for index in range(self.frames))

    def __getitem__(self, index: int) -> Snapshot:
        """Frame `index`, from 0; negative ones count from the end.

        Raises:
            IndexError: there is no such frame.
        """
        number = index + self.frames if index < 0 else index
        if not 0 <= number < self.frames:
            raise IndexError(f"frame {index} of a world of {self.frames}")
        from framefuse.synthetic.render import render

        if not self._drawn:
            from framefuse.synthetic.render import Stage

            self._drawn["stage"] = Stage(self)
        return render(self._drawn["stage"], number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": {}}
