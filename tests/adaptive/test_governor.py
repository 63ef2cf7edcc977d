"""The governor, on scenes without any model: what it skips, what it costs, and that it does not stay blind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from framefuse.adaptive import Blocks, Bridge, Budget, Governor, Limits, disagreement
from framefuse.prediction import Detections

Scene = Callable[[int], Detections]


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

    def __init__(self, scene: Scene, frames: int, budget: Budget | None = None, **limits: Any):
        self.governor = Governor(Limits(**limits), budget=budget)
        self._blocks, self._scene = Blocks(self.governor, 0.0), scene
        self.results: list[Detections] = []
        self.inferred: list[bool] = []
        self.why: list[str] = []
        self.looks = 0
        for _ in range(frames):
            self.step()
        if frames:
            self.end()

    def step(self) -> None:
        """A frame comes."""
        self._look(self._blocks.arrived())

    def end(self) -> None:
        self._look(self._blocks.end())
        scene, frames = self._scene, self._blocks.count
        truth = [scene(number) for number in range(frames)]
        lost = sum(disagreement(one, other) for one, other in zip(truth, self.results, strict=True))
        self.agreement = 1 - lost / max(1e-9, sum(float(one.confidence.sum()) for one in truth))

    def _look(self, numbers: list[int]) -> None:
        while numbers:
            number = numbers.pop(0)
            self.looks += 1
            numbers += self._blocks.found(number, self._scene(number))
        for ready in self._blocks.ready():
            assert ready.number == len(self.results), "results keep the order of the frames"
            self.results.append(ready.detections)
            self.inferred.append(ready.inferred)
            self.why.append(ready.why)

    @property
    def share(self) -> float:
        return self.looks / len(self.results)


def test_an_empty_scene_is_looked_at_once_a_block() -> None:
    run = Run(lambda number: NOTHING, 801)
    assert run.share == pytest.approx(1 / 16, abs=0.02)
    assert all(len(found) == 0 for found in run.results)


def test_straight_motion_is_skipped_and_jumps_are_not() -> None:
    assert Run(driving, 600).share < 0.3
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
    runs = [Run(swaying, 1500, agreement=agreement) for agreement in (0.99, 0.95, 0.85)]
    assert runs[0].share > runs[1].share > runs[2].share
    for run, asked in zip(runs, (0.99, 0.95, 0.85), strict=True):
        assert run.agreement > asked - 0.03


def test_a_share_of_the_frames_is_kept() -> None:
    run = Run(swaying, 3000, Budget(0.25), agreement=1.0)
    assert run.share < 0.33
    assert run.governor.agreement < 1.0


def test_streams_share_a_budget_and_it_goes_where_it_gains_most() -> None:
    budget = Budget(0.3)
    runs = [Run(scene, 0, budget, agreement=1.0) for scene in (swaying, driving, lambda number: NOTHING)]
    for _ in range(3000):
        for run in runs:
            run.step()
    for run in runs:
        run.end()
        run.governor.end()
    swung, drove, slept = (run.share for run in runs)
    assert (swung + drove + slept) / 3 < 0.36, "in all"
    assert swung > 0.5 > 0.3 > drove > 2 * slept
    assert not budget.governors
    alone = Run(swaying, 3000, Budget(0.3), agreement=1.0)
    assert runs[0].agreement > alone.agreement + 0.05, "what the others do not need"


def test_audits_take_little_and_look_at_skipped_frames() -> None:
    run = Run(driving, 4000)
    assert 0 < run.governor.audits <= 0.02 * run.looks + 1


def test_a_scene_that_hides_from_the_grid_is_found_by_an_audit() -> None:
    calm = 640  # frames after which blocks are as long as they get

    def hiding(number: int) -> Detections:
        return NOTHING if number < calm or number % 16 == 0 else boxes((100, 100), (300, 300), (500, 100))

    run = Run(hiding, 4000)
    first = next(number for number, found in enumerate(run.results) if len(found))
    interval = 16 * 50  # an audit is due after 50 frames that were inferred, one a block
    assert first < calm + interval + 16
    assert any("audit" in why for why in run.why)
    seen = [len(found) > 0 for found in run.results[first:]]
    assert np.mean(seen) > 0.4


def test_too_late_means_fewer_looks() -> None:
    governor = Governor(Limits(agreement=0.99))
    bridge = Bridge(boxes((100, 100)), boxes((400, 100)), 2)
    assert governor.split(bridge) == 1
    for _ in range(20):
        governor.late()
    assert governor.split(bridge) is None
