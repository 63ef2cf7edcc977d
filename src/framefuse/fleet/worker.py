"""One process of a `Fleet`: python -m framefuse.fleet.worker FD. It reads JSON lines on stdin and writes them to FD.

<- {"model": ..., "settings": {...}, "readers": 8, "source": "list"}   once
                                                       "segments": of one input, which others take, too; "whole": one
                                                       input, of which the settings may name a range
-> {"kind": "next"}                                    request the next input
<- "clip.mp4", or null if there is none
-> {"kind": "segment"}                                 request the next segment
<- [number, begin, end] in seconds, as fractions; the end of the last is null; or null if there is none
-> {"kind": "segments", "counts": [[number, frames], ...], "read": 250}    those that were read to their end, and the
                                                       frames in them with those that are not shown
-> {"kind": "frames", "frames": 120, "first": t, "last": t}
-> {"kind": "skipped", "texts": [...]}, {"kind": "report", "report": {...}}, {"kind": "error", "error": {...}}
"""

import itertools
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

COUNT_SECONDS = 0.1
"""Minimum interval between two frame counts."""


class Connection:
    """The connection to the fleet."""

    def __init__(self, reading: TextIO, writing: TextIO) -> None:
        self._reading, self._writing, self._lock = reading, writing, threading.Lock()

    def send(self, kind: str, **values: Any) -> None:
        with self._lock, suppress(BrokenPipeError):  # even if the fleet was killed, outputs are completed
            self._writing.write(json.dumps({"kind": kind, **values}) + "\n")
            self._writing.flush()

    def receive(self) -> Any:
        """The next message; None also if the fleet has gone."""
        return json.loads(self._reading.readline() or "null")

    def next_input(self) -> Any:
        """The next input; None if there is none."""
        self.send("next")
        return self.receive()


def main() -> int:
    signals = iter([signal.default_int_handler])  # only the first interrupts: later ones find it completing its outputs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: next(signals, lambda *_: None)(number, frame))
    connection = Connection(sys.stdin, os.fdopen(int(sys.argv[1]), "w"))
    try:
        return _work(connection)
    except KeyboardInterrupt:  # during startup
        return 130


def _work(connection: Connection) -> int:
    job = connection.receive()
    from framefuse.errors import FramefuseError, SourceError
    from framefuse.pipeline import Pipeline
    from framefuse.report.facts import ErrorFacts
    from framefuse.sources import SharedList
    from framefuse.sources.segments import Segment, Segmented, Segments

    class Asked(Segments):
        """Those that the fleet gives to no other process."""

        def _next(self) -> Segment | None:
            connection.send("segment")
            if (answer := connection.receive()) is None:
                return None
            number, begin, end = answer
            return Segment(number, Fraction(begin), None if end is None else Fraction(end))

    pipeline, frames, begin, now, sent = None, 0, 0.0, 0.0, 0.0
    segments = Asked(whole=False)
    try:
        inputs = iter(connection.next_input, None)
        first = next(inputs, None)
        if first is None:
            return 0
        source: Any = first
        if job["source"] == "list":
            source = SharedList(itertools.chain([first], inputs), job["readers"])
        elif job["source"] == "segments":
            source = Segmented(Path(first), job["readers"], segments=segments)
        pipeline = Pipeline(source, job["model"], **job["settings"])
        for _ in pipeline:
            frames += 1
            now = perf_counter()
            begin = begin or now
            if now - sent > COUNT_SECONDS:
                sent = now
                connection.send("frames", frames=frames, first=begin, last=now)
    except SourceError as error:  # none of its inputs can be read, which is not a failure of this process
        connection.send("skipped", texts=[error.message])
    except (KeyboardInterrupt, FramefuseError) as error:
        connection.send("error", error=asdict(ErrorFacts.of(error)))
        return error.exit_code if isinstance(error, FramefuseError) else 130
    finally:
        if frames:
            connection.send("frames", frames=frames, first=begin, last=now)  # what is freed after it takes time, too
        if segments.taken:
            connection.send("segments", counts=sorted(segments.counts.items()), read=segments.read)
        if pipeline is not None:
            report = json.loads(pipeline.report.to_json())  # which has no raw bytes of file names
            connection.send("report", report=report)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
