"""One process of a `Fleet`: python -m framefuse.fleet.worker FD, which reads lines of JSON on stdin and writes on FD.

<- {"model": ..., "settings": {...}, "readers": 8}     once
-> {"kind": "next"}                                    the next input, please
<- "clip.mp4" or null
-> {"kind": "frames", "frames": 120, "first": t, "last": t}
-> {"kind": "skipped", "texts": [...]}, {"kind": "report", "report": {...}}, {"kind": "error", "error": {...}}
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from time import perf_counter
from typing import Any, TextIO

COUNT_SECONDS = 0.1
"""How often the frames are counted, at most."""


class Line:
    """The connection to the fleet."""

    def __init__(self, reading: TextIO, writing: TextIO) -> None:
        self._reading, self._writing, self._lock = reading, writing, threading.Lock()

    def say(self, kind: str, **values: Any) -> None:
        with self._lock, suppress(BrokenPipeError):  # the fleet was killed: what is begun is completed all the same
            self._writing.write(json.dumps({"kind": kind, **values}) + "\n")
            self._writing.flush()

    def hear(self) -> Any:
        """The next line; None also when the fleet is gone."""
        return json.loads(self._reading.readline() or "null")

    def inputs(self) -> Iterator[str]:
        while True:
            self.say("next")
            item = self.hear()
            if item is None:
                return
            yield item


def main() -> int:
    """Exit code of the process."""
    signals = iter([signal.default_int_handler])  # the first interrupts, later ones find it completing its outputs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: next(signals, lambda *_: None)(number, frame))
    line = Line(sys.stdin, os.fdopen(int(sys.argv[1]), "w"))
    try:
        return _work(line)
    except KeyboardInterrupt:  # while it started
        return 130


def _work(line: Line) -> int:
    job = line.hear()
    from framefuse.errors import FramefuseError, SourceError
    from framefuse.pipeline import Pipeline
    from framefuse.report.facts import ErrorFacts
    from framefuse.sources import open_source
    from framefuse.sources.chain import SharedList

    pipeline = None
    try:
        inputs = line.inputs()
        first = next(inputs, None)
        if first is None:
            return 0
        shared = SharedList(itertools.chain([first], inputs), open_source, job["readers"])
        pipeline = Pipeline(shared, job["model"], **job["settings"])
        _follow(pipeline, line)
    except SourceError as error:  # nothing that it took can be read: that is no fault of this process
        line.say("skipped", texts=[error.message])
    except KeyboardInterrupt as error:
        line.say("error", error=asdict(ErrorFacts.of(error)))
        return 130
    except FramefuseError as error:
        line.say("error", error=asdict(ErrorFacts.of(error)))
        return error.exit_code
    finally:
        if pipeline is not None:
            report = pipeline.report
            line.say("skipped", texts=report.skipped())
            line.say("report", report=report.to_dict())
    return 0


def _follow(pipeline: Any, line: Line) -> None:
    """Run the pipeline and count its frames."""
    frames, began, told = 0, 0.0, 0.0
    try:
        for _ in pipeline:
            frames += 1
            now = perf_counter()
            began = began or now
            if now - told > COUNT_SECONDS:
                told = now
                line.say("frames", frames=frames, first=began, last=now)
    finally:
        if frames:
            line.say("frames", frames=frames, first=began, last=perf_counter())


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
