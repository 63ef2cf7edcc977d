"""Copies of rows of bytes as CPU loop nests, and threads that wait for some without Python's interpreter lock.

`table` is (n, 5) int64: the address of a source, bytes from one of its rows to the next, the same of the target, and
the number of its rows; `sizes` the bytes of a row. A job is the addresses of a table and of its sizes, their length,
and how many threads share it: each takes the entries that far apart. Semaphores are those of POSIX, at addresses.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import array_at

SEMAPHORE = 64
"""Bytes from one semaphore to the next, so that each has a cache line of its own."""


@T.inline
def copy_entry(table, sizes, i):
    for row in T.serial(T.Cast("int32", table[5 * i + 4])):
        source = array_at(table[5 * i] + T.Cast("int64", row) * table[5 * i + 1], "uint8")
        target = array_at(table[5 * i + 2] + T.Cast("int64", row) * table[5 * i + 3], "uint8")
        for x in T.serial(T.Cast("int32", sizes[i])):
            target[x] = source[x]


@T.inline
def copy_share(job, share):
    table, sizes = array_at(job[0], "int64", align=8), array_at(job[1], "int64", align=8)
    for k in T.serial(T.Cast("int32", T.floordiv(job[2] - share + job[3] - 1, job[3]))):
        copy_entry(table, sizes, share + T.Cast("int64", k) * job[3])


@T.inline
def wait_for(semaphore):
    while T.call_extern("int32", "sem_wait", semaphore) != 0:  # a signal has come
        T.evaluate(0)


@T.prim_func(s_tir=True)
def copy_rows(job: T.int64, begin: T.int64, done: T.int64):
    """Copy the rows of each entry of a job together with the threads that wait for it.

    Args:
        job: address of the job, four int64.
        begin: the first semaphore of those threads.
        done: the semaphore at which their ends are counted.
    """
    T.func_attr({"tirx.noalias": False, "global_symbol": "copy_rows"})
    given = array_at(job, "int64", align=8)
    for thread in T.serial(T.Cast("int32", given[3]) - 1):
        T.evaluate(T.call_extern("int32", "sem_post", begin + T.Cast("int64", thread) * SEMAPHORE))
    copy_share(given, T.int64(0))
    for _ in T.serial(T.Cast("int32", given[3]) - 1):
        wait_for(done)


@T.prim_func(s_tir=True)
def copy_worker(job: T.int64, share: T.int64, begin: T.int64, done: T.int64):
    """Copy a share of each job, until a job of length -1 comes."""
    T.func_attr({"tirx.noalias": False, "global_symbol": "copy_worker"})
    given = array_at(job, "int64", align=8)
    wait_for(begin)
    while given[2] >= 0:
        copy_share(given, share)
        T.evaluate(T.call_extern("int32", "sem_post", done))
        wait_for(begin)


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"copy_rows": copy_rows, "copy_worker": copy_worker}
