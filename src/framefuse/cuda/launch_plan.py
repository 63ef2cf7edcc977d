"""Calls on a GPU that are made again and again: what they check is checked once, and the launches are repeated."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from framefuse.cuda import device, kernel
from framefuse.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

SMALL = 4096
"""Bytes of an array on the host that is an option like others, such as a matrix."""


def keep(arrays: R) -> R:
    """Arrays that launches read and that only a cache keeps alive: whoever records the call keeps them from here on."""
    if kernel.recording.launches is not None:
        kernel.recording.kept.append(arrays)
    return arrays


@contextmanager
def owner() -> Iterator[list[Any]]:
    """What the calls inside of it launch on, for whoever captures them in a graph and lives as long: then the process
    need not keep it for ever."""
    outer = kernel.recording.launches, getattr(kernel.recording, "kept", [])
    kernel.recording.launches, kernel.recording.kept = [], []
    try:
        yield kernel.recording.kept
    finally:
        kernel.recording.launches, kernel.recording.kept = outer


def captured(stream: int | None) -> bool:
    """Whether a call is being captured in a graph of which nobody keeps what it launches on."""
    return kernel.recording.launches is None and device.capturing(stream)


_captured: dict[int, Any] = {}
"""What graphs launch on that were captured without an owner: it stays for ever."""


def pin(arrays: R, stream: int | None) -> R:
    """As `keep`; where a graph is being captured of which nobody keeps what it launches on, they stay for ever."""
    if captured(stream):
        _captured[id(arrays)] = arrays
    return keep(arrays)


class Recorded:
    """The launches of one call, to be started again without its checks: what `recorded` returns.

    Attributes:
        result: of the call.
    """

    def __init__(self, launches: Sequence[kernel.Bound], kept: Any, result: Any) -> None:
        self._launches, self._kept, self.result = tuple(launches), kept, result

    def __call__(self, stream: int | None = None) -> None:
        """Start them.

        Args:
            stream: pointer of a CUDA stream; None: CuPy's current one.
        """
        pointer = device.current_stream() if stream is None else stream
        for launch in self._launches:
            launch(pointer)


def recorded(function: Callable[..., Any], *args: Any, **options: Any) -> Recorded:
    """Call a public function of `framefuse.kernels` on arrays of a GPU, and return what repeats it at little cost.

        again = kernels.recorded(preprocess, frame, out, content=..., ...)
        while new_image_in(frame):
            again(stream.ptr)

    What is started again are the launches of this call, with its very arrays: their memory may change, their place not.
    It costs a few microseconds a launch, where the call itself checks its arguments for longer than a GPU may take.
    What holds for a captured CUDA graph holds here: nothing is allocated, and no memory is copied from the host.

    Raises:
        UsageError: the call launched nothing.
    """
    found = _record(function, args, options)
    if not found._launches:
        raise UsageError("the recorded call started no kernel", remedy="record a call on arrays of a GPU")
    found._kept = (found._kept, args, options)
    return found


def _record(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Recorded:
    with owner() as kept:
        result = function(*args, **options)
        launches = kernel.recording.launches or []
    if kernel.recording.launches is not None:
        kernel.recording.launches.extend(launches)
        kernel.recording.kept.extend(kept)
    return Recorded(launches, kept, result)


CALLS = 256
"""Calls of a function that are remembered."""

HELD = 256 << 20
"""Bytes of scratch memory that remembered calls of a function hold, together; the last of them may hold more."""


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that, on a GPU, does nothing but launch: the same call again only launches.

    The same is a call with the same addresses, shapes and options, on the same stream, that writes to what it was
    given. The arrays are not kept alive: another array at the same place is as good.
    """
    calls: OrderedDict[Any, tuple[Recorded, Any]] = OrderedDict()
    heavy: OrderedDict[Any, dict[int, int]] = OrderedDict()  # what they hold, and its bytes; several may hold the same

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        first: Any = args[0] if args else None
        if type(first) in (list, tuple):
            first = first[0] if first else None
        key = None if first is None or type(first) is np.ndarray else _call_key(args, options)
        if key is None:
            return function(*args, **options)
        found = calls.get(key)
        if found is not None:
            launches, place = found
            if launches._kept:
                pin(launches, key[0])
            launches(key[0])
            return args[place] if isinstance(place, int) else options[place]  # type: ignore[return-value]
        launches = _record(function, args, options)
        if launches._kept:
            pin(launches, key[0])
        result, launches.result = launches.result, None
        places = [place for place, value in [*enumerate(args), *options.items()] if value is result]
        if result is not None and places and launches._launches:
            calls[key] = launches, places[0]
            if sizes := {id(item): item.nbytes for item in launches._kept if hasattr(item, "nbytes")}:
                heavy[key] = sizes
            while len(calls) > CALLS:
                heavy.pop(calls.popitem(last=False)[0], None)
            while len(heavy) > 1 and _together(heavy.values()) > HELD:
                calls.pop(heavy.popitem(last=False)[0], None)
        return result  # type: ignore[no-any-return]

    return call


def _together(held: Iterable[dict[int, int]]) -> int:
    """Bytes of all that is held, each once."""
    return sum({at: size for sizes in held for at, size in sizes.items()}.values())


def _call_key(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """All that a call depends on, or None; its stream comes first. Scratch memory belongs to a thread."""
    stream = options.get("stream")
    try:
        key = (
            device.current_stream() if stream is None else stream,
            threading.get_ident(),
            *map(_identity, args),
            *((name, _identity(value)) for name, value in options.items()),
        )
        hash(key)
    except TypeError:
        return None
    return key


def _identity(value: Any) -> Any:
    """What of an argument decides what is launched. Raises TypeError where that is not known."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_identity, value))
    if type(value) is np.ndarray:
        if value.nbytes > SMALL:
            raise TypeError
        return (value.shape, value.dtype.str, value.tobytes())
    return seen(value)


def seen(array: Any) -> tuple[Any, ...]:
    """Address, shape, strides and dtype of an array on the GPU.

    Raises:
        TypeError: it is neither CuPy's nor torch's.
    """
    if isinstance(array, device.cupy().ndarray):
        return (array.data.ptr, array.shape, array.strides, array.dtype)
    if getattr(array, "is_cuda", False):
        return (array.data_ptr(), array.shape, array.stride(), array.dtype)
    raise TypeError(type(array))
