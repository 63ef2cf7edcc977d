"""Warps, remaps by table, flips and stereo splits. Functions of `reference` specify the warps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.kernels import cpu
from framefuse.kernels.colour.image import Image, check_target, checked_rows, new, on_gpu
from framefuse.kernels.colour.reference import ImageLayout
from framefuse.kernels.geometry import cuda as geometry_cuda
from framefuse.kernels.geometry.cuda import AFFINE, PERSPECTIVE, TABLE
from framefuse.kernels.geometry.reference import LIMIT, Border, Sampling

DTYPES = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32"}
UNUSED_TABLE = np.zeros(1, np.float32)


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
    rows: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """out[y, x] = image at A @ (x, y, 1). `reference.warp_affine` states the arguments and the accuracy.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    mapping = _matrix(matrix, (2, 3), inverse)
    if np.abs(mapping).max() >= LIMIT:
        raise UsageError(f"matrix {mapping.tolist()} (destination to source) has an entry of 2^30 or more")
    fixed = np.rint(mapping * 2.0**32).astype(np.int64).ravel()
    work = _Warp.of(image, out, size, interpolation, border, value, layout, rows)
    farthest = np.abs(mapping) @ (work.target.width, work.target.height, 1)
    if farthest.max() >= LIMIT:
        raise UsageError(f"matrix {mapping.tolist()} (destination to source) leads {farthest.max():g} pixels away")
    warped: NDArray[Any] = work.run(AFFINE, fixed=fixed)
    return warped


def warp_perspective(
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
    rows: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """out[y, x] = image at (u / w, v / w), (u, v, w) = H @ (x, y, 1). `reference.warp_perspective` specifies it.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    mapping = _matrix(matrix, (3, 3), inverse)
    work = _Warp.of(image, out, size, interpolation, border, value, layout, rows)
    warped: NDArray[Any] = work.run(PERSPECTIVE, homography=mapping.ravel())
    return warped


def remap(
    image: NDArray[Any],
    map_x: NDArray[np.float32],
    map_y: NDArray[np.float32],
    out: NDArray[Any] | None = None,
    *,
    interpolation: Sampling = "linear",
    border: Border = "constant",
    value: float | tuple[float, ...] = 0.0,
    layout: ImageLayout = "HWC",
    rows: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """out[y, x] = image at (map_x[y, x], map_y[y, x]). `reference.remap` specifies it.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    tables = [Image.of(name, table, "CHW") for name, table in (("map_x", map_x), ("map_y", map_y))]
    for name, table in zip(("map_x", "map_y"), tables, strict=True):
        if table.dtype != np.float32 or table.planes != 1 or table.images != 1:
            raise UsageError(f"{name} is {table.dtype} with {table.images * table.planes} planes; expected one float32")
    if (tables[0].width, tables[0].height) != (tables[1].width, tables[1].height):
        raise UsageError(f"map_x has shape {map_x.shape}, map_y {map_y.shape}")
    size = (tables[0].width, tables[0].height)
    work = _Warp.of(image, out, size, interpolation, border, value, layout, rows)
    if (work.target.width, work.target.height) != size:
        raise UsageError(f"out is {work.target.width}x{work.target.height}, the maps {size[0]}x{size[1]}")
    pitches = (tables[0].row_pitch, tables[1].row_pitch)
    mapped: NDArray[Any] = work.run(TABLE, maps=(map_x, map_y), map_pitches=pitches)
    return mapped


def flip(
    image: NDArray[Any],
    out: NDArray[Any] | None = None,
    *,
    horizontal: bool = False,
    vertical: bool = False,
    layout: ImageLayout = "HWC",
) -> NDArray[Any]:
    """The image mirrored left to right (`horizontal`), upside down (`vertical`), or both.

    Without `out` the result is a view with negative strides (numpy and CuPy; PyTorch has none). With `out` the view is
    copied there. `warp_affine` and `preprocess` read vertically flipped views in place; put a horizontal flip into the
    matrix.
    """
    mirrored, kept = slice(None, None, -1), slice(None)
    window = (mirrored if vertical else kept, mirrored if horizontal else kept)
    channels = (kept,) if layout == "HWC" and image.ndim > 2 else ()
    view = image[(..., *window, *channels)]
    if out is None:
        return view
    out[...] = view
    return out


def split_stereo(frame: Frame, arrangement: Literal["side-by-side", "top-bottom"]) -> tuple[Frame, Frame]:
    """Left (or top) and right (or bottom) half of a stereo frame, as shown, without a copy.

    The planes of both halves are views of those of `frame`, which they keep alive. A lease stays with `frame`: release
    it once both halves have been read.

    Raises:
        UsageError: the middle is not on a boundary of pixels and chroma samples.
    """
    if arrangement not in ("side-by-side", "top-bottom"):
        raise UsageError(f"arrangement {arrangement!r} is not 'side-by-side' or 'top-bottom'")
    beside = arrangement == "side-by-side"
    axis = 1 if beside == (frame.rotation in (0, 180)) else 0
    extent = frame.planes[0].shape[axis]
    subsample = frame.format.subsample[1 - axis]
    if extent % (2 * subsample):
        raise UsageError(
            f"a {frame.coded_width}x{frame.coded_height} {frame.format.name} frame has no {arrangement} halves: "
            f"{extent} coded {'columns' if axis else 'rows'} are not a multiple of {2 * subsample}",
            remedy="convert it to RGB or to a format without chroma subsampling, or crop it first",
        )

    def half(second: bool) -> Frame:
        planes = []
        for plane in frame.planes:
            middle = plane.shape[axis] // 2
            part = slice(middle, None) if second else slice(None, middle)
            planes.append(plane[:, part] if axis else plane[part])
        return replace(frame, planes=tuple(planes), owner=frame, lease=None)

    # Rotated clockwise by 90 degrees, the coded top is on the right and the coded left at the top; and so on.
    swapped = frame.rotation == 180 or frame.rotation == (90 if beside else 270)
    return half(swapped), half(not swapped)


class _Warp(NamedTuple):
    """The checked arguments that the three warps share."""

    image: Any
    out: Any
    source: Image
    target: Image
    linear: bool
    replicate: bool
    value: NDArray[np.float32]
    rows: tuple[int, int]

    @classmethod
    def of(
        cls,
        image: Any,
        out: Any,
        size: tuple[int, int] | None,
        interpolation: Sampling,
        border: Border,
        value: float | tuple[float, ...],
        layout: ImageLayout,
        rows: tuple[int, int] | None,
    ) -> _Warp:
        source = Image.of("image", image, layout)
        if source.dtype not in DTYPES:
            raise UsageError(f"image is {source.dtype}", remedy=f"pass {' or '.join(map(str, DTYPES))}")
        channels = source.planes * source.channels
        if source.channels not in (1, 3, 4):
            raise UsageError(f"image has {source.channels} channels, expected 1, 3 or 4", remedy="use layout='CHW'")
        if interpolation not in ("linear", "nearest"):
            raise UsageError(f"interpolation {interpolation!r} is not 'linear' or 'nearest'")
        if border not in ("constant", "replicate"):
            raise UsageError(f"border {border!r} is not 'constant' or 'replicate'")
        values = np.asarray(value, np.float32)
        if values.shape not in ((), (channels,)):
            raise UsageError(f"value {value} is not one number or one for each of {channels} channels")
        if source.dtype == np.uint8 and not ((values >= 0) & (values <= 255)).all():
            raise UsageError(f"value {value} is not within 0..255")
        if out is None:
            out = _new(image, size or (source.width, source.height), layout)
        target = Image.of("out", out, layout)
        same = target._replace(height=0, width=0, image_pitch=0, plane_pitch=0, row_pitch=0)
        if same != source._replace(height=0, width=0, image_pitch=0, plane_pitch=0, row_pitch=0):
            raise UsageError(f"out is {out.dtype} {tuple(out.shape)}, image {image.dtype} {tuple(image.shape)}")
        border_value = np.broadcast_to(values, (channels,)).astype(np.float32)
        part = checked_rows(rows, target.height)
        return cls(image, out, source, target, interpolation == "linear", border == "replicate", border_value, part)

    def run(
        self,
        kind: int,
        fixed: NDArray[np.int64] | None = None,
        homography: NDArray[np.float64] | None = None,
        maps: tuple[Any, Any] = (UNUSED_TABLE, UNUSED_TABLE),
        map_pitches: tuple[int, int] = (0, 0),
    ) -> Any:
        check_target(self.image, self.out)
        if on_gpu(self.image):
            if self.rows != (0, self.target.height):
                raise UsageError(f"rows {self.rows}: on a GPU all rows are made in one launch")
            geometry_cuda.warp(
                self.image, self.source, self.out, self.target, self.value, kind=kind, linear=self.linear,
                replicate=self.replicate, fixed=fixed, homography=homography, maps=maps, map_pitches=map_pitches,
            )  # fmt: skip
            return self.out
        source, target = self.source, self.target
        value = np.zeros((max(source.planes, 1), 4), np.float32)
        value[:, : source.channels] = self.value.reshape(source.planes, source.channels)
        scratch = (
            cpu._scratch.get("warp_whole", (3, target.width), np.int32),
            cpu._scratch.get("warp_weight", (2, target.width)),
            cpu._scratch.get("warp_position", (3, target.width), np.float64),
            cpu._scratch.get("warp_line", (target.width * source.channels + 4,)),
        )
        function = cpu._function(f"warp_{DTYPES[source.dtype]}_{source.channels}")
        size = source.dtype.itemsize
        for image in range(source.images):
            function(
                cpu._address(self.image) + image * source.image_pitch * size,
                source.row_pitch,
                source.plane_pitch,
                source.height,
                source.width,
                cpu._address(self.out) + image * target.image_pitch * size,
                target.row_pitch,
                target.plane_pitch,
                target.width,
                *self.rows,
                source.planes,
                kind,
                int(self.linear),
                0.0 if self.linear else 0.5,
                int(self.replicate),
                *(cpu._address(table) for table in maps),
                *map_pitches,
                np.zeros(6, np.int64) if fixed is None else fixed,
                np.zeros(9) if homography is None else homography,
                value,
                *scratch,
            )
        return self.out


def _new(image: Any, size: tuple[int, int], layout: ImageLayout) -> Any:
    """An uninitialised array like `image`, of another width and height."""
    width, height = size
    if min(size) < 1:
        raise UsageError(f"size {size} is not (width, height) of at least one pixel")
    shape = list(image.shape)
    row = len(shape) - (3 if layout == "HWC" and len(shape) > 2 else 2)
    shape[row : row + 2] = height, width
    return new(image, tuple(shape), Image.of("image", image, layout).dtype)


def _matrix(matrix: ArrayLike, shape: tuple[int, int], inverse: bool) -> NDArray[np.float64]:
    """The matrix from destination to source, in float64."""
    given = np.asarray(matrix, np.float64)
    if given.shape != shape or not np.isfinite(given).all():
        raise UsageError(f"matrix {given.tolist()} is not a finite matrix of shape {shape}")
    if inverse:
        return given
    square = given if shape == (3, 3) else np.vstack([given, (0, 0, 1)])
    try:
        return np.linalg.inv(square)[: shape[0]]
    except np.linalg.LinAlgError as error:
        raise UsageError(f"matrix {given.tolist()} has no inverse") from error
