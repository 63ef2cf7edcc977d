"""Facts about the machine, its memory, and where Python finds modules."""

import ctypes
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")
MEMORY_FILES = ("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
"""Controller of cgroup v2 and of v1, and the files with the limit and the use of a group."""


def python_path() -> str:
    """PYTHONPATH with which another process of Python finds the modules that this one does."""
    return os.pathsep.join(os.fspath(entry) for entry in sys.path if entry)


def available_cores() -> int:
    """CPU cores this process may use: its affinity mask, limited by the CPU quotas of its cgroups, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in (
        *(text.split()[:2] for text in _limits("", "cpu.max")),
        *zip(_limits("cpu", "cpu.cfs_quota_us"), _limits("cpu", "cpu.cfs_period_us"), strict=False),
    ):
        if quota.isdecimal() and period.isdecimal():  # neither "max" nor -1
            cores = max(1, min(cores, -(-int(quota) // int(period))))
    return cores


def cpu_model() -> str:
    """Name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def memory_limit() -> int | None:
    """Bytes that the cgroups of this process allow it, if they limit it to less than the machine has."""
    texts = (text for controller, limit, _ in MEMORY_FILES for text in _limits(controller, limit))
    return min((int(text) for text in texts if text.isdecimal() and int(text) < _machine()), default=None)


def memory_free() -> int:
    """Bytes of memory that this process can have: what the machine has available, if known, and its cgroups allow.
    Files that are cached do not count as used, since the kernel drops them first."""
    free = [_machine()]
    with suppress(OSError):
        free += [int(kib) << 10 for kib in re.findall(r"^MemAvailable: *(\d+) kB", MEMORY.read_text(), re.MULTILINE)]
    for controller, limit, use in MEMORY_FILES:
        files = (_limits(controller, name) for name in (limit, use, "memory.stat"))
        for most, used, facts in zip(*files, strict=False):
            if most.isdecimal() and used.isdecimal():
                cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", facts, re.MULTILINE)
                free.append(int(most) - int(used) + max(map(int, cached), default=0))
    return max(0, min(free))


def _machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits(controller: str, name: str) -> list[str]:
    """The contents of a file of the cgroup of this process and of those around it; controller: "" for cgroup v2."""
    found = []  # inside a container, the path may be that of the host, of which only the root is mounted
    with suppress(OSError, ValueError):
        for line in OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                group = Path(path.lstrip("/"))
                for folder in (group, *group.parents):
                    with suppress(OSError):
                        found.append((GROUPS / controller / folder / name).read_text().strip())
    return found


def trim_heap() -> None:
    """Return free heap memory to the system: loading a model leaves tens of MB that glibc would keep."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


LACKING = (
    r"(std::bad_alloc|([^\n:]*can't|[Ff]ailed to|[Uu]nable to|[Cc]annot) alloc[^\n]*"
    r"|can't start new thread|failed to map segment[^\n]*)"
)


def lacks_memory(error: BaseException) -> str | None:
    """The message of an error that means the host is out of memory, otherwise None. C++ tells only by its text."""
    if type(error).__module__.startswith("cupy"):
        return None  # out of GPU memory
    found = re.search(LACKING, str(error))
    if found:
        return found[0].strip()
    return "MemoryError" if isinstance(error, MemoryError) else None
