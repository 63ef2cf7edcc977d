"""Ladder: the few ways of running a model that are worth having on a device, the best one first.

A rung is a model at an input size and a precision. Its cost was measured on this device, and its loss on data: by how
much it differs from the best rung.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.files import file_hash
from framefuse.errors import ConfigError
from framefuse.preprocess import Preprocess

FORMAT = 1
EXPECTED = (-0.004, 0.856, 0.408, 0.259, 0.01, 0.041)
"""Loss of a frame between two others, by the signs of `Bridge`: least squares over the validation clips of
benchmarks/adaptive.py."""


@dataclass(frozen=True)
class Rung:
    """A model, its input size and its precision."""

    model: str
    """Path of the ONNX file, or name of a shipped model."""
    imgsz: int
    """Longer side of the model input in pixels."""
    precision: str
    seconds: float = 1.0
    """For a row of a batch, with all requests of the engine busy."""
    loss: float = 0.0
    """Disagreement with the best rung, per object."""

    def preprocess(self, best: Preprocess) -> Preprocess:
        """Its preprocessing: that of the best rung at another size of the same proportions."""
        share = self.imgsz / max(best.width, best.height)
        return replace(best, width=round(best.width * share), height=round(best.height * share))


@dataclass(frozen=True)
class Ladder:
    """Rungs of falling cost and rising loss."""

    rungs: tuple[Rung, ...]
    weights: NDArray[Any] = field(default_factory=lambda: np.array(EXPECTED))
    """(6,) see EXPECTED."""

    def cost(self, number: int) -> float:
        """Of a frame, in frames of the best rung."""
        return self.rungs[number].seconds / self.rungs[0].seconds

    def expect(self, signs: NDArray[Any]) -> float:
        """Objects that a frame between two others loses, as a share of all of it."""
        return max(0.0, float(signs @ self.weights))

    @classmethod
    def single(cls, model: Path, preprocess: Preprocess, precision: str = "") -> Ladder:
        """The ladder of a model that was not profiled: it has one rung, so only frames can be skipped."""
        return cls((Rung(str(model), max(preprocess.width, preprocess.height), precision),))

    def measured(self, seconds: float) -> Ladder:
        """The ladder with the time of its first rung."""
        return replace(self, rungs=(replace(self.rungs[0], seconds=seconds), *self.rungs[1:]))

    def save(self, path: Path, device: str, data: str) -> None:
        """Write it as JSON; `device` and `data` say what it was measured on."""
        rungs = [{**asdict(rung), "sha256": file_hash(Path(rung.model))} for rung in self.rungs]
        facts = {"ladder": FORMAT, "device": device, "data": data, "rungs": rungs, "weights": self.weights.tolist()}
        path.write_text(json.dumps(facts, indent=2) + "\n")


def load_ladder(path: Path, model: Path, device: str) -> Ladder:
    """Read a ladder of `framefuse profile`.

    Args:
        model: the model that is to be run: that of the best rung.
        device: this device, as it was named for `Ladder.save`.

    Raises:
        ConfigError: it cannot be read or has no rungs, it is of another device or model, or a model has changed.
    """
    again = f"run framefuse profile {model.name} --ladder {path}"
    try:
        facts = json.loads(path.read_bytes())
        assert facts["ladder"] == FORMAT
        known = {field.name for field in fields(Rung)}
        rungs = [Rung(**{name: value for name, value in row.items() if name in known}) for row in facts["rungs"]]
        weights = np.array(facts["weights"], np.float64)
        hashes = [row["sha256"] for row in facts["rungs"]]
        measured = [number for rung in rungs for number in (rung.seconds, rung.loss, rung.imgsz)]
        assert weights.shape == (len(EXPECTED),) and np.isfinite([*weights, *measured]).all()
        assert all(rung.seconds > 0 and rung.loss >= 0 and rung.imgsz > 0 for rung in rungs)
    except OSError as error:
        raise ConfigError(f"cannot read the ladder {path}: {error.strerror}", remedy=again) from error
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise ConfigError(f"{path} is not a ladder of framefuse profile", remedy=again) from error
    if not rungs:
        raise ConfigError(f"the ladder {path} has no rungs", remedy=again)
    if facts["device"] != device:
        raise ConfigError(
            f"the ladder {path} was measured on {facts['device']!r}, and this is {device!r}", remedy=again
        )
    if file_hash(model) != hashes[0]:
        raise ConfigError(f"the best rung of the ladder {path} is {rungs[0].model}, not {model.name}", remedy=again)
    for rung, expected in zip(rungs, hashes, strict=True):
        if not Path(rung.model).is_file() or file_hash(Path(rung.model)) != expected:
            raise ConfigError(f"{rung.model} has changed since the ladder {path} was measured", remedy=again)
    return Ladder(tuple(rungs), weights)
