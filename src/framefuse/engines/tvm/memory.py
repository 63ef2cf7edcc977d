"""Passes a program's memory as arguments, so that each execution on a GPU has its own.

TVM takes a program's memory from a pool and returns it at the end of each call, before the GPU has run what was
launched. That is correct for one stream, but two executions that are captured as CUDA graphs and run concurrently would
share memory.
"""

from __future__ import annotations

from typing import Any

from framefuse.engines.tvm.package import tvm

FUNCTION = "memory"
"""Function of the module that allocates the memory arguments of `main`, which follow its input."""


def lift_storage(module: Any) -> Any:
    """Move allocations from `main` to `FUNCTION`; runs after memory planning, before frees are inserted."""
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
    module[FUNCTION] = relax.Function([], body, out.ty, False).with_attr("global_symbol", FUNCTION)
    return module
