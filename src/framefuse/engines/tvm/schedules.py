"""GPU schedules for kernels that only move or map values, and for small reductions; DLight schedules the rest.

DLight maps one value to a thread and a sum of sixteen terms to a block of 256, and does not terminate at fused
convolutions. Here a thread writes 16 bytes, and computes a whole reduction in registers if the reduction is small or
there are many of them.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

from framefuse.engines.tvm.package import tvm

THREADS = 256
"""Per block."""
BYTES = 16
"""Width of a vectorised write."""
ROWS = 8
"""Channels that a thread moves if reads and writes are contiguous along different axes, as in a transpose."""
SMALL_REDUCTION = 64
"""Terms of a reduction up to which one thread always computes it."""
MANY_RESULTS = 1 << 14
"""Results from which one thread each occupies the GPU, so that a thread reduces any number of terms."""


def rules() -> list[Any]:
    """For `dlight.ApplyDefaultSchedule`, which applies the first that fits."""
    from tvm.s_tir import dlight

    class MapOrReduce(dlight.base.ScheduleRule):  # type: ignore[misc]
        def apply(self, func: Any, target: Any, _: bool) -> Any:
            try:
                return schedule(func)
            except tvm().s_tir.ScheduleError:  # an unforeseen form; DLight's fallback handles it
                return None

    gpu = dlight.gpu
    return [MapOrReduce(), gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def schedule(function: Any) -> Any:
    """A schedule of a function; None if these rules do not apply."""
    sch = tvm().s_tir.Schedule(function)
    blocks = _inline(sch)
    reductions = [block for block in blocks if "R" in _kinds(sch, block)]
    if any(set(_kinds(sch, block)) - {"S", "R"} for block in blocks):
        return None
    if not reductions:
        for block in blocks:
            _schedule_map(sch, block)
        return sch
    spatial = [_extents(sch, block, "S") for block in blocks]
    largest = max(prod(_extents(sch, block, "R")) for block in reductions)
    results = prod(spatial[-1])
    if results < MANY_RESULTS and largest > SMALL_REDUCTION:
        return None
    if any(prod(extents) != results for extents in spatial) or any("RS" in _kinds(sch, block) for block in blocks):
        return None
    _schedule_reduction(sch, reductions, blocks[-1])
    return sch


def _inline(sch: Any) -> list[Any]:
    """Inline elementwise blocks into their consumers; the remaining blocks, in order."""
    root = sch.get_sblock("root")
    for block in sch.get_child_blocks(root):
        if "R" not in _kinds(sch, block) and sch.get_consumers(block):
            with suppress(Exception):  # TVM cannot inline it
                sch.compute_inline(block)
    return list(sch.get_child_blocks(root))


def _schedule_map(sch: Any, block: Any) -> None:
    """Each thread computes some neighbouring values in registers and writes them."""
    local = sch.cache_write(block, 0, "local")  # `local` copies from registers to memory
    loops = sch.get_loops(local)
    extents = _extents(sch, local, "S")
    axis = _contiguous_axis(sch, block)
    if axis is not None and axis != len(extents) - 1 and extents[-1] > BYTES and not extents[axis] % ROWS:
        outer, inner = sch.split(loops[axis], [None, ROWS])
        loops = [*loops[:axis], outer, *loops[axis + 1 :]]
        sch.reorder(*loops, inner)
        width = 1
    else:
        width = BYTES // (int(sch.get(block).writes[0].source.dtype.bits) // 8)
        width = width if not extents[-1] % width else 1
        outer, inner = sch.split(loops[-1], [None, width])
        loops = [*loops[:-1], outer]
    thread = _bind(sch, loops)
    sch.compute_at(block, thread)
    for loop in sch.get_loops(block)[2:]:
        sch.unroll(loop)
    if width > 1:
        sch.vectorize(inner)
    else:
        sch.unroll(inner)


def _schedule_reduction(sch: Any, reductions: list[Any], last: Any) -> None:
    """Each thread computes one value, with all intermediates in registers."""
    is_last = "R" in _kinds(sch, last)
    final = sch.cache_write(last, 0, "local") if is_last else last
    if len(reductions) == 1:
        (block,) = reductions
        spatial = len(_extents(sch, block, "S"))
        loops = sch.get_loops(block)
        thread = _bind(sch, list(loops[:spatial]))
        sch.reverse_compute_at(final, thread)
        _keep_in_registers(sch, block)
        _unroll_reduction(sch, block, loops[spatial:])
        return
    thread = _bind(sch, list(sch.get_loops(final)))
    for block in reversed(reductions):
        sch.compute_at(block, thread)
        _keep_in_registers(sch, block)
        _unroll_reduction(sch, block, sch.get_loops(block)[2:])  # inside the block and thread loops


def _keep_in_registers(sch: Any, block: Any) -> None:
    """Put the outputs of a block in registers, unless they are results of the function. An argmax has two outputs."""
    results = list(sch.mod["main"].params)
    for index, written in enumerate(sch.get(block).writes):
        if not any(written.source.same_as(result) for result in results):
            sch.set_scope(block, index, "local")


def _unroll_reduction(sch: Any, block: Any, terms: Any) -> None:
    if not terms:
        return
    sch.decompose_reduction(block, terms[0])
    if prod(_extents(sch, block, "R")) <= SMALL_REDUCTION:
        for loop in terms:
            sch.unroll(loop)


def _bind(sch: Any, loops: list[Any]) -> Any:
    """Fuse loops and bind them to blocks and threads; returns the thread loop."""
    blocks, threads = sch.split(sch.fuse(*loops), [None, THREADS])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    return threads


def _kinds(sch: Any, block: Any) -> str:
    """One letter per axis: S spatial, R reduction, ? other."""
    types = tvm().tirx.IterVar
    letters = {types.DataPar: "S", types.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "?") for axis in sch.get(block).iter_vars)


def _extents(sch: Any, block: Any, kind: str) -> list[int]:
    kinds = _kinds(sch, block)
    axes = sch.get(block).iter_vars
    return [int(axis.dom.extent) for axis, letter in zip(axes, kinds, strict=True) if letter == kind]


def _contiguous_axis(sch: Any, block: Any) -> int | None:
    """The output axis along which the reads are contiguous; None if there is not exactly one."""
    info = sch.get(block)
    axes = [axis.var for axis in info.iter_vars]
    found = set()
    for region in info.reads:
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
