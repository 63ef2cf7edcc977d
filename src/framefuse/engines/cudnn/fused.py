"""Kernels of traced arrays: what is computed element by element is fused, and so are reductions with what reads a row.

The shapes of a program are known, so its kernels are CUDA C++ with every size and stride written out. Indices are
unsigned and wrap, so that strides may be negative.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from framefuse.engines.cudnn.traced import (
    Counting,
    Elementwise,
    Gathered,
    Given,
    Joined,
    Literal,
    Multiplied,
    Reduced,
    Scattered,
    Smallest,
    Traced,
    Value,
    steps,
)
from framefuse.errors import ModelError

TYPES = {"?": "bool", "e": "half", "f": "float", "d": "double", "q": "int64_t", "l": "int64_t"}
"""C++ by NumPy's letter."""
SERIAL = 32
"""Elements that one thread reduces at most."""
WARP = 1024
"""Elements that a warp reduces at most; a block reduces more."""
LIGHT = 4
"""Operations that may be repeated in several kernels, or for several elements, rather than stored."""
LONGEST = 1200
"""Operations for an element in a kernel at most, where it can be divided."""
ALIGNMENT = 512
"""Bytes."""
VARIABLE = re.compile(r"\b(?:[vk]|total|joined)\d+\b|\bj\b")
"""In the text of a kernel, besides i, row and lane, which it begins with."""
SMALLER = "use a smaller batch or --imgsz"


class Target(Value):
    """What memory of the caller takes: a view, converted to the type of the memory, which has strides of its own."""

    def __init__(self, number: int, x: Traced, dtype: Any, strides: Sequence[int]) -> None:
        super().__init__(x.shape, dtype, (x,), held=True)
        self.number, self.view = number, Traced(self, x.shape, tuple(strides))


@dataclass(frozen=True)
class Launch:
    """A kernel and what its pointers lead to, by their names; it writes y."""

    text: str
    """CUDA C++ of the kernel, whose name is NAME."""
    values: dict[str, Value]


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
            if isinstance(value, Gathered) and costs[value.args[0].value] > LIGHT:
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


def launches(value: Value) -> tuple[list[Launch], set[Value]]:
    """The kernels that store a value, and values that have to be stored before they can be written."""
    kernels = [Kernel(value), *([Kernel(value, scatter=True)] if isinstance(value, Scattered) else [])]
    missing = {one for kernel in kernels for one in kernel.missing}
    return ([] if missing else [kernel.launch() for kernel in kernels]), missing


class Kernel:
    """The text of a kernel that stores a value.

    Attributes:
        missing: values that have to be stored first.
    """

    def __init__(self, root: Value, *, scatter: bool = False) -> None:
        self.missing: set[Value] = set()
        self._root, self._scatter, self._values = root, scatter, dict[Value, str]()
        self._lines = self._all = list[str]()
        self._known: ChainMap[Any, str] = ChainMap({})
        """Names of what is computed already, by the text, or by the value and the number of its element."""
        self._loops: list[tuple[list[str], ChainMap[Any, str]]] = []
        """Lines and names around each loop that is being written, since the last branch."""
        self._rows: dict[str, tuple[str, str, int]] = {}
        """Numbers of elements that are row * count + column: the three."""
        self._count = 0
        self._row, self._elements = row_of(root)
        self._lanes = 32 if self._row <= WARP else 256
        self._write()

    def launch(self) -> Launch:
        root, size = self._root, self._root.args[1].size if self._scatter else self._root.size
        rows = size // self._elements
        start, threads = (f"ROW({rows}, {self._lanes})", rows * self._lanes) if self._row else (f"EACH({size})", size)
        names = {name: value for value, name in self._values.items()}
        given = "".join(f"const {TYPES[one.stored.char]}* __restrict__ {name}, " for name, one in names.items())
        lines = "".join(f"  {line}\n" for line in (start, *self._all))
        text = (
            f"// launch: grid ({-(-threads // 256)}), block 256, waits\n"
            f'extern "C" __global__ void __launch_bounds__(256) NAME(\n'
            f"    {given}{TYPES[root.stored.char]}* __restrict__ y) {{\n{lines}}}\n"
        )
        return Launch(text, {**names, "y": root})

    def _write(self) -> None:
        root = self._root
        if self._scatter:
            assert isinstance(root, Scattered)
            to = self._at_places(root.first, root.args[2:], root.axes, "i")
            self._line(f"y[{to}] = {self._element(root.args[1], 'i')};")
        elif not self._row:
            self._store("i")
        elif self._elements == 1:
            with self._scope("if (lane == 0)"):
                self._store("row")
        else:
            with self._loop("j", "lane", self._row, self._lanes):
                self._store(self._in_row("row", "j", self._row))

    def _store(self, at: str) -> None:
        root = self._root
        if isinstance(root, Target):
            found = converted(self._element(root.args[0], at), root.args[0].dtype, root.dtype)
            self._line(f"y[{self._place(root.view, at)}] = {found};")
        else:
            found = self._element(root.args[0], at) if isinstance(root, Scattered) else self._computed(root, at)
            self._line(f"y[{self._place(Traced(root, root.shape, root.strides), at)}] = {found};")

    # Lines and names.

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _new(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _named(self, kind: str, text: str, key: Any = None) -> str:
        """A variable of that value, unless it is one already."""
        key = key or text
        if key not in self._known:
            name = text if text.isalnum() else self._new("v")
            with self._outside(text):
                self._known[key] = self._known[name] = name
                if name != text:
                    self._line(f"const {kind} {name} = {text};")
        return self._known[key]

    @contextmanager
    def _scope(self, head: str) -> Iterator[None]:
        """Lines in braces; what is named there is not known after them."""
        outer = self._lines, self._known, self._loops
        self._lines, self._known, self._loops = [], self._known.new_child(), []
        yield
        outer[0].extend([f"{head} {{", *(f"  {line}" for line in self._lines), "}"])
        self._lines, self._known, self._loops = outer

    @contextmanager
    def _loop(self, name: str, start: str, count: int, step: int) -> Iterator[None]:
        around = [*self._loops, (self._lines, self._known)]
        with self._scope(f"for (unsigned {name} = {start}; {name} < {count}u; {name} += {step}u)"):
            self._loops, self._known[name] = around, name
            yield

    @contextmanager
    def _outside(self, text: str) -> Iterator[None]:
        """Lines before the loops that a text does not depend on."""
        inner, names = (self._lines, self._known, self._loops), VARIABLE.findall(text)
        for depth, (lines, known) in enumerate(self._loops):
            if all(name in known for name in names):
                self._lines, self._known, self._loops = lines, known, self._loops[:depth]
                break
        yield
        self._lines, self._known, self._loops = inner

    # Numbers of elements.

    def _in_row(self, row: str, column: str, count: int) -> str:
        name = self._named("unsigned", f"{row} * {count}u + {column}")
        self._rows[name] = row, column, count
        return name

    def _part(self, at: str, inner: int, size: int, outermost: bool) -> str:
        """The index along an axis, of an element's number; `inner` elements lie between its indices."""
        if at in self._rows:
            row, column, count = self._rows[at]
            if inner % count == 0:
                return self._part(self._named("unsigned", row), inner // count, size, outermost)
            if count % (inner * size) == 0:
                return self._part(column, inner, size, inner * size == count)
        found = self._named("unsigned", f"{at} / {inner}u") if inner > 1 else at
        return found if outermost else self._named("unsigned", f"{found} % {size}u")

    def _place(self, x: Traced, at: str) -> str:
        """The number of an element of the value that a view shows."""
        axes, inner = steps(x), x.size
        if axes == [(x.size, 1)] and not x.offset:
            return at
        parts: list[tuple[str, int]] = []
        for size, stride in axes:
            outermost, inner = inner == x.size, inner // size
            if stride:
                parts.append((self._part(at, inner, size, outermost), stride))
        name = self._named("unsigned", weighed(parts, x.offset))
        column, last = axes[-1] if axes else (1, 0)
        strides = [x.offset, *(stride for _, stride in parts[:-1])]
        if last == 1 and any(strides) and not any(stride % column for stride in strides):
            row = weighed([(part, stride // column) for part, stride in parts[:-1]], x.offset // column)
            self._rows.setdefault(name, (row, parts[-1][0], column))
        return name

    def _at_places(self, first: Traced, places: Sequence[Traced], axes: Sequence[tuple[int, int]], at: str) -> str:
        terms = [self._place(first, at)]
        for x, (size, stride) in zip(places, axes, strict=True):
            terms.append(f"place({self._element(x, at)}, {size}) * {stride % 2**32}u")
        return self._named("unsigned", " + ".join(terms))

    # Elements.

    def _element(self, x: Traced, at: str) -> str:
        return self._number(x.value, self._place(x, at))

    def _number(self, value: Value, at: str) -> str:
        """The element of a value that has a number."""
        if isinstance(value, Literal):
            return literal(value.number)
        kind = TYPES[value.dtype.char]
        if (value, at) in self._known:
            return self._known[value, at]
        if value.held:
            pointer = self._values.setdefault(value, f"x{len(self._values)}")
            return self._named("float" if kind == "half" else kind, f"{pointer}[{at}]", (value, at))
        with self._outside(at) if isinstance(value, Reduced) else nullcontext():
            return self._named(kind, self._computed(value, at), (value, at))

    def _computed(self, value: Value, at: str) -> str:
        if isinstance(value, Elementwise):
            args = [converted(self._element(arg, at), arg.dtype, kind)
                    for arg, kind in zip(value.args, value.types, strict=True)]  # fmt: skip
            return value.formula.format(*args, f="f" if value.types[0] == np.float32 else "")
        if isinstance(value, Gathered):
            first, *places = value.args
            return self._number(first.value, self._at_places(first, places, value.axes, at))
        if isinstance(value, Joined):
            return self._joined(value, at)
        if isinstance(value, Counting):
            return f"(int64_t){at}"
        assert isinstance(value, Reduced)
        if value.count <= SERIAL:
            total = self._new("total")
            self._line(f"{TYPES[value.dtype.char]} {total} = {beginning(value)};")
            self._known[total] = total
            with self._loop(k := self._new("k"), "0", value.count, 1):
                self._add(value, total, self._in_row(at, k, value.count))
            return total
        if self._row == value.count and at == "row":
            return self._across(value)
        self.missing.add(value)
        return "0"

    def _add(self, value: Reduced, total: str, at: str) -> None:
        x = converted(self._element(value.args[0], at), value.args[0].dtype, value.dtype)
        self._line(f"{total} = {value.kind.title()}{{}}({total}, {x});")

    def _across(self, value: Reduced) -> str:
        """What all threads of a row reduce."""
        key = value, "row"
        if key not in self._known:
            outer, total, k = (self._lines, self._known, self._loops), self._new("total"), self._new("k")
            self._lines, self._known, self._loops = [], ChainMap(self._known.maps[-1]), []
            with self._loop(k, "lane", value.count, self._lanes):
                self._add(value, total, self._in_row("row", k, value.count))
            kind = TYPES[value.dtype.char]
            self._all += [f"{kind} {total} = {beginning(value)};", *self._lines]
            self._all.append(f"{total} = across<{self._lanes}, {value.kind.title()}>({total});")
            self._lines, self._known, self._loops = outer
            self._known.maps[-1].update({key: total, total: total})
        return self._known[key]

    def _joined(self, value: Joined, at: str) -> str:
        count, start = sum(value.sizes), 0
        outer = value.size // (count * value.inner)
        index = self._part(at, value.inner, count, outer == 1)
        found, word = self._new("joined"), ""
        self._line(f"{TYPES[value.dtype.char]} {found};")
        self._known[found] = found
        for arg, size in zip(value.args, value.sizes, strict=True):
            if size:
                last = start + size == count
                with self._scope(f"{word}" + ("" if last else f"if ({index} < {start + size}u)")):
                    own = f"{at} - {start * value.inner}u" if start else at
                    if outer > 1:
                        own += (
                            f" - {self._part(at, value.inner * count, outer, True)} * {(count - size) * value.inner}u"
                        )
                    self._line(f"{found} = {self._element(arg, self._named('unsigned', own))};")
                word, start = "else ", start + size
        return found


def row_of(root: Value) -> tuple[int, int]:
    """Elements that the threads of a row reduce together in the kernel of a value, and elements of it that they write.

    No elements: each thread makes one alone.
    """
    seen, left = set[Value](), [root]
    while left:
        value = left.pop()
        if value in seen or (value.held and value is not root) or isinstance(root, Joined | Gathered | Scattered):
            continue
        long = value if isinstance(value, Reduced) and value.count > SERIAL else None
        if long is not None and root.size in (long.size, long.size * long.count):
            return long.count, root.size // long.size
        seen.add(value)
        left += [arg.value for arg in value.args]
    return 0, 1


def weighed(parts: Sequence[tuple[str, int]], offset: int) -> str:
    """The sum of parts times strides."""
    terms = [part if stride == 1 else f"{part} * {stride % 2**32}u" for part, stride in parts]
    return " + ".join([*terms, *([f"{offset}u"] if offset or not terms else [])])


def converted(text: str, kind: Any, wanted: Any) -> str:
    if TYPES[np.dtype(kind).char] == TYPES[np.dtype(wanted).char]:
        return text
    return f"({text} != 0)" if wanted == np.bool_ else f"({TYPES[np.dtype(wanted).char]}){text}"


def literal(number: Any) -> str:
    """A number in C++."""
    if number.dtype.kind == "b":
        return "true" if number else "false"
    if number.dtype.kind != "f":
        return f"({number}LL)" if number > np.iinfo(np.int64).min else f"({number + 1}LL - 1)"
    if not np.isfinite(number):
        return "__uint_as_float(0x7fc00000u)" if np.isnan(number) else "INFINITY" if number > 0 else "(-INFINITY)"
    return f"({float(number).hex()}{'f' if number.dtype == np.float32 else ''})"


def beginning(value: Reduced) -> str:
    """What a reduction begins with."""
    if value.kind in ("sum", "prod"):
        return str(int(value.kind == "prod"))
    ends = {"f": (-np.inf, np.inf), "b": (False, True)}.get(value.dtype.kind, (-(2**63), 2**63 - 1))
    return literal(value.dtype.type(ends[value.kind == "min"]))
