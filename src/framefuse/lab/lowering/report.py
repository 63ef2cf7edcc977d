"""Report of a lowering: the precision of each layer, and the change in size, accuracy and speed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TARGET_SPEEDUP = 1.5
"""Expected speed-up of INT8 over FP32 on the CPU; the summary says if it is missed."""
TARGET_SIZE = 3.1


@dataclass(frozen=True)
class LayerReport:
    """One layer with weights."""

    name: str
    kind: str
    precision: str
    """int8, fp16 or fp32."""
    why: str
    error: float | None = None
    """RMS noise / signal in the head's outputs if only this layer is INT8; None: not measured."""


@dataclass(frozen=True)
class Accuracy:
    """Scores of the FP32 and the lowered model on the same frames, in points (100 is perfect)."""

    measure: str
    data: str
    truth: str
    """Origin of the ground truth: labels, or the detections of the FP32 model."""
    frames: int
    fp32: float
    lowered: float

    @property
    def loss(self) -> float:
        return self.fp32 - self.lowered


@dataclass(frozen=True)
class BuildReport:
    source: Path
    output: Path
    precision: str
    inputs: str
    outputs: str
    """Names and types, the same as before."""
    calibration: str
    layers: Sequence[LayerReport]
    islands: Mapping[str, int]
    """FP16 only: reason why nodes stay in FP32 -> number of nodes."""
    bytes_before: int
    bytes_after: int
    accuracy: Accuracy | None
    speed_ms: Mapping[str, float]
    """Milliseconds per frame on one CPU core in OpenVINO: fp32, auto (the FP32 file's default precision), lowered."""
    notes: Sequence[str]

    @property
    def smaller(self) -> float:
        return self.bytes_before / self.bytes_after

    @property
    def speedup(self) -> float | None:
        """Relative to the same model in FP32."""
        return self.speed_ms["fp32"] / self.speed_ms["lowered"] if self.speed_ms else None

    def to_json(self) -> str:
        content = asdict(self) | {"smaller": self.smaller, "speedup": self.speedup}
        if self.accuracy:
            content["accuracy"]["loss"] = self.accuracy.loss
        return json.dumps(content, indent=2, default=str)

    def summary(self) -> str:
        """The report as a few lines of text."""
        counts = Counter(layer.precision for layer in self.layers)
        lines = [
            f"{self.output}",
            f"layers    {', '.join(f'{count} {name}' for name, count in counts.items())}; {self.calibration}",
            f"types     {self.inputs} -> {self.outputs}",
            f"size      {self.bytes_before / 1e6:.2f} -> {self.bytes_after / 1e6:.2f} MB, {self.smaller:.2f}x smaller"
            + _short_of(self.smaller, TARGET_SIZE, self.precision),
        ]
        if self.accuracy:
            found = self.accuracy
            lines.append(
                f"accuracy  {found.measure} {found.fp32:.2f} -> {found.lowered:.2f}, {found.loss:+.2f} points lost, "
                f"on {found.frames} frames of {found.data}; truth: {found.truth}"
            )
        else:
            lines.append("accuracy  not measured: no frames (--calib SOURCE or --data DATA)")
        if self.speedup:
            fp32, auto, lowered = (self.speed_ms[name] for name in ("fp32", "auto", "lowered"))
            lines.append(
                f"speed     {fp32:.1f} ms a frame in fp32, {auto:.1f} by default, {lowered:.1f} now: "
                f"{self.speedup:.2f}x fp32, {auto / lowered:.2f}x default"
                + _short_of(self.speedup, TARGET_SPEEDUP, self.precision)
            )
        return "\n".join([*lines, *(f"note      {note}" for note in self.notes)])


def _short_of(reached: float, target: float, precision: str) -> str:
    return f" (less than the {target:g}x that INT8 should give)" if precision == "int8" and reached < target else ""


__all__ = ["TARGET_SIZE", "TARGET_SPEEDUP", "Accuracy", "BuildReport", "LayerReport"]
