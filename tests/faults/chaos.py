"""Live chaos on loopback: cameras that lose, reorder, stall, restart, and change codec, size and clock at random.

    python tests/faults/chaos.py [--streams 8] [--seconds 600] [--reconnects 1000] [--seed 0] [--record FILE.json]

One pipeline reads all streams for so long. Then another reads servers that hang up after a few frames, until it has
reconnected so often. Every frame must be delivered or counted as dropped, results must be young, and memory must not
grow with the number of frames.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from framefuse import Pipeline
from framefuse.frame import Frame
from framefuse.sources import Source
from servers import LARGE, SMALL, HttpServer, RtspServer, Server, UdpSender, mpegts

MAX_AGE = 1.0
DATAGRAM = 7 * 188


class Chaos:
    """What befalls the frames of a camera; mixed into a server."""

    random: Random
    happened: Counter[str]

    def chunks(self: Any) -> Iterator[bytes]:
        return self.paced(self._film())  # type: ignore[no-any-return]

    def _film(self: Any) -> Iterator[bytes]:
        while True:
            chosen = self.random.choice(["h264", "h264", "hevc", "mpeg2video"]), self.random.choice([SMALL, LARGE])
            start = self.random.choice([0, 0, 25 * 3600, 25 * 90_000])
            pid = self.random.choice([256, 256, 300])
            self.happened["codec, size, PID or clock changed"] += 1
            frames = self.random.randrange(25, 250)
            for chunk in itertools.islice(mpegts(chosen[1], codec=chosen[0], start=start, pid=pid), frames):
                event = self.random.random()
                if event < 0.003:
                    self.happened["stall"] += 1
                    self._dead.wait(self.random.uniform(0.3, 3.0))
                elif event < 0.006 and not isinstance(self, UdpSender):
                    self.happened["hung up"] += 1
                    self.hang_up()
                elif event < 0.02:
                    self.happened["lost"] += 1
                    continue
                elif event < 0.03:
                    self.happened["damaged"] += 1
                    at = self.random.randrange(len(chunk))
                    chunk = chunk[:at] + self.random.randbytes(min(40, len(chunk) - at)) + chunk[at + 40 :]
                yield chunk

    def hang_up(self: Any) -> None:
        """Close the connections of all clients; the server goes on listening."""
        for client in self._sockets:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


class ChaosTcp(Chaos, Server): ...


class ChaosHttp(Chaos, HttpServer): ...


class ChaosUdp(Chaos, UdpSender):
    def _send(self) -> None:
        held = None
        for chunk in self.chunks():
            for at in range(0, len(chunk), DATAGRAM):
                datagram = chunk[at : at + DATAGRAM]
                event = self.random.random()
                if event < 0.005:
                    self.happened["datagram lost"] += 1
                elif event < 0.01 and held is None:
                    self.happened["datagrams swapped"] += 1
                    held = datagram
                else:
                    for one in (datagram, held) if held else (datagram,):
                        with suppress(OSError):
                            self._listener.sendto(one, ("127.0.0.1", self.port))
                    held = None


class ChaosRtsp(RtspServer):
    """Its codec is fixed by the protocol: it stalls, hangs up, damages and changes its clock."""

    random: Random
    happened: Counter[str]

    def paced(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in super().paced(items):
            event = self.random.random()
            if event < 0.003:
                self.happened["stall"] += 1
                self._dead.wait(self.random.uniform(0.3, 3.0))
            elif event < 0.005:
                self.happened["hung up"] += 1
                Chaos.hang_up(self)
            elif event < 0.02:
                self.happened["lost"] += 1
                continue
            yield item


KINDS = (ChaosTcp, ChaosUdp, ChaosHttp, ChaosRtsp)


class HangsUp(Server):
    """Sends a few frames at once to everyone who connects, and hangs up."""

    def serve(self, client: socket.socket) -> None:
        for chunk in itertools.islice(mpegts(SMALL), 12):
            client.sendall(chunk)
            if self._dead.wait(0.005):
                return


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
    """Bytes of resident memory per frame, over the second half."""
    happened: dict[str, int] = field(default_factory=dict)

    def findings(self) -> list[str]:
        checks = {
            f"{self.unaccounted} frames are unaccounted for": self.unaccounted != 0,
            f"a result was {self.age_max:.1f} s old": self.age_max > MAX_AGE + 1.0,
            f"a stream was silent for {self.longest_silence:.0f} s": self.longest_silence > 20,
            "there was no frame": self.frames == 0,
        }
        return [text for text, wrong in checks.items() if wrong]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def storm(streams: int, seconds: float, seed: int) -> Outcome:
    """Read so many chaotic streams in one pipeline for so long."""
    servers, happened = [], Counter[str]()
    for number in range(streams):
        kind = KINDS[number % len(KINDS)]
        kind.random, kind.happened = Random(seed), happened
        servers.append(kind(LARGE))
    outcome = Outcome(streams, seconds)
    ages: list[float] = []
    memory: list[tuple[int, int]] = []
    last: dict[str, tuple[int, float]] = {}
    started = time.monotonic()
    pipeline = Pipeline(
        [server.url() for server in servers], "squares", imgsz=160, max_age=MAX_AGE, timeout=3.0, end=seconds
    )
    # A stream that is silent at the end would never reach it.
    sources = [Counted(source) for source in pipeline.sources]
    pipeline.sources = list(sources)
    stop = threading.Timer(seconds + 30, pipeline.close)
    stop.start()
    delivered: Counter[str] = Counter()
    for result in pipeline:
        now = time.monotonic()
        assert result.arrival is not None
        ages.append(now - result.arrival)
        name = result.frame.source_id
        index, before = last.get(name, (-1, started))
        assert result.frame.index > index, "results are in order"
        outcome.longest_silence = max(outcome.longest_silence, now - before)
        last[name] = result.frame.index, now
        delivered[name] += 1
        if len(ages) % 500 == 0:
            memory.append((len(ages), resident()))
    stop.cancel()
    for server in servers:
        server.kill()
    for source in sources:
        drops = source.info.drops
        counted = drops.get("superseded", 0) + drops.get("stale", 0)
        outcome.unaccounted += source.frames - delivered[source.info.uri] - counted
        outcome.drops = dict(Counter(outcome.drops) + Counter(drops))
        outcome.reconnects += sum("reconnected" in note for note in source.info.notes)
    _summarise(outcome, ages, memory)
    outcome.happened = dict(happened)
    return outcome


def reconnecting(streams: int, reconnects: int) -> Outcome:
    """Read servers that hang up until there were so many connections."""
    servers = [HangsUp() for _ in range(streams)]
    addresses = [server.url() for server in servers]
    pipeline = Pipeline(addresses, "squares", imgsz=160, max_age=MAX_AGE)
    started, ages, memory, connected = time.monotonic(), [], [], 0
    outcome = Outcome(streams, 0.0)
    for result in pipeline:
        assert result.arrival is not None
        ages.append(time.monotonic() - result.arrival)
        if len(ages) % 100 == 0:
            memory.append((len(ages), resident()))
            for server in servers:
                while server.connections.acquire(blocking=False):
                    connected += 1
            if connected >= reconnects:
                break
    for server in servers:
        server.kill()
    outcome.seconds, outcome.reconnects = time.monotonic() - started, connected - streams
    _summarise(outcome, ages, memory)
    return outcome


def _summarise(outcome: Outcome, ages: Sequence[float], memory: Sequence[tuple[int, int]]) -> None:
    outcome.frames = len(ages)
    if len(ages) > 10:
        cuts = statistics.quantiles(ages, n=100)
        outcome.age_p50, outcome.age_p99, outcome.age_max = cuts[49], cuts[98], max(ages)
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
    outcomes = {
        "storm": storm(options.streams, options.seconds, options.seed),
        "reconnecting": reconnecting(options.streams, options.reconnects),
    }
    facts = {name: asdict(outcome) | {"findings": outcome.findings()} for name, outcome in outcomes.items()}
    facts["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(facts, indent=1))
    if options.record:
        options.record.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if any(outcome.findings() for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
