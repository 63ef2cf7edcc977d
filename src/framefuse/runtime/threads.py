"""Threads: their names, and the CPU time of each name, so that work inside libraries is charged to the stage it serves.

Title: whose CPU time is it?
    Wall time of a stage says little on a busy machine, so CPU time is recorded too. It comes from two places.
    1. A stage measures its own thread with `time.thread_time()` and hands that to `StageClock.add(cpu=...)`.
    2. Libraries work in threads of their own. On Linux a new thread inherits the name of the thread that created it, so
       the pipeline names its threads (`name_thread`, `thread_named`) and the kernel's per-thread counters
       (/proc/self/task/*/schedstat) are added up by name. Checked with PyAV 18, OpenVINO 2026.4 and ONNX Runtime 1.31:
           av:<codec>:df<n>   FFmpeg renames its frame decoding threads            -> decode
           ff-decode          FFmpeg's slice threads, started by the decode thread -> decode
           ff-engine          OpenVINO's stream and TBB threads and ONNX Runtime's pool, started while the engine was
                              compiled; pools started by the first run bear the program thread's name -> inference
           ff-<sink>          x264's and FFmpeg's encoder threads, started by the thread that opened or first used them
    Process CPU time that neither explains (queues, the interpreter, the reader's own loop, what a thread did between
    the last sample and its end) is reported as "other". Elsewhere than on Linux a stage's CPU time is None.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TASKS = Path("/proc/self/task")
COMM_LENGTH = 15
"""Bytes of a thread's name that Linux keeps."""


def name_thread(name: str) -> str | None:
    """Name the calling thread, for profilers and for `cpu_by_thread_name`; threads that it creates inherit the name.

    Args:
        name: cut to 15 bytes, as Linux does.

    Returns:
        the name it had before, or None where threads cannot be named (anything but Linux): nothing is changed then.
    """
    comm = Path("/proc/thread-self/comm")
    try:
        before = comm.read_text().rstrip("\n")
        comm.write_text(name[:COMM_LENGTH])
    except OSError:
        return None
    return before


@contextmanager
def thread_named(name: str) -> Iterator[None]:
    """Name the calling thread for the length of a block, so that the threads started inside are known by that name."""
    before = name_thread(name)
    try:
        yield
    finally:
        if before is not None:
            name_thread(before)


def cpu_by_thread_name() -> dict[str, float] | None:
    """CPU seconds of the threads alive now, added up by name; None where the system does not tell (not Linux)."""
    tasks = _read_tasks()
    if tasks is None:
        return None
    seconds: dict[str, float] = {}
    for name, used in tasks.values():
        seconds[name] = seconds.get(name, 0.0) + used
    return seconds


def _read_tasks() -> dict[int, tuple[str, float]] | None:
    """Thread id -> (name, CPU seconds)."""
    try:
        ids = os.listdir(_TASKS)
    except OSError:
        return None
    tasks = {}
    for task in ids:
        try:
            with open(f"{_TASKS}/{task}/comm") as file:
                name = file.read().rstrip("\n")
            tasks[int(task)] = name, _task_seconds(task)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return tasks


def _task_seconds(task: str) -> float:
    try:
        with open(f"{_TASKS}/{task}/schedstat") as file:
            return int(file.read().split()[0]) * 1e-9
    except FileNotFoundError:
        # A kernel without scheduler statistics counts in ticks, usually of 10 ms.
        with open(f"{_TASKS}/{task}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class HelperCpu:
    """CPU seconds of the threads that Python did not start, by name, since construction.

    A thread is lost when it ends; `sample` often enough, and only its last stretch is.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, float]] = {}
        self._python: set[int] = set()
        self._sums: dict[str, float] = {}
        self.known = _read_tasks() is not None
        self.sample()
        self._sums.clear()

    def sample(self) -> None:
        tasks = _read_tasks() or {}
        # A Python thread that is about to end is forgotten by Python before it is by the system: remember it.
        self._python &= tasks.keys()
        self._python |= {
            thread.native_id
            for thread in threading.enumerate()
            # A library's thread that once called into Python shows up as a dummy.
            if thread.native_id is not None and not isinstance(thread, threading._DummyThread)
        }
        now = {task: row for task, row in tasks.items() if task not in self._python}
        for task, (name, seconds) in now.items():
            before = self._last.get(task, ("", 0.0))[1]
            # Less than before: the number was given to a new thread.
            self._sums[name] = self._sums.get(name, 0.0) + (seconds - before if seconds >= before else seconds)
        self._last = now

    def seconds(self, prefixes: tuple[str, ...]) -> float:
        return sum(used for name, used in self._sums.items() if name.startswith(prefixes))
