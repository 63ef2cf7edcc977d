"""pytest plug-in for runs under compute-sanitizer: an even sample of the tests, and no memory pool.

    SAMPLE_SIZE=60 pytest -p benchmarks.device.sample -m gpu tests/kernels/test_kernels_*.py

A sanitizer slows every launch down, so SAMPLE_SIZE tests are taken, spread over all that are selected: each test
function gets its share of parameters. Freed and neighbouring arrays of a pool are valid memory to a sanitizer; with
the pool off, each array is an allocation of its own and a read beyond it is seen.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps SAMPLE_SIZE items: the functions in turn give their parametrisations, evenly spaced."""
    size = int(os.environ["SAMPLE_SIZE"])
    by_function: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    each = max(1, size // max(1, len(by_function)))
    kept = [group[len(group) * k // min(each, len(group))] for group in by_function.values()
            for k in range(min(each, len(group)))]  # fmt: skip
    chosen = {kept[len(kept) * k // size] for k in range(size)}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Turns CuPy's memory pools off."""
    import cupy

    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
