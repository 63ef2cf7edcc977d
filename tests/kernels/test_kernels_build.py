"""Libraries of kernels: built once, one for each level of a CPU, chosen by its features."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from framefuse import kernels
from framefuse.errors import CapabilityError
from framefuse.kernels import cpu
from framefuse.kernels.build import build


def test_level_is_chosen_by_the_features_of_the_cpu() -> None:
    assert cpu.select("x86_64", cpu.V3_FLAGS)[0] == "x86-64-v3"
    level, reason = cpu.select("x86_64", cpu.V3_FLAGS - {"avx2"})
    assert level == "x86-64-v2" and "avx2" in reason
    assert cpu.select("aarch64", frozenset())[0] == "armv8-a"
    with pytest.raises(CapabilityError, match="riscv64"):
        cpu.select("riscv64", frozenset())
    assert kernels.describe().path.is_file()


def test_avx512_without_vbmi_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, expected in ((cpu.WIDE_FLAGS, True), (cpu.WIDE_FLAGS - {"avx512vbmi"}, False)):
        monkeypatch.setattr(cpu, "_flags", lambda _, flags=flags: flags)
        monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
        cpu.wide.cache_clear()
        assert cpu.wide() is expected
        assert ("v4" in cpu.describe().reason) is expected
    cpu.wide.cache_clear()


RUN_ONE = """
import sys
import numpy as np
from framefuse import kernels
from framefuse.frame import Frame
from framefuse.kernels import cpu
{setup}
out = np.full((3, 4, 4), np.nan, np.float32)
kernels.preprocess(Frame.from_array(np.full((8, 8, 3), 7, np.uint8)), out, content=(0, 0, 4, 4), interpolation="linear",
    pad_value=0.0, mean=(0.0,) * 3, std=(1.0,) * 3, channel_order="rgb")
assert (out == 7).all()
assert "tvm" not in sys.modules
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, where nothing has been imported or loaded."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )


@pytest.mark.parametrize("setup", ["", "cpu._flags = lambda path: frozenset()"], ids=["best", "x86-64-v2"])
def test_each_level_runs_without_importing_tvm(setup: str) -> None:
    done = run_python(RUN_ONE.format(setup=setup))
    assert done.returncode == 0, done.stderr


def test_a_current_build_is_kept_and_an_unknown_machine_is_refused() -> None:
    before = [path.stat().st_mtime_ns for path in build()]
    assert [path.stat().st_mtime_ns for path in build()] == before
    with pytest.raises(ValueError, match="riscv64"):
        build("riscv64")


def test_a_missing_library_names_the_command_that_builds_it() -> None:
    done = run_python(RUN_ONE.format(setup="cpu.LIBRARIES /= 'absent'"))
    assert "CapabilityError" in done.stderr and "python -m framefuse.kernels.build" in done.stderr
