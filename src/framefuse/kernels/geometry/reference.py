"""Specification of warps and table remaps in plain numpy float64. Pixel centres are at integers, as in OpenCV."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framefuse.kernels.colour.reference import ImageLayout, write

Array = NDArray[np.float64]
Border = Literal["constant", "replicate"]
Sampling = Literal["linear", "nearest"]

LIMIT = 2.0**30
"""Positions are clamped to -LIMIT..LIMIT pixels; NaN counts as -LIMIT."""


def warp_affine(
    image: NDArray[Any],
    matrix: ArrayLike,
    out: NDArray[Any] | None = None,
    *,
    size: tuple[int, int] | None = None,
    interpolation: Sampling = "linear",
    border: Border = "constant",
    value: float | tuple[float, ...] = 0.0,
    inverse: bool = False,
    layout: ImageLayout = "HWC",
) -> NDArray[Any]:
    """out[y, x] = image at the position A @ (x, y, 1), where A is (2, 3) and maps destination to source.

    Positions are 32.32 fixed point: A is rounded to multiples of 2^-32, and sums of them are exact, so that every
    implementation reads the same pixels. Against real numbers that is off by (x + y + 1) 2^-33 pixels at the most: 2e-6
    pixels, or 5e-4 grey levels at a black-to-white edge, at 16,384. (Float32 positions would be off by 2e-4 pixels at
    4,097.)

    linear: from the four pixels around the position. nearest: the pixel at floor(position + 1/2).
    A pixel outside of the image counts as `value` (border "constant", as OpenCV's BORDER_CONSTANT; pixels that lie
    partly outside blend with it) or as the nearest pixel of the image ("replicate").

    Args:
        image: (height, width, C) with C = 1, 3 or 4, (height, width), or (C, height, width) by `layout`, with a leading
            axis of images if wanted; uint8 or float32.
        matrix: (2, 3). As in OpenCV it maps source to destination, and is inverted here in float64, unless `inverse`.
        out: like `image` in all but height and width; None allocates it.
        size: width and height of a new `out`; None is that of `image`.
        value: one number, or one per channel, in the units of `image`.
        inverse: `matrix` maps destination to source (OpenCV's WARP_INVERSE_MAP).
        layout: of `image` and `out`.

    Returns:
        `out`. uint8 rounds to nearest, halves up.
    """
    mapping = np.asarray(matrix, np.float64)
    if not inverse:
        mapping = np.linalg.inv(np.vstack([mapping, (0, 0, 1)]))[:2]
    (a, b, c), (d, e, f) = np.rint(mapping * 2.0**32).astype(np.int64)
    x, y = _grid(image, out, size, layout)
    fixed = np.stack([a * x + b * y + c, d * x + e * y + f])
    if interpolation == "nearest":
        fixed = (fixed + (1 << 31)) >> 32 << 32
    whole = fixed >> 32
    weight = (fixed - (whole << 32)) / 2.0**32
    return _sample(image, whole, weight, out, border, value, layout)


def warp_perspective(
    image: NDArray[Any],
    matrix: ArrayLike,
    out: NDArray[Any] | None = None,
    *,
    size: tuple[int, int] | None = None,
    inverse: bool = False,
    **options: Any,
) -> NDArray[Any]:
    """out[y, x] = image at (u / w, v / w), (u, v, w) = H @ (x, y, 1), where H is (3, 3) and maps destination to source.

    Positions are computed in float64. Where w is 0 the position is (0, 0), as in OpenCV. All else is as for
    `warp_affine`, whose further options this function takes.
    """
    given: Array = np.asarray(matrix, np.float64)
    mapping: Array = given if inverse else np.linalg.inv(given).astype(np.float64)
    x, y = _grid(image, out, size, options.get("layout", "HWC"))
    u, v, w = (row[0] * x + (row[1] * y + row[2]) for row in mapping)
    reciprocal = np.divide(1.0, w, out=np.zeros_like(w), where=w != 0)
    return _at(image, np.stack([u * reciprocal, v * reciprocal]), out, **options)


def remap(
    image: NDArray[Any], map_x: NDArray[Any], map_y: NDArray[Any], out: NDArray[Any] | None = None, **options: Any
) -> NDArray[Any]:
    """out[y, x] = image at (map_x[y, x], map_y[y, x]), as OpenCV's remap. All else is as for `warp_affine`.

    Args:
        map_x, map_y: (height, width) float32, source pixels; they give the size of `out`. NaN lies outside.
        options: interpolation, border, value and layout.
    """
    return _at(image, np.stack([map_x, map_y]).astype(np.float64), out, **options)


def _grid(
    image: NDArray[Any], out: NDArray[Any] | None, size: tuple[int, int] | None, layout: ImageLayout
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """x and y of every output pixel."""
    shape = (image if out is None else out).shape
    height, width = shape[-2:] if layout == "CHW" or len(shape) == 2 else shape[-3:-1]
    if out is None and size is not None:
        width, height = size
    y, x = np.mgrid[:height, :width]
    return x, y


def _at(
    image: NDArray[Any], position: Array, out: NDArray[Any] | None, interpolation: Sampling = "linear", **options: Any
) -> NDArray[Any]:
    """The image at float positions (x and y along the first axis)."""
    position = np.where(position > -LIMIT, position, -LIMIT).clip(None, LIMIT)
    if interpolation == "nearest":
        position = np.floor(position + 0.5)
    whole = np.floor(position)
    return _sample(image, whole.astype(np.int64), position - whole, out, **options)


def _sample(
    image: Any, whole: Any, weight: Any, out: Any, border: str = "constant", value: Any = 0, layout: ImageLayout = "HWC"
) -> NDArray[Any]:
    """The image at whole pixels and the weights of the next (each x and y along the first axis)."""
    if image.ndim == 2:
        flat = None if out is None else out[None]
        sampled: NDArray[Any] = _sample(image[None], whole, weight, flat, border, value, "CHW")[0]
        return sampled
    planar = (image if layout == "CHW" else np.moveaxis(image, -1, -3)).astype(np.float64)
    height, width = planar.shape[-2:]
    outside = np.broadcast_to(np.asarray(value, np.float64), planar.shape[-3])[:, None, None]

    def tap(right: int, down: int) -> Array:
        x, y = whole[0] + right, whole[1] + down
        taken: Array = planar[..., y.clip(0, height - 1), x.clip(0, width - 1)]
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        return taken if border == "replicate" else np.where(inside, taken, outside)

    upper = tap(0, 0) * (1 - weight[0]) + tap(1, 0) * weight[0]
    lower = tap(0, 1) * (1 - weight[0]) + tap(1, 1) * weight[0]
    return write(upper * (1 - weight[1]) + lower * weight[1], out, image.dtype, layout)
