"""What the process may use: cores and memory, by the files of cgroup v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from framefuse.common import machine
from framefuse.common.machine import available_cores, lacks_memory, memory_limit


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
