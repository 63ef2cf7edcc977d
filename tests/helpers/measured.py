"""Made-up measurements of a run: what a Recorder would have seen."""

from __future__ import annotations

from dataclasses import replace

from framefuse.runtime.profiling import Histogram, Measurements, Spread, StageStats

EVIL = "<script>alert('1')</script>&\"\x00</style>"


def stats(name: str, cpu: float | None, *, thread: str = "write", wall: float = 0.0, parallel: int = 1) -> StageStats:
    """A stage of a run of 100 frames."""
    wall = wall or cpu or 0.0
    busy = Spread(mean=wall, p50=wall, min=wall, total=100 * wall)
    return StageStats(name, thread, 100, busy, cpu_ms=cpu, own_cpu_ms=cpu or 0.0, parallel=parallel)


def measurements(frames: int = 300) -> Measurements:
    latency = Histogram()
    for number in range(frames):
        latency.add(0.010 + number / 30_000)
    return Measurements(
        started="2025-11-20T14:30:01.123+00:00",
        finished="2025-11-20T14:30:05.000+00:00",
        seconds=3.6,
        frames=frames,
        stages=[
            replace(stats("decode", 3.6, thread="decode"), items=frames),
            StageStats(
                "inference",
                "program",
                frames,
                Spread(24, 24, 30, 40, 20, 50, 7200),
                800,
                0,
                16.0,
                0.1,
                2,
                overlapped=True,
            ),
            stats(EVIL, 2.0),
            stats("quiet", None),
        ],
        latency_ms=Spread.of(latency) if frames else None,
        latency_bars=[(bound * 1e3, count) for bound, count in latency.bars()],
        fps_over_time=[(0.9, 80.0), (1.8, 85.0), (2.7, 84.0), (3.6, 84.0)] if frames else [],
        cpu_seconds=6.9,
        machine_idle=0.04,
        peak_rss_mb=247.3,
        minor_faults=9123,
    )
