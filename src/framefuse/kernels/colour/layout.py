"""Shape and strides of images; channel-wise normalisation and layout change, as `reference` specifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from framefuse.cuda import device, kernel
from framefuse.errors import UsageError
from framefuse.kernels import cpu
from framefuse.kernels.arrays import address, new, on_gpu
from framefuse.kernels.colour.reference import ImageLayout
from framefuse.kernels.preprocess.plan import MAX_ELEMENTS

OUTPUTS = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}


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
        """Raise UsageError if the shape is not that of an image, or the samples of a row are not adjacent."""
        if layout not in ("HWC", "CHW"):
            raise UsageError(f"layout {layout!r} is not 'HWC' or 'CHW'")
        if on_gpu(image):
            image = device.as_cupy(image)
        shape, strides, size = tuple(image.shape), tuple(image.strides), image.dtype.itemsize
        planar = layout == "CHW" or len(shape) == 2
        while len(shape) in (2, 3):
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


def normalize(
    image: NDArray[Any],
    mean: Sequence[float],
    std: Sequence[float],
    out: NDArray[Any] | None = None,
    *,
    dtype: DTypeLike = np.float32,
    layout: ImageLayout = "HWC",
    out_layout: ImageLayout | None = None,
) -> NDArray[Any]:
    """out[c, y, x] = (image[c, y, x] - mean[c]) / std[c]. `reference.normalize` states the arguments.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    source = Image.of("image", image, layout)
    channels = source.planes * source.channels
    if len(mean) != channels or len(std) != channels or 0.0 in std or not np.isfinite([*mean, *std]).all():
        raise UsageError(f"mean {mean} and std {std} are not {channels} finite numbers each, std without a zero")
    gain = 1 / np.asarray(std, np.float64)
    scales = np.array((gain, -np.asarray(mean) * gain), np.float32)
    return _rearrange("normalize", image, source, out, np.dtype(dtype), out_layout or layout, scales)


def change_layout(image: NDArray[Any], out: NDArray[Any] | None = None, *, layout: ImageLayout = "HWC") -> NDArray[Any]:
    """HWC to CHW, or CHW to HWC, as a copy. `reference.change_layout` states the arguments.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    source = Image.of("image", image, layout)
    to: ImageLayout = "HWC" if layout == "CHW" else "CHW"
    unused = np.zeros((2, source.planes * source.channels), np.float32)
    return _rearrange("change_layout", image, source, out, source.dtype, to, unused)


def _rearrange(
    family: str, image: Any, source: Image, out: NDArray[Any] | None, dtype: Any, layout: ImageLayout, scales: Any
) -> NDArray[Any]:
    """`scales`: gains and biases, for each channel."""
    channels, gpu = source.planes * source.channels, on_gpu(image)
    height, width = source.height, source.width
    if source.dtype not in OUTPUTS or channels not in (1, 3, 4):
        raise UsageError(f"image is {image.dtype} with {channels} channels", remedy="pass 1, 3 or 4; u8, f32 or f16")
    if out is None:
        batch = (source.images,) if image.ndim == 4 else ()
        shape = (height, width, channels) if layout == "HWC" else (channels, height, width)
        out = new(gpu, (*batch, *shape), dtype)
    target = Image.of("out", out, layout)
    sizes = [(each.images, each.planes * each.channels, each.height, each.width) for each in (source, target)]
    if sizes[0] != sizes[1]:
        raise UsageError(f"out has shape {out.shape}, which does not fit an image of {image.shape} as {layout}")
    check_target(image, out)
    name = f"{family}_{OUTPUTS[source.dtype]}"
    if family == "change_layout":
        if target.dtype != source.dtype:
            raise UsageError(f"out is {out.dtype}, image {image.dtype}")
    elif target.dtype == np.uint8 or target.dtype not in OUTPUTS:
        raise UsageError(f"out is {out.dtype}", remedy="pass float32 or float16")
    else:
        name += f"_{OUTPUTS[target.dtype]}"
    # In the order of the kernels for the CPU.
    places: dict[str, Any] = {}
    for at, view, array in (("image", source, image), ("out", target, out)):
        places |= {f"{at}_address": view.address(array, 0), f"{at}_pitch": view.row_pitch}
        places |= {f"{at}_channel": view.plane_pitch or 1, f"{at}_step": view.channels}
    places |= {"channels": channels, "height": height, "width": width}
    if gpu:
        strides = {"image_stride": source.image_pitch, "out_stride": target.image_pitch}
        numbers = np.pad(scales, ((0, 0), (0, 4 - channels))).tobytes()
        kernel.launch(name, **places, **strides, images=source.images, numbers=numbers)
        return out
    repeats = width if source.channels > 1 and target.channels > 1 else 1  # a row of interleaved pixels is one loop
    gains, biases = (np.tile(row, repeats) for row in scales)
    for number in range(source.images):
        places |= {"image_address": source.address(image, number), "out_address": target.address(out, number)}
        cpu._function(name)(*places.values(), gains, biases)
    return out
