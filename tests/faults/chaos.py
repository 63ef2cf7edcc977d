"""Live chaos on loopback: cameras that lose, reorder, stall, restart, and change codec, size and clock at random.

    python tests/faults/chaos.py [--streams 8] [--seconds 600] [--reconnects 1000] [--seed 0] [--record FILE.json]

One pipeline reads all streams for so long. Then another reads servers that hang up after a few frames, until it has
reconnected so often. Every frame must be delivered or counted as dropped, results must be young, and memory must not
grow with the number of frames.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import heap
from framefuse import Pipeline
from framefuse.frame import Frame
from framefuse.sources import Source

MAX_AGE = 1.0
WARM_UP = 0.05
"""Part of a run that goes before it, so that what is allocated once does not count."""


class Servers:
    """Those of chaos_servers.py."""

    def __init__(self, kind: str, streams: int, seed: int = 0) -> None:
        command = [sys.executable, Path(__file__).with_name("chaos_servers.py"), kind, str(streams), str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.addresses: list[str] = json.loads(self._process.stdout.readline())
        self.connections = 0
        self.happened: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read, args=[self._process.stdout], daemon=True)
        self._reader.start()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line.startswith("{"):
                self.happened = json.loads(line)
            else:
                self.connections += 1

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join()
        self._process.wait()


class Counted:
    """A source that counts its frames."""

    def __init__(self, source: Source) -> None:
        self.info, self.close, self._source = source.info, source.close, source
        self.frames = 0

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._source:
            self.frames += 1
            yield frame


@dataclass
class Outcome:
    streams: int
    seconds: float
    frames: int = 0
    """Delivered."""
    drops: dict[str, int] = field(default_factory=dict)
    unaccounted: int = 0
    """Frames that were neither delivered nor counted as dropped, of all streams; negative: counted twice."""
    age_p50: float = 0.0
    age_p99: float = 0.0
    age_max: float = 0.0
    longest_silence: float = 0.0
    """Of any stream, in seconds."""
    reconnects: int = 0
    slope: float = 0.0
    """Bytes of resident memory per frame, in the second half: it is some MB up or down, as connections come and go."""
    kept: float = 0.0
    """Bytes of the heap per frame that are still in use when the run is over, beyond those after a short run."""
    happened: dict[str, int] = field(default_factory=dict)

    def findings(self) -> list[str]:
        checks = {
            f"{self.unaccounted} frames are unaccounted for": self.unaccounted != 0,
            f"a result was {self.age_max:.1f} s old": self.age_max > MAX_AGE + 1.0,
            f"a stream was silent for {self.longest_silence:.0f} s": self.longest_silence > 20,
            "there was no frame": self.frames == 0,
        }
        return [text for text, wrong in checks.items() if wrong]


class Ages:
    """Percentiles of ages in milliseconds, in memory that does not grow."""

    def __init__(self) -> None:
        self.count, self._bins = 0, [0] * 100_000

    def add(self, seconds: float) -> None:
        self.count += 1
        self._bins[min(int(seconds * 1e3), len(self._bins) - 1)] += 1

    def percentile(self, percent: float) -> float:
        """In seconds, rounded up to a millisecond."""
        below = itertools.accumulate(self._bins)
        wanted = self.count * percent / 100
        return next(number for number, sum in enumerate(below, 1) if sum >= wanted) / 1e3


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_use() -> int:
    """Bytes that the heap has handed out, those of Python's own allocator apart."""
    gc.collect()
    time.sleep(1)  # for the threads of connections to end
    return heap.in_use()


def storm(streams: int, seconds: float, seed: int) -> Outcome:
    """Read so many chaotic streams in one pipeline for so long."""
    servers = Servers("storm", streams, seed)
    outcome = Outcome(streams, seconds)
    ages = Ages()
    memory: list[tuple[int, int]] = []
    last: dict[str, tuple[int, float]] = {}
    started = time.monotonic()
    pipeline = Pipeline(servers.addresses, "squares", imgsz=160, max_age=MAX_AGE, timeout=3.0, end=seconds)
    sources = [Counted(source) for source in pipeline.sources]
    pipeline._inputs.numbered = dict(enumerate(sources))
    # A stream that is silent at the end would never reach it.
    stop = threading.Timer(seconds + 30, pipeline.close)
    stop.start()
    delivered: Counter[str] = Counter()
    for result in pipeline:
        now = time.monotonic()
        assert result.arrival is not None
        ages.add(now - result.arrival)
        name = result.frame.source_id
        index, before = last.get(name, (-1, started))
        assert result.frame.index > index, "results are in order"
        outcome.longest_silence = max(outcome.longest_silence, now - before)
        last[name] = result.frame.index, now
        delivered[name] += 1
        if ages.count % 500 == 0:
            memory.append((ages.count, resident()))
    stop.cancel()
    servers.end()
    for source in sources:
        drops = source.info.drops
        counted = drops.get("superseded", 0) + drops.get("stale", 0)
        outcome.unaccounted += source.frames - delivered[source.info.uri] - counted
        outcome.drops = dict(Counter(outcome.drops) + Counter(drops))
        outcome.reconnects += sum("reconnected" in note for note in source.info.notes)
    _summarise(outcome, ages, memory)
    outcome.happened = servers.happened
    return outcome


def reconnecting(streams: int, reconnects: int) -> Outcome:
    """Read servers that hang up until there were so many connections."""
    servers = Servers("hang-up", streams)
    pipeline = Pipeline(servers.addresses, "squares", imgsz=160, max_age=MAX_AGE)
    started, ages = time.monotonic(), Ages()
    memory: list[tuple[int, int]] = []
    outcome = Outcome(streams, 0.0)
    for result in pipeline:
        assert result.arrival is not None
        ages.add(time.monotonic() - result.arrival)
        if ages.count % 100 == 0:
            memory.append((ages.count, resident()))
            if servers.connections >= reconnects + streams:
                break
    servers.end()
    outcome.seconds, outcome.reconnects = time.monotonic() - started, servers.connections - streams
    _summarise(outcome, ages, memory)
    return outcome


def _summarise(outcome: Outcome, ages: Ages, memory: Sequence[tuple[int, int]]) -> None:
    outcome.frames = ages.count
    if ages.count:
        outcome.age_p50, outcome.age_p99, outcome.age_max = (ages.percentile(percent) for percent in (50, 99, 100))
    late = memory[len(memory) // 2 :]
    if len(late) > 3:
        outcome.slope = statistics.linear_regression(*zip(*late, strict=True)).slope


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--reconnects", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    outcomes = {}
    for name, run in {
        "storm": lambda share: storm(options.streams, max(options.seconds * share, 5), options.seed),
        "reconnecting": lambda share: reconnecting(options.streams, round(options.reconnects * share)),
    }.items():
        run(WARM_UP)
        before = in_use()
        outcomes[name] = run(1)
        outcomes[name].kept = (in_use() - before) / max(outcomes[name].frames, 1)
    facts = {name: asdict(outcome) | {"findings": outcome.findings()} for name, outcome in outcomes.items()}
    facts["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(facts, indent=1))
    if options.record:
        options.record.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if any(outcome.findings() for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
