"""Compile targets: a CPU by LLVM's name, or a CUDA architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framefuse.cuda import device as gpus
from framefuse.engines.tvm.package import tvm
from framefuse.errors import CapabilityError, UsageError
from framefuse.kernels.cpu import tvm_ffi

KINDS = ("llvm", "cuda")


@dataclass(frozen=True)
class Target:
    """A compile target; `kind` and `arch` decide which schedules apply."""

    kind: str
    """"llvm" or "cuda"."""
    arch: str
    """LLVM's name of the CPU, or "sm_90"."""
    cores: int = 1
    """CPU cores of one request."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"target kind {self.kind!r} is unknown", remedy=f"use one of {', '.join(KINDS)}")
        if self.kind == "cuda" and not self.arch.startswith("sm_"):
            raise UsageError(f"CUDA architecture {self.arch!r} is unknown", remedy="write it as sm_90")

    @property
    def name(self) -> str:
        """Name of its tuning database, which is independent of the number of cores."""
        return f"{self.kind}-{self.arch}"

    @property
    def text(self) -> str:
        """For a cache key."""
        return f"{self.name} cores={self.cores}" if self.kind == "llvm" else self.name

    def tvm(self) -> Any:
        """TVM's target object."""
        if self.kind == "llvm":
            return tvm().target.Target({"kind": "llvm", "mcpu": self.arch, "num-cores": self.cores})
        limits = {"max_num_threads": 1024, "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
        limits |= {"thread_warp_size": 32, "registers_per_block": 65536}
        host = {"kind": "llvm"}  # generic, because it only launches kernels
        return tvm().target.Target({"kind": "cuda", "arch": self.arch, **limits, "host": host})


def parse(text: str, cores: int) -> Target:
    """A target from a name such as `Target.name`; "cpu" and "cuda" are this machine's.

    Raises:
        UsageError: the name is invalid.
        CapabilityError: this machine has no CUDA.
    """
    if text == "cpu":
        return this_cpu(cores)
    if text == "cuda":
        return this_gpu()
    kind, _, arch = text.partition("-")
    if not arch:
        raise UsageError(f"target {text!r} is unknown", remedy="use cpu, cuda, or a name such as cuda-sm_90")
    return Target(kind, arch, cores)


def this_cpu(cores: int) -> Target:
    """The CPU this process runs on."""
    tvm()
    return Target("llvm", str(tvm_ffi().get_global_func("target.llvm_get_system_cpu")()), cores)


def this_gpu() -> Target:
    """This thread's current CUDA device.

    Raises:
        CapabilityError: TVM's CUDA runtime finds no device.
    """
    device = tvm().cuda(gpus.current_gpu())
    if not device.exist:
        raise CapabilityError("TVM finds no GPU (libtvm_runtime_cuda.so needs CUDA 13)", remedy="use --device cpu")
    return Target("cuda", f"sm_{device.compute_version.replace('.', '')}")
