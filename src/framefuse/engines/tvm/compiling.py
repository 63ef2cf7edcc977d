"""Relax -> shared library: precision, fusion, schedules of a tuning database, machine code."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from framefuse.engines.tvm import schedules
from framefuse.engines.tvm.package import tvm
from framefuse.engines.tvm.targets import Target
from framefuse.errors import CapabilityError, EngineError

PRECISIONS = ("fp32", "fp16")

LOWERING = 3
"""Version of what is made of a model, for a cache key."""


def lower(module: Any, target: Target, precision: str, *, cudnn: bool = False) -> Any:
    """The module as fused TensorIR functions without schedules: what is tuned, and what is compiled.

    At fp16 the network's layers multiply float16 and add in float32; what decodes their outputs is float32.

    Args:
        cudnn: leave convolutions to cuDNN (`offload.py`); CUDA only.

    Raises:
        EngineError: one of TVM's passes fails.
    """
    from framefuse.engines.tvm import fp16 as halves
    from framefuse.engines.tvm import offload

    relax = tvm().relax
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    try:
        with target.tvm():
            module = tvm().transform.Sequential(passes)(module)
            off_loaded = offload.off_load(module) if cudnn else None
            if off_loaded is not None:
                module = off_loaded
            elif precision == "fp16":
                module = halves.in_half(module)
            return tvm().transform.Sequential(
                [
                    relax.backend.DispatchSampling(),
                    relax.backend.DispatchSortScan(),
                    relax.transform.LegalizeOps(),
                    relax.transform.AnnotateTIROpPattern(),
                    relax.transform.FoldConstant(),
                    relax.transform.FuseOps(),
                    relax.transform.FuseTIR(),
                    relax.transform.DeadCodeElimination(),
                ]
            )(module)
    except Exception as error:  # TVM's errors are of a dozen unrelated classes
        raise EngineError(f"TVM cannot lower the model at {precision}: {_first_line(error)}") from error


def compile_to(
    path: Path, lowered: Any, target: Target, *, database: Any = None, own_memory: bool | None = None
) -> None:
    """Write the shared library of a lowered module.

    A function that the database knows gets its best schedule there. Others stay as they are on the CPU (plain loops),
    and get the rules of `schedules.py` on GPUs.

    Args:
        own_memory: whether `main` is given its memory (`memory.py`); default: on CUDA.

    Raises:
        EngineError: TVM, or the compiler of CUDA that it calls, fails.
        CapabilityError: there is no linker.
    """
    relax, made = tvm().relax, target.tvm()
    link = linker()
    own_memory = target.kind == "cuda" if own_memory is None else own_memory
    with made, ExitStack() as stack:
        if database is not None:
            stack.enter_context(database)
            lowered = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(lowered)
        if target.kind == "cuda":
            from tvm.s_tir import dlight

            lowered = dlight.ApplyDefaultSchedule(*schedules.rules())(lowered)
        try:
            compiled = tvm().compile(lowered, made, relax_pipeline=_rest(relax.transform, own_memory))
            compiled.export_library(str(path), fcompile=link)
        except CapabilityError:
            raise
        except Exception as error:  # TVM's errors are of a dozen unrelated classes
            raise EngineError(f"TVM cannot compile for {target.name}: {_first_line(error)}") from error


def _rest(passes: Any, own_memory: bool) -> Any:
    """What turns fused functions into a program of TVM's virtual machine."""
    from framefuse.engines.tvm import memory

    lift = tvm().ir.transform.module_pass(lambda module, _: memory.as_arguments(module), opt_level=0, name="memory")
    return tvm().transform.Sequential(
        [
            passes.RewriteDataflowReshape(),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            *([lift] if own_memory else []),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )


def linker() -> Any:
    """The function by which TVM links: ziglang's linker, or the system's compiler."""
    if importlib.util.find_spec("ziglang") is not None:
        command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--strip-debug"]
    elif compiler := shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        command = [compiler, "-shared", "-fPIC"]
    else:
        raise CapabilityError("engine tvm needs a linker", remedy="pip install ziglang")

    def link(output: str, objects: list[str], **_: Any) -> None:
        done = subprocess.run([*command, "-o", output, *objects], capture_output=True, text=True)
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error:" in line), _first_line(done.stderr))
            raise EngineError(f"the compiled model cannot be linked: {said}", remedy="is the disk of the cache full?")

    return link


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
