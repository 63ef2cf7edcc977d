"""CUDA C++ of the kernels that store traced values, with what is fused into each. Sizes and strides are written out.

Indices are unsigned and wrap, so that strides may be negative.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from framefuse.engines.cudnn.indices import Index, Indices
from framefuse.engines.cudnn.traced import (
    Counting,
    Elementwise,
    Gathered,
    Given,
    Joined,
    Literal,
    Reduced,
    Scattered,
    Traced,
    Value,
    steps,
)

TYPES = {"?": "bool", "e": "half", "f": "float", "d": "double", "q": "int64_t", "l": "int64_t"}
"""C++ by NumPy's letter."""
SERIAL = 32
"""Elements that one thread reduces at most."""
UNROLLED = 16
"""Elements that one thread reduces without a loop at most, so that it reads them at the same time."""
WARP = 1024
"""Elements that a warp reduces at most; a block reduces more."""
THREADS = 256
"""Of a block."""
ENOUGH = 2**14
"""Threads that a kernel needs before a thread makes several elements."""
BYTES = 16
"""That a thread reads or writes at once, at most."""
VARIABLE = re.compile(r"\b(?:[vk]|total|joined)\d+\b|\b[ej]\b")
"""In the text of a kernel, besides i, row and lane, which it begins with."""


class Target(Value):
    """What memory of the caller takes: a view, converted to the type of the memory, which has strides of its own."""

    def __init__(self, number: int, x: Traced, dtype: Any, strides: Sequence[int], alignment: int = 16) -> None:
        super().__init__(x.shape, dtype, (x,), held=True)
        self.alignment = alignment
        self.number, self.view = number, Traced(self, x.shape, tuple(strides))


@dataclass(frozen=True)
class Launch:
    """A kernel and what its pointers lead to, by their names; it writes y."""

    text: str
    """CUDA C++ of the kernel, whose name is NAME."""
    values: dict[str, Value]


def launches(value: Value) -> tuple[list[Launch], set[Value]]:
    """The kernels that store a value, and values that have to be stored before they can be written."""
    kernels = [kernel_of(value), *([Kernel(value, scatter=True)] if isinstance(value, Scattered) else [])]
    missing = {one for kernel in kernels for one in kernel.missing}
    return ([] if missing else [kernel.launch() for kernel in kernels]), missing


def kernel_of(value: Value) -> Kernel:
    """The kernel that stores a value, with as many elements a thread, or rows side by side, as suits what it reads."""
    plain = Kernel(value)
    if plain.missing:
        return plain
    if plain.across_rows:
        return Kernel(value, near=next((near for near in (32, 16) if plain.rows >= THREADS * near), 8))
    if plain.by_rows:
        return plain
    sides = [(size, math.prod(value.shape[axis + 1 :])) for axis, size in enumerate(value.shape)]
    for side, inner in [(value.size, 1), *((size, inner) for size, inner in sides if size > 1 and inner >= 32)]:
        for width in (8, 4, 2):
            fits = width * value.stored.itemsize <= BYTES and side % width == 0 if inner == 1 else width <= side
            if fits and value.size // width >= ENOUGH:
                kernel = Kernel(value, width=width, side=side, inner=inner)
                if kernel.suits:
                    return kernel
    return plain


class Kernel:
    """The text of a kernel that stores a value.

    Args:
        width: elements that a thread makes, side by side along an axis.
        side: size of that axis.
        inner: elements that lie between its indices; with more than 1, the last thread along it may make fewer.
        near: rows that lie side by side, whose threads do, too.

    Attributes:
        missing: values that have to be stored first.
        rows: threads, or groups of them, that each make something.
    """

    def __init__(
        self, root: Value, *, scatter: bool = False, width: int = 1, side: int = 1, inner: int = 1, near: int = 1
    ) -> None:
        self.missing: set[Value] = set()
        self._root, self._scatter, self._values = root, scatter, dict[Value, str]()
        self._width, self._side, self._inner, self._near = width, side, inner, near
        self._lines = self._all = list[str]()
        self._known: ChainMap[Any, str] = ChainMap({})
        """Names of what is computed already, by the text, or by the value and the number of its element."""
        self._loops: list[tuple[list[str], ChainMap[Any, str]]] = []
        """Lines and names around each loop that is being written, since the last branch."""
        self._indices = Indices(lambda text: self._named("unsigned", text))
        self._count = 0
        self._varying = {"e"}
        """Variables that differ between the elements that a thread makes."""
        self._loads: dict[str, str] = {}
        """By the text of each: what a thread reads at once, or which of its neighbours reads what lies beside it."""
        self._view = root.view if isinstance(root, Target) else Traced(root, root.shape, root.strides)
        self._row, self._elements = row_of(root)
        size = root.args[1].size if scatter else root.size
        self._lanes = (32 if self._row <= WARP else THREADS) if near == 1 else THREADS // near
        self.rows = size // self._elements if self._row else size // side * -(-side // width)
        self._write()

    @property
    def by_rows(self) -> bool:
        return bool(self._row)

    @property
    def across_rows(self) -> bool:
        """Whether mostly rows, not elements of a row, lie side by side in what it reads."""
        kinds = Counter(self._loads.values())
        return kinds["row"] > kinds["column"]

    @property
    def suits(self) -> bool:
        """Whether what a thread's elements need lies side by side: mostly, or if they do not, all."""
        kinds = Counter(self._loads.values())
        several = kinds["several"] * (self._inner == 1)
        return not kinds["store"] and kinds["single"] <= several and (self._inner == 1 or kinds["several"] > 0)

    def launch(self) -> Launch:
        root, rows = self._root, self.rows
        start, threads = (
            (f"ROW({rows}, {self._lanes}, {self._near})", -(-rows // self._near) * self._near * self._lanes)
            if self._row
            else (f"EACH({rows})", rows)
        )
        names = {name: value for value, name in self._values.items()}
        given = "".join(f"const {TYPES[one.stored.char]}* __restrict__ {name}, " for name, one in names.items())
        lines = "".join(f"  {line}\n" for line in (start, *self._all))
        text = (
            f"// launch: grid ({-(-threads // THREADS)}), block {THREADS}, waits\n"
            f'extern "C" __global__ void __launch_bounds__({THREADS}) NAME(\n'
            f"    {given}{TYPES[root.stored.char]}* __restrict__ y) {{\n{lines}}}\n"
        )
        return Launch(text, {**names, "y": root})

    def _write(self) -> None:
        root, at = self._root, self._indices.variable("row" if self._row else "i", self.rows)
        if self._scatter:
            assert isinstance(root, Scattered)
            to = self._at_places(root.first, root.args[2:], root.axes, at)
            self._line(f"y[{to}] = {self._element(root.args[1], at)};")
        elif self._elements > 1:
            with self._loop("j", self._row) as j:
                self._store(at * self._row + j)
        elif self._row:
            with self._scope("if (lane == 0)"):
                self._store(at)
        elif self._width == 1:
            self._store(at)
        elif self._inner > 1:
            rest, inside = self._indices.divided(at, self._inner)
            outer, group = self._indices.divided(rest, -(-self._side // self._width))
            with self._each() as e:
                part = self._indices.below(group * self._width + e, self._side)
                self._store(
                    (outer * self._side + part) * self._inner + inside,
                    f"if ({part} < {self._side}u) " if self._side % self._width else "",
                )
        else:
            at = at * self._width
            kind = f"Pack<{TYPES[root.stored.char]}, {self._width}>"
            self._line(f"{kind} made;")
            with self._each() as e:
                to = self._place(self._view, at + e)
                self._line(f"made[e] = {self._stored(at + e)};")
            if not self._side_by_side(to, root):
                self._loads["y"] = "store"
            self._line(f"*({kind}*)(y + {to.without('e')}) = made;")

    def _store(self, at: Index, test: str = "") -> None:
        self._line(f"{test}y[{self._place(self._view, at)}] = {self._stored(at)};")

    def _stored(self, at: Index) -> str:
        root = self._root
        if isinstance(root, Target):
            return converted(self._element(root.args[0], at), root.args[0].dtype, root.dtype)
        return self._element(root.args[0], at) if isinstance(root, Scattered) else self._computed(root, at)

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
            if self._varying.intersection(VARIABLE.findall(text)):
                self._varying.add(name)
            with self._outside(text):
                self._known[key] = self._known[name] = name
                if name != text:
                    self._line(f"const {kind} {name} = {text};")
        return self._known[key]

    @contextmanager
    def _scope(self, *head: str) -> Iterator[None]:
        """Lines in braces; what is named there is not known after them."""
        outer = self._lines, self._known, self._loops
        self._lines, self._known, self._loops = [], self._known.new_child(), []
        yield
        outer[0].extend([*head[:-1], f"{head[-1]} {{", *(f"  {line}" for line in self._lines), "}"])
        self._lines, self._known, self._loops = outer

    @contextmanager
    def _loop(self, name: str, count: int, start: str = "lane", step: int = 0) -> Iterator[Index]:
        """Over a row with its other threads, or over all by steps of 1."""
        around, step = [*self._loops, (self._lines, self._known)], step or self._lanes
        unrolled = (
            "#pragma unroll 8" if start == "lane" else "#pragma unroll" if count <= UNROLLED else "#pragma unroll 1"
        )
        with self._scope(unrolled, f"for (unsigned {name} = {start}; {name} < {count}u; {name} += {step}u)"):
            self._loops, self._known[name] = around, name
            yield self._indices.variable(name, count)

    @contextmanager
    def _each(self, needed: bool = True) -> Iterator[Index]:
        """Over the elements that a thread makes."""
        if needed:
            with self._loop("e", self._width, "0", 1) as e:
                yield e
        else:
            yield Index()

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

    def _several(self, *indices: Index) -> bool:
        """Whether what depends on indices can be written before the loop over a thread's elements, for all of them."""
        outer = [known for _, known in self._loops if "e" not in known]
        names = {name for at in indices for name in at.names}
        return "e" in names and bool(outer) and all(name in outer[-1] for name in names - {"e", "i", "row"})

    # Numbers of elements.

    def _place(self, x: Traced, at: Index) -> Index:
        """The number of an element of the value that a view shows."""
        axes, indices = steps(x), self._indices
        found = Index((), x.offset + sum((size - 1) * stride for size, stride in axes if stride < 0))
        for left in reversed(range(len(axes))):
            size, stride = axes[left]
            at, part = indices.divided(at, size) if left else (Index(), at)
            found += self._weighed(part, size, stride)
        return indices.whole(found)

    def _weighed(self, part: Index, size: int, stride: int) -> Index:
        """An index along an axis times its stride; backwards from its end, if that is negative."""
        if stride < 0:
            part = self._indices.named(f"{size - 1}u - ({part})", size)
        return part * abs(stride)

    def _at_places(self, first: Traced, places: Sequence[Traced], axes: Sequence[tuple[int, int]], at: Index) -> Index:
        found = self._place(first, at)
        for x, (size, stride) in zip(places, axes, strict=True):
            inside = isinstance(x.value, Given) and isinstance(source := x.value.source, np.ndarray)
            inside = inside and source.min() >= 0 and source.max() < size
            text = self._element(x, at)
            part = self._indices.named(f"(unsigned)({text})" if inside else f"place({text}, {size})", size)
            found += self._weighed(part, size, stride) + Index((), min(stride, 0) * (size - 1))
        return found

    def _side_by_side(self, at: Index, value: Value) -> bool:
        """Whether a thread's elements lie in memory as a `Pack` does."""
        size = self._width * value.stored.itemsize
        if value.alignment % min(size, BYTES) or (self._side % self._width and size > BYTES):
            return False  # 16 bytes of which the first is in an array are in its memory
        return ("e", 1) in at.terms and not any(one % self._width for one in at.weights("e"))

    # Elements.

    def _element(self, x: Traced, at: Index) -> str:
        return self._number(x.value, self._place(x, at))

    def _number(self, value: Value, at: Index) -> str:
        """The element of a value that has a number."""
        if isinstance(value, Literal):
            return literal(value.number)
        kind = TYPES[value.dtype.char]
        if (value, at) in self._known:
            return self._known[value, at]
        if value.held:
            text = self._read(self._values.setdefault(value, f"x{len(self._values)}"), value, at)
            return self._named("float" if kind == "half" else kind, text, (value, at))
        if not isinstance(value, Reduced | Joined):
            return self._named(kind, self._computed(value, at), (value, at))
        with self._outside(" ".join(at.names)):
            return self._named(kind, self._computed(value, at), (value, at))

    def _read(self, pointer: str, value: Value, at: Index) -> str:
        if self._several(at) and self._side_by_side(at, value):
            pack = f"Pack<{TYPES[value.stored.char]}, {self._width}>"
            text = f"*(const {pack}*)({pointer} + {self._named('unsigned', str(at.without('e')))})"
            self._loads[text] = "several"
            return f"{self._named(pack, text)}[e]"
        text = f"{pointer}[{self._named('unsigned', str(at))}]"
        if self._row:
            near = {self._indices.number_of(name)[0] for name, weight in at.terms if weight == 1}
            self._loads[text] = "row" if "r" in near else "column" if near & {"j", "k"} else ""
        elif self._varying.intersection(at.names):
            self._loads[text] = "single"
        return text

    def _computed(self, value: Value, at: Index) -> str:
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
            return f"(int64_t)({at})"
        assert isinstance(value, Reduced)
        if value.count <= SERIAL:
            return self._serial(value, at)
        if self._row == value.count and at == self._indices.variable("row", self.rows):
            return self._across(value, at)
        self.missing.add(value)
        return "0"

    @contextmanager
    def _variable(self, letter: str, value: Value, at: Index, several: bool) -> Iterator[str]:
        """What a value is put together in: one, or one for each of a thread's elements, before the loop over them."""
        name, inner = self._new(letter), (self._lines, self._known, self._loops)
        if several:
            depth = max(depth for depth, (_, known) in enumerate(self._loops) if "e" not in known)
            self._lines, self._known = self._loops[depth]
            self._loops = self._loops[:depth]
        elif "e" in self._known:
            self._varying.add(name)
        self._known[name] = name
        self._line(f"{TYPES[value.dtype.char]} {name}{f'[{self._width}]' if several else ''};")
        found = f"{name}[e]" if several else name
        yield found
        if several:
            self._known[value, at] = found
            self._lines, self._known, self._loops = inner

    def _serial(self, value: Reduced, at: Index) -> str:
        """What a thread reduces alone."""
        several = self._several(at)
        with self._variable("total", value, at, several) as total:
            with self._each(several):
                self._line(f"{total} = {beginning(value)};")
            with self._loop(self._new("k"), value.count, "0", 1) as k, self._each(several):
                self._add(value, total, at * value.count + k)
        return total

    def _add(self, value: Reduced, total: str, at: Index) -> None:
        x = converted(self._element(value.args[0], at), value.args[0].dtype, value.dtype)
        self._line(f"{total} = {value.kind.title()}{{}}({total}, {x});")

    def _across(self, value: Reduced, at: Index) -> str:
        """What all threads of a row reduce."""
        key = value, "row"
        if key not in self._known:
            outer, total = (self._lines, self._known, self._loops), self._new("total")
            self._lines, self._known, self._loops = [], ChainMap(self._known.maps[-1]), []
            with self._loop(self._new("k"), value.count) as k:
                self._add(value, total, at * value.count + k)
            kind = TYPES[value.dtype.char]
            self._all += [f"{kind} {total} = {beginning(value)};", *self._lines]
            self._all.append(f"{total} = across<{self._lanes}, {self._near}, {value.kind.title()}>({total});")
            self._lines, self._known, self._loops = outer
            self._known.maps[-1].update({key: total, total: total})
        return self._known[key]

    def _joined(self, value: Joined, at: Index) -> str:
        count, indices, width = sum(value.sizes), self._indices, self._width
        rest, inside = indices.divided(at, value.inner)
        outer, index = indices.divided(rest, count) if value.size > count * value.inner else (Index(), rest)
        starts = [sum(value.sizes[:number]) for number in range(len(value.sizes))]
        parts = [
            part for part in zip(value.args, starts, value.sizes, strict=True)
            if part[2] and index.constant < part[1] + part[2] and part[1] <= indices.most(index)
        ]  # fmt: skip
        if len(parts) == 1 and parts[0][1] <= index.constant:
            (arg, start, size), *_ = parts
            index += Index((), -start)
            return self._element(arg, outer * (size * value.inner) + index * value.inner + inside)
        # What a thread makes may lie in one part together.
        ends = [end for _, start, size in parts for end in (start, start + size)]
        step = width if "e" in index.names and not any(one % width for one in (*ends, *index.weights("e"))) else 1
        tested = index.without("e") // step if step > 1 else index
        several = self._several(at, outer, index, inside) and "e" not in tested.names
        if not several:
            step, tested = 1, index
        own = Index((("e", 1),)) if step > 1 else Index()
        with self._variable("joined", value, at, several) as found:
            for number, (arg, start, size) in enumerate(parts):
                test = f"if ({tested} < {(start + size) // step}u)" if number < len(parts) - 1 else ""
                with self._scope(f"else {test}" if number else test):
                    if isinstance(arg.value, Literal):
                        place = Index()
                    else:
                        name = self._new("v")
                        self._known[name] = name
                        if self._varying.intersection(tested.names):
                            self._varying.add(name)
                        self._line(f"const unsigned {name} = {tested} - {start // step}u;")
                        place = indices.variable(name, size // step) * step + own
                        place = outer * (size * value.inner) + place * value.inner + inside
                    with self._each(several):
                        self._line(f"{found} = {self._element(arg, place)};")
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
