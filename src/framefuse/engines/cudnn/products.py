"""Matrix products in float16, for networks in FP16: factors are stored as float16, and sums are float32.

A factor is written as float16 where it is computed, so that nothing converts it, and what else reads it reads that.
Other values stay float32, such as the scores of a softmax, except those of which single elements are gathered.
Constants beyond the range of float16 become its largest number; what is computed beyond it becomes infinite, as in
convolutions. A product takes into its own kernel what only it is read for: a row that is added, a ReLU, and an order of
its axes. Products of the same matrix with constants become one. A GELU stays a kernel: cuBLAS only approximates it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from framefuse.engines.cudnn.fused import ordered
from framefuse.engines.cudnn.kernel_text import Target
from framefuse.engines.cudnn.traced import (
    Elementwise,
    Gathered,
    Given,
    Literal,
    Multiplied,
    Scattered,
    Smallest,
    Strides,
    Traced,
    Value,
    in_c_order,
    layout,
    reshaped,
)

ALIGNED = 8
"""Elements of 16 bytes. Where rows begin at other places, cuBLAS has slow kernels, and may have none that add a row."""
SHORTEST = 8
"""Numbers of a row in float16 at least. Fewer are no work, and often coordinates, which stay float32."""
LYING = Given, Multiplied, Scattered, Smallest
"""What lies in memory in any case."""


def in_half(targets: Sequence[Target]) -> None:
    """Change what the targets are computed from, before `fused.plan`."""
    order, instead, copies = ordered(targets), dict[Value, Value](), dict[Value, Value]()
    uses = Counter(arg.value for value in order for arg in value.args)
    products = [value for value in order if isinstance(value, Multiplied)]
    small = {one for one in products if stays_float32(one)}
    # What has to be float32.
    short = {value for one in small for value in (one, *(x.value for x in one.args))}
    short |= {value.args[0].value for value in order if isinstance(value, Smallest)}
    for x in (x for one in products for x in one.args):
        x.value.held = isinstance(x.value, LYING) or x.value in short
    for value in order:
        value.args = tuple(
            Traced(instead[x.value], x.shape, x.strides, x.offset) if x.value in instead else x for x in value.args
        )
        if isinstance(value, Multiplied) and value not in small:
            value.args = tuple(half_factor(x, value, short, copies) for x in value.args)
        elif isinstance(value, Elementwise) and value.dtype == np.float32:
            for x, other in zip(value.args, value.args[::-1], strict=True):
                product = x.value
                if isinstance(product, Multiplied) and uses[product] == 1 and taken_in(value, x, other, product):
                    instead[value], uses[product] = product, uses[value]
                    short |= {product} if value in short else set()
                    break
    readers = readers_of(targets)
    for value, others in readers.items():
        if (
            isinstance(value, Multiplied)
            and value.shape[2] >= SHORTEST
            and value not in short
            and all(isinstance(x, Gathered) for x in others)
        ):
            value.stored = np.dtype(np.float16)
    join([value for value in readers if isinstance(value, Multiplied)], readers)
    for value, others in readers_of(targets).items():
        pad(value, others)
    for value in ordered(targets):
        if isinstance(value, Multiplied) and len(value.args) > 2 and value.stored == np.float16:
            *factors, row = value.args
            numbers = known(row)
            assert numbers is not None
            value.args = *factors, constant(numbers, value.stored)


def stays_float32(product: Multiplied) -> bool:
    """Whether a product is small, and often one of coordinates: of few numbers each, or weighted sums of them."""
    (_, _, depth), (_, _, columns) = product.args[0].shape, product.args[1].shape
    return depth < SHORTEST or columns == 1 or (columns < SHORTEST and known(product.args[1]) is None)


def half_factor(x: Traced, product: Multiplied, short: Container[Value], copies: dict[Value, Value]) -> Traced:
    """A factor in float16.

    Args:
        short: what has to be float32.
        copies: of that, and of float32 inputs, in float16; missing ones are added.
    """
    one = x if x.strides[0] else x[:1]
    if (numbers := known(one)) is not None:
        found = constant(numbers, np.float16) if x is product.args[0] else right(numbers)
        return found.moved(lambda y: np.broadcast_to(y, x.shape))
    for source, scale in sources(x):
        if (
            source.value not in short
            and layout(source)
            and (isinstance(source.value, Multiplied) or source.value.stored == np.float16)
        ):
            x, product.scale = source, product.scale * scale
            break
    if x.value in short or (isinstance(x.value, Given) and x.value.stored != np.float16):
        if x.value not in copies:
            copies[x.value] = Traced(x.value)._as(x.dtype).value
        x = Traced(copies[x.value], x.shape, x.strides, x.offset)
    if not isinstance(x.value, Given):
        x.value.held, x.value.stored = True, np.dtype(np.float16)
    return x


def sources(x: Traced) -> Iterator[tuple[Traced, float]]:
    """What a view is a copy of, or a multiple, and how large a multiple."""
    scale = 1.0
    while isinstance(value := x.value, Elementwise) and value.formula in ("{}", "{} * {}"):
        numbers = [one.value.number for one in value.args if isinstance(one.value, Literal)]
        rest = [one for one in value.args if not isinstance(one.value, Literal)]
        if value.dtype != np.float32 or len(rest) != 1:
            return
        source = rest[0]
        strides = x.strides if source.whole else reshaped(source, x.shape) if x.whole else None
        if strides is None:
            return
        x = Traced(source.value, x.shape, strides, x.offset if source.whole else source.offset)
        scale *= math.prod(map(float, numbers))
        yield x, scale


def taken_in(value: Elementwise, x: Traced, other: Traced, product: Multiplied) -> bool:
    """Let a product compute what is computed of it, x, and of another array; whether it can."""
    if value.formula == "{}":
        return in_order(x, product)
    if not x.whole or product.relu or not aligned(product):
        return False
    if value.formula == "most({}, {})" and isinstance(other.value, Literal) and other.value.number == 0:
        product.relu = True
    elif value.formula == "{} + {}" and len(product.args) == 2 and value.shape[-1] == product.shape[2]:
        row = known(other[(0,) * (other.ndim - 1)])
        if row is None or any(step for size, step in zip(value.shape[:-1], other.strides, strict=False) if size > 1):
            return False
        product.args += (constant(row, np.float32),)
    else:
        return False
    return True


def in_order(x: Traced, product: Multiplied) -> bool:
    """Let a product write its elements in the order of a view of all of it, if its rows stay rows."""
    count, rows, columns = product.shape
    sizes = {step: size for step, size in ((1, columns), (columns, rows), (rows * columns, count)) if size > 1}
    axes = [*zip(x.shape, x.strides, in_c_order(x.shape), strict=True)]
    places = {step: place for size, step, place in axes if size > 1}
    if product.strides != in_c_order(product.shape) or {step: size for size, step, _ in axes if size > 1} != sizes:
        return False
    if columns > 1 and places[1] != 1:
        return False
    product.strides = places.get(rows * columns, rows * columns), places.get(columns, columns), 1
    return True


def aligned(product: Multiplied) -> bool:
    """Whether the rows of all its matrices begin at multiples of 16 bytes, and it is one of float16."""
    steps = [step for x in product.args[:2] for step in (*x.strides, x.offset) if step != 1]
    a = product.args[0]
    if a.shape[1] == 1:  # no stride says where it begins once rows are padded
        steps += [a.shape[2], a.value.shape[-1]]
    return a.value.stored == np.float16 and not any(step % ALIGNED for step in (*steps, product.shape[2]))


def readers_of(targets: Sequence[Target]) -> dict[Value, list[Value]]:
    """What is computed from each value, in order."""
    found: dict[Value, list[Value]] = defaultdict(list)
    for value in ordered(targets):
        for x in value.args:
            found[x.value].append(value)
    return found


def join(products: Sequence[Multiplied], readers: Mapping[Value, Sequence[Value]]) -> None:
    """Make one product of those of the same matrix with constants."""
    groups: dict[Any, list[Multiplied]] = defaultdict(list)
    for one in products:
        (a, b), rows = one.args[:2], one.args[2:]
        if len(a) == 1 and known(b) is not None and aligned(one) and one.strides[1] == one.shape[2]:
            groups[a.value, a.shape, a.strides, a.offset, one.scale, one.relu, len(rows), one.stored].append(one)
    for first, *others in groups.values():
        group = [first, *others]
        starts = np.cumsum([0, *(one.shape[2] for one in group)]).tolist()
        views = [widened(one, readers[one], starts[-1], start) for one, start in zip(group, starts, strict=False)]
        if not others or None in views:
            continue
        parts = [np.concatenate([known(one.args[at]) for one in group], -1) for at in range(1, len(first.args))]
        wide = Multiplied(
            (1, first.shape[1], starts[-1]),
            (first.args[0], right(parts[0]), *(constant(row, np.float32) for row in parts[1:])),
        )
        wide.scale, wide.relu, wide.stored = first.scale, first.relu, first.stored
        show(wide, [view for one in views for view in one or ()])


def pad(value: Value, readers: Sequence[Value]) -> None:
    """Let rows of a factor, or of a product, begin at multiples of 16 bytes."""
    columns, unit, strides = value.shape[-1] if value.shape else 1, 16 // value.stored.itemsize, in_c_order(value.shape)
    stored = value.stored == np.float16 and not isinstance(value, LYING)
    if (
        columns < SHORTEST
        or columns % unit == 0
        or value.strides != strides
        or not (stored or isinstance(value, Multiplied))
    ):
        return
    wide = -(-columns // unit) * unit
    views = widened(value, readers, wide, 0)
    if views is not None:
        show(value, views)
        value.room = value.size // columns * wide
        value.strides = *(step // columns * wide for step in strides[:-1]), 1


View: TypeAlias = tuple[Value, int, tuple[int, ...], Strides, int]
"""Of an argument of a value: which, and its shape, strides and offset. Axes along which it gathers come last."""


def widened(value: Value, readers: Sequence[Value], wide: int, start: int) -> list[View] | None:
    """How a value is read where its rows are a part of wide rows; None: somewhere an axis goes through several rows."""
    found, columns = list[View](), value.shape[-1]
    for reader in readers:
        for place, x in enumerate(reader.args):
            if x.value is not value:
                continue
            axes = reader.axes if isinstance(reader, Gathered) and place == 0 else ()
            shape, strides = (*x.shape, *(size for size, _ in axes)), (*x.strides, *(stride for _, stride in axes))
            last = x.offset % columns
            for size, stride in zip(shape, strides, strict=True):
                if stride % columns and size > 1:
                    last += (size - 1) * stride if stride > 0 else columns
            if last >= columns or isinstance(reader, Smallest):
                return None
            strides = tuple(stride if stride % columns else stride // columns * wide for stride in strides)
            offset = x.offset // columns * wide + start + x.offset % columns
            found.append((reader, place, shape, strides, offset))
    return found


def show(value: Value, views: Sequence[View]) -> None:
    """Let readers read a value."""
    for reader, place, shape, strides, offset in views:
        count = reader.args[place].ndim
        x = Traced(value, shape[:count], strides[:count], offset)
        reader.args = *reader.args[:place], x, *reader.args[place + 1 :]
        if shape[count:]:
            assert isinstance(reader, Gathered)
            reader.axes = [*zip(shape[count:], strides[count:], strict=True)]


def right(x: NDArray[Any]) -> Traced:
    """A constant right factor: the numbers of a sum lie side by side, as is best for tensor cores."""
    return constant(x.swapaxes(1, 2), np.float16).swapaxes(1, 2)


def known(x: Traced) -> NDArray[Any] | None:
    """A view of a constant."""
    if isinstance(x.value, Literal):
        return np.broadcast_to(x.value.number, x.shape)
    if not isinstance(x.value, Given) or isinstance(x.value.source, int):
        return None
    flat = np.ascontiguousarray(x.value.source).reshape(-1)
    return as_strided(flat[x.offset :], x.shape, [stride * flat.itemsize for stride in x.strides])


def constant(x: NDArray[Any], dtype: Any) -> Traced:
    """A constant of a type, within its range."""
    most = np.finfo(dtype).max
    return Traced(Given(np.clip(x, -most, most).astype(dtype), dtype, x.shape))
