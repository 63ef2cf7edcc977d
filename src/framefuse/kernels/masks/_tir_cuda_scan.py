"""Prefix sums over the threads of a CUDA block."""

from tvm.script import tirx as T

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""
THREADS = 256
"""Threads of a block that `scan` adds up."""


@T.inline
def scan(values, thread):
    """Inclusive prefix sums of one int32 a thread, in shared memory of 2 x THREADS; they end in its first half."""
    T.tvm_storage_sync("shared")
    for bit in T.unroll(8):
        source = bit % 2 * THREADS
        target = THREADS - source
        if thread >= (1 << bit):
            values[target + thread] = values[source + thread] + values[source + thread - (1 << bit)]
        else:
            values[target + thread] = values[source + thread]
        T.tvm_storage_sync("shared")
