"""The governor, on scenes without any model: what it skips, what it costs, and that it does not stay blind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from framefuse.adaptive import Blocks, Governor, Ladder, Limits, Rung, disagreement
from framefuse.prediction import Detections

Scene = Callable[[int], Detections]
ONE = Ladder((Rung("best", 640, "bf16"),))
TWO = Ladder((Rung("best", 640, "bf16", 0.05), Rung("small", 320, "bf16", 0.01, 0.02)))


def boxes(*places: tuple[float, float], size: float = 40, confidence: float = 0.9) -> Detections:
    corners = np.array(places, np.float32).reshape(-1, 2)
    found = np.concatenate((corners, corners + np.float32(size)), 1)
    return Detections(found, np.full(len(found), confidence, np.float32), np.zeros(len(found), np.int64), {0: "car"})


NOTHING = boxes()


def jumping(number: int) -> Detections:
    """Six objects that are somewhere else in every frame."""
    return boxes(*np.random.default_rng(number).uniform(0, 1000, (6, 2)).tolist())


def driving(number: int) -> Detections:
    return boxes((3.0 * number, 100), (900 - 2.0 * number, 300), (5.0 * number % 700, 500))


def swaying(number: int) -> Detections:
    """Objects that interpolation follows the worse, the longer the block is."""
    return boxes(*((100 * n + 40 * np.sin(number / (3 + n)), 100 + 20 * np.cos(number / 4)) for n in range(8)))


class Run:
    """What becomes of a scene."""

    def __init__(self, scene: Scene, frames: int, ladder: Ladder = ONE, small: Scene | None = None, **limits: float):
        self.governor = Governor(ladder, Limits(**limits))  # type: ignore[arg-type]
        blocks = Blocks(self.governor, 0.0)
        self.results: list[Detections] = []
        self.rungs: dict[int, int] = {}
        self.inferred: list[bool] = []
        self.why: list[str] = []
        looks = blocks.arrived()
        for number in range(1, frames + 1):
            while looks:
                at, rung = looks.pop(0)
                self.rungs[at] = rung
                looks += blocks.found(at, (small or scene)(at) if rung else scene(at))
            for ready in blocks.ready():
                assert ready.number == len(self.results), "results keep the order of the frames"
                self.results.append(ready.detections)
                self.inferred.append(ready.inferred)
                self.why.append(ready.why)
            looks = blocks.arrived() if number < frames else (blocks.end() if len(self.results) < frames else [])
            if number == frames and looks:
                while looks:
                    at, rung = looks.pop(0)
                    self.rungs[at] = rung
                    looks += blocks.found(at, (small or scene)(at) if rung else scene(at))
                for ready in blocks.ready():
                    self.results.append(ready.detections)
                    self.inferred.append(ready.inferred)
                    self.why.append(ready.why)
        truth = [scene(number) for number in range(frames)]
        lost = sum(disagreement(one, other) for one, other in zip(truth, self.results, strict=True))
        self.agreement = 1 - lost / max(1e-9, sum(float(one.confidence.sum()) for one in truth))

    @property
    def share(self) -> float:
        return len(self.rungs) / len(self.results)


def test_an_empty_scene_is_looked_at_once_a_block() -> None:
    run = Run(lambda number: NOTHING, 801)
    assert run.share == pytest.approx(1 / 16, abs=0.02)
    assert all(len(found) == 0 for found in run.results)


def test_straight_motion_is_skipped_and_jumps_are_not() -> None:
    assert Run(driving, 200).share < 0.3
    assert Run(driving, 200).agreement > 0.95
    assert Run(jumping, 200).share > 0.95


@pytest.mark.parametrize("frames", [1, 2, 3, 16, 17, 18, 33])
def test_every_frame_has_a_result(frames: int) -> None:
    run = Run(driving, frames)
    assert len(run.results) == frames
    assert run.inferred[0]
    assert run.inferred[-1]
    assert all(run.why)


def test_the_agreement_asked_for_decides_how_much_is_inferred() -> None:
    runs = [Run(swaying, 3000, agreement=agreement) for agreement in (0.99, 0.95, 0.85)]
    assert runs[0].share > runs[1].share > runs[2].share
    for run, asked in zip(runs, (0.99, 0.95, 0.85), strict=True):
        assert run.agreement > asked - 0.03


def test_a_budget_is_kept() -> None:
    ladder = ONE.measured(0.040)
    run = Run(swaying, 3000, ladder, agreement=1.0, budget=0.010)
    assert run.share * 0.040 < 0.013


def test_audits_take_little_and_look_at_skipped_frames() -> None:
    run = Run(driving, 4000)
    assert 0 < run.governor.audits <= 0.02 * len(run.rungs) + 1


def test_a_scene_that_hides_from_the_grid_is_found_by_an_audit() -> None:
    def hiding(number: int) -> Detections:
        return NOTHING if number % 16 == 0 else boxes((100, 100), (300, 300), (500, 100))

    run = Run(hiding, 4000)
    first = next(number for number, found in enumerate(run.results) if len(found))
    interval = 16 * 50  # an audit is due after 50 frames that were inferred, one a block
    assert first < interval + 16
    assert any("audit" in why for why in run.why)
    seen = [len(found) > 0 for found in run.results[first:]]
    assert np.mean(seen) > 0.4


def test_a_cheaper_rung_serves_as_long_as_it_agrees() -> None:
    run = Run(swaying, 2000, TWO)
    assert run.governor.rung == 1
    assert list(run.rungs.values()).count(1) > 0.9 * len(run.rungs)


def test_too_late_means_one_rung_down_at_once() -> None:
    ladder = Ladder((*TWO.rungs[:1], Rung("middle", 480, "bf16", 0.045, 0.4), Rung("small", 320, "bf16", 0.04, 0.6)))
    governor = Governor(ladder, Limits())
    assert governor.rung == 0
    governor.late()
    assert (governor.rung, governor.why) == (1, "too late")
    governor.late()
    governor.late()
    assert governor.rung == 2
