"""Shape and strides of images for the kernels, from arrays of any library."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from framefuse.cuda import device
from framefuse.errors import UsageError
from framefuse.kernels.arrays import address, on_gpu
from framefuse.kernels.colour.reference import ImageLayout
from framefuse.kernels.preprocess.plan import MAX_ELEMENTS


class Image(NamedTuple):
    """Shape and pitches of an image or a batch of images; pitches in elements."""

    dtype: np.dtype[Any]
    images: int
    planes: int
    """1 if the channels of a pixel are adjacent, else the number of channels."""
    channels: int
    """Adjacent channels of a pixel."""
    height: int
    width: int
    image_pitch: int
    plane_pitch: int
    row_pitch: int

    @classmethod
    def of(cls, name: str, image: Any, layout: ImageLayout) -> Image:
        """Read shape and strides of an array (of any library whose strides are in bytes).

        Raises:
            UsageError: the shape is not that of an image, or the samples of a row are not adjacent.
        """
        if layout not in ("HWC", "CHW"):
            raise UsageError(f"layout {layout!r} is not 'HWC' or 'CHW'")
        if on_gpu(image):
            image = device.as_cupy(image)
        shape, strides, size = tuple(image.shape), tuple(image.strides), image.dtype.itemsize
        planar = layout == "CHW" or len(shape) == 2
        if len(shape) == 2:
            shape, strides = (1, *shape), (0, *strides)
        if len(shape) == 3:
            shape, strides = (1, *shape), (0, *strides)
        if len(shape) != 4 or 0 in shape:
            raise UsageError(
                f"{name} has shape {tuple(image.shape)}",
                remedy="pass (height, width), (height, width, C), (C, height, width), or a batch of the last two",
            )
        if any(stride % size for stride in strides):
            raise UsageError(f"{name} has strides {strides} bytes, not multiples of its {size}-byte samples")
        pitches = [stride // size for stride in strides]
        if planar:
            count, planes, height, width = shape
            made = cls(image.dtype, count, planes, 1, height, width, *pitches[:3])
            adjacent = pitches[3] == 1 or width == 1
        else:
            count, height, width, channels = shape
            made = cls(image.dtype, count, 1, channels, height, width, pitches[0], 0, pitches[1])
            adjacent = (pitches[3] == 1 or channels == 1) and (pitches[2] == channels or width == 1)
        if not adjacent:
            raise UsageError(
                f"{name} has strides {tuple(image.strides)} bytes; within a row its samples must be adjacent",
                remedy="pass a contiguous copy, or fold a flip into the matrix",
            )
        reach = abs(made.row_pitch) * height + abs(made.plane_pitch) * (planes if planar else 1)
        if reach > MAX_ELEMENTS:
            raise UsageError(f"{name} reaches over {reach} samples, more than {MAX_ELEMENTS}")
        return made

    def whole_vectors(self, array: Any) -> bool:
        """Whether every four elements of a row that begin at a multiple of four are an aligned vector."""
        pitches = (self.width, self.row_pitch, self.plane_pitch, self.image_pitch)
        return not any(number % 4 for number in pitches) and address(array) % (4 * self.dtype.itemsize) == 0

    def address(self, array: Any, number: int) -> int:
        """Address of image `number` of the array."""
        return address(array) + number * self.image_pitch * self.dtype.itemsize


def check_target(image: Any, out: Any) -> None:
    """Raise UsageError unless `out` is writable, on the same device as `image`, and does not overlap it."""
    if on_gpu(image) != on_gpu(out):
        raise UsageError("image and out must both lie on the host, or both on the same GPU")
    if on_gpu(image):
        return
    if not out.flags.writeable:
        raise UsageError("out is read-only")
    if np.may_share_memory(image, out):
        raise UsageError("out overlaps the input", remedy="pass another out; it cannot be done in place")
