"""FP16 for the network alone: what follows its last learnt layers decodes positions in pixels, and stays in float32.

The boundary is that of `models/fp16.py`; in Relax a layer's bias is an operator of its own. What then only moves values
is in float16 too: it loses nothing, and the last layers fuse as all others do, so that schedules found for them apply.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import Any

from framefuse.engines.tvm.nodes import again, operator, reads, sizes, without_main
from framefuse.engines.tvm.package import tvm

LAYERS = tuple(f"relax.{kind}" for kind in ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose",
               "nn.conv2d_transpose", "nn.conv3d_transpose", "matmul"))  # fmt: skip
MOVES_ONE = ("relax.reshape", "relax.permute_dims", "relax.squeeze", "relax.expand_dims", "relax.flatten")
MOVES = (*MOVES_ONE, "relax.concat", "relax.split", "relax.strided_slice")


def in_half(module: Any) -> Any:
    """The module with its network in float16, sums of products in float32; a module without learnt layers as it is.

    TVM's pass rewrites dataflow blocks only, and goes on there until an operator forbids it. So the network is made
    one, and the decoding is not while the pass runs.
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
    )(_apart(module, bindings, network))


def _network(bindings: list[Any]) -> set[Any]:
    """Variables that are learnt layers, lead to one, or hold what the last ones put out, moved only."""
    constant: set[Any] = set()
    layers: set[Any] = set()
    values = {binding.var: binding.value for binding in bindings}

    def is_constant(value: Any) -> bool:
        return isinstance(value, tvm().ir.Constant) or all(variable in constant for variable in reads(value))

    for binding in bindings:
        if is_constant(binding.value):
            constant.add(binding.var)
        elif operator(binding) in LAYERS and is_constant(binding.value.args[1]) and not _decodes(binding.value, values):
            layers.add(binding.var)
    network = _with_sources(layers, bindings)
    for binding in bindings:
        given = [variable for variable in reads(binding.value) if variable not in constant]
        if given and all(variable in network for variable in given):
            moves = operator(binding) in MOVES or isinstance(binding.value, tvm().relax.TupleGetItem)
            if moves or (given[0] in layers and _is_bias(binding.value, is_constant)):
                network.add(binding.var)
    return _with_sources(network, bindings)


def _with_sources(variables: set[Any], bindings: list[Any]) -> set[Any]:
    found = set(variables)
    for binding in reversed(bindings):
        if binding.var in found:
            found.update(reads(binding.value))
    return found


def _decodes(layer: Any, values: dict[Any, Any]) -> bool:
    """Whether it only takes an expectation over a softmax: YOLOv8 decodes its boxes so."""
    source: Any = values.get(layer.args[0])
    while operator(source) in MOVES_ONE:
        source = values.get(source.args[0])
    return operator(source) == "relax.nn.softmax"


def _is_bias(value: Any, is_constant: Any) -> bool:
    """Whether it adds one number to each channel."""
    added = [argument for argument in value.args if is_constant(argument)] if operator(value) == "relax.add" else []
    return len(added) == 1 and sum(size > 1 for size in sizes(added[0])) <= 1


def _apart(module: Any, bindings: list[Any], network: set[Any]) -> Any:
    """The module with dataflow blocks for the network, and plain bindings behind it and where TVM's pass would fail."""
    main, readers = module["main"], defaultdict(set)
    for binding in bindings:
        for variable in reads(binding.value):
            readers[variable].add(binding.var)
    for variable in reads(main.body.body):
        readers[variable].add(None)
    builder, made = without_main(module), {param: param for param in main.params}

    def new(value: Any) -> Any:
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([new(field) for field in value.fields])
        return made[value] if isinstance(value, relax.Var) else value

    def emit_in_half(run: list[Any]) -> None:
        own = {binding.var for binding in run}
        shared = []
        with builder.dataflow():
            for binding in run:
                value, leaves = again(binding.value, new), bool(readers[binding.var] - own)
                # TVM's pass leaves in float32 what leaves the block, and fails where that is a field of a tuple: a name
                # of its own is given to that, and to what is read inside too.
                is_field = isinstance(value, tvm().relax.TupleGetItem)
                if leaves and (is_field or readers[binding.var] & own):
                    shared.append(binding.var)
                    leaves = False
                made[binding.var] = (builder.emit_output if leaves else builder.emit)(value)
            for variable in shared:
                made[variable] = builder.emit_output(made[variable])

    in_order = sorted(bindings, key=lambda binding: binding.var not in network)
    with builder.function("main", list(main.params)):
        for half, run in groupby(in_order, lambda binding: binding.var in network and _passes(binding.value)):
            if half:
                emit_in_half(list(run))
                continue
            for binding in run:
                made[binding.var] = builder.emit(again(binding.value, new))
        builder.emit_func_output(new(main.body.body))
    return builder.finalize()


def _passes(value: Any) -> bool:
    """Whether TVM's pass takes it; it fails at functions that the importer wrote (Clip), and at numbers (HardSwish)."""
    relax = tvm().relax
    kinds = (relax.TensorType, relax.TupleType, relax.ShapeType)
    return not isinstance(value, relax.Call) or all(isinstance(argument.ty, kinds) for argument in value.args)


__all__ = ["in_half"]
