"""Facts about the machine, and its memory."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path


def available_cores() -> int:
    """CPU cores this process may use: its affinity mask, limited by the CPU quota of its cgroup, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))


def trim_heap() -> None:
    """Return free heap memory to the system: loading a model leaves tens of MB that glibc would keep."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def lacks_memory(error: BaseException) -> str | None:
    """The message of an error that means the host is out of memory, otherwise None. C++ tells only by its text."""
    if type(error).__module__.startswith("cupy"):
        return None  # out of GPU memory
    found = re.search(r"(std::bad_alloc|([^\n:]*can't|[Ff]ailed to|[Uu]nable to) alloc[^\n]*)", str(error))
    if found:
        return found[0].strip()
    return "MemoryError" if isinstance(error, MemoryError) else None
