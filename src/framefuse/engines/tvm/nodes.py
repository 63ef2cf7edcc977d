"""Relax's nodes: what one is called, what it reads, and the same again over other variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framefuse.engines.tvm.package import tvm


def operator(thing: Any) -> str:
    """The operator of a call, or of a binding's call."""
    value = getattr(thing, "value", thing)
    return str(value.op.name) if isinstance(value, tvm().relax.Call) and hasattr(value.op, "name") else ""


def sizes(value: Any) -> list[int]:
    """Of a tensor."""
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


def again(value: Any, of: Callable[[Any], Any]) -> Any:
    """A binding's value with `of` each thing that it reads."""
    relax = tvm().relax
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(of(value.tuple_value), value.index)
    if isinstance(value, relax.Call):
        return relax.Call(value.op, [of(argument) for argument in value.args], value.attrs, value.ty_args)
    return of(value)


def without_main(module: Any) -> Any:
    """A builder of another `main` beside the module's other functions: the importer writes some operators as such."""
    functions = {place: function for place, function in module.functions.items() if place.name_hint != "main"}
    return tvm().relax.BlockBuilder(tvm().IRModule(functions))


__all__ = ["again", "operator", "reads", "sizes", "without_main"]
