"""What lies around runs of an `ArrayProgram` on the GPU, with NumPy in the place of CuPy."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from onnx import helper

from framefuse.engines.cudnn import array_program, arrays
from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.engines.cudnn.network import General


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any], bool]]:
    """The nodes that are called: their kinds, what they get, and whether in the thread of the test."""
    found: list[tuple[str, list[Any], bool]] = []
    here = threading.get_ident()

    def noted(kind: str, function: Any) -> Any:
        def call(xp: Any, given: Any, *values: Any) -> Any:
            found.append((kind, list(values), threading.get_ident() == here))
            return function(xp, given, *values)

        return call

    noting = {kind: (noted(kind, function), host) for kind, (function, host) in array_program.OPERATORS.items()}
    monkeypatch.setattr(arrays, "OPERATORS", noting)
    monkeypatch.setattr(arrays.device, "cupy", lambda: np)
    monkeypatch.setattr(arrays.device, "current_gpu", lambda: 0)
    monkeypatch.setattr(arrays.device, "current", lambda gpu: nullcontext())
    return found


def step_of(*nodes: Any, **constants: Any) -> General:
    program = ArrayProgram(nodes, {name: np.asarray(value) for name, value in constants.items()})
    return General("y", program, ("x",), ("y",))


def test_each_kind_of_call_is_compiled_once_in_another_thread(called: list[tuple[str, list[Any], bool]]) -> None:
    step = step_of(
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 3, 1, 2]),
        helper.make_node("Relu", ["turned"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("TopK", ["c", "most"], ["values", "places"]),
        helper.make_node("Add", ["values", "values"], ["y"]),
        most=[2],
    )
    arrays.compile_ahead(step, {"x": (4, 6, 8)}, 32, nullcontext())
    # What Relu leaves has the layout of the transposed array, so that one call stands for all three.
    assert Counter(kind for kind, _, _ in called) == {"Transpose": 1, "Relu": 1, "TopK": 1, "Add": 1}
    given = {kind: values for kind, values, _ in called}
    (x,), (turned,), (_, most) = given["Transpose"], given["Relu"], given["TopK"]
    assert x.shape == (2, 4, 6, 8) and turned.shape == (2, 8, 4, 6)
    assert turned.strides == x.transpose(0, 3, 1, 2).strides
    assert most.tolist() == [2]  # sizes are those of the model
    assert not any(here for _, _, here in called)


def test_what_cannot_be_called_ahead_is_left_to_the_run(
    called: list[tuple[str, list[Any], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*values: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(arrays.OPERATORS, "Relu", (broken, ()))
    arrays.compile_ahead(step_of(helper.make_node("Relu", ["x"], ["y"])), {"x": (4, 6, 8)}, 1, nullcontext())
    assert not called
