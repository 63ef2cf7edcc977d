"""What the process may use: cores and memory, by the files of cgroup v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from framefuse.common import machine
from framefuse.common.machine import available_cores, lacks_memory, memory_free, memory_limit


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    return tmp_path


def write(groups: Path, own: str, **files: str) -> None:
    """`own` is /proc/self/cgroup; files are named by their paths below /sys/fs/cgroup."""
    (groups / "own").write_text(own)
    for name, text in files.items():
        path = groups / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_without_cgroups(groups: Path) -> None:
    assert (available_cores(), memory_limit()) == (16, None)


def test_v2_in_a_container(groups: Path) -> None:
    write(groups, "0::/\n", **{"cpu.max": "250000 100000", "memory.max": str(512 << 20)})
    assert (available_cores(), memory_limit()) == (3, 512 << 20)


def test_v2_without_limits(groups: Path) -> None:
    write(groups, "0::/\n", **{"cpu.max": "max 100000", "memory.max": "max"})
    assert (available_cores(), memory_limit()) == (16, None)


def test_the_tightest_of_nested_v2_groups(groups: Path) -> None:
    """A service of systemd with CPUQuota, in a slice with a limit of its own."""
    files = {"a.slice/cpu.max": "200000 100000", "a.slice/memory.max": "max"}
    files |= {"a.slice/b.service/cpu.max": "max 100000", "a.slice/b.service/memory.max": "1048576"}
    write(groups, "0::/a.slice/b.service\n", **files)
    assert (available_cores(), memory_limit()) == (2, 1 << 20)


def test_v1(groups: Path) -> None:
    own = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"  # the path on the host, which the container does not see
    write(groups, own, **v1("150000", str(1 << 30)))
    assert (available_cores(), memory_limit()) == (2, 1 << 30)


def test_v1_without_limits(groups: Path) -> None:
    write(groups, "4:memory:/\n3:cpu:/\n", **v1("-1", "9223372036854771712"))
    assert (available_cores(), memory_limit()) == (16, None)


def v1(quota: str, memory: str) -> dict[str, str]:
    names = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "memory/memory.limit_in_bytes"
    return dict(zip(names, (quota, "100000", memory), strict=True))


def test_free_memory_is_what_the_machine_has_and_its_groups_leave(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MEMORY", groups / "meminfo")
    assert memory_free() == machine._machine(), "unknown"
    (groups / "meminfo").write_text("MemTotal:       99 kB\nMemFree:        10 kB\nMemAvailable:   64 kB\n")
    assert memory_free() == 64 << 10
    files = {"a/memory.max": "max", "a/memory.current": "9000", "a/memory.stat": "file 700\ninactive_file 500"}
    files |= {"a/b/memory.max": "9999", "a/b/memory.current": "8000", "a/b/memory.stat": "file 700\ninactive_file 500"}
    write(groups, "0::/a/b\n", **files)
    assert memory_free() == 9999 - 8000 + 500
    write(groups, "0::/a/b\n", **{"a/b/memory.current": "99999"})
    assert memory_free() == 0


def test_free_memory_of_v1(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMORY", groups / "none")
    limits = {"memory/a/memory.limit_in_bytes": "5000", "memory/memory.limit_in_bytes": "9223372036854771712"}
    used = {"memory/a/memory.usage_in_bytes": "4000", "memory/memory.usage_in_bytes": "8000"}
    stat = {"memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 300", "memory/memory.stat": "cache 1"}
    write(groups, "4:memory:/a\n", **limits, **used, **stat)
    assert memory_free() == 1300


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (ImportError("libx.so: failed to map segment from shared object"), "failed to map segment"),
        (RuntimeError("Exception: std::bad_alloc"), "std::bad_alloc"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_errors_that_mean_memory(error: Exception, why: str) -> None:
    assert why in (lacks_memory(error) or "")
    assert lacks_memory(ValueError("wrong")) is None
