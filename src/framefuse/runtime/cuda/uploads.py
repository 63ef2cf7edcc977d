"""Memory between host and GPU: how host frames enter, and results that leave in one copy.

Title: three ways in
    A frame that was decoded on the host is written once, as its native planes, into memory that a batch's slot keeps.
    copy      page-locked memory, copied by the GPU's copy engine before the kernels of the batch
    mapped    page-locked memory that the kernel itself reads: right where host and GPU share their memory
    managed   memory that moves to the GPU page by page, asked for before the kernels of the batch
    docs/results/memory.md compares them. Device and page-locked memory come from CuPy's pools: what one size gave back
    serves the next.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.cuda.errors import translate_cuda_error
from framefuse.errors import CapabilityError
from framefuse.frame import Frame
from framefuse.kernels.preprocess.cuda import is_cuda
from framefuse.runtime.ledger import Ledger

UploadMode = Literal["copy", "mapped", "managed"]
"""How frames that lie on the host come to the GPU."""

MAPPED = 2
"""cudaHostAllocMapped."""


def choose_upload_mode(asked: str) -> tuple[UploadMode, str]:
    """How host frames enter the current GPU, and why.

    Args:
        asked: copy, mapped, managed, or auto.

    Raises:
        CapabilityError: managed memory on a GPU where host and GPU may not use it at the same time.
    """
    attributes = device.cupy().cuda.Device().attributes
    if asked == "managed" and not attributes["ConcurrentManagedAccess"]:
        raise CapabilityError(
            "memory managed was asked for, but on this GPU the host may not touch managed memory while a kernel runs",
            remedy="use --memory mapped, or --memory auto",
        )
    if asked != "auto":
        return cast(UploadMode, asked), f"memory {asked}: as asked"
    if attributes["Integrated"]:
        return "mapped", "memory mapped: the GPU shares the host's memory, so kernels read host frames where they are"
    return "copy", "memory copy: the GPU has memory of its own, which its copy engine fills beside the kernels"


class Staging:
    """Brings planes from the host to the GPU: once each, as they were decoded.

    Args:
        slots: frames of a batch; each has memory of its own, for the largest planes that it saw.
        mode: how they go; "managed" wants a GPU with concurrent access (`choose_upload_mode` looks).
    """

    def __init__(self, slots: int, stream: Any, ledger: Ledger, mode: UploadMode = "copy") -> None:
        self._slots: list[dict[int, _Room]] = [{} for _ in range(slots)]
        self._stream, self._ledger, self._mode = stream, ledger, mode

    def bring(self, slot: int, frame: Frame) -> Frame:
        """The frame as the GPU reads it; one that is there already is returned as it is.

        The frame may be overwritten after this. What it gave stays until the slot is filled again.

        Raises:
            GpuMemoryError: there is no room for its planes.
        """
        if is_cuda(frame):
            return frame
        planes = []
        for number, plane in enumerate(frame.planes):
            room = self._slots[slot].get(number)
            if room is None or room.holds != (plane.shape, plane.dtype):
                if room is None or room.memory[0].nbytes < plane.nbytes:
                    self._slots[slot].pop(number, None)
                    room = _Room(self._memory(plane.nbytes))
                self._slots[slot][number] = room = room.another(plane)
            here, there = room.planes
            np.copyto(here, plane)
            if self._mode == "copy":
                there.data.copy_from_host_async(here.ctypes.data, here.nbytes, self._stream)
            elif self._mode == "managed":
                runtime = device.cupy().cuda.runtime
                runtime.memPrefetchAsync(there.data.ptr, here.nbytes, runtime.getDevice(), self._stream.ptr)
            # Of mapped memory that is the most: the kernel skips rows that a smaller picture does not need.
            self._ledger.add("preprocess", "h2d", "pixels", here.nbytes)
            planes.append(there)
        return replace(frame, planes=tuple(planes), owner=None, lease=None, ready=None)

    def _memory(self, size: int) -> tuple[NDArray[np.uint8], Any]:
        """So many bytes as the host writes them, and as the GPU reads them."""
        cp = device.cupy()
        try:
            with self._stream:  # which alone uses them, so they come back in order
                if self._mode == "copy":
                    return device.pinned((size,), np.uint8), cp.empty((size,), np.uint8)
                pointer = _mapped(size) if self._mode == "mapped" else cp.cuda.malloc_managed(size)
        except (cp.cuda.memory.OutOfMemoryError, cp.cuda.runtime.CUDARuntimeError) as error:
            raise translate_cuda_error(error, f"make room for a plane of {size / 1e6:.1f} MB") from error
        bytes_here: Any = (ctypes.c_uint8 * size).from_address(int(pointer.ptr))
        return np.frombuffer(bytes_here, np.uint8), cp.ndarray((size,), np.uint8, pointer)


@dataclass(frozen=True)
class _Room:
    """Where one plane of a slot goes.

    Attributes:
        memory: bytes on the host, and those that the GPU reads.
        planes: the plane in both.
        holds: its shape and dtype.
    """

    memory: tuple[NDArray[np.uint8], Any]
    planes: tuple[Any, Any] = (None, None)
    holds: tuple[tuple[int, ...], Any] | None = None

    def another(self, plane: Any) -> _Room:
        """The same memory for such a plane, which is not larger."""
        here, there = (part[: plane.nbytes].view(plane.dtype).reshape(plane.shape) for part in self.memory)
        return _Room(self.memory, (here, there), (plane.shape, plane.dtype))


class _Mapped:
    """Page-locked memory of the host that kernels read over the bus, at one address for both."""

    def __init__(self, size: int) -> None:
        self._runtime = device.cupy().cuda.runtime
        self.address = self._runtime.hostAlloc(size, MAPPED)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._runtime.freeHost(self.address)


def _mapped(size: int) -> Any:
    """A pointer of CuPy's to such memory, which it keeps."""
    module, owner = device.cupy().cuda, _Mapped(size)
    return module.MemoryPointer(module.UnownedMemory(owner.address, size, owner, module.runtime.getDevice()), 0)
