"""The aarch64 library, built here; under qemu, preprocess of every layout against the reference."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framefuse import kernels
from framefuse.kernels.build import build_cpu
from preprocess_cases import TOLERANCE, blank, cases, difference, moved

COMPILER, EMULATOR, SYSROOT = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"
BASE, SIZE = 0x4000000000, 1 << 26
CODES = {"i": 0, "u": 1, "f": 2}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Arena:
    """Memory at one address, here and in the emulated process; arrays are laid out in it one after another."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "memory"
        self.file.write_bytes(b"")
        with self.file.open("r+b") as file:
            file.truncate(SIZE)
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            fixed = 0x100000  # MAP_FIXED_NOREPLACE
            flags = mmap.MAP_SHARED | fixed
            address = libc.mmap(BASE, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, file.fileno(), 0)
        assert address == BASE
        self.used = 0

    def put(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy of the array in the arena."""
        self.used += -self.used % 64
        assert self.used + array.nbytes <= SIZE
        memory = (ctypes.c_char * max(array.nbytes, 1)).from_address(BASE + self.used)
        self.used += array.nbytes
        copy = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        copy[...] = array
        return copy

    def close(self) -> None:
        ctypes.CDLL(None).munmap(ctypes.c_void_p(BASE), ctypes.c_size_t(SIZE))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library, _index = build_cpu("aarch64", directory=tmp_path_factory.mktemp("aarch64"))
    return library


def test_libraries_of_another_machine_are_built_here(library: Path) -> None:
    elf_machine = int.from_bytes(library.read_bytes()[18:20], "little")
    assert elf_machine == 183  # EM_AARCH64


@pytest.fixture(scope="module")
def emulated(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(arena, a function that runs one kernel of the aarch64 library under qemu)."""
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip("apt-get install qemu-user gcc-aarch64-linux-gnu")
    folder = tmp_path_factory.mktemp("emulated")
    harness = folder / "run_kernel"
    source = Path(__file__).parents[1] / "helpers" / "run_kernel.c"
    subprocess.run([COMPILER, "-O1", "-rdynamic", str(source), "-o", str(harness), "-ldl"], check=True)
    arena = Arena(folder)

    def run(name: str, *arguments: Any) -> None:
        lines = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                copy = arena.put(argument)
                kind = copy.dtype
                shape = " ".join(map(str, copy.shape))
                lines.append(f"t {copy.ctypes.data} {CODES[kind.kind]} {kind.itemsize * 8} {copy.ndim} {shape}")
            else:
                lines.append(f"{'f' if isinstance(argument, float) else 'i'} {argument}")
        command = [EMULATOR, "-L", SYSROOT, str(harness), str(library), name, str(arena.file), hex(BASE), str(SIZE)]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.returncode, done.stderr)

    yield arena, run
    arena.close()


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010", "bgr24", "rgba", "gray12"])
def test_preprocess_on_aarch64(name: str, emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arena, run = emulated
    module = sys.modules["framefuse.kernels.preprocess.call"]
    monkeypatch.setattr(module, "_function", lambda kernel: lambda *arguments: run(kernel, *arguments))
    scratch = SimpleNamespace(get=lambda name, shape, dtype=np.float32: arena.put(np.zeros(shape, dtype)))
    monkeypatch.setattr(module, "_scratch", scratch)
    monkeypatch.setattr(module, "_tensor", lambda array: array)
    plan = sys.modules["framefuse.kernels.preprocess.plan"]
    monkeypatch.setattr(plan, "byte_level", lambda: "armv8-a")  # this machine's own kernels are not those under test
    monkeypatch.setattr(module, "_calls", SimpleNamespace(known={}))
    plan.plan.cache_clear()
    for case in cases((name,), 12):
        arena.used = 0
        module._calls.known.clear()  # with addresses in the arena
        out = arena.put(blank(case.size, "float32", None))
        kernels.preprocess(moved(case.frame, arena.put), out, content=case.content, **case.options)
        assert difference(out, case, "float32", None) <= TOLERANCE["float32"], case
    plan.plan.cache_clear()
