"""Uploads: how frames in host memory reach the GPU.

Title: three upload modes
    A frame that was decoded on the host is written once, as its native planes, into a buffer of its row of the batch.
    copy      page-locked memory, copied by the GPU's copy engine before the kernels of the batch
    mapped    page-locked memory that the kernels read directly: best where host and GPU share memory
    managed   memory that migrates to the GPU page by page, prefetched before the kernels of the batch
    docs/results/memory.md compares them. Device and page-locked memory come from CuPy's pools and are reused.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, driver
from framefuse.errors import CapabilityError
from framefuse.frame import Frame
from framefuse.kernels.copies.call import copy_all
from framefuse.runtime.ledger import Ledger

UploadMode = Literal["copy", "mapped", "managed"]
"""How host frames reach the GPU."""

MAPPED = 2
"""cudaHostAllocMapped."""


def choose_upload_mode(asked: str) -> tuple[UploadMode, str]:
    """How host frames reach the current GPU, and why.

    Args:
        asked: copy, mapped, managed, or auto.

    Raises:
        CapabilityError: managed memory, on a GPU that does not let the host access it while a kernel runs.
    """
    attributes = device.cupy().cuda.Device().attributes
    if asked == "managed" and not attributes["ConcurrentManagedAccess"]:
        here = "on this GPU the host cannot access managed memory while a kernel runs"
        remedy = "use --memory mapped, or --memory auto"
        raise CapabilityError(f"memory managed was asked for, but {here}", remedy=remedy)
    if asked != "auto":
        return cast(UploadMode, asked), f"memory {asked}: as asked"
    if attributes["Integrated"]:
        return "mapped", "memory mapped: the GPU shares memory with the host, so kernels read host frames in place"
    return "copy", "memory copy: the GPU has its own memory, and its copy engine fills it while kernels run"


class Staging:
    """Buffers through which the planes of host frames reach the GPU, once each and as they were decoded.

    Args:
        slots: rows of the batch; each has its own buffers, as large as the largest planes so far.
        mode: "managed" requires a GPU with concurrent managed access, which `choose_upload_mode` checks.
    """

    def __init__(self, slots: int, stream: Any, ledger: Ledger, mode: UploadMode = "copy") -> None:
        self._slots: list[dict[int, _PlaneBuffer]] = [{} for _ in range(slots)]
        self._uploaded: list[tuple[tuple[Any, ...], Frame | None]] = [((), None)] * slots
        """What `upload` returned last."""
        self._stream, self._ledger, self._mode = stream, ledger, mode

    def write(self, frames: Sequence[tuple[int, Frame]]) -> None:
        """Copy frames in host memory, each with its slot, into buffers there, several at the same time. `upload`
        follows, and the caller may then overwrite the frames.

        Raises:
            GpuMemoryError: there is no room for the planes of one.
        """
        sources, targets = list[Any](), list[Any]()
        for slot, frame in frames:
            for number, plane in enumerate(frame.planes):
                sources.append(plane)
                targets.append(self._buffer(slot, number, plane).host)
        if sources:
            copy_all(sources, targets)

    def upload(self, slot: int, frame: Frame) -> Frame:
        """The frame that `write` put into a slot, as the GPU reads it, valid until the next upload to the slot. Only
        planes, format, colours and rotation are those of the frame."""
        planes = []
        for number in range(len(frame.planes)):
            mode, _, host, gpu = self._slots[slot][number]
            if mode == "copy":
                _start_copy(gpu, host, self._stream)
            elif mode == "managed":
                runtime = device.cupy().cuda.runtime
                runtime.memPrefetchAsync(gpu.data.ptr, host.nbytes, runtime.getDevice(), self._stream.ptr)
            # For mapped memory this is an upper bound: the kernel skips rows that a smaller model input does not need.
            self._ledger.add("preprocess", "h2d", "pixels", host.nbytes)
            planes.append(gpu)
        # The same frame as long as it has the same planes, so that its row of the table stays as it is.
        facts = (*map(id, planes), frame.format, frame.matrix, frame.full_range, frame.rotation)
        before, there = self._uploaded[slot]
        if there is None or before != facts:
            there = frame.replace_unchecked(planes=tuple(planes), owner=None, lease=None, ready=None)
            self._uploaded[slot] = facts, there
        return there

    def _buffer(self, slot: int, number: int, plane: Any) -> "_PlaneBuffer":
        """The buffer of a plane, made or made larger where necessary."""
        buffer = self._slots[slot].get(number)
        if buffer is None or (buffer.host.shape, buffer.host.dtype) != (plane.shape, plane.dtype):
            if buffer is None or buffer.memory[0].nbytes < plane.nbytes:
                self._slots[slot].pop(number, None)
                buffer = self._made(plane.nbytes)
            self._slots[slot][number] = buffer = buffer.shaped_like(plane)
        return buffer

    def _made(self, size: int) -> "_PlaneBuffer":
        """A buffer of `size` bytes. Where the GPU has no room for one, its kernels read that of the host."""
        cp, mode = device.cupy(), self._mode
        try:
            with self._stream:  # only this stream uses them, so they are reused in order
                if mode == "copy":
                    with suppress(cp.cuda.memory.OutOfMemoryError):
                        memory = device.pinned((size,), np.uint8), cp.empty((size,), np.uint8)
                        return _PlaneBuffer(mode, memory, *memory)
                    mode = "mapped"
                pointer = _mapped(size) if mode == "mapped" else cp.cuda.malloc_managed(size)
        except (cp.cuda.memory.OutOfMemoryError, cp.cuda.runtime.CUDARuntimeError) as error:
            raise device.translate_cuda_error(error, f"allocate a plane of {size / 1e6:.1f} MB") from error
        host_bytes: Any = (ctypes.c_uint8 * size).from_address(int(pointer.ptr))
        memory = np.frombuffer(host_bytes, np.uint8), cp.ndarray((size,), np.uint8, pointer)
        return _PlaneBuffer(mode, memory, *memory)


def _start_copy(to: Any, host: NDArray[Any], stream: Any) -> None:
    """Start a copy from page-locked memory; the GIL is held, as in cuda/driver.py."""
    words = map(ctypes.c_uint64, (to.data.ptr, host.ctypes.data, host.nbytes, stream.ptr))
    driver.check(driver.driver().cuMemcpyHtoDAsync_v2(*words), "copy an image")


class _PlaneBuffer(NamedTuple):
    """The buffer of one plane of a slot: its bytes on the host and on the GPU, and the plane as an array in both."""

    mode: UploadMode
    memory: tuple[NDArray[np.uint8], Any]
    host: NDArray[Any]
    gpu: Any

    def shaped_like(self, plane: Any) -> "_PlaneBuffer":
        """The same memory for a plane of another shape or dtype that fits into it."""
        host, gpu = (part[: plane.nbytes].view(plane.dtype).reshape(plane.shape) for part in self.memory)
        return _PlaneBuffer(self.mode, self.memory, host, gpu)


def _mapped(size: int) -> Any:
    """A CuPy pointer, which keeps it alive, to page-locked host memory that kernels read over the bus."""
    module = device.cupy().cuda
    owner = module.PinnedMemory(size, MAPPED)
    return module.MemoryPointer(module.UnownedMemory(owner.ptr, size, owner, module.runtime.getDevice()), 0)
