"""Channel-wise normalisation and layout change. `reference.normalize` and `reference.change_layout` specify them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from framefuse.errors import UsageError
from framefuse.kernels import cpu
from framefuse.kernels.colour.call import OUTPUTS
from framefuse.kernels.colour.image import Image, check_target, checked_rows, new, on_gpu
from framefuse.kernels.colour.reference import ImageLayout


def normalize(
    image: NDArray[Any],
    mean: Sequence[float],
    std: Sequence[float],
    out: NDArray[Any] | None = None,
    *,
    dtype: DTypeLike = np.float32,
    layout: ImageLayout = "HWC",
    out_layout: ImageLayout | None = None,
    rows: tuple[int, int] | None = None,
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
    target_layout = out_layout or layout
    repeats = source.width if layout == target_layout == "HWC" else 1
    gains, biases = (np.tile(row, repeats).astype(np.float32) for row in (gain, -np.asarray(mean) * gain))
    done: NDArray[Any] = _rearrange(
        "normalize", image, source, out, np.dtype(dtype), target_layout, rows, gains, biases
    )
    return done


def change_layout(
    image: NDArray[Any],
    out: NDArray[Any] | None = None,
    *,
    layout: ImageLayout = "HWC",
    rows: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """HWC to CHW, or CHW to HWC, as a copy. `reference.change_layout` states the arguments.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    source = Image.of("image", image, layout)
    unused = np.zeros(1, np.float32)
    to: ImageLayout = "HWC" if layout == "CHW" else "CHW"
    done: NDArray[Any] = _rearrange("change_layout", image, source, out, source.dtype, to, rows, unused, unused)
    return done


def _rearrange(
    family: str,
    image: Any,
    source: Image,
    out: Any,
    dtype: np.dtype[Any],
    layout: ImageLayout,
    rows: tuple[int, int] | None,
    gains: NDArray[np.float32],
    biases: NDArray[np.float32],
) -> Any:
    channels = source.planes * source.channels
    height, width = source.height, source.width
    if source.dtype not in OUTPUTS or channels not in (1, 3, 4):
        raise UsageError(f"image is {image.dtype} with {channels} channels", remedy="pass 1, 3 or 4; u8, f32 or f16")
    if out is None:
        batch = (source.images,) if image.ndim == 4 else ()
        shape = (height, width, channels) if layout == "HWC" else (channels, height, width)
        out = new(image, (*batch, *shape), dtype)
    target = Image.of("out", out, layout)
    if (target.images, target.planes * target.channels, target.height, target.width) != (
        source.images,
        channels,
        height,
        width,
    ):
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
    first, last = checked_rows(rows, height)
    if on_gpu(image):
        if (first, last) != (0, height):
            raise UsageError(f"rows {rows}: on a GPU all rows are made in one launch")
        from framefuse.cuda import device, kernel

        scales: dict[str, Any] = {f"gain{k}": float(gains[k % gains.size]) for k in range(4)}
        scales |= {f"bias{k}": float(biases[k % biases.size]) for k in range(4)}
        kernel.launch(
            name,
            image_address=device.address(image),
            image_pitch=source.row_pitch,
            image_channel=_channel_pitch(source) or 1,
            image_step=source.channels,
            image_stride=source.image_pitch,
            out_address=device.address(out),
            out_pitch=target.row_pitch,
            out_channel=_channel_pitch(target) or 1,
            out_step=target.channels,
            out_stride=target.image_pitch,
            images=source.images,
            channels=channels,
            height=height,
            width=width,
            **scales,
        )
        return out
    for number in range(source.images):
        cpu._function(name)(
            cpu._address(image) + number * source.image_pitch * source.dtype.itemsize,
            source.row_pitch,
            _channel_pitch(source),
            cpu._address(out) + number * target.image_pitch * target.dtype.itemsize,
            target.row_pitch,
            _channel_pitch(target),
            channels,
            width,
            first,
            last,
            gains,
            biases,
        )
    return out


def _channel_pitch(image: Image) -> int:
    """Elements from a channel to the next; 0 if they are interleaved. A single channel counts as a plane."""
    return 0 if image.channels > 1 else image.plane_pitch or 1
