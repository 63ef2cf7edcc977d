"""World: a seeded scene. `world[i]` renders frame i with its exact ground truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from framefuse.world.address import WorldSpec
from framefuse.world.living import BODY_PARTS
from framefuse.world.render import Stage, render
from framefuse.world.traffic import NAMES
from framefuse.world.truth import Snapshot


@dataclass(frozen=True)
class World(WorldSpec):
    """A seeded scene with exact ground truth. Frames can be rendered in any order: same index, same bytes.

    The scene does not depend on the resolution: at another size of the same aspect ratio, the same objects are at the
    same positions.

    Args:
        scene: "street": ten classes of moving objects; "bodies": people close to the camera, by body part.
        frames: length. The complexity schedule (calm, crowded, calm) spans it, or repeats about every 40 s.
        size: (width, height) of the image in pixels.
        split: "train", "val" and "test" share no texture, shape parameter, colour or schedule.
        complexity: fixed 0..1 instead of the schedule.
        far: how many times as far away the camera is. Everything is smaller and slower by it, and the image shows
            more of the ground. Scene "street" only.
        density: how many times as many objects are there. Scene "street" only.
        pace: how many times as fast objects move. Scene "street" only.
        schedule: "cycle", or "day": a camera that stands still and mostly sees nothing, with short crowded bursts and a
            few objects after each. Scene "street" only.
        stereo: "sbs": left and right eye side by side in one image, each half as wide. Scene "bodies" only.

    Raises:
        UsageError: a value has the wrong type or is out of range.
    """

    version: ClassVar[int] = 5
    """Version of appearance and difficulty. Scores are comparable only within one version."""

    @property
    def names(self) -> dict[int, str]:
        """Class names: of `class_id` in the scene "street"; of `class_mask` in "bodies", where 0 is the background."""
        return dict(enumerate(NAMES if self.scene == "street" else BODY_PARTS))

    @property
    def object_names(self) -> dict[int, str]:
        """Names of `class_id`, the classes of boxes."""
        return dict(enumerate(NAMES if self.scene == "street" else NAMES[:1]))

    def __len__(self) -> int:
        return self.frames

    def __iter__(self) -> Iterator[Snapshot]:
        return (self[index] for index in range(self.frames))

    def __getitem__(self, index: int) -> Snapshot:
        """Frame `index`, from 0; negative indices count from the end.

        Raises:
            IndexError: there is no such frame.
        """
        number = index + self.frames if index < 0 else index
        if not 0 <= number < self.frames:
            raise IndexError(f"frame {index} of a world of {self.frames}")
        return render(self._stage, number)

    @cached_property
    def _stage(self) -> Stage:
        return Stage(self)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_stage"}
