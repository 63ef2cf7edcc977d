"""A program's memory as an argument of it, so that each execution on a GPU has its own.

TVM takes a program's memory from a pool and gives it back at the end of each call, when the GPU has not yet run what
was launched. That is right for one stream. Two executions that are captured as CUDA graphs and run beside each other
would get the same memory.
"""

from __future__ import annotations

from typing import Any

from framefuse.engines.tvm.package import tvm

FUNCTION = "memory"
"""Of a module: takes nothing, gives what `main` wants behind its input."""


def as_arguments(module: Any) -> Any:
    """The module with `FUNCTION`, once memory is planned and before it is freed."""
    relax = tvm().relax
    main = module["main"]
    kept: list[Any] = []
    taken: list[Any] = []
    for block in main.body.blocks:
        stays: list[Any] = []
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            is_storage = isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.memory.alloc_storage"
            (taken if is_storage else stays).append(binding)
        kept.append(relax.BindingBlock(stays))
    blank = [relax.Var(f"storage{index}", relax.AnyType()) for index in range(len(taken))]
    bindings = [relax.VarBinding(name, binding.value) for name, binding in zip(blank, taken, strict=True)]
    out = relax.Var("storages", relax.TupleType([relax.AnyType()] * len(blank)))
    body = relax.SeqExpr([relax.BindingBlock([*bindings, relax.VarBinding(out, relax.Tuple(blank))])], out)
    module = module.clone()
    module["main"] = relax.Function(
        [*main.params, *(binding.var for binding in taken)],
        relax.SeqExpr(kept, main.body.body),
        main.ret_ty,
        main.is_pure,
        main.attrs,
    )
    module[FUNCTION] = relax.Function([], body, out.ty, False).with_attr("global_symbol", FUNCTION)
    return module
