"""Which rung runs: limits, hysteresis, audits; with a clock of our own."""

from __future__ import annotations

from framefuse.adaptive.guard import BAN, CALM, DWELL, ENOUGH, Guard

COSTS = 0.1, 0.03, 0.01
FRAME = 1 / 30


class Run:
    """Results of a camera at 30 frames/s, which take as long as a function of the rung says."""

    def __init__(self, latency: float | None = 0.3) -> None:
        self.now = 0.0
        self.guard = Guard(COSTS, latency, clock=lambda: self.now)
        self.levels: list[int] = []

    def go(self, seconds: float, slow: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += FRAME
            self.guard.look()
            self.guard.passed(self.now - slow * COSTS[self.guard.level])
            self.levels.append(self.guard.level)

    @property
    def switches(self) -> int:
        return sum(one != other for one, other in zip(self.levels, self.levels[1:], strict=False))


def test_the_best_rung_stays_while_results_are_in_time() -> None:
    run = Run()
    run.go(60)
    assert set(run.levels) == {0}
    assert not run.guard.switches


def test_overload_steps_down_at_once_and_the_end_of_it_up_again() -> None:
    run = Run()
    run.go(2)
    run.go(3, slow=5)
    assert run.guard.level == 1
    assert run.guard.why == "results came too late"
    run.go(2 * CALM + 1)
    assert run.guard.level == 0
    assert run.guard.why == "there is time again"


def test_it_goes_down_as_far_as_it_must() -> None:
    run = Run()
    run.go(5, slow=20)
    assert run.guard.level == 2
    assert run.switches <= 5 / DWELL


def test_a_step_up_that_does_not_last_is_tried_less_and_less() -> None:
    run = Run()
    run.go(100, slow=5)
    early, late = run.levels[: 50 * 30], run.levels[50 * 30 :]
    assert late.count(0) < early.count(0) < len(early) / 10
    assert run.switches < 16


def test_nothing_is_cheaper_than_the_last_rung() -> None:
    run = Run()
    run.go(20, slow=100)
    assert run.guard.level == 2


def test_limits_of_the_device() -> None:
    run = Run(latency=None)
    run.now = DWELL
    run.guard.exceeded("over max_power")
    assert run.guard.level == 1
    run.guard.exceeded("over max_power")
    assert run.guard.level == 1  # too soon
    run.now += 3 * CALM
    run.guard.within()
    assert run.guard.level == 0


def test_audits_are_two_percent_of_the_compute() -> None:
    run = Run()
    run.go(4, slow=20)
    looks = [run.guard.look() for _ in range(30000)]
    assert set(looks) == {0, run.guard.level}
    assert 0.018 < looks.count(0) * COSTS[0] / (looks.count(run.guard.level) * COSTS[run.guard.level]) <= 0.021


def test_a_blind_rung_is_banned() -> None:
    run = Run()
    run.go(1.5, slow=5)
    assert run.guard.level == 1
    run.guard.audited(4.0, 1.0)
    assert run.guard.level == 1  # it misses one of four
    run.guard.audited(4.0, 3.9)
    assert run.guard.level == 0
    run.go(5, slow=5)
    assert run.guard.level == 2  # the next one, since nobody has found that blind
    run.guard.audited(4.0, 3.9)
    run.go(5, slow=5)
    assert run.guard.level == 0
    run.go(BAN + 5, slow=5)
    assert run.guard.level > 0


def test_too_few_results_prove_nothing() -> None:
    run = Run()
    run.now = 10.0
    for _ in range(ENOUGH - 1):
        run.guard.passed(5.0)
    assert run.guard.level == 0
    run.guard.passed(5.0)
    assert run.guard.level == 1
