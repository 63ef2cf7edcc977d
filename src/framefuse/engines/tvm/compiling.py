"""Relax -> shared library: precision, operator fusion, tuned schedules, code generation."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from framefuse.engines.tvm import schedules
from framefuse.engines.tvm.package import last_line, tvm
from framefuse.engines.tvm.targets import Target
from framefuse.errors import CapabilityError, EngineError

PRECISIONS = ("fp32", "fp16")

LOWERING_VERSION = 3
"""Part of the cache key; increase it when the lowering of a model changes."""


def lower(module: Any, target: Target, precision: str, *, cudnn: bool = False) -> Any:
    """Fused TensorIR functions without schedules, to be tuned or compiled.

    At fp16 the network multiplies float16 and accumulates in float32; decoding is float32.

    Args:
        cudnn: offload convolutions to cuDNN (`offload.py`); CUDA only.

    Raises:
        EngineError: a pass of TVM fails.
    """
    from framefuse.engines.tvm.fp16 import to_mixed_precision
    from framefuse.engines.tvm.offload import offload_convolutions

    relax = tvm().relax
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    try:
        with target.tvm():
            module = tvm().transform.Sequential(passes)(module)
            offloaded = offload_convolutions(module) if cudnn else None
            if offloaded is not None:
                module = offloaded
            elif precision == "fp16":
                module = to_mixed_precision(module)
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
    except Exception as error:  # TVM raises unrelated classes
        raise EngineError(f"TVM cannot lower the model at {precision}: {last_line(error)}") from error


def compile_to(
    path: Path, lowered: Any, target: Target, *, database: Any = None, own_memory: bool | None = None
) -> None:
    """Write the shared library of a lowered module.

    Functions get their best schedule from the database. Others stay plain loops on the CPU, and get the rules of
    `schedules.py` on GPUs.

    Args:
        own_memory: whether `main` takes its memory as arguments (`memory.py`); default: on CUDA.

    Raises:
        EngineError: TVM or the linker fails.
        CapabilityError: no linker is installed.
    """
    relax, tvm_target = tvm().relax, target.tvm()
    link = linker()
    own_memory = target.kind == "cuda" if own_memory is None else own_memory
    with tvm_target, ExitStack() as stack:
        if database is not None:
            stack.enter_context(database)
            lowered = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(lowered)
        if target.kind == "cuda":
            from tvm.s_tir import dlight

            lowered = dlight.ApplyDefaultSchedule(*schedules.rules())(lowered)
        try:
            compiled = tvm().compile(lowered, tvm_target, relax_pipeline=_backend_passes(relax.transform, own_memory))
            compiled.export_library(str(path), fcompile=link)
        except Exception as error:  # TVM raises unrelated classes
            raise EngineError(f"TVM cannot compile for {target.name}: {last_line(error)}") from error


def _backend_passes(passes: Any, own_memory: bool) -> Any:
    """The passes that turn fused functions into a program of TVM's virtual machine."""
    from framefuse.engines.tvm.memory import lift_storage

    lift = tvm().ir.transform.module_pass(lambda module, _: lift_storage(module), opt_level=0, name="memory")
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
    """The link function for TVM: ziglang's linker, else the system's compiler.

    Raises:
        CapabilityError: neither is installed.
    """
    if importlib.util.find_spec("ziglang") is not None:
        command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--strip-debug"]
    elif compiler := shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        command = [compiler, "-shared", "-fPIC"]
    else:
        raise CapabilityError("engine tvm needs a linker", remedy="pip install ziglang")

    def link(output: str, objects: list[str], **_: Any) -> None:
        done = subprocess.run([*command, "-o", output, *objects], capture_output=True, text=True)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error:" in line), last_line(done.stderr))
            message = f"the compiled model cannot be linked: {reason}"
            raise EngineError(message, remedy="check the free disk space of the cache")

    return link
