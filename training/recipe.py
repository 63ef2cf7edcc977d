"""The recipes: all numbers that decide the outcome of a training; each is recorded with its weights."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from framefuse.errors import UsageError
from training.augment import Augmentation
from training.rendering import Render


@dataclass(frozen=True)
class Recipe:
    """How one network is trained."""

    name: str
    renders: tuple[Render, ...]
    """Training data; each batch comes from one rendering, chosen at random in proportion to its number of frames. The
    first is of the synthetic world. Portraits are seen in composed pictures only."""
    validate_on: Render
    test_on: Render
    calm: tuple[Render, Render] | None = None
    """Calm frames for validation and test, scored at full and at half size; a detector should find as much at both."""
    steps: int = 12000
    seconds: float | None = None
    """Wall-clock limit; the schedule follows whichever of steps and seconds is further along."""
    batch: int = 64
    size: tuple[int, int] = (384, 640)
    """Height and width of the canvas."""
    half: float = 0.0
    """Fraction of batches with twice as many images on canvases of half the height and width, as for inference at 320.
    They use the largest frames, because scaling down by 4 leaves more noise than scaling down by 2."""
    rate: float = 2e-3
    """Peak learning rate (AdamW); linear warm-up, then half a cosine down to FINAL of it."""
    warmup: int = 300
    decay: float = 0.05
    clip: float = 10.0
    """Largest norm of the gradient."""
    average: float = 0.9995
    """Decay per step of the exponential average of the weights, which is tested and shipped."""
    settle: float = 0.15
    """Final fraction of the schedule, which has no mosaics."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    shipped: bool = False
    """Whether it begins with the shipped weights of its name, instead of random ones."""
    seed: int = 0
    checks: int = 5
    """Number of validations during training."""
    bfloat16: bool = True

    def __post_init__(self) -> None:
        for name, wanted, right in (
            ("steps", "a whole number from 1", _whole(self.steps)),
            ("batch", "a whole number from 1", _whole(self.batch)),
            ("seconds", "a number above 0", self.seconds is None or 0 < self.seconds < math.inf),
            ("rate", "a number above 0", 0 < self.rate < math.inf),
            ("size", "two multiples of 32, as 384 640", all(_whole(side) and side % 32 == 0 for side in self.size)),
        ):
            if not right:
                raise UsageError(f"{name} is {getattr(self, name)!r}", remedy=f"--{name} takes {wanted}")

    @property
    def everything(self) -> tuple[Render, ...]:
        """All renderings, in the order in which a training needs them."""
        calm = self.calm or ()
        return (self.renders[0], self.validate_on, *calm[:1], *self.renders[1:], self.test_on, *calm[1:])

    def record(self) -> dict[str, Any]:
        """The recipe as plain values, for JSON and checkpoints."""
        return plain(asdict(self))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def plain(value: Any) -> Any:
    """Turn tuples into lists, so that a recipe equals itself after a round trip through JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


WIDE, LARGE, CLOSE = (640, 360), (1280, 720), (512, 384)
STREET = (
    Render("street", 400, 10, size=WIDE, seed=10_000, busy=True),
    Render("street", 200, 10, size=LARGE, seed=22_000),
    Render("street", 200, 10, size=LARGE, seed=24_000, complexity=0.0),
    Render("street", 800, 10, size=WIDE, seed=11_000, busy=True),
    Render("street", 250, 10, size=LARGE, seed=20_000, busy=True),
    Render("street", 800, 10, size=WIDE, seed=13_000),
    Render("street", 150, 10, size=LARGE, seed=23_000),
)
BODIES = (
    Render("bodies", 100, 10, size=WIDE, seed=30_000, busy=True),
    Render("bodies", 80, 10, size=LARGE, seed=40_000, stereo="sbs", busy=True),
    Render("portraits", 100, 20, size=CLOSE, seed=50_000),
    Render("bodies", 300, 10, size=WIDE, seed=31_000, busy=True),
    Render("bodies", 70, 10, size=LARGE, seed=41_000, stereo="sbs", busy=True),
    Render("portraits", 100, 20, size=CLOSE, seed=51_000),
)
STREET_CHECK = Render("street", 40, 5, "val", size=LARGE)
STREET_TEST = Render("street", 100, 10, "test", size=LARGE)
CALM = (
    Render("street", 120, 3, "val", size=LARGE, seed=200, complexity=0.0),
    Render("street", 120, 3, "test", size=LARGE, seed=200, complexity=0.0),
)
BODIES_CHECK = Render("bodies", 30, 3, "val", size=LARGE, stereo="sbs")
BODIES_TEST = Render("bodies", 60, 5, "test", size=LARGE, stereo="sbs")

RECIPES = {
    "scout-n": Recipe("scout-n", STREET, STREET_CHECK, STREET_TEST, CALM, half=0.5, seed=1),
    "scout-s": Recipe("scout-s", STREET, STREET_CHECK, STREET_TEST, CALM, half=0.5, rate=1.5e-3, seed=2),
    "body-n": Recipe(
        "body-n", BODIES, BODIES_CHECK, BODIES_TEST, batch=32, steps=6000, seed=3,
        augmentation=Augmentation(zoom=(0.7, 1.5), mosaic=0.0, composed=0.5),
    ),
}  # fmt: skip
