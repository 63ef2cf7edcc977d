"""Servers for chaos.py, in a process of their own, so that what they hold does not count as memory of the pipeline.

    python tests/faults/chaos_servers.py storm|hang-up STREAMS SEED

Prints the addresses as one line of JSON, then a line for each connection, and at the end of its input what happened.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from servers import LARGE, SMALL, HttpServer, RtspServer, Server, UdpSender, mpegts

DATAGRAM = 7 * 188


class Chaos:
    """What befalls the frames of a camera; mixed into a server."""

    random: Random
    happened: Counter[str]

    def chunks(self: Any) -> Iterator[bytes]:
        return self.paced(self._film())

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
        print("connection", flush=True)
        for chunk in itertools.islice(mpegts(SMALL), 12):
            client.sendall(chunk)
            if self._dead.wait(0.005):
                return


def main() -> None:
    what, streams, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    happened: Counter[str] = Counter()
    servers = []
    for number in range(streams):
        kind: Any = HangsUp if what == "hang-up" else KINDS[number % len(KINDS)]
        kind.random, kind.happened = Random(seed), happened
        servers.append(kind(LARGE))
    print(json.dumps([server.url() for server in servers]), flush=True)
    sys.stdin.read()
    for server in servers:
        server.kill()
    print(json.dumps(happened), flush=True)


if __name__ == "__main__":
    main()
