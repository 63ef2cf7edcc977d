"""framefuse demo: the main job on a clip that is made on the spot, checked against its known truth. No download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.options import ConfigFile, Preset, PrintReport, Quiet, with_settings
from framefuse.config import load_settings
from framefuse.errors import QualityError

if TYPE_CHECKING:
    from framefuse.prediction import Result

DEFAULTS: Final[Mapping[str, Any]] = {
    "project": "runs/demo",
    "name": "demo",
    **dict.fromkeys(("save", "save_txt", "save_json", "save_jsonl", "save_csv"), True),
}
REQUIRED: Final = 0.95
"""Precision and recall below this fail the demo."""


@with_settings
def demo(
    frames: Annotated[
        int, typer.Option(min=1, metavar="N", help="frames of the clip (default: 300)", show_default=False)
    ] = 300,
    config: ConfigFile = None,
    preset: Preset = None,
    print_report: PrintReport = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Make a clip of moving squares, find them, and compare with where they really are."""
    settings = load_settings(config, preset, given, defaults=DEFAULTS).settings

    from framefuse.cli.run import run
    from framefuse.models.clip import squares_clip
    from framefuse.pipeline import Pipeline
    from framefuse.sinks.run_folder import make_run_folder

    folder = make_run_folder(settings.project, settings.name, settings.exist_ok)
    clip = folder / "input" / "squares.mp4"
    clip.parent.mkdir(exist_ok=True)
    truth = squares_clip(clip, frames=frames, audio=True)
    score = Score()
    pipeline = Pipeline(clip, "squares", settings=settings, project=folder.parent, name=folder.name, exist_ok=True)
    run(
        pipeline,
        quiet=quiet,
        print_report=print_report,
        on_result=lambda result: score.add(result, truth[result.frame.index]),
        verdict=score.sentence,
    )
    if min(score.precision, score.recall) < REQUIRED:
        raise QualityError(
            f"the detections do not match the clip: precision {score.precision:.3f}, recall {score.recall:.3f}",
            remedy="'framefuse doctor' tests every part alone",
        )
    return 0


@dataclass
class Score:
    """Detections against the truth. A detection is right if its class is and its IoU with a square is at least 0.5."""

    squares: int = 0
    detections: int = 0
    right: int = 0

    def add(self, result: Result, truth: Sequence[tuple[Any, ...]]) -> None:
        """Count one frame.

        Args:
            truth: (class_id, x1, y1, x2, y2) of each square.
        """
        found = result.detections
        left = list(zip(found.class_id.tolist(), found.xyxy.tolist(), strict=True))
        self.squares += len(truth)
        self.detections += len(left)
        for class_id, *box in truth:
            match = max(left, key=lambda item: (item[0] == class_id) * iou(item[1], box), default=None)
            if match is not None and match[0] == class_id and iou(match[1], box) >= 0.5:
                left.remove(match)
                self.right += 1

    @property
    def precision(self) -> float:
        return self.right / self.detections if self.detections else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.squares if self.squares else 1.0

    def sentence(self) -> str:
        rates = f"precision {self.precision:.3f}, recall {self.recall:.3f}"
        return f"truth    {self.squares:,} squares, {self.detections:,} detections: {rates}"


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)
