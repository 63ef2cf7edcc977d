"""Copies of rows of bytes as a CPU loop nest.

`table` is (n, 5) int64: the address of a source, bytes from one of its rows to the next, the same of the target, and
the number of its rows; `sizes` the bytes of a row.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import array_at


@T.prim_func(s_tir=True)
def copy_rows(
    table: T.Buffer(("n", 5), "int64", align=8), sizes: T.Buffer(("n",), "int64", align=8)
):  # fmt: skip
    """Copy the rows of each entry of the table."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "copy_rows"})
    n = T.int32()
    for i in T.serial(n):
        for row in T.serial(T.Cast("int32", table[i, 4])):
            source = array_at(table[i, 0] + T.Cast("int64", row) * table[i, 1], "uint8")
            target = array_at(table[i, 2] + T.Cast("int64", row) * table[i, 3], "uint8")
            for x in T.serial(T.Cast("int32", sizes[i])):
                target[x] = source[x]


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"copy_rows": copy_rows}
