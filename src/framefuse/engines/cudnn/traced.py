"""Traced arrays: NumPy's functions note on them what is to be computed, and `fused.py` makes kernels of it.

A `Traced` is a view of a `Value`: shape, strides and offset, in elements. What only changes the view, such as a
transposition, costs nothing. NumPy's own functions work on traced arrays (NEP 13 and 18), as far as `operators.py` and
`image_operators.py` need them, and find the shapes and types of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Strides: TypeAlias = tuple[int, ...]

HOME = np.zeros(1, np.int8)
"""Where stand-ins for views begin: NumPy changes their shape and strides, and nobody reads them."""

UFUNCS = {
    "add": "{} + {}", "subtract": "{} - {}", "multiply": "{} * {}", "divide": "{} / {}", "power": "power({}, {})",
    "minimum": "least({}, {})", "maximum": "most({}, {})", "fmod": "fmod{f}({}, {})", "remainder": "modulo({}, {})",
    "floor_divide": "floored({}, {})", "equal": "{} == {}", "not_equal": "{} != {}", "greater": "{} > {}",
    "less": "{} < {}", "greater_equal": "{} >= {}", "less_equal": "{} <= {}", "logical_and": "{} && {}",
    "logical_or": "{} || {}", "logical_xor": "!{} != !{}", "logical_not": "!{}", "bitwise_and": "{} & {}",
    "bitwise_or": "{} | {}", "negative": "-{}", "absolute": "magnitude({})", "sign": "sign_of({})",
    "isnan": "{0} != {0}", "reciprocal": "1 / {}", "arctan": "atan{f}({})",
    **{name: name + "{f}({})" for name in ("exp", "expm1", "log", "log1p", "sqrt", "floor")},
    **{name: name + "{f}({})" for name in ("ceil", "rint", "sin", "cos", "tanh")},
}  # fmt: skip
"""C++ by the name of NumPy's function. f is the suffix of CUDA's functions on float; others are in `fused.cuh`."""


class Value:
    """What is computed, or given, as an array in C order.

    Args:
        args: what it is computed from.
        held: it lies in memory, and is no part of the kernels that read it.

    Attributes:
        alignment: bytes of which its address is a multiple, if it lies in memory.
        stored: its type in memory.
        strides: there, of its elements; those who read it know them.
        room: elements that it takes there.
    """

    alignment = 16

    def __init__(self, shape: Sequence[int], dtype: Any, args: Sequence[Traced] = (), *, held: bool = False) -> None:
        self.shape, self.dtype, self.args, self.held = tuple(map(int, shape)), np.dtype(dtype), tuple(args), held
        self.size, self.stored = math.prod(self.shape), self.dtype
        self.strides, self.room = in_c_order(self.shape), self.size


class Given(Value):
    """What lies in memory before the run: a constant array, or the input of a number."""

    def __init__(self, source: Any, dtype: Any, shape: Sequence[int]) -> None:
        super().__init__(shape, dtype, held=True)
        self.source = source


class Literal(Value):
    """A constant number."""

    def __init__(self, number: Any) -> None:
        super().__init__((), number.dtype)
        self.number = number


class Counting(Value):
    """0, 1, 2, ..., int64."""


class Elementwise(Value):
    """A formula of the elements of its arguments, which have its shape, converted to `types`."""

    def __init__(self, formula: str, dtype: Any, args: Sequence[Traced], types: Sequence[Any]) -> None:
        super().__init__(args[0].shape, dtype, args)
        self.formula, self.types = formula, [np.dtype(one) for one in types]


class Gathered(Value):
    """Elements of an array at computed places along some of its axes.

    Args:
        first: of the shape of the result: the elements at place 0.
        places: of that shape, for each axis.
        axes: size and stride of each axis.
    """

    def __init__(self, first: Traced, places: Sequence[Traced], axes: Sequence[tuple[int, int]]) -> None:
        super().__init__(first.shape, first.dtype, (first, *places))
        self.axes = axes


class Joined(Value):
    """Arrays one after the other along an axis."""

    def __init__(self, args: Sequence[Traced], axis: int) -> None:
        shape = list(args[0].shape)
        self.sizes, self.inner = [one.shape[axis] for one in args], math.prod(shape[axis + 1 :])
        shape[axis] = sum(self.sizes)
        super().__init__(shape, args[0].dtype, args)


class Reduced(Value):
    """The sum, prod, max or min along the last axis."""

    def __init__(self, kind: str, x: Traced, dtype: Any) -> None:
        super().__init__(x.shape[:-1], dtype, (x,))
        self.kind, self.count = kind, x.shape[-1]


class Multiplied(Value):
    """Products of matrices (count, m, k) and (count, k, n), and a row (n) that is added to each of theirs, if given.

    Attributes:
        scale: of the products.
        relu: whether what is below 0 becomes 0, after the row.
    """

    def __init__(self, shape: Sequence[int], args: Sequence[Traced]) -> None:
        super().__init__(shape, np.float32, args, held=True)
        self.scale, self.relu = 1.0, False


class Smallest(Value):
    """(rows, count): places of the smallest keys of each row in order."""


class Scattered(Value):
    """A copy of args[0], with the values args[1] at the places args[2:] along its first axes."""

    def __init__(self, args: Sequence[Traced], axes: Sequence[tuple[int, int]]) -> None:
        super().__init__(args[0].shape, args[0].dtype, args, held=True)
        self.axes = axes
        self.first = broadcast(Traced(self)[(0,) * len(axes)], args[1].shape)
        """Where the values would go at place 0."""


class Traced(NDArrayOperatorsMixin):
    """A view of a value."""

    def __init__(self, value: Value, shape: Any = None, strides: Strides | None = None, offset: int = 0) -> None:
        self.value, self.dtype, self.offset = value, value.dtype, offset
        self.shape: tuple[int, ...] = value.shape if shape is None else tuple(shape)
        self.strides = in_c_order(self.shape) if strides is None else tuple(strides)
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def moved(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Traced:
        """The view that NumPy makes of it."""
        before = as_strided(HOME, self.shape, self.strides)
        after = change(before)
        offset = after.__array_interface__["data"][0] - before.__array_interface__["data"][0]
        return Traced(self.value, after.shape, after.strides, self.offset + offset)

    @property
    def whole(self) -> bool:
        """Whether it is all of its value, in C order."""
        return self.offset == 0 and self.size == self.value.size and steps(self) in ([], [(self.size, 1)])

    def copied(self) -> Traced:
        """Its elements as all of a value."""
        return Traced(self.value, self.shape) if self.whole else self._as(self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> Traced:
        return self if self.dtype == dtype else self._as(dtype)

    def _as(self, dtype: Any) -> Traced:
        return Traced(Elementwise("{}", dtype, (self,), (dtype,)))

    def reshape(self, *shape: Any) -> Traced:
        sizes = shape if len(shape) != 1 or np.isscalar(shape[0]) else shape[0]
        sizes = np.broadcast_to(HOME, (self.size,)).reshape([int(size) for size in sizes]).shape  # without -1
        strides = reshaped(self, sizes)
        if strides is None:
            return Traced(self.copied().value, sizes)
        return Traced(self.value, sizes, strides, self.offset)

    def transpose(self, *axes: Any) -> Traced:
        return self.moved(lambda x: x.transpose(*axes))

    def swapaxes(self, one: int, other: int) -> Traced:
        return self.moved(lambda x: x.swapaxes(one, other))

    @property
    def T(self) -> Traced:
        return self.transpose()

    def repeat(self, count: int) -> Traced:
        return taken(self, np.arange(self.size).repeat(count), 0)

    def __getitem__(self, key: Any) -> Traced:
        if isinstance(key, tuple) and key and all(isinstance(one, Traced | np.ndarray) for one in key):
            return gathered(self, key)
        key = key if isinstance(key, tuple) else (key,)
        return self.moved(lambda x: x[key if Ellipsis in key else (*key, ...)])  # a view even of a single element

    def sum(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return reduced("sum", self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return reduced("max", self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return reduced("min", self, axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Traced:
        return reduced("prod", self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Traced:
        total = reduced("sum", self, axis, keepdims)
        found: Traced = total / np.array(self.size // max(total.size, 1), total.dtype)
        return found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul:
            return product(*(one if isinstance(one, Traced) else Traced(given(one)) for one in inputs))
        if method != "__call__" or options or ufunc.__name__ not in UFUNCS:
            return NotImplemented
        *types, made = ufunc.resolve_dtypes((*map(kind_of, inputs), None))
        return elementwise(UFUNCS[ufunc.__name__], inputs, types, made)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return FUNCTIONS[function.__name__](*args, **kwargs) if function.__name__ in FUNCTIONS else NotImplemented


def traced(x: Any) -> Traced:
    """Constants too: a number is part of a formula, as is what has the same number everywhere."""
    if isinstance(x, Traced):
        return x
    value = given(x)
    x = value.source
    if x.size and (x == x.flat[0]).all():
        return broadcast(Traced(Literal(x.flat[0])), x.shape)
    return Traced(value)


def given(x: Any) -> Given:
    """A constant array, as float32, int64 or bool."""
    x = np.asarray(x)
    x = x.astype({"f": np.float32, "b": np.bool_}.get(x.dtype.kind, np.int64), copy=False)
    return Given(x, x.dtype, x.shape)


def kind_of(x: Any) -> Any:
    """For NumPy's rules of types, where a Python number yields to an array."""
    return type(x) if type(x) in (bool, int, float) else x.dtype


# Views.


def in_c_order(shape: Sequence[int]) -> Strides:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def steps(x: Traced) -> list[tuple[int, int]]:
    """Sizes and strides of as few axes as possible."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(x.shape, x.strides, strict=True):
        if size != 1 and found and found[-1][1] == stride * size:
            found[-1] = found[-1][0] * size, stride
        elif size != 1:
            found.append((size, stride))
    return found


def reshaped(x: Traced, shape: Sequence[int]) -> Strides | None:
    """Strides of the same elements in another shape; None: they have to be copied."""
    if not x.size:
        return in_c_order(shape)
    left, strides = steps(x), list[int]()
    size, stride = 1, 0
    for wanted in reversed(shape):
        if size == 1 and wanted > 1:
            size, stride = left.pop()
        if size % wanted:
            return None
        strides.append(stride if wanted > 1 else 0)
        size, stride = size // wanted, stride * wanted
    return tuple(reversed(strides))


def broadcast(x: Traced, shape: Sequence[int]) -> Traced:
    return x.moved(lambda x: np.broadcast_to(x, shape))


def elementwise(formula: str, inputs: Sequence[Any], types: Sequence[Any], made: Any) -> Traced:
    args = [one if isinstance(one, Traced) else traced(np.asarray(one).astype(kind))
            for one, kind in zip(inputs, types, strict=True)]  # fmt: skip
    shape = np.broadcast_shapes(*(one.shape for one in args))
    return Traced(Elementwise(formula, made, [broadcast(one, shape) for one in args], types))


def reduced(kind: str, x: Traced, axis: Any, keepdims: bool) -> Traced:
    chosen = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = sorted(int(one) % x.ndim for one in chosen)
    kept = [one for one in range(x.ndim) if one not in axes]
    rows = x.transpose(*kept, *axes).reshape(*(x.shape[one] for one in kept), math.prod(x.shape[one] for one in axes))
    if kind in ("max", "min") and not rows.shape[-1]:
        raise ValueError(f"the {kind} of no elements")
    found = Traced(Reduced(kind, rows, getattr(np.ones(1, x.dtype), kind)().dtype))
    return found.reshape([1 if one in axes else size for one, size in enumerate(x.shape)]) if keepdims else found


# Elements at places.


def spread(x: Traced, key: Sequence[Any]) -> tuple[list[Traced], tuple[int, ...]]:
    """Places along the first axes of x, for each element of x[key], and the shape of that."""
    rest, places = x.shape[len(key) :], [traced(one) for one in key]
    shape = np.broadcast_shapes(*(one.shape for one in places)) + rest
    return [broadcast(one.reshape(*one.shape, *[1] * len(rest)), shape) for one in places], shape


def gathered(x: Traced, key: Sequence[Any]) -> Traced:
    """x[key], of arrays that are places along the first axes."""
    places, shape = spread(x, key)
    axes = [*zip(x.shape, x.strides, strict=True)][: len(key)]
    return Traced(Gathered(broadcast(x[(0,) * len(key)], shape), places, axes))


def scattered(x: Traced, key: Sequence[Any], values: Any) -> Traced:
    """x after x[key] = values."""
    places, shape = spread(x, key)
    values = broadcast(traced(values), shape).astype(x.dtype)
    axes = [*zip(x.shape, in_c_order(x.shape), strict=True)][: len(key)]
    return Traced(Scattered((x, values, *places), axes))


def taken(x: Traced, places: Any, axis: int) -> Traced:
    """As `numpy.take`. Known places that are equally spaced are a view."""
    axis %= x.ndim
    size, stride, before, after = x.shape[axis], x.strides[axis], x.shape[:axis], x.shape[axis + 1 :]
    if isinstance(places, np.ndarray) and places.size:
        if places.min() < -size or places.max() >= size:
            raise IndexError(f"places from {places.min()} to {places.max()} of {size}")
        places = np.where(places < 0, places + size, places)
        start = int(places.item(0))
        jumps = [int(np.diff(places, axis=one).item(0)) if sides > 1 else 0 for one, sides in enumerate(places.shape)]
        if np.array_equal(places, start + sum(np.indices(places.shape)[one] * jump for one, jump in enumerate(jumps))):
            strides = *x.strides[:axis], *(jump * stride for jump in jumps), *x.strides[axis + 1 :]
            return Traced(x.value, before + places.shape + after, strides, x.offset + start * stride)
    places = traced(places)
    shape = before + places.shape + after
    first = Traced(x.value, shape, (*x.strides[:axis], *[0] * places.ndim, *x.strides[axis + 1 :]), x.offset)
    places = broadcast(places.reshape(*places.shape, *[1] * len(after)), shape)
    return Traced(Gathered(first, [places], [(size, stride)]))


def taken_along(x: Traced, places: Any, axis: int) -> Traced:
    """As `numpy.take_along_axis`."""
    axis %= x.ndim
    places = traced(places)
    shape = [*np.broadcast_shapes(*([*one.shape[:axis], 1, *one.shape[axis + 1 :]] for one in (x, places)))]
    shape[axis] = places.shape[axis]
    first = broadcast(x.moved(lambda x: np.moveaxis(np.moveaxis(x, axis, 0)[:1], 0, axis)), shape)
    return Traced(Gathered(first, [broadcast(places, shape)], [(x.shape[axis], x.strides[axis])]))


def smallest(x: Traced, count: int) -> Traced:
    """(..., count) int64: places of the smallest along the last axis in order; of equal ones the first, NaN last."""
    keys = x.astype(np.float32).copied().reshape(-1, x.shape[-1])
    keys.value.held = True
    count = min(count, keys.shape[1])
    found = Smallest((len(keys), count), np.int64, [keys], held=True)
    return Traced(found).reshape(*x.shape[:-1], count)


def first_of(largest: bool, x: Traced, axis: int) -> Traced:
    """As `numpy.argmax` and `argmin`."""
    rows = x.moved(lambda x: np.moveaxis(x, axis, -1))
    best = rows.max(-1, keepdims=True) if largest else rows.min(-1, keepdims=True)
    places = Traced(Counting(rows.shape[-1:], np.int64))
    return where((rows == best) | (rows != rows), places, rows.shape[-1]).min(-1)


def running_sum(x: Traced, axis: int) -> Traced:
    """As `numpy.cumsum`."""
    rows = x.moved(lambda x: np.moveaxis(x, axis, -1)[..., None, :])
    places = Traced(Counting(rows.shape[-1:], np.int64))
    made = where(places <= places[:, None], rows, np.zeros((), x.dtype)).sum(-1)
    return made.moved(lambda x: np.moveaxis(x, -1, axis))


# Matrices.


def product(a: Traced, b: Traced) -> Traced:
    """As `numpy.matmul`."""
    if a.ndim == 1 or b.ndim == 1:
        wide = product(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
        wide = wide[..., 0, :] if a.ndim == 1 else wide
        return wide[..., 0] if b.ndim == 1 else wide
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matrices {a.shape} and {b.shape}")
    if b.ndim == 2 and a.ndim > 2:  # one large product
        return product(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    outer = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = *outer, a.shape[-2], b.shape[-1]
    if not a.shape[-1]:
        return broadcast(traced(np.float32(0)), shape)
    factors = [matrices(broadcast(one.astype(np.float32), (*outer, *one.shape[-2:]))) for one in (a, b)]
    return Traced(Multiplied((math.prod(outer), *shape[-2:]), factors)).reshape(shape)


def matrices(x: Traced) -> Traced:
    """(count, rows, columns) in memory, as cuBLAS takes it.

    What a kernel computes is written by rows, so that threads side by side are those of a row when it is read too.
    """
    shape = math.prod(x.shape[:-2]), *x.shape[-2:]
    strides = reshaped(x, shape)
    found = Traced(x.value, shape, strides, x.offset)
    stored = None if strides is None or isinstance(x.value, Literal | Counting) else layout(found)
    if stored is None or (stored[0] and not x.value.held):
        found = Traced(x._as(x.dtype).value, shape)
    found.value.held = True
    return found


def layout(x: Traced) -> tuple[bool, int] | None:
    """Whether matrices are stored by columns instead of by rows, and from one to the next; None: neither."""
    _, rows, columns = x.shape
    _, down, across = x.strides
    if min(x.strides) < 0:
        return None
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return False, max(down, columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return True, max(across, rows)
    return None


# Functions of NumPy.


def where(condition: Any, a: Any, b: Any) -> Traced:
    made = np.result_type(*(one if type(one) in (bool, int, float) else one.dtype for one in (a, b)))
    return elementwise("{} ? {} : {}", (condition, a, b), (np.bool_, made, made), made)


def joined(xs: Sequence[Any], axis: int = 0) -> Traced:
    made = np.result_type(*(one.dtype for one in xs))
    views = [traced(one).astype(made) for one in xs]
    if len({(*one.shape[: axis % one.ndim], *one.shape[axis % one.ndim + 1 :]) for one in views}) > 1:
        raise ValueError(f"arrays {[one.shape for one in views]} do not go together along axis {axis}")
    return Traced(Joined(views, axis % views[0].ndim))


def padded(x: Traced, widths: Sequence[tuple[int, int]], mode: str = "constant", constant_values: Any = 0) -> Traced:
    for axis, (before, after) in enumerate(widths):
        if mode != "constant" and (before or after):
            x = taken(x, np.pad(np.arange(x.shape[axis]), (before, after), mode), axis)  # type: ignore[call-overload]
        elif before or after:
            sides = [np.full([*x.shape[:axis], size, *x.shape[axis + 1 :]], constant_values, x.dtype)
                     for size in (before, after)]  # fmt: skip
            x = joined([one for one in (sides[0], x, sides[1]) if one.shape[axis]], axis)
    return x


def split(x: Traced, ends: Sequence[int], axis: int) -> list[Traced]:
    places = [0, *ends, x.shape[axis]]
    return [x[(slice(None),) * (axis % x.ndim) + (slice(*pair),)] for pair in pairwise(places)]


def tiled(x: Traced, counts: Sequence[int]) -> Traced:
    shape = [size for pair in zip(counts, x.shape, strict=True) for size in pair]
    single = x.reshape([size for one in x.shape for size in (1, one)])
    return broadcast(single, shape).reshape([count * size for count, size in zip(counts, x.shape, strict=True)])


def viewed(function: Callable[..., NDArray[Any]]) -> Callable[..., Traced]:
    return lambda x, *args, **options: x.moved(lambda x: function(x, *args, **options))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{one.__name__: viewed(one) for one in (np.transpose, np.squeeze, np.expand_dims, np.moveaxis, np.broadcast_to)},
    "where": where, "concatenate": joined, "pad": padded, "split": split, "tile": tiled, "take": taken,
    "take_along_axis": taken_along, "cumsum": running_sum,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "argmax": lambda x, axis: first_of(True, x, axis), "argmin": lambda x, axis: first_of(False, x, axis),
}  # fmt: skip
"""By the name of NumPy's."""
