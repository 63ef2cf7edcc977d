"""Facts about the machine that choices rest on."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path


def available_cores() -> int:
    """CPU cores this process may really use: its affinity mask, and the CPU quota of its cgroup, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))


def trim_heap() -> None:
    """Give free heap back to the system: reading and compiling a model leaves tens of MB that glibc would keep."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def lacks_memory(error: BaseException) -> str | None:
    """What it says, where that is that the memory of this machine is not enough; C++ says so in words only."""
    if type(error).__module__.startswith("cupy"):
        return None  # that one is of the GPU
    found = re.search(r"(std::bad_alloc|([^\n:]*can't|[Ff]ailed to|[Uu]nable to) alloc[^\n]*)", str(error))
    if found:
        return found[0].strip()
    return "MemoryError" if isinstance(error, MemoryError) else None
