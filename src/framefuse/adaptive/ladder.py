"""Ladder: the models, sizes and precisions that are worth using on one machine, the cheapest first.

`framefuse profile` measures candidates and writes ladder.json, which a run takes in place of a model: `choose` gives
the best rung whose time leaves room for the frame rate. Pure, except for reading the file.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from framefuse.errors import ConfigError

SCHEMA = 1
LOSS = 0.01
"""Score that a precision may lose against another one of the same model and size."""
GAIN = 0.1
"""Share of the time that a rung must save to be worth it."""
MOST = 6
"""Rungs of a ladder."""
ROOM = 0.8
"""Share of a frame's time that the model may take; decoding and outputs take the rest."""
SKIPPING = 0.25
"""Share of the frames that adaptive compute infers if it must: a better model on so few of them, with interpolation
between, finds more than a smaller one on every frame (docs/results/adaptive.md)."""


@dataclass(frozen=True)
class Rung:
    """A model at a size and a precision, as measured from decoded frames to objects, one frame at a time."""

    model: str
    size: int
    """`imgsz`: the longer side of the model input."""
    engine: str
    precision: str
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    """CPU time of all threads a frame."""
    joules: float | None
    """Energy a frame; None: not measured."""
    memory_mb: float
    """Memory that the process gained when the model was opened and ran first."""
    switch_ms: float
    """How much longer the first frame after other rungs takes."""
    score: float
    """0..1: mAP50-95 where the truth is known, else the agreement with the best rung."""
    agreement: float
    """0..1: share of the best rung's objects, weighted by confidence, that are found alike."""
    f1: float
    """0..1: of its boxes against those of the best rung, at IoU 0.5."""
    confidence: float
    """Median ratio of its confidences to those of the best rung: trackers have thresholds."""
    verdict: str = ""
    """Why it is no rung of the ladder; empty: it is one."""

    @property
    def name(self) -> str:
        return f"{Path(self.model).stem} {self.size} {self.precision}"


@dataclass(frozen=True)
class Ladder:
    """What was measured, and on what. At least one rung is kept."""

    rungs: tuple[Rung, ...]
    """The cheapest first, with those that were not kept."""
    measure: Literal["mAP50-95", "agreement"]
    """What `score` is."""
    data: str
    frames: int
    machine: str
    """Name of the GPU or CPU."""
    version: str
    device: str = "cpu"

    @property
    def kept(self) -> list[Rung]:
        return [rung for rung in self.rungs if not rung.verdict]

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"


def read_ladder(path: Path) -> Ladder:
    """Read a ladder.json.

    Raises:
        ConfigError: the file cannot be read, or is not a ladder of this version.
    """
    again = "write it with framefuse profile MODEL... --out FILE"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise ValueError("it has another schema")
        ladder = Ladder(**{**content, "rungs": tuple(Rung(**rung) for rung in content["rungs"])})
        if not ladder.kept or any(not 0 < rung.p50_ms <= rung.p95_ms for rung in ladder.rungs):
            raise ValueError("no rung of it has a time and is kept")
    except OSError as error:
        raise ConfigError(f"cannot read the ladder {path}: {error.strerror}", remedy=again) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a ladder: {error}", remedy=again) from error
    return ladder


def judged(rungs: Sequence[Rung]) -> tuple[Rung, ...]:
    """The rungs, the cheapest first, with verdicts: what remains has the best score that its time can buy."""
    found = sorted(rungs, key=lambda rung: (rung.p50_ms, -rung.score))
    verdicts = {rung: _refused(rung, found) for rung in found}
    kept: list[Rung] = []
    for rung in (one for one in found if not verdicts[one]):
        if kept and rung.score <= kept[-1].score:
            verdicts[rung] = f"{kept[-1].name} is as good and takes {kept[-1].p50_ms:.3g} ms"
        else:
            kept.append(rung)
    chain = kept[-1:]
    for rung in reversed(kept[:-1]):
        if rung.p50_ms > (1 - GAIN) * chain[0].p50_ms:
            verdicts[rung] = f"{chain[0].name} takes hardly longer and is better"
        else:
            chain.insert(0, rung)
    while len(chain) > MOST:
        close = min(range(1, len(chain) - 1), key=lambda number: chain[number + 1].p50_ms / chain[number].p50_ms)
        verdicts[chain.pop(close)] = f"{MOST} rungs are enough, and it is close to the next one"
    return tuple(replace(rung, verdict=verdicts[rung]) for rung in found)


def _refused(rung: Rung, others: Sequence[Rung]) -> str:
    """Why a precision is not worth its loss; empty: it is, or it is the best of its model and size."""
    best = max((one for one in others if (one.model, one.size) == (rung.model, rung.size)), key=lambda one: one.score)
    if rung.score < best.score - LOSS:
        return f"it loses {100 * (best.score - rung.score):.1f} points to {best.precision}"
    if rung is not best and rung.p50_ms > (1 - GAIN) * best.p50_ms:
        return f"it saves less than {GAIN:.0%} of the time of {best.precision}"
    return ""


def choose(ladder: Ladder, fps: float | None, *, adaptive: bool = False) -> tuple[Rung, str]:
    """The best rung that keeps up with so many frames per second, and why; None: any rate.

    Args:
        adaptive: frames may be skipped, so the model need not see all of them.
    """
    kept, share = ladder.kept, SKIPPING if adaptive else 1.0
    best = kept[-1]
    if fps is None:
        return best, f"rung {best.name}, the best one, as no target_fps limits its time"
    budget = 1000 * ROOM / fps
    fitting = [rung for rung in kept if rung.p95_ms * share <= budget]
    rung = fitting[-1] if fitting else kept[0]
    part = f" on {SKIPPING:.0%} of the frames" if adaptive else ""
    why = f"rung {rung.name}: {rung.p95_ms:.3g} ms{part} for {fps:g} frames/s, which leave {budget:.3g} ms"
    if not fitting:
        return rung, f"{why}: the cheapest, and too slow"
    return rung, why if rung is best else f"{why}; {kept[kept.index(rung) + 1].name} is too slow"
