"""framefuse demo: detection on a generated clip, checked against its exact ground truth. No download."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from framefuse.cli.console import counter
from framefuse.cli.options import ConfigFile, Preset, PrintReport, Quiet, option, with_settings
from framefuse.common.text import counted
from framefuse.config import load_settings
from framefuse.errors import QualityError

if TYPE_CHECKING:
    from framefuse.config import Settings
    from framefuse.lab.evaluation import Dataset
    from framefuse.models.card import Card
    from framefuse.prediction import Result

DEFAULTS: Final[Mapping[str, Any]] = {
    "project": "runs/demo",
    "name": "demo",
    **dict.fromkeys(("save", "save_txt", "save_json", "save_jsonl", "save_csv"), True),
}
MODEL: Final = "scout-n"
SCENE: Final = "synthetic://street?seed=9&size=1280x720&split=test"
"""Textures, shapes and movements that the model has never seen."""
FRAMES: Final = 300
RECORDED: Final = {"precision": 0.833, "recall": 0.766}
"""Scores of the shipped model on the clip of FRAMES frames. It misses small, distant and half hidden objects."""
MARGIN: Final = 0.02
"""How far below RECORDED a run may score. Engines and precisions are within 0.005 of each other."""
COLLAPSE: Final = {"precision": 0.6, "recall": 0.6}
"""Minimum scores where RECORDED does not apply: other clip lengths, or settings that change the detections."""
SAME: Final = ("conf", "iou", "max_det", "classes", "agnostic_nms", "imgsz", "rect", "vid_stride")
"""Settings that must have their defaults for RECORDED to apply."""


@with_settings
def demo(
    frames: Annotated[
        int, option("N", f"length of the clip in frames (default: {FRAMES})", min=1, show_default=False)
    ] = FRAMES,
    config: ConfigFile = None,
    preset: Preset = None,
    print_report: PrintReport = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Generate a clip of a street, detect the objects in it, and compare with the ground truth."""
    settings = load_settings(config, preset, given, defaults=DEFAULTS, environment=os.environ).settings

    from framefuse.cli.run import run
    from framefuse.cli.synth import write_clip
    from framefuse.lab.evaluation import open_data
    from framefuse.pipeline import Pipeline
    from framefuse.sinks.run_folder import make_run_folder
    from framefuse.world import World

    folder = make_run_folder(settings.project, settings.name, settings.exist_ok)
    world = World.parse(f"{SCENE}&frames={frames}")
    for old in folder.glob("input/street-*"):  # left by another run, with --exist-ok
        old.unlink()
    with counter("rendering", frames, quiet) as count:
        clip, truth = write_clip(world, folder / "input", on_frame=count)
    pipeline = Pipeline(clip, MODEL, settings=settings, project=folder.parent, name=folder.name, exist_ok=True)
    score = Score(open_data(truth, clip), pipeline.card)
    run(pipeline, quiet=quiet, print_report=print_report, on_result=score.add, verdict=score.sentence)
    least = required(frames, settings)
    if score.precision < least["precision"] or score.recall < least["recall"]:
        raise QualityError(
            f"the detections do not match the clip: precision {score.precision:.3f}, recall {score.recall:.3f}; "
            f"expected at least {least['precision']:.3f} and {least['recall']:.3f}",
            remedy="run 'framefuse doctor', which tests every part by itself",
        )
    return 0


def required(frames: int, settings: Settings) -> dict[str, float]:
    """Minimum precision and recall; lower scores mean that something is broken."""
    fields = type(settings).model_fields
    if frames == FRAMES and all(getattr(settings, key) == fields[key].default for key in SAME):
        return {name: value - MARGIN for name, value in RECORDED.items()}
    return dict(COLLAPSE)


class Score:
    """Compares detections with the ground truth. One is correct if its class is, with an IoU of at least 0.5."""

    def __init__(self, data: Dataset, card: Card) -> None:
        import numpy as np

        from framefuse.lab.evaluation.dataset import BoxClasses

        self._data, self._shared = data, BoxClasses(data, card)
        classes = len(self._shared.names) + 1
        self._table = np.zeros((classes, classes), np.int64)
        """[ground truth][detected]; the last row counts false positives, the last column missed objects."""

    def add(self, result: Result) -> None:
        from framefuse.lab.evaluation.counters import confusion

        labels = self._shared.labels(self._data.labels(self._data.key_of(result.frame)))
        self._table += confusion(labels, self._shared.shared(result.detections), len(self._table) - 1)

    @property
    def correct(self) -> int:
        return int(self._table[:-1, :-1].trace())

    @property
    def precision(self) -> float:
        return self.correct / max(int(self._table[:, :-1].sum()), 1)

    @property
    def recall(self) -> float:
        return self.correct / max(int(self._table[:-1].sum()), 1)

    def sentence(self) -> str:
        objects, detections = int(self._table[:-1].sum()), int(self._table[:, :-1].sum())
        rates = f"precision {self.precision:.3f}, recall {self.recall:.3f}"
        found = f"{counted(objects, 'object')}, {counted(detections, 'detection')}"
        return f"truth    {found}, {self.correct:,} of them correct: {rates}"
