"""Helpers for Relax nodes: operator, operands, shape, and copies over other variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framefuse.engines.tvm.package import tvm


def operator(node: Any) -> str:
    """Name of the operator of a call or of a binding's call; empty for anything else."""
    value = getattr(node, "value", node)
    return str(value.op.name) if isinstance(value, tvm().relax.Call) and hasattr(value.op, "name") else ""


def shape_of(value: Any) -> list[int]:
    """Shape of a tensor."""
    return [int(size) for size in value.ty.shape]


def reads(value: Any) -> list[Any]:
    """Variables that a binding's value reads."""
    relax = tvm().relax
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.TupleGetItem):
        return reads(value.tuple_value)
    fields = value.fields if isinstance(value, relax.Tuple) else value.args if isinstance(value, relax.Call) else []
    return [name for field in fields for name in reads(field)]


def rebuild(value: Any, of: Callable[[Any], Any]) -> Any:
    """A copy of a binding's value with `of` applied to each operand."""
    relax = tvm().relax
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(of(value.tuple_value), value.index)
    if isinstance(value, relax.Call):
        return relax.Call(value.op, [of(argument) for argument in value.args], value.attrs, value.ty_args)
    return of(value)


def builder_without_main(module: Any) -> Any:
    """A builder for a new `main` with the module's other functions, which the importer makes for some operators."""
    functions = {variable: function for variable, function in module.functions.items() if variable.name_hint != "main"}
    return tvm().relax.BlockBuilder(tvm().IRModule(functions))
