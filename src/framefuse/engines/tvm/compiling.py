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
from collections import Counter, defaultdict
from contextlib import ExitStack, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

from framefuse.common.text import lines_of
from framefuse.engines.onnx_shapes import at_shape, folded
from framefuse.engines.requests import Shape
from framefuse.engines.tvm import schedules
from framefuse.engines.tvm.offload import offload_convolutions
from framefuse.engines.tvm.package import builder_without_main, operator, reads, rebuild, shape_of, tvm
from framefuse.engines.tvm.targets import Target
from framefuse.errors import CapabilityError, EngineError, ModelError
from framefuse.models.fp16 import to_fp32
from framefuse.models.onnx_file import inputs_of, load_onnx

PRECISIONS = ("fp32", "fp16")
LOWERING_VERSION = 4
"""Part of the cache key; increase it when the lowering of a model changes."""
MEMORY = "memory"
"""Function of a module that allocates the memory arguments of `main`, which follow its input."""
ALLOCATES = "relax.memory.alloc_storage"
REMEDY = "use another engine, for example onnxruntime"
WEIGHTED = tuple(f"relax.{kind}" for kind in ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose",
               "nn.conv2d_transpose", "nn.conv3d_transpose", "matmul"))  # fmt: skip
MOVES_ONE = ("relax.reshape", "relax.permute_dims", "relax.squeeze", "relax.expand_dims", "relax.flatten")
MOVES = (*MOVES_ONE, "relax.concat", "relax.split", "relax.strided_slice")


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
        message = f"{path} has inputs {[value.name for value in inputs]}"
        raise ModelError(message, remedy="engine tvm takes one input of (batch, 3, height, width)")
    model = folded(to_fp32(at_shape(model, shape)))
    known = onnx_frontend._get_convert_map()
    missing = Counter(node.op_type for node in model.graph.node if node.op_type not in known)
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise ModelError(f"engine tvm cannot run {path}: TVM has no {listed}", remedy=REMEDY)
    try:
        return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # TVM raises unrelated classes
        raise ModelError(f"engine tvm cannot run {path}: {lines_of(error)[-1]}", remedy=REMEDY) from error


def lift_storage(module: Any) -> Any:
    """Move allocations from `main` to `MEMORY`; runs after memory planning, before frees are inserted."""
    relax = tvm().relax
    main = module["main"]
    blocks: list[Any] = []
    storages: list[Any] = []
    for block in main.body.blocks:
        storages += [binding for binding in block.bindings if operator(binding) == ALLOCATES]
        blocks.append(relax.BindingBlock([binding for binding in block.bindings if operator(binding) != ALLOCATES]))
    variables = [relax.Var(f"storage{index}", relax.AnyType()) for index in range(len(storages))]
    bindings = [relax.VarBinding(name, binding.value) for name, binding in zip(variables, storages, strict=True)]
    out = relax.Var("storages", relax.TupleType([relax.AnyType()] * len(variables)))
    body = relax.SeqExpr([relax.BindingBlock([*bindings, relax.VarBinding(out, relax.Tuple(variables))])], out)
    module = module.clone()
    taken = [*main.params, *(binding.var for binding in storages)]
    module["main"] = relax.Function(taken, relax.SeqExpr(blocks, main.body.body), main.ret_ty, main.is_pure, main.attrs)
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
    relax = tvm().relax
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    fusion = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    try:
        with target.tvm():
            module = tvm().transform.Sequential(passes)(module)
            offloaded = offload_convolutions(module) if cudnn else None
            if offloaded is not None:
                module = offloaded
            elif precision == "fp16":
                module = to_mixed_precision(module)
            return tvm().transform.Sequential(fusion)(module)
    except Exception as error:  # TVM raises unrelated classes
        raise EngineError(f"TVM cannot lower the model at {precision}: {lines_of(error)[-1]}") from error


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
            stack.enter_context(building(target))
            lowered = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(lowered)
        if target.kind == "cuda":
            from tvm.s_tir import dlight

            lowered = dlight.ApplyDefaultSchedule(*schedules.rules())(lowered)
        try:
            compiled = tvm().compile(lowered, tvm_target, relax_pipeline=_backend_passes(relax.transform, own_memory))
            compiled.export_library(str(path), fcompile=link)
        except Exception as error:  # TVM raises unrelated classes
            raise EngineError(f"TVM cannot compile for {target.name}: {lines_of(error)[-1]}") from error


def building(target: Target) -> Any:
    """The context in which tuned schedules are built, as candidates and in a network.

    On CUDA buffers of different types do not share memory: TVM refuses the access of a tensor core's result to memory
    that began as one of float16.
    """
    if target.kind != "cuda":
        return nullcontext()
    return tvm().transform.PassContext(opt_level=3, config={"tirx.disable_storage_rewrite": True})


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
            reason = next((line for line in done.stderr.splitlines() if "error:" in line), lines_of(done.stderr)[-1])
            message = f"the compiled model cannot be linked: {reason}"
            raise EngineError(message, remedy="check the free disk space of the cache")

    return link


def to_mixed_precision(module: Any) -> Any:
    """The module with its network in float16, accumulating in float32; unchanged if it has no weighted layers.

    Decoding computes positions in pixels, for which float16 is too coarse. The boundary is that of `models/fp16.py`,
    after the bias, which is a separate operator in Relax. Operators after it that only move values are float16 too:
    that is lossless, and the last layers then fuse like all others, so that their tuned schedules apply.

    TVM's pass rewrites dataflow blocks only, and continues there until an operator forbids it. So only the network is
    put into dataflow blocks while the pass runs.
    """
    passes = tvm().relax.transform
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    network = _network(bindings)
    if not network:
        return module
    mixed = passes.ToMixedPrecision(out_dtype="float32")
    tidied = passes.ConvertToDataflow(min_size=1), passes.CanonicalizeBindings()
    return tvm().transform.Sequential([mixed, *tidied])(_separate(module, bindings, network))


def _network(bindings: list[Any]) -> set[Any]:
    """Variables that are weighted layers, inputs of them, or outputs of the last ones that were only moved."""
    constant: set[Any] = set()
    layers: set[Any] = set()
    values = {binding.var: binding.value for binding in bindings}

    def is_constant(value: Any) -> bool:
        return isinstance(value, tvm().ir.Constant) or all(variable in constant for variable in reads(value))

    for binding in bindings:
        if is_constant(binding.value):
            constant.add(binding.var)
        elif operator(binding) not in WEIGHTED or _decodes(binding.value, values):
            continue
        elif is_constant(binding.value.args[1]):
            layers.add(binding.var)
    network = _with_sources(layers, bindings)
    for binding in bindings:
        inputs = [variable for variable in reads(binding.value) if variable not in constant]
        if inputs and all(variable in network for variable in inputs):
            moves = operator(binding) in MOVES or isinstance(binding.value, tvm().relax.TupleGetItem)
            if moves or (inputs[0] in layers and _is_bias(binding.value, is_constant)):
                network.add(binding.var)
    return _with_sources(network, bindings)


def _with_sources(variables: set[Any], bindings: list[Any]) -> set[Any]:
    found = set(variables)
    for binding in reversed(bindings):
        if binding.var in found:
            found.update(reads(binding.value))
    return found


def _decodes(layer: Any, values: dict[Any, Any]) -> bool:
    """Whether it computes an expectation over a softmax, as YOLOv8 decodes its boxes."""
    source: Any = values.get(layer.args[0])
    while operator(source) in MOVES_ONE:
        source = values.get(source.args[0])
    return operator(source) == "relax.nn.softmax"


def _is_bias(value: Any, is_constant: Any) -> bool:
    """Whether it adds one constant per channel."""
    added = [argument for argument in value.args if is_constant(argument)] if operator(value) == "relax.add" else []
    return len(added) == 1 and sum(size > 1 for size in shape_of(added[0])) <= 1


def _separate(module: Any, bindings: list[Any], network: set[Any]) -> Any:
    """The module with the network in dataflow blocks, and plain bindings elsewhere and where TVM's pass would fail."""
    main, readers = module["main"], defaultdict(set)
    for binding in bindings:
        for variable in reads(binding.value):
            readers[variable].add(binding.var)
    for variable in reads(main.body.body):
        readers[variable].add(None)
    builder, variables = builder_without_main(module), {param: param for param in main.params}

    def renamed(value: Any) -> Any:
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([renamed(field) for field in value.fields])
        return variables[value] if isinstance(value, relax.Var) else value

    def emit_fp16(run: list[Any]) -> None:
        own = {binding.var for binding in run}
        shared = []
        with builder.dataflow():
            for binding in run:
                value, leaves = rebuild(binding.value, renamed), bool(readers[binding.var] - own)
                # TVM's pass keeps outputs of a block in float32, and fails if one is a field of a tuple. So such an
                # output, and one that the block also reads, is emitted as a copy.
                is_field = isinstance(value, tvm().relax.TupleGetItem)
                if leaves and (is_field or readers[binding.var] & own):
                    shared.append(binding.var)
                    leaves = False
                variables[binding.var] = (builder.emit_output if leaves else builder.emit)(value)
            for variable in shared:
                variables[variable] = builder.emit_output(variables[variable])

    in_order = sorted(bindings, key=lambda binding: binding.var not in network)
    with builder.function("main", list(main.params)):
        for fp16, run in groupby(in_order, lambda binding: binding.var in network and _is_supported(binding.value)):
            if fp16:
                emit_fp16(list(run))
                continue
            for binding in run:
                variables[binding.var] = builder.emit(rebuild(binding.value, renamed))
        builder.emit_func_output(renamed(main.body.body))
    return builder.finalize()


def _is_supported(value: Any) -> bool:
    """Whether TVM's pass supports it; it fails at functions of the importer (Clip) and at scalars (HardSwish)."""
    relax = tvm().relax
    kinds = (relax.TensorType, relax.TupleType, relax.ShapeType)
    return not isinstance(value, relax.Call) or all(isinstance(argument.ty, kinds) for argument in value.args)
