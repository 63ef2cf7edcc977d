"""WorldSpec: the parameters of a world."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from framefuse.world.chance import Split
from framefuse.world.living import BODY_PARTS
from framefuse.world.traffic import NAMES


@dataclass(frozen=True)
class WorldSpec:
    """A scene by name, seed and size; `World` describes the fields."""

    scene: str = "street"
    seed: int = 0
    frames: int = 900
    size: tuple[int, int] = (1280, 720)
    fps: Fraction = Fraction(30)
    split: Split = "train"
    complexity: float | None = None
    stereo: str = "none"
    far: float = 1.0
    density: float = 1.0
    pace: float = 1.0
    schedule: str = "cycle"

    @property
    def names(self) -> dict[int, str]:
        """Class names: of `class_id` in the scene "street"; of `class_mask` in "bodies", where 0 is the background."""
        return dict(enumerate(NAMES if self.scene == "street" else BODY_PARTS))

    @property
    def object_names(self) -> dict[int, str]:
        """Names of `class_id`, the classes of boxes."""
        return dict(enumerate(NAMES if self.scene == "street" else NAMES[:1]))

    @property
    def seconds(self) -> float:
        """Duration."""
        return float(self.frames / self.fps)
