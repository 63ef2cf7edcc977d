"""What TVM compiles for: this CPU by its name, or a CUDA architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framefuse.cuda import current as gpus
from framefuse.engines.tvm.package import tvm
from framefuse.errors import CapabilityError, UsageError

KINDS = ("llvm", "cuda")


@dataclass(frozen=True)
class Target:
    """A compile target by the two words that decide which schedules are of use on it."""

    kind: str
    """"llvm" or "cuda"."""
    arch: str
    """LLVM's name of the CPU, or "sm_90"."""
    cores: int = 1
    """CPU cores that one request may take."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"target kind {self.kind!r} is unknown", remedy=f"use one of {', '.join(KINDS)}")
        if self.kind == "cuda" and not self.arch.startswith("sm_"):
            raise UsageError(f"CUDA architecture {self.arch!r} is unknown", remedy="write it as sm_90")

    @property
    def name(self) -> str:
        """Of a tuning database: schedules for one number of cores are good for another."""
        return f"{self.kind}-{self.arch}"

    @property
    def text(self) -> str:
        """For a cache key."""
        return f"{self.name} cores={self.cores}" if self.kind == "llvm" else self.name

    def tvm(self) -> Any:
        """TVM's own object."""
        if self.kind == "llvm":
            return tvm().target.Target({"kind": "llvm", "mcpu": self.arch, "num-cores": self.cores})
        return tvm().target.Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "max_num_threads": 1024,
                "max_threads_per_block": 1024,
                "max_shared_memory_per_block": 49152,
                "thread_warp_size": 32,
                "registers_per_block": 65536,
                "host": {"kind": "llvm"},  # it only starts kernels: any x86-64 can do that
            }
        )


def parse(text: str, cores: int) -> Target:
    """A target from `NAME`, as `Target.name` writes it; "cpu" and "cuda" are this machine's.

    Raises:
        UsageError: it is written otherwise.
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
    import tvm_ffi

    tvm()
    return Target("llvm", str(tvm_ffi.get_global_func("target.llvm_get_system_cpu")()), cores)


def this_gpu() -> Target:
    """This thread's current CUDA device.

    Raises:
        CapabilityError: TVM's runtime for CUDA does not find one.
    """
    device = tvm().cuda(gpus.number(None))
    if not device.exist:
        raise CapabilityError(
            "TVM finds no CUDA device (libtvm_runtime_cuda.so needs CUDA 13)", remedy="use --device cpu"
        )
    return Target("cuda", f"sm_{device.compute_version.replace('.', '')}")
