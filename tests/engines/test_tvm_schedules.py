"""How TVM's own kernels are laid over a GPU's threads: what a thread does at once, and that the results stay.

There is no GPU here: loops over threads are turned to plain ones, and what is left is compiled for the CPU.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")


def scheduled(*tensors: Any) -> tuple[Any, str]:
    """The function of TE from inputs to an output, scheduled; without threads, and as text."""
    from framefuse.engines.tvm import schedules
    from framefuse.engines.tvm.package import tvm

    made = schedules.schedule(tvm().te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    assert made is not None
    text = made.mod["main"].script()
    return unthreaded(made.mod["main"]), text


def unthreaded(function: Any) -> Any:
    """A scheduled function with serial loops in place of threads."""
    import tvm

    text = re.sub(r"T\.thread_binding\((.*?), thread=\"\w+\.x\"\)", r"T.serial(\1)", function.script(show_meta=True))
    return tvm.script.from_source(text)


def run(function: Any, *arrays: Any) -> None:
    from framefuse.engines.tvm import targets
    from framefuse.engines.tvm.package import tvm

    tensors = [tvm().runtime.tensor(array) for array in arrays]
    tvm().compile(function, targets.this_cpu(1).tvm())["main"](*tensors)
    np.copyto(arrays[-1], tensors[-1].numpy())


def test_neighbours_are_written_at_once() -> None:
    from framefuse.engines.tvm.package import tvm

    te = tvm().te
    a, b = te.placeholder((1, 5, 6, 8), "float16", name="a"), te.placeholder((1, 5, 6, 16), "float16", name="b")
    joined = te.compute(
        (1, 5, 6, 24), lambda n, y, x, c: tvm().tirx.if_then_else(c < 8, a[n, y, x, c], b[n, y, x, c - 8])
    )
    function, text = scheduled(a, b, joined)
    assert re.search(r"T\.vectorized\(\D*8\)", text) and 'scope="local"' in text  # 16 bytes of float16
    left, right = (np.random.default_rng(0).random((1, 5, 6, channels)).astype(np.float16) for channels in (8, 16))
    result = np.zeros((1, 5, 6, 24), np.float16)
    run(function, left, right, result)
    assert np.array_equal(result, np.concatenate([left, right], 3))


def test_what_runs_across_what_is_read_moves_rows() -> None:
    from framefuse.engines.tvm.package import tvm

    te = tvm().te
    x = te.placeholder((1, 50, 16), "float16", name="x")
    function, text = scheduled(x, te.compute((1, 16, 50), lambda b, c, a: x[b, a, c].astype("float32")))
    assert "T.vectorized" not in text and re.search(r"T\.unroll\(\D*8\)", text)
    values = np.random.default_rng(0).random((1, 50, 16)).astype(np.float16)
    result = np.zeros((1, 16, 50), np.float32)
    run(function, values, result)
    assert np.array_equal(result, values.transpose(0, 2, 1).astype(np.float32))


def test_the_place_of_the_largest_is_made_in_registers() -> None:
    from framefuse.engines.tvm.package import tvm

    te, topi = tvm().te, tvm().topi
    x = te.placeholder((1, 40, 3), "float32", name="x")
    function, text = scheduled(x, topi.cast(topi.argmax(x, axis=2, keepdims=True), "float32"))
    assert text.count('scope="local"') == 2  # the largest so far, and where it was
    values = np.random.default_rng(0).random((1, 40, 3)).astype(np.float32)
    result = np.zeros((1, 40, 1), np.float32)
    run(function, values, result)
    assert np.array_equal(result[..., 0], values.argmax(2))


def test_an_expectation_is_one_kernel() -> None:
    from framefuse.engines.tvm.offload import _expectation
    from framefuse.engines.tvm.package import tvm

    te = tvm().te
    x, weight = te.placeholder((2, 16, 4, 30), "float32", name="x"), te.placeholder((16,), "float32", name="weight")
    function, text = scheduled(x, weight, _expectation(x, weight))
    assert text.count('thread="blockIdx.x"') == 1 and text.count('scope="local"') == 3
    values = np.random.default_rng(0).normal(0, 40, (2, 16, 4, 30)).astype(np.float32)
    weights = np.arange(16, dtype=np.float32)
    result = np.zeros((2, 4, 30, 1), np.float32)
    run(function, values, weights, result)
    soft = np.exp(values - values.max(1, keepdims=True))
    soft /= soft.sum(1, keepdims=True)
    assert np.allclose(result[..., 0], (soft * weights[:, None, None]).sum(1), atol=1e-4)


def test_a_large_reduction_is_left_to_others() -> None:
    from framefuse.engines.tvm import schedules
    from framefuse.engines.tvm.package import tvm

    te = tvm().te
    x, k = te.placeholder((8, 4096), "float32"), te.reduce_axis((0, 4096))
    assert schedules.schedule(te.create_prim_func([x, te.compute((8,), lambda i: te.sum(x[i, k], axis=k))])) is None
