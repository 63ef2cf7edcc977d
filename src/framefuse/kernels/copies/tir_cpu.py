"""Copies of rows of bytes as CPU loop nests, and a thread that waits for some without Python's interpreter lock.

Entries are six int64: the address of a source, bytes from one of its rows to the next, the same of the target, the
number of its rows, and the bytes of a row. Semaphores are those of POSIX, given by their addresses.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import array_at, variables

ENTRY = 6
"""int64 of an entry."""
SEMAPHORE = 64
"""Bytes from one semaphore to the next, so that each has a cache line of its own."""


@T.inline
def copy_entry(entries, at):
    for row in T.serial(T.Cast("int32", entries[at + 4])):
        source = array_at(entries[at] + T.Cast("int64", row) * entries[at + 1], "uint8")
        target = array_at(entries[at + 2] + T.Cast("int64", row) * entries[at + 3], "uint8")
        for x in T.serial(T.Cast("int32", entries[at + 5])):
            target[x] = source[x]


@T.inline
def wait_for(semaphore):
    while T.call_extern("int32", "sem_wait", semaphore) != 0:  # a signal has come
        T.evaluate(0)


@T.prim_func(s_tir=True)
def copy_rows(entries: T.int64, count: T.int32, semaphores: T.int64, waits: T.int32):
    """Copy some entries, then wait for semaphores, whose addresses are int64."""
    T.func_attr({"tirx.noalias": False, "global_symbol": "copy_rows"})
    given, others = array_at(entries, "int64", align=8), array_at(semaphores, "int64", align=8)
    for k in T.serial(count):
        copy_entry(given, T.Cast("int64", k) * ENTRY)
    for k in T.serial(waits):
        wait_for(others[k])


@T.prim_func(s_tir=True)
def copy_worker(entries: T.int64, count: T.int64, begin: T.int64, done: T.int64):
    """Copy an entry of a ring of `count` each time that semaphore `begin` is posted, until one has -1 rows.

    Args:
        done: the first of as many semaphores, each of which is posted when its entry has been copied.
    """
    T.func_attr({"tirx.noalias": False, "global_symbol": "copy_worker"})
    given, at = array_at(entries, "int64", align=8), variables("int64", 1)[0]
    at[0] = T.int64(0)
    wait_for(begin)
    while given[at[0] * ENTRY + 4] >= 0:
        copy_entry(given, at[0] * ENTRY)
        T.evaluate(T.call_extern("int32", "sem_post", done + at[0] * SEMAPHORE))
        at[0] = T.truncmod(at[0] + 1, count)
        wait_for(begin)


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"copy_rows": copy_rows, "copy_worker": copy_worker}
