"""Worker processes that build cuDNN kernels: a kernel takes up to a second, and the bindings hold the GIL.

with contextlib.closing(Workers(max_workspace)) as workers:
    kernel = workers.build(layer, engine, knobs).result()  # bytes for `Builder.load`

A process: python -m framefuse.engines.cudnn.workers WORKSPACE_BYTES
stdin:  pickled (Layer, engine, knobs), until end of file
stdout: pickled (kernel, error): bytes for `Builder.load` and an empty string, or empty bytes and an error message
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from framefuse.engines.cudnn.convolutions import Builder, Layer
from framefuse.errors import EngineError

MAX_WORKERS = 16
"""Each process takes half a gigabyte of GPU memory."""
WORKER_MODULE = "framefuse.engines.cudnn.workers"


class Workers:
    """A pool of worker processes, which start on demand.

    Args:
        max_workspace: as for `Builder`.
        count: of processes; 0: one per available core, at most MAX_WORKERS.
    """

    def __init__(self, max_workspace: int, count: int = 0) -> None:
        self.count = count or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self._max_workspace, self._local = max_workspace, threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(self.count, "cudnn")

    def build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> Future[bytes]:
        """The serialised kernel of a layer. The future raises EngineError if cuDNN cannot build it."""
        return self._threads.submit(self._build, layer, engine, knobs)

    def close(self) -> None:
        """Cancel what has not started, and stop the processes."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # it has already exited
                process.__exit__(None, None, None)

    def _build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> bytes:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None or process.poll() is not None:
            command = [sys.executable, "-m", WORKER_MODULE, str(self._max_workspace)]
            path = os.pathsep.join(entry for entry in sys.path if entry)
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       env={**os.environ, "PYTHONPATH": path})  # fmt: skip
            self._local.process = process
            self._processes.append(process)
        assert process.stdin and process.stdout
        try:
            pickle.dump((layer, engine, knobs), process.stdin)
            process.stdin.flush()
            kernel, message = pickle.load(process.stdout)
        except (OSError, EOFError) as error:
            process.wait()
            raise EngineError(f"the worker that built {layer.text} exited with code {process.returncode}") from error
        if message:
            raise EngineError(message)
        return bytes(kernel)


def main() -> None:
    """Build kernels on request until end of file."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    builder = Builder(max_workspace=int(sys.argv[1]))
    while True:
        try:
            layer, engine, knobs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        kernel, error = b"", ""
        try:
            plan = builder.build(layer, engine, knobs)
            if plan.workspace > builder.max_workspace:
                raise EngineError(f"engine {engine} needs a workspace of {plan.workspace} bytes")
            kernel = bytes(plan.graph.serialize(as_bytes=True))
        except Exception as failed:  # of any class, from the bindings too: report it and go on
            error = str(failed)[:300] or type(failed).__name__
        pickle.dump((kernel, error), answers)
        answers.flush()


if __name__ == "__main__":
    main()
