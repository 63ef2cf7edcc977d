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
ONE_SCENE, FEW_BOXES, FEW_CLASSES = 0.5, 50, 2
"""A calibration is narrow if its frames have less variety, fewer boxes, or fewer classes of a model that knows more."""


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
class Seen:
    """What the frames of an INT8 calibration show, as the FP32 model sees them."""

    source: str
    frames: int
    variety: float
    """How much the frames differ from one another, relative to how much the parts of a frame do."""
    boxes: int | None
    """None: the model is a segmenter."""
    classes: Sequence[str]
    """Names of those found."""
    known: int
    """Number of classes of the model."""

    @property
    def narrow(self) -> bool:
        few = self.boxes is not None and self.boxes < FEW_BOXES
        return few or self.variety < ONE_SCENE or len(self.classes) < min(FEW_CLASSES, self.known)

    def __str__(self) -> str:
        name = self.source if "://" in self.source else Path(self.source).name
        names = ", ".join([*self.classes[:5], *["..."][: len(self.classes) - 5]])
        return self._in(f" in {name}" if self.variety < ONE_SCENE else name) + (f" ({names})" if names else "")

    def warning(self, accuracy: Accuracy) -> str:
        same = ", and the accuracy above does not show it: other frames of the same source are judged"
        return (
            f"the calibration is narrow, {self._in('' if self.variety < ONE_SCENE else 'several scenes')}. INT8 may "
            f"lose more on anything else{same if accuracy.data == self.source else ''}. Calibrate on all the scenes, "
            "light and objects that the model will see (--calib takes a folder of videos, too), and judge it on other "
            "footage (--judge SOURCE, or --data with labels)"
        )

    def _in(self, where: str) -> str:
        scene = f"one scene{where}" if self.variety < ONE_SCENE else where
        boxes = "" if self.boxes is None else f"{self.boxes} box{'' if self.boxes == 1 else 'es'} of "
        return f"{self.frames} frames of {scene} with {boxes}{len(self.classes)} of {self.known} classes"


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
    seen: Seen | None
    """INT8 only: what it was calibrated on."""
    warnings: Sequence[str]

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
            f"layers    {', '.join(f'{count} {name}' for name, count in counts.items())}",
            f"frames    {self.calibration}",
            f"types     {self.inputs} -> {self.outputs}",
            f"size      {self.bytes_before / 1e6:.2f} -> {self.bytes_after / 1e6:.2f} MB, {self.smaller:.2f}x smaller"
            + _short_of(self.smaller, TARGET_SIZE, self.precision),
        ]
        if self.accuracy:
            found = self.accuracy
            other = "other " if self.seen and self.seen.source == found.data else ""
            lines.append(
                f"accuracy  {found.measure} {found.fp32:.2f} -> {found.lowered:.2f}, {found.loss:+.2f} points lost, "
                f"on {found.frames} {other}frames of {found.data}; truth: {found.truth}"
            )
        else:
            lines.append("accuracy  not measured: no frames (--calib SOURCE or --data DATA)")
        if self.speedup:
            fp32, auto, lowered = (self.speed_ms[name] for name in ("fp32", "auto", "lowered"))
            lines.append(
                f"speed     {fp32:.1f} ms per frame in fp32, {auto:.1f} by default, {lowered:.1f} now: "
                f"{self.speedup:.2f}x fp32, {auto / lowered:.2f}x default"
                + _short_of(self.speedup, TARGET_SPEEDUP, self.precision)
            )
        return "\n".join([*lines, *(f"warning   {warning}" for warning in self.warnings)])


def _short_of(reached: float, target: float, precision: str) -> str:
    return f" (less than the {target:g}x that INT8 should give)" if precision == "int8" and reached < target else ""
