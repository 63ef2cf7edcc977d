"""What the C library has handed out of the heap."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


class MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    ]  # fmt: skip


@cache
def _mallinfo() -> Any:
    function = ctypes.CDLL(None).mallinfo2
    function.restype = MallInfo
    return function


def in_use() -> int:
    """Bytes, those of Python's own allocator apart."""
    found = _mallinfo()()
    return int(found.uordblks + found.hblkhd)
