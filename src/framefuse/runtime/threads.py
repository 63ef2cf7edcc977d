"""Threads: their names, CPU time by name, so that work inside libraries is charged to the stage it serves, and how soon
they hand Python's lock over.

Title: whose CPU time is it?
    The wall time of a stage says little on a busy machine, so CPU time is recorded too, from two sources.
    1. A stage measures its own thread with `time.thread_time()` and passes that to `StageClock.add(cpu=...)`.
    2. Libraries work in threads of their own. On Linux a new thread inherits the name of the thread that created it, so
       the pipeline names its threads (`name_thread`, `thread_named`) and sums the per-thread counters of the system
       (/proc/self/task/*/schedstat) by name. Checked with PyAV 18, OpenVINO 2026.4 and ONNX Runtime 1.31:
           av:<codec>:df<n>   FFmpeg renames its frame decoding threads            -> decode
           ff-decode          FFmpeg's slice threads, started by the decode thread -> decode
           ff-engine          OpenVINO's stream and TBB threads and ONNX Runtime's pool, started while the engine was
                              compiled; pools that start with the first run have the program thread's name -> inference
           ff-<sink>          x264's and FFmpeg's encoder threads, started by the thread that opened or first used them
    CPU time of the process that neither covers (queues, the interpreter, the caller's loop, what a thread did between
    the last sample and its end) is reported as "other". On systems other than Linux the CPU time of a stage is None.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isclose
from pathlib import Path

HANDOVER_SECONDS = 100e-6
"""After which a thread gives Python's lock up to one that waits. With Python's own 5 ms, six decoders beside the mattes
of 4K on an H200 wait 2 ms a frame for what they then need for 20 us, and a file takes 1.2 times as long. What it does
to detections is not known."""
_TASKS = "/proc/self/task"
"""A text: `Path` interns its parts, which Python 3.12 then keeps for good, and new threads have new numbers."""
COMM_LENGTH = 15
"""Length at which Linux truncates a thread name, in bytes."""


def name_thread(name: str) -> str | None:
    """Name the calling thread, for profilers and `HelperCpu`; threads that it creates inherit the name.

    Returns:
        the previous name; None, with nothing changed, where threads cannot be named (anything but Linux).
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
    """Name the calling thread for the duration of a block; threads started inside inherit the name."""
    before = name_thread(name)
    try:
        yield
    finally:
        if before is not None:
            name_thread(before)


def _read_tasks() -> dict[int, tuple[str, float]] | None:
    """Thread id -> (name, CPU seconds)."""
    try:
        ids = os.listdir(_TASKS)
    except OSError:
        return None
    tasks = {}
    for task in ids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            tasks[int(task)] = _read(task, "comm").rstrip("\n"), _task_seconds(task)
    return tasks


def _read(task: str, file: str) -> str:
    with open(f"{_TASKS}/{task}/{file}") as opened:
        return opened.read()


def _task_seconds(task: str) -> float:
    try:
        return int(_read(task, "schedstat").split()[0]) * 1e-9
    except FileNotFoundError:
        # Linux without scheduler statistics counts in ticks, usually of 10 ms.
        fields = _read(task, "stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Handover:
    """What the runs of this process have changed about Python's lock."""

    lock = threading.Lock()
    runs = 0
    before = 0.0
    """Seconds after which a thread gave the lock up before the first of these runs."""


@contextmanager
def quick_handover(wanted: bool = True) -> Iterator[None]:
    """Let a thread of this process that waits for Python's lock have it soon, as long as a block runs.

    Mattes on a GPU are made by several threads, each of which needs the lock for microseconds, again and again. Blocks
    may overlap, in any threads; what was set before the first is restored after the last, unless somebody has set
    another value.

    Args:
        wanted: False: change nothing.
    """
    if not wanted:
        yield
        return
    with _Handover.lock:
        if not _Handover.runs:
            _Handover.before = sys.getswitchinterval()
            sys.setswitchinterval(min(HANDOVER_SECONDS, _Handover.before))
        _Handover.runs += 1
    try:
        yield
    finally:
        with _Handover.lock:
            _Handover.runs -= 1
            if not _Handover.runs and isclose(sys.getswitchinterval(), HANDOVER_SECONDS):
                sys.setswitchinterval(_Handover.before)


class HelperCpu:
    """CPU seconds, by name, of the threads that Python did not start, since construction.

    When a thread ends, what it did since the last `sample` is lost.
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
        # Python forgets an ending thread before the system does, so known ids are kept until the system drops them.
        self._python &= tasks.keys()
        self._python |= {
            thread.native_id
            for thread in threading.enumerate()
            # A library thread that has called into Python appears as a dummy thread.
            if thread.native_id is not None and not isinstance(thread, threading._DummyThread)
        }
        now = {task: row for task, row in tasks.items() if task not in self._python}
        for task, (name, seconds) in now.items():
            before = self._last.get(task, ("", 0.0))[1]
            # If less than before, the id was reused by a new thread.
            self._sums[name] = self._sums.get(name, 0.0) + (seconds - before if seconds >= before else seconds)
        self._last = now

    def seconds(self, prefixes: tuple[str, ...]) -> float:
        return sum(used for name, used in self._sums.items() if name.startswith(prefixes))
