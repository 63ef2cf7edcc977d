"""What was compared, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from framefuse.lab.parity.chain import Selection
from framefuse.lab.parity.compare import Boxes, Check, Verdict, worst


@dataclass
class EngineResult:
    """One engine in one precision."""

    name: str
    device: str
    asked: str
    """Precision that was asked for."""
    precision: str = ""
    """What ran."""
    checks: list[Check] = field(default_factory=list)
    """Each stage alone, on the reference's input of that stage."""
    steps: list[Check] = field(default_factory=list)
    """Boxes when the reference's stages are replaced by ours one after the other."""
    absent: str = ""
    """Why it was not run here; empty where it was."""
    peer: list[Check] = field(default_factory=list)
    """Each stage against ultralytics."""

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in (*self.checks, *self.steps))

    def same_as(self, other: EngineResult) -> bool:
        """Whether two precisions that were asked for came to the same."""
        mine, others = ((one.name, one.device, one.precision, one.absent) for one in (self, other))
        return mine == others

    @property
    def starts(self) -> str:
        """Where a difference starts, and where it becomes too large, in one sentence."""
        first = next((check for check in self.steps if check.verdict in ("within", "outside")), None)
        wrong = next((check for check in (*self.checks, *self.steps) if check.verdict == "outside"), None)
        if wrong is not None:
            return f"outside the limits from {wrong.stage} on: {wrong.found}"
        if first is None:
            return "no difference beyond rounding at any stage"
        return f"the first difference comes with {first.stage}, within the limits: {first.found}"


@dataclass
class Findings:
    """What was compared, and what came of it."""

    model: str
    layout: str
    video: str
    size: tuple[int, int]
    """Width and height of the images."""
    input: tuple[int, int]
    """Width and height of the model's input."""
    frames: int
    boxes: int
    """That the reference found in all frames."""
    selection: Selection
    pixels: list[Check]
    """Decoding and colour: the same for every engine."""
    engines: list[EngineResult]
    peer: str = ""
    """Name and version of the other implementation; why there is none, where one was asked for."""
    image: NDArray[np.uint8] | None = field(default=None, repr=False)
    """(height, width, 3) RGB: the first frame."""
    shown: tuple[Boxes, Boxes] | None = field(default=None, repr=False)
    """On it: boxes of the reference, and of the first engine's whole pipeline."""

    @property
    def ok(self) -> bool:
        """No stage of any engine that ran is outside its limits, and one ran at least."""
        ran = [engine for engine in self.engines if not engine.absent]
        checks = [*self.pixels, *(check for engine in ran for check in (*engine.checks, *engine.steps, *engine.peer))]
        return bool(ran) and worst(check.verdict for check in checks) != "outside"


__all__ = ["EngineResult", "Findings"]
