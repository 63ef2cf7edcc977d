"""Verdict: which stage limits a run, and how fast the run would be without it. Pure policy on measured numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from framefuse.common.text import counted
from framefuse.runtime.profiling import StageStats


@dataclass(frozen=True)
class WhatIf:
    """A prediction of the run without one stage."""

    stage: str
    fps: float
    factor: float
    """Predicted over measured frames per second."""


@dataclass(frozen=True)
class Verdict:
    """Which stage limits a run."""

    sentence: str
    limiter: str | None
    """Name of the stage, "source", or None if no single stage limits the run."""
    explained: float
    """Share of the measured time per frame that the model of `verdict` accounts for, 0..1."""
    what_ifs: tuple[WhatIf, ...]
    """Largest gain first; empty if the source limits the run."""


@dataclass(frozen=True)
class _Load:
    """What a stage takes of the machine, in milliseconds per frame."""

    stage: StageStats
    serial: float
    """Time in its own thread."""
    pool: float
    """Time of its helper threads, divided by their number."""
    cpu: float
    gpu: float
    """On the GPU, whose work of one run takes turns."""


def verdict(
    stages: Sequence[StageStats],
    *,
    cores: int,
    frames: int,
    seconds: float,
    cpu_ms: float,
    machine_idle: float | None = None,
    source_limits: bool = False,
) -> Verdict:
    """Name the stage that limits a run, and predict the run without each stage.

    The model: threads run in parallel; the stages of one thread take turns; helper threads (decoder, engine, encoder)
    share the work of one stage; all share the cores. A frame cannot take less than
        bound = max(for each thread: sum of its stages' own time,
                    for each stage:  time of its helper threads / their number,
                    for the GPU:     sum of what the stages take on it,
                    for all:         CPU time / cores).
    Real runs are slower than the bound: work does not pack perfectly, and other programs use the machine too. That loss
    is assumed to stay in proportion, so without stage S the run is bound / bound(without S) times as fast.

    On a busy machine a thread spends most of its wall time waiting for a core, so only its CPU time counts. On an idle
    machine the rest of the wall time was spent waiting for something real (disk, network, another device) and counts in
    full; in between it counts in proportion. The same holds for the shortest latency of an overlapped stage.

    Args:
        cpu_ms: CPU milliseconds per frame of the whole process. What no stage claims remains if a stage is removed.
        machine_idle: share of the machine's core time that no program used, 0..1, if known.
        source_limits: the source is live and all its frames were processed; waiting in decode is then not its own cost.
    """
    if not frames or seconds <= 0:
        return Verdict("no frame was processed", None, 0.0, ())
    measured = seconds * 1e3 / frames
    if all(stage.cpu_ms is None for stage in stages):  # unknown on this system
        cpu_ms, machine_idle = 0.0, None
    unused = min(1 - cpu_ms / (cores * measured), 1.0 if machine_idle is None else machine_idle)
    idle = min(max((unused - 0.1) / 0.3, 0.0), 1.0)
    own = {"decode": 0.0} if source_limits else {}
    loads = [_load(stage, frames, measured, own.get(stage.name, idle)) for stage in stages]
    spare = max(cpu_ms - sum(load.cpu for load in loads), 0.0)
    whole = _bound(loads, cores, spare)
    fps, explained = 1e3 / measured, min(whole / measured, 1.0)
    if source_limits:
        could = f"; the pipeline could process about {_about(0.9e3 / whole)} fps" if 0.9 * measured > whole > 0 else ""
        sentence = f"keeps up with the source ({fps:.3g} fps), {explained:.0%} busy{could}"
        return Verdict(sentence, "source", explained, ())
    what_ifs = []
    for load in loads:
        rest = _bound([other for other in loads if other is not load], cores, spare)
        factor = min(max(whole / rest, 1.0), 1e3) if rest else 1e3
        what_ifs.append(WhatIf(load.stage.name, fps * factor, factor))
    what_ifs.sort(key=lambda what_if: -what_if.factor)
    if not what_ifs:
        return Verdict("no stage was measured", None, explained, ())
    best = what_ifs[0]
    sentence = "no single stage is the bottleneck: without any one of them the run would be less than 5 % faster"
    if best.factor >= 1.05:
        load = next(load for load in loads if load.stage.name == best.stage)
        sentence = (
            f"{best.stage} is the bottleneck: {_why(load, loads, cores, cpu_ms, measured)}; without it the run "
            f"would reach about {_about(best.fps)} fps ({best.factor:.1f}x)"
        )
    if explained < 0.6:
        sentence += f" (the stages explain {explained:.0%} of the time; the rest is startup, waiting or other programs)"
    return Verdict(sentence, best.stage if best.factor >= 1.05 else None, explained, tuple(what_ifs))


def _load(stage: StageStats, frames: int, measured: float, idle: float) -> _Load:
    wall = min(stage.busy_ms.total / frames / stage.copies, measured)
    own = min(stage.own_cpu_ms / stage.copies, measured)
    views = max(1.0, stage.items / frames)
    if stage.device_ms is not None:  # the host launches and waits
        return _Load(stage, own, 0.0, stage.cpu_ms or 0.0, min(stage.device_ms.mean * views, measured))
    if stage.cpu_ms is None:
        # Only wall time is known. Overlapped requests tell nothing about their thread.
        serial, pool = (own, wall / stage.parallel) if stage.overlapped else (wall, 0.0)
        return _Load(stage, serial, pool, 0.0, 0.0)
    helpers = stage.cpu_ms - stage.own_cpu_ms
    if stage.overlapped:
        latency = max(helpers, idle * stage.busy_ms.min * views)
        return _Load(stage, own, min(latency / stage.parallel, measured), stage.cpu_ms, 0.0)
    return _Load(stage, own + idle * max(wall - own, 0.0), min(helpers / stage.parallel, measured), stage.cpu_ms, 0.0)


def _bound(loads: Sequence[_Load], cores: int, spare: float) -> float:
    threads: dict[str, float] = {}
    for load in loads:
        threads[load.stage.thread] = threads.get(load.stage.thread, 0.0) + load.serial
    packed = (sum(load.cpu for load in loads) + spare) / cores
    return max([packed, *threads.values(), *(load.pool for load in loads), sum(load.gpu for load in loads)])


def _why(load: _Load, loads: Sequence[_Load], cores: int, cpu_ms: float, measured: float) -> str:
    """The resource that the limiting stage exhausts first."""
    thread = sum(other.serial for other in loads if other.stage.thread == load.stage.thread)
    gpu = sum(other.gpu for other in loads)
    if load.gpu and gpu >= max(thread, load.pool, cpu_ms / cores):
        return f"it takes {load.gpu:.2f} of the {gpu:.2f} ms that a frame needs on the GPU"
    if cpu_ms / cores >= max(thread, load.pool):
        return f"{load.cpu:.1f} of {cpu_ms:.1f} CPU-ms per frame on {counted(cores, 'core')}"
    if load.pool >= thread:
        return f"it takes {load.pool:.1f} of the {measured:.1f} ms per frame with {load.stage.parallel} in parallel"
    return f"it keeps its thread busy for {load.serial:.1f} of the {measured:.1f} ms per frame"


def _about(fps: float) -> str:
    """Two significant digits: 268.4 -> 270."""
    return f"{float(f'{fps:.2g}'):,.0f}" if fps >= 10 else f"{fps:.2g}"
