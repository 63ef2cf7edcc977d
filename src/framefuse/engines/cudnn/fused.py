"""What to run for traced arrays: which values are stored, by which kernels, and where.

What is computed element by element is fused, and so are reductions with what reads a row; `kernel_text.py` writes that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from framefuse.engines.cudnn.kernel_text import Launch, Target, launches
from framefuse.engines.cudnn.traced import (
    Counting,
    Elementwise,
    Gathered,
    Given,
    Literal,
    Multiplied,
    Smallest,
    Value,
)
from framefuse.errors import ModelError

LIGHT = 4
"""Operations that may be repeated in several kernels rather than stored."""
GATHERED = 16
"""Operations that may be repeated for each element that is gathered, such as an interpolation along another axis."""
LONGEST = 1200
"""Operations for an element in a kernel at most, where it can be divided."""
ALIGNMENT = 512
"""Bytes."""
SMALLER = "use a smaller batch or --imgsz"

Step: TypeAlias = Launch | Multiplied | Smallest


@dataclass
class Plan:
    """What to run, in order.

    Attributes:
        places: byte of each computed value in the workspace.
        size: bytes of the workspace.
    """

    steps: list[Step]
    places: dict[Value, int]
    size: int


def plan(targets: Sequence[Target]) -> Plan:
    """The kernels that write the targets.

    Raises:
        ModelError: an array is too large for 32-bit indices.
    """
    order = ordered(targets)
    if large := [value.shape for value in order if value.size >= 2**31]:
        raise ModelError(f"engine cudnn computes no arrays of 2^31 numbers, such as {large[0]}", remedy=SMALLER)
    while True:
        divide(order)
        made, split = list[Step](), set[Value]()
        for value in order:
            if isinstance(value, Multiplied | Smallest):
                made += [value] * bool(value.size)
            elif value.held and value.size and not isinstance(value, Given):
                found, missing = launches(value)
                made += found
                split |= missing
        if not split:
            places, size = arranged(made)
            return Plan(made, places, size)
        for value in split:
            value.held = True


def ordered(targets: Sequence[Target]) -> list[Value]:
    """All values, each after those it is computed from."""
    found: dict[Value, None] = {}
    stack: list[tuple[Value, bool]] = [(one, False) for one in reversed(targets)]
    while stack:
        value, done = stack.pop()
        if done:
            found[value] = None
        elif value not in found:
            stack += [(value, True), *((arg.value, False) for arg in value.args)]
    return list(found)


def divide(order: Sequence[Value]) -> None:
    """Decide which values are stored: what several kernels need unless it is light, and what makes a kernel long."""
    for last in (False, True):
        costs: dict[Value, int] = {}
        parts: dict[Value, dict[Any, int]] = {}
        for value in order:
            if isinstance(value, Gathered) and costs[value.args[0].value] > GATHERED:
                value.args[0].value.held = True
            while True:
                parts[value] = operations(value, parts, costs)
                costs[value] = sum(parts[value].values())
                repeated: Counter[Value] = Counter()
                for key, cost in parts[value].items():
                    if isinstance(key, tuple) and cost > LIGHT:  # of other elements than its own
                        repeated[key[0]] += cost
                if not last or costs[value] <= LONGEST or not repeated:
                    break
                repeated.most_common(1)[0][0].held = True
        kernels: dict[Value, set[Value]] = defaultdict(set)
        for value in reversed(order):
            value.held = value.held or (len(kernels[value]) > 1 and costs[value] > LIGHT)
            for arg in value.args:
                kernels[arg.value] |= {value} if value.held else kernels[value]


def operations(value: Value, parts: dict[Value, dict[Any, int]], costs: dict[Value, int]) -> dict[Any, int]:
    """What a kernel computes for an element of a value, and how many operations that are.

    Keys are values of which it needs the same element, and views of others.
    """
    simple = isinstance(value, Elementwise | Target)
    free = isinstance(value, Literal | Counting | Target) or (isinstance(value, Elementwise) and value.formula == "{}")
    found: dict[Any, int] = {value: 0 if free else 1 if simple else LIGHT + 1}
    for number, arg in enumerate(value.args):
        if arg.value.held:
            continue
        if simple and arg.whole:  # the same element, however often it is needed
            known = parts[arg.value].items()
            found |= {key: cost for key, cost in known if not (isinstance(key, tuple) and key[0].held)}
        else:
            own = () if simple else (value, number)
            found[arg.value, arg.shape, arg.strides, arg.offset, *own] = costs[arg.value]
    return found


def arranged(made: Sequence[Step]) -> tuple[dict[Value, int], int]:
    """Where the computed values lie, so that those which are needed at the same time do not overlap."""
    last: dict[Value, int] = {}
    for index, step in enumerate(made):
        for value in step.values.values() if isinstance(step, Launch) else (*(arg.value for arg in step.args), step):
            if not isinstance(value, Given | Target):
                last[value] = index
    places: dict[Value, int] = {}
    taken: list[tuple[int, int, Value]] = []
    most = 0
    for index, step in enumerate(made):
        taken = [one for one in taken if last[one[2]] >= index]
        value = step.values["y"] if isinstance(step, Launch) else step
        if value in last and value not in places:
            size, start = -(-value.room * value.stored.itemsize // ALIGNMENT) * ALIGNMENT, 0
            for begin, end, _ in sorted(taken, key=lambda one: one[0]):
                if start + size <= begin:
                    break
                start = max(start, end)
            places[value] = start
            taken.append((start, start + size, value))
            most = max(most, start + size)
    return places, most
