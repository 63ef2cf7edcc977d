"""How TVM's own kernels are laid over a GPU's threads: those that only move or map values, and small reductions.

DLight gives each value a thread, each sum of sixteen terms a block of 256, and does not come to an end at convolutions
with what is fused to them. Here a thread makes as many neighbours as 16 bytes hold, and a whole reduction where that is
small or where there are many of them, in registers; what neither rule takes is left to DLight.
"""

from __future__ import annotations

from math import prod
from typing import Any

from framefuse.engines.tvm.package import tvm

THREADS = 256
"""Of a block."""

BYTES = 16
"""That a thread writes at once."""

ROWS = 8
"""Channels that a thread moves where what is written runs along another axis: reads of neighbours are then near."""

SMALL = 64
"""Terms of a reduction that one thread adds up, whatever there is to do."""

MANY = 1 << 14
"""Results that keep a GPU busy with a thread each, so that a thread adds up any number of terms."""


def rules() -> list[Any]:
    """For `dlight.ApplyDefaultSchedule`, the first that fits is taken."""
    from tvm.s_tir import dlight

    class Own(dlight.base.ScheduleRule):  # type: ignore[misc]
        def apply(self, func: Any, target: Any, _: bool) -> Any:
            try:
                return schedule(func)
            except tvm().s_tir.ScheduleError:  # of a form that was not thought of: DLight has a rule for every one
                return None

    gpu = dlight.gpu
    return [Own(), gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def schedule(function: Any) -> Any:
    """A schedule of a function, or None where these rules do not know one."""
    made = tvm().s_tir.Schedule(function)
    blocks = _inlined(made)
    reductions = [block for block in blocks if "R" in _kinds(made, block)]
    if any(set(_kinds(made, block)) - {"S", "R"} for block in blocks):
        return None
    if not reductions:
        for block in blocks:
            _map(made, block)
        return made
    spatial = [_extents(made, block, "S") for block in blocks]
    if prod(spatial[-1]) < MANY and any(prod(_extents(made, block, "R")) > SMALL for block in reductions):
        return None
    if any(prod(extents) != prod(spatial[-1]) for extents in spatial):
        return None
    if any("RS" in _kinds(made, block) for block in blocks):
        return None
    _reduce(made, reductions, blocks[-1])
    return made


def _inlined(made: Any) -> list[Any]:
    """The blocks that are left, in order, once what only maps values is part of what reads it."""
    root = made.get_sblock("root")
    for block in made.get_child_blocks(root):
        if "R" not in _kinds(made, block) and made.get_consumers(block):
            try:
                made.compute_inline(block)
            except Exception:  # it is read in a way that TVM does not inline: it stays
                continue
    return list(made.get_child_blocks(root))


def _map(made: Any, block: Any) -> None:
    """Each thread makes some neighbours in registers and writes them."""
    width = _lanes(made, block)
    local = made.cache_write(block, 0, "local")  # `local` copies from registers to memory
    loops = made.get_loops(local)
    extents = _extents(made, local, "S")
    axis = _near(made, block)
    if extents[-1] % width and axis is None:
        width = 1
    if axis is not None and axis != len(extents) - 1 and extents[-1] > BYTES and not extents[axis] % ROWS:
        outer, rows = made.split(loops[axis], [None, ROWS])
        loops = [*loops[:axis], outer, *loops[axis + 1 :]]
        inner = rows
        made.reorder(*loops, inner)
        vectorized = False
    else:
        width = width if not extents[-1] % width else 1
        outer, inner = made.split(loops[-1], [None, width])
        loops = [*loops[:-1], outer]
        vectorized = width > 1
    thread = _bind(made, loops)
    made.compute_at(block, thread)
    for loop in made.get_loops(block)[2:]:
        made.unroll(loop)
    if vectorized:
        made.vectorize(inner)
    else:
        made.unroll(inner)


def _reduce(made: Any, reductions: list[Any], last: Any) -> None:
    """Each thread makes one value, all that it needs for it in registers."""
    is_last = "R" in _kinds(made, last)
    final = made.cache_write(last, 0, "local") if is_last else last
    if len(reductions) == 1:
        (block,) = reductions
        spatial = len(_extents(made, block, "S"))
        loops = made.get_loops(block)
        thread = _bind(made, list(loops[:spatial]))
        made.reverse_compute_at(final, thread)
        _keep(made, block)
        _sum(made, block, loops[spatial:])
        return
    thread = _bind(made, list(made.get_loops(final)))
    for block in reversed(reductions):
        made.compute_at(block, thread)
        _keep(made, block)
        _sum(made, block, made.get_loops(block)[2:])  # below blocks and threads; TVM drops loops of one turn


def _keep(made: Any, block: Any) -> None:
    """What a block writes is in registers, where it is no result of the function. The largest of some values and where
    it is are two."""
    results = list(made.mod["main"].params)
    for index, written in enumerate(made.get(block).writes):
        if not any(written.source.same_as(result) for result in results):
            made.set_scope(block, index, "local")


def _sum(made: Any, block: Any, terms: Any) -> None:
    if not terms:
        return
    made.decompose_reduction(block, terms[0])
    if prod(_extents(made, block, "R")) <= SMALL:
        for loop in terms:
            made.unroll(loop)


def _bind(made: Any, loops: list[Any]) -> Any:
    """One loop over threads of all that is given; the innermost."""
    blocks, threads = made.split(made.fuse(*loops), [None, THREADS])
    made.bind(blocks, "blockIdx.x")
    made.bind(threads, "threadIdx.x")
    return threads


def _kinds(made: Any, block: Any) -> str:
    """S for an axis of the result, R for one that is summed over, another letter for what else there is."""
    types = tvm().tirx.IterVar
    letters = {types.DataPar: "S", types.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "?") for axis in made.get(block).iter_vars)


def _extents(made: Any, block: Any, kind: str) -> list[int]:
    kinds = _kinds(made, block)
    axes = made.get(block).iter_vars
    return [int(axis.dom.extent) for axis, letter in zip(axes, kinds, strict=True) if letter == kind]


def _lanes(made: Any, block: Any) -> int:
    """Values that fill `BYTES`."""
    return BYTES // (int(made.get(block).writes[0].source.dtype.bits) // 8)


def _near(made: Any, block: Any) -> int | None:
    """The axis of the result along which neighbours of what is read lie, where it is one."""
    inside = made.get(block)
    axes = [axis.var for axis in inside.iter_vars]
    found = set()
    for region in inside.reads:
        if not region.region:  # a single value
            continue
        last = region.region[-1].min
        start = _value(last, dict.fromkeys(axes, 0))
        for index, axis in enumerate(axes):
            if _value(last, {**dict.fromkeys(axes, 0), axis: 1}) == start + 1:
                found.add(index)
    return found.pop() if len(found) == 1 else None


def _value(expression: Any, values: dict[Any, int]) -> int:
    analyzer = tvm().sym.Analyzer()
    for name, value in values.items():
        analyzer.bind(name, tvm().tirx.IntImm(name.ty.dtype, value))
    return int(analyzer.simplify(expression))
