"""The results of a comparison as data."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The requested precision."""
    precision: str = ""
    """The precision that ran."""
    checks: list[Check] = field(default_factory=list)
    """Each stage alone, on the reference's input of that stage."""
    steps: list[Check] = field(default_factory=list)
    """Boxes when the reference's stages are replaced by ours one after the other."""
    absent: str = ""
    """Why it did not run on this machine; empty if it did."""
    peer: list[Check] = field(default_factory=list)
    """Each stage against ultralytics."""

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in (*self.checks, *self.steps))

    def same_as(self, other: EngineResult) -> bool:
        """Whether two requested precisions resolved to the same result."""
        mine, others = ((one.name, one.device, one.precision, one.absent) for one in (self, other))
        return mine == others

    @property
    def starts(self) -> str:
        """A sentence on where differences start, or where they exceed the limits."""
        first = next((check for check in self.steps if check.verdict in ("within", "outside")), None)
        wrong = next((check for check in (*self.checks, *self.steps) if check.verdict == "outside"), None)
        if wrong is not None:
            return f"outside the limits from {wrong.stage} on: {wrong.found}"
        if first is None:
            return "no difference beyond rounding at any stage"
        return f"the first difference is at {first.stage}, within the limits: {first.found}"


@dataclass
class Findings:
    """The comparison of every engine with the reference."""

    model: str
    layout: str
    video: str
    size: tuple[int, int]
    """Width and height of the frames."""
    input: tuple[int, int]
    """Width and height of the model input."""
    frames: Sequence[tuple[str, int, float | None]]
    """Source, index and seconds of each; the index counts from where reading began."""
    boxes: int
    """Number of boxes of the reference in all frames."""
    selection: Selection
    pixels: list[Check]
    """Decoding and colour: the same for every engine."""
    engines: list[EngineResult]
    peer: str = ""
    """Name and version of the other implementation, or why a requested one was not compared."""
    image: NDArray[np.uint8] | None = field(default=None, repr=False)
    """(height, width, 3) RGB: the first frame."""
    shown: tuple[Boxes, Boxes] | None = field(default=None, repr=False)
    """Its boxes: of the reference, and of the first engine's whole pipeline."""

    @property
    def ok(self) -> bool:
        """Whether at least one engine ran, and no stage of any that ran is outside its limits."""
        ran = [engine for engine in self.engines if not engine.absent]
        checks = [*self.pixels, *(check for engine in ran for check in (*engine.checks, *engine.steps, *engine.peer))]
        return bool(ran) and worst(check.verdict for check in checks) != "outside"
