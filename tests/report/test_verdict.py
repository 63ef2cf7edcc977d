"""The verdict: sentences that come true when the stage is really removed from a simulated pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

import pytest

from framefuse.report.verdict import Verdict, verdict
from framefuse.runtime.profiling import Histogram, Spread, StageStats
from measured import stats


@dataclass(frozen=True)
class Stage:
    """A stage of the simulated pipeline."""

    name: str
    cpu: float
    """CPU milliseconds a frame."""
    thread: str = ""
    """Its own thread; "": it only has helpers."""
    servers: int = 1
    sleep: float = 0.0
    """Milliseconds a frame without a core: disk, network, another device."""


def simulate(
    stages: list[Stage], cores: int, frames: int = 300, load: int = 0
) -> tuple[float, list[StageStats], float]:
    """Frames through stages that share cores: milliseconds in all, what a Recorder would have seen, idle share.

    Args:
        load: threads of other programs, always running.
    """
    jitter, queues = Random(0), [frames] + [0] * len(stages)
    jobs: list[list[float]] = []  # stage, CPU left, sleep left, start
    walls = [Histogram() for _ in stages]
    now = busy = 0.0
    while queues[-1] < frames:
        for number in reversed(range(len(stages))):
            stage = stages[number]
            while queues[number]:
                mine = [job for job in jobs if job[0] == number]
                taken = stage.thread and any(stages[int(job[0])].thread == stage.thread for job in jobs)
                full = number + 1 < len(stages) and queues[number + 1] + len(mine) >= 4
                if taken or full or len(mine) >= stage.servers:
                    break
                queues[number] -= 1
                jobs.append([number, stage.cpu * jitter.uniform(0.8, 1.2), stage.sleep, now])
        running = [job for job in jobs if job[1] > 0]
        rate = min(1.0, cores / max(len(running) + load, 1))
        step = min([job[1] / rate for job in running] + [job[2] for job in jobs if job[1] <= 0])
        now += step
        busy += min(cores, len(running) + load) * step
        for job in list(jobs):
            if job[1] > 0:
                job[1] = job[1] - step * rate if job[1] - step * rate > 1e-9 else 0.0
            else:
                job[2] = job[2] - step if job[2] - step > 1e-9 else 0.0
            if job[1] <= 0 and job[2] <= 0:
                jobs.remove(job)
                queues[int(job[0]) + 1] += 1
                walls[int(job[0])].add((now - job[3]) / 1e3)
    stats = [
        StageStats(
            stage.name,
            stage.thread or stage.name,
            frames,
            Spread.of(wall),
            cpu_ms=stage.cpu,
            own_cpu_ms=stage.cpu if stage.thread else 0.0,
            parallel=stage.servers,
            overlapped=not stage.thread,
        )
        for stage, wall in zip(stages, walls, strict=True)
    ]
    return now, stats, 1 - busy / (now * cores)


TYPICAL = [
    Stage("decode", 3.6, servers=2),
    Stage("preprocess", 0.5, "program"),
    Stage("inference", 17.0, servers=2),
    Stage("postprocess", 0.3, "program"),
    Stage("encode", 4.6, "write"),
]


def changed(**stages: Stage) -> list[Stage]:
    return [stages.get(stage.name, stage) for stage in TYPICAL]


@pytest.mark.parametrize(
    ("stages", "cores", "load", "limiter"),
    [
        pytest.param(TYPICAL, 2, 0, "inference", id="full machine"),
        pytest.param(TYPICAL, 2, 2, "inference", id="busy neighbours"),
        pytest.param(TYPICAL, 16, 0, "inference", id="engine threads on a large machine"),
        pytest.param(changed(inference=Stage("inference", 2.0, servers=2)), 8, 0, "encode", id="encoder thread"),
        pytest.param(changed(encode=Stage("encode", 0.2, "write", sleep=20.0)), 2, 0, "encode", id="slow disk"),
        pytest.param(changed(inference=Stage("inference", 0.1, sleep=30.0)), 2, 0, "inference", id="other device"),
        pytest.param(changed(decode=Stage("decode", 40.0, servers=2)), 16, 0, "decode", id="decoder threads"),
        pytest.param(
            changed(preprocess=Stage("preprocess", 12.0, "program")), 16, 0, "preprocess", id="program thread"
        ),
    ],
)
def test_what_ifs_come_true_when_the_stage_is_really_removed(
    stages: list[Stage], cores: int, load: int, limiter: str
) -> None:
    total, stats, idle = simulate(stages, cores, load=load)
    cpu = sum(stage.cpu for stage in stages)
    found = verdict(stats, cores=cores, frames=300, seconds=total / 1e3, cpu_ms=cpu, machine_idle=idle)
    assert found.limiter == limiter
    assert found.sentence.startswith(f"{limiter} is the bottleneck: ")
    for what_if in found.what_ifs:
        without = [stage for stage in stages if stage.name != what_if.stage]
        really, _, _ = simulate(without, cores, load=load)
        # How much the neighbours take then is their affair, so that is a rougher guess.
        assert what_if.fps == pytest.approx(300e3 / really, rel=0.25 if load else 0.1), what_if.stage


def test_verdict_in_words() -> None:
    inference = StageStats("inference", "program", 100, Spread(min=24.0), cpu_ms=18.9, parallel=2, overlapped=True)
    rest = [stats("decode", 3.6, thread="decode"), stats("encode", 1.4)]
    found = verdict([*rest, inference], cores=2, frames=100, seconds=1.24, cpu_ms=24.1)
    assert found.sentence == (
        "inference is the bottleneck: 18.9 of 24.1 CPU-ms per frame on 2 cores; "
        "without it the run would reach about 270 fps (3.3x)"
    )
    assert found.explained == pytest.approx(24.1 / 2 / 12.4)


def test_a_live_source_that_keeps_up_is_the_limit() -> None:
    stages = [stats("decode", 2.0, thread="decode", wall=33.0), stats("encode", 5.0)]
    found = verdict(stages, cores=2, frames=100, seconds=100 / 30, cpu_ms=7.5, source_limits=True)
    assert found == Verdict(
        "keeps up with the source (30 fps), 15% busy; the pipeline could process about 180 fps",
        "source",
        found.explained,
        (),
    )


def test_balanced_stages_are_not_blamed() -> None:
    stages = [stats("decode", 5.0, thread="decode"), stats("encode", 5.0)]
    found = verdict(stages, cores=8, frames=100, seconds=0.5, cpu_ms=10)
    assert found.limiter is None and found.sentence.startswith("no single stage is the bottleneck")


def test_time_that_no_stage_explains_is_said() -> None:
    found = verdict(
        [stats("decode", 1.0), stats("encode", 2.0, thread="x")], cores=1, frames=100, seconds=2.0, cpu_ms=3
    )
    assert "15% of the time" in found.sentence


def test_copies_of_a_stage_run_side_by_side() -> None:
    decode = replace(stats("decode", 8.0, thread="decode"), copies=4)
    found = verdict([decode, stats("encode", 4.0)], cores=16, frames=100, seconds=0.4, cpu_ms=12)
    assert found.limiter == "encode" and found.what_ifs[0].factor == pytest.approx(2)


def test_verdict_without_cpu_times_rests_on_wall_times() -> None:
    stages = [stats("decode", None, thread="decode", wall=4.0), stats("encode", None, wall=10.0)]
    found = verdict(stages, cores=2, frames=100, seconds=1.0, cpu_ms=14)
    assert found.limiter == "encode" and found.what_ifs[0].factor == pytest.approx(2.5)


@pytest.mark.parametrize("frames", [0, 1, 100])
def test_verdict_of_next_to_nothing(frames: int) -> None:
    for stages in ([], [stats("decode", 0.0)], [stats("decode", 5.0)]):
        found = verdict(stages, cores=1, frames=frames, seconds=1.0, cpu_ms=0.0)
        assert found.sentence
        assert all(math.isfinite(what_if.fps) for what_if in found.what_ifs)


def test_the_gpu_limits_where_its_stages_fill_the_time() -> None:
    """The host launches in 0.1 ms; the GPU needs 0.2 + 1.5 + 0.3 ms a frame, whatever thread waits for it."""

    def stage(name: str, gpu: float) -> StageStats:
        host = stats(name, 0.1, thread="program", wall=5.0)
        return replace(host, overlapped=name == "inference", device_ms=Spread(mean=gpu, p50=gpu, total=gpu * 100))

    stages = [stage("preprocess", 0.2), stage("inference", 1.5), stage("postprocess", 0.3)]
    found = verdict(stages, cores=4, frames=100, seconds=0.21, cpu_ms=0.5)
    assert found.limiter == "inference"
    assert "it takes 1.50 of the 2.00 ms that a frame needs on the GPU" in found.sentence
    assert found.what_ifs[0].factor == pytest.approx(4.0)
