"""cuDNN's kernels built by processes beside this one: a kernel takes a second, and the bindings hold Python's lock.

with Workers(scratch) as workers:
    image = workers.build(layer, engine, knobs).result()       what `Builder.load` reads
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from framefuse.engines.cudnn.convolutions import Layer
from framefuse.errors import EngineError

MOST = 16
"""Processes: each takes half a gigabyte on the GPU."""
PROGRAM = "framefuse.engines.cudnn.worker"


class Workers:
    """As many processes as there are cores that this one may use.

    Args:
        scratch: as of `Builder`.
        count: processes; 0: one for each core, at most `MOST`.
    """

    def __init__(self, scratch: int, count: int = 0) -> None:
        self.count = count or min(MOST, len(os.sched_getaffinity(0)))
        self._scratch, self._local = scratch, threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(self.count, "cudnn")

    def build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> Future[bytes]:
        """The kernel of an engine with knobs. The future raises EngineError where cuDNN cannot build it."""
        return self._threads.submit(self._build, layer, engine, knobs)

    def close(self) -> None:
        """Leave what has not begun, and end the processes."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # of one that has ended
                process.__exit__(None, None, None)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> bytes:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None or process.poll() is not None:
            command = [sys.executable, "-m", PROGRAM, str(self._scratch)]
            path = os.pathsep.join(entry for entry in sys.path if entry)
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       env={**os.environ, "PYTHONPATH": path})  # fmt: skip
            self._local.process = process
            self._processes.append(process)
        assert process.stdin and process.stdout
        try:
            pickle.dump((layer, engine, knobs), process.stdin)
            process.stdin.flush()
            image, error = pickle.load(process.stdout)
        except (OSError, EOFError) as gone:
            process.wait()
            raise EngineError(f"the process that built {layer.text} ended with {process.returncode}") from gone
        if error:
            raise EngineError(error)
        return bytes(image)
