"""ONNX -> Relax -> shared library: constant folding, precision, operator fusion, tuned schedules, code generation.

TVM's importer supports shape arithmetic (Shape, Range, Expand of an anchor grid) only for known sizes, so onnx's shape
inference and evaluator make the model static first. FP16 models are imported as FP32: the precision is chosen later,
and TVM would accumulate float16 products in float16.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from framefuse.engines.onnx_shapes import at_shape, folded
from framefuse.engines.requests import Shape
from framefuse.engines.tvm import schedules
from framefuse.engines.tvm.package import last_line, tvm
from framefuse.engines.tvm.targets import Target
from framefuse.errors import CapabilityError, EngineError, ModelError
from framefuse.models.fp16 import to_fp32
from framefuse.models.onnx_file import inputs_of, load_onnx

PRECISIONS = ("fp32", "fp16")
LOWERING_VERSION = 3
"""Part of the cache key; increase it when the lowering of a model changes."""
MEMORY = "memory"
"""Function of a module that allocates the memory arguments of `main`, which follow its input."""
REMEDY = "use another engine, for example onnxruntime"


def import_model(path: Path, shape: Shape) -> Any:
    """The `IRModule` of an ONNX file for input `shape` (batch, 3, height, width), with weights as constants.

    Raises:
        ModelError: the file cannot be read, has other inputs, or has operators that TVM lacks.
        UsageError: the model, or the profile it was built for, excludes this shape.
    """
    from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

    model = load_onnx(path)
    inputs = inputs_of(model)
    if len(inputs) != 1 or len(inputs[0].type.tensor_type.shape.dim) != 4:
        raise ModelError(
            f"{path} has inputs {[value.name for value in inputs]}",
            remedy="engine tvm takes one input of (batch, 3, height, width)",
        )
    model = folded(to_fp32(at_shape(model, shape)))
    known = onnx_frontend._get_convert_map()
    missing = Counter(node.op_type for node in model.graph.node if node.op_type not in known)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise ModelError(f"engine tvm cannot run {path}: TVM has no {listed}", remedy=REMEDY)
    try:
        return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # TVM raises unrelated classes
        raise ModelError(f"engine tvm cannot run {path}: {last_line(error)}", remedy=REMEDY) from error


def lift_storage(module: Any) -> Any:
    """Move allocations from `main` to `MEMORY`; runs after memory planning, before frees are inserted."""
    relax = tvm().relax
    main = module["main"]
    blocks: list[Any] = []
    storages: list[Any] = []
    for block in main.body.blocks:
        remaining: list[Any] = []
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            is_storage = isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.memory.alloc_storage"
            (storages if is_storage else remaining).append(binding)
        blocks.append(relax.BindingBlock(remaining))
    variables = [relax.Var(f"storage{index}", relax.AnyType()) for index in range(len(storages))]
    bindings = [relax.VarBinding(name, binding.value) for name, binding in zip(variables, storages, strict=True)]
    out = relax.Var("storages", relax.TupleType([relax.AnyType()] * len(variables)))
    body = relax.SeqExpr([relax.BindingBlock([*bindings, relax.VarBinding(out, relax.Tuple(variables))])], out)
    module = module.clone()
    module["main"] = relax.Function(
        [*main.params, *(binding.var for binding in storages)],
        relax.SeqExpr(blocks, main.body.body),
        main.ret_ty,
        main.is_pure,
        main.attrs,
    )
    module[MEMORY] = relax.Function([], body, out.ty, False).with_attr("global_symbol", MEMORY)
    return module


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
        own_memory: whether `main` takes its memory as arguments (`lift_storage`); default: on CUDA.

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
