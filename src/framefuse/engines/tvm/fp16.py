"""Mixed precision: the network in float16, the decoding after its last weighted layers in float32.

Decoding computes positions in pixels, for which float16 is too coarse. The boundary is that of `models/fp16.py`, after
the bias, which is a separate operator in Relax. Operators after it that only move values are float16 too: that is
lossless, and the last layers then fuse like all others, so that their tuned schedules apply.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import Any

from framefuse.engines.tvm.package import builder_without_main, operator, reads, rebuild, shape_of, tvm

WEIGHTED = tuple(f"relax.{kind}" for kind in ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose",
               "nn.conv2d_transpose", "nn.conv3d_transpose", "matmul"))  # fmt: skip
MOVES_ONE = ("relax.reshape", "relax.permute_dims", "relax.squeeze", "relax.expand_dims", "relax.flatten")
MOVES = (*MOVES_ONE, "relax.concat", "relax.split", "relax.strided_slice")


def to_mixed_precision(module: Any) -> Any:
    """The module with its network in float16, accumulating in float32; unchanged if it has no weighted layers.

    TVM's pass rewrites dataflow blocks only, and continues there until an operator forbids it. So only the network is
    put into dataflow blocks while the pass runs.
    """
    passes = tvm().relax.transform
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    network = _network(bindings)
    if not network:
        return module
    return tvm().transform.Sequential(
        [
            passes.ToMixedPrecision(out_dtype="float32"),
            passes.ConvertToDataflow(min_size=1),
            passes.CanonicalizeBindings(),
        ]
    )(_separate(module, bindings, network))


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
