"""A model that knows only the synthetic world says so where it sees anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefuse import Pipeline
from framefuse.cli.synth import write_clip
from framefuse.world import World
from media import video

WORLD = "synthetic://street?seed=1&frames=3&size=160x96"
WORLD_ONLY = "knows only framefuse's synthetic world"
PEOPLE = "is trained on synthetic images: of real footage it finds people who are near"


@pytest.mark.parametrize(
    ("model", "said"),
    [("scout-n", WORLD_ONLY), ("scout-s", WORLD_ONLY), ("body-n", PEOPLE), ("body-n-2", PEOPLE)],
)
def test_it_warns_of_other_sources(tmp_path: Path, model: str, said: str) -> None:
    sources: list[Any] = [video(tmp_path / "real.mp4"), [np.zeros((48, 64, 3), np.uint8)]]
    for source in sources:
        report = Pipeline(source, model).run()
        (warning,) = report.warnings
        assert warning.startswith(f"{model} {said}")
        assert said in report.table() and said.replace("'", "&#x27;") in report.to_html()


def test_it_does_not_where_it_is_at_home(tmp_path: Path) -> None:
    clip, _ = write_clip(World.parse(WORLD), tmp_path / "clips")
    for source in (WORLD, clip, clip.parent):
        assert Pipeline(source, "scout-n").run().warnings == []


def test_models_of_others_never_warn(tmp_path: Path) -> None:
    assert Pipeline(video(tmp_path / "real.mp4"), "squares").run().warnings == []
