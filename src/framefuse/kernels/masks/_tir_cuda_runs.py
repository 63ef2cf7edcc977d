"""How the kernels that find where runs end put the positions of all threads in order.

A block takes a mask, a thread a column. Each column is walked twice: in step 0 its changes are counted, in step 1 they
are written where those of the columns before it end. `sums` is shared memory for `scan`.
"""

from tvm.script import tirx as T

from ._tir_cuda_scan import THREADS, scan


def first_place(sums, thread, begin, total, step):
    """Where the positions of a thread begin; in step 1."""
    return begin + total + sums[thread] - T.if_then_else(step == 1, sums[THREADS + thread], 0)


@T.inline
def put(positions, place, limit, position, step):
    """Write a position in step 1, if there is room."""
    if T.And(step == 1, place < limit):
        positions[place] = position


@T.inline
def counted(sums, thread, changes, step):
    """After step 0: every thread knows where to write."""
    if step == 0:
        sums[thread] = changes
        scan(sums, thread)
        # Exclusive: the thread's own count goes beside it.
        sums[THREADS + thread] = changes
        T.tvm_storage_sync("shared")


@T.inline
def close(positions, ends, i, thread, begin, total, capacity, pixels):
    """The last run ends with the image. Those beyond the capacity are counted only."""
    if thread == 0:
        if total < capacity:
            positions[begin + total] = pixels
        ends[i] = total + 1
