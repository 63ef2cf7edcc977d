"""Warps, remaps by table, flips and stereo splits. Functions of `reference` specify the warps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.kernels import cpu
from framefuse.kernels.arrays import address, new, on_gpu
from framefuse.kernels.colour.layout import Image, check_target
from framefuse.kernels.colour.reference import ImageLayout
from framefuse.kernels.geometry.reference import LIMIT, Border, Sampling

DTYPES = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32"}
AFFINE, PERSPECTIVE, TABLE = 0, 1, 2
NO_MATRIX, NO_HOMOGRAPHY = np.zeros(6, np.int64), np.zeros(9)

SIDE = 32
"""Pixels of a block of `warp_tile` in x and in y, as in `tir_cuda_warp_tile.py`."""
REACH, HEIGHT = 177, 60
"""Bytes of a source row, at any alignment, and source rows for which a block of `warp_tile` has room."""


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
    """out[y, x] = image at A @ (x, y, 1). `reference.warp_affine` states the arguments and the accuracy.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    mapping = _matrix(matrix, (2, 3), inverse)
    if np.abs(mapping).max() >= LIMIT:
        raise UsageError(f"matrix {mapping.tolist()} (destination to source) has an entry of 2^30 or more")
    fixed = np.rint(mapping * 2.0**32).astype(np.int64).ravel()
    work = _Warp.of(image, out, size, interpolation, border, value, layout)
    farthest = np.abs(mapping) @ (work.target.width, work.target.height, 1)
    if farthest.max() >= LIMIT:
        raise UsageError(f"matrix {mapping.tolist()} (destination to source) leads {farthest.max():g} pixels away")
    return work.run(AFFINE, fixed=fixed)


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
) -> NDArray[Any]:
    """out[y, x] = image at (u / w, v / w), (u, v, w) = H @ (x, y, 1). `reference.warp_perspective` specifies it.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    homography = _matrix(matrix, (3, 3), inverse).ravel()
    return _Warp.of(image, out, size, interpolation, border, value, layout).run(PERSPECTIVE, homography=homography)


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
    work = _Warp.of(image, out, size, interpolation, border, value, layout)
    if (work.target.width, work.target.height) != size:
        raise UsageError(f"out is {work.target.width}x{work.target.height}, the maps {size[0]}x{size[1]}")
    if on_gpu(image) and not (on_gpu(map_x) and on_gpu(map_y)):
        raise UsageError("map_x and map_y are not on the GPU, where the image is")
    return work.run(TABLE, maps=(address(map_x), address(map_y), tables[0].row_pitch, tables[1].row_pitch))


def flip(
    image: Any, out: Any | None = None, *, horizontal: bool = False, vertical: bool = False, layout: ImageLayout = "HWC"
) -> Any:
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
    out: NDArray[Any]
    source: Image
    target: Image
    linear: bool
    replicate: bool
    value: NDArray[np.float32]
    """The border's, one for each channel and plane."""

    @classmethod
    def of(
        cls, image: Any, out: Any, size: Any, interpolation: str, border: str, value: Any, layout: ImageLayout
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
            width, height = size or (source.width, source.height)
            if min(width, height) < 1:
                raise UsageError(f"size {size} is not (width, height) of at least one pixel")
            shape = list(image.shape)
            row = len(shape) - (3 if layout == "HWC" and len(shape) > 2 else 2)
            shape[row : row + 2] = height, width
            out = new(on_gpu(image), tuple(shape), source.dtype)
        target = Image.of("out", out, layout)
        if target[:4] != source[:4]:  # all but sizes and pitches
            raise UsageError(f"out is {out.dtype} {tuple(out.shape)}, image {image.dtype} {tuple(image.shape)}")
        border_value = np.broadcast_to(values, (channels,)).astype(np.float32)
        check_target(image, out)
        return cls(image, out, source, target, interpolation == "linear", border == "replicate", border_value)

    def run(
        self, kind: int, fixed: Any = NO_MATRIX, homography: Any = NO_HOMOGRAPHY, maps: tuple[int, ...] = (0, 0, 0, 0)
    ) -> NDArray[Any]:
        """`fixed`: (6,) int64; `homography`: (9,) float64; `maps`: addresses of both tables, pitches in elements."""
        source, target = self.source, self.target
        # In the order of the kernels for the CPU.
        places: dict[str, Any] = {"source": source.address(self.image, 0), "source_pitch": source.row_pitch}
        places |= {"height": source.height, "width": source.width}
        places |= {"target": target.address(self.out, 0), "target_pitch": target.row_pitch}
        places |= {"columns": target.width, "rows": target.height, "replicate": int(self.replicate)}
        options: dict[str, Any] = {"source_plane": source.plane_pitch, "target_plane": target.plane_pitch}
        options |= {"planes": source.planes, "kind": kind}
        options |= {"linear": int(self.linear), "half": 0.0 if self.linear else 0.5}
        options |= dict(zip(("map_x", "map_y", "map_x_pitch", "map_y_pitch"), maps, strict=True))
        name = f"warp_{DTYPES[source.dtype]}_{source.channels}"
        if on_gpu(self.image):
            self._launch(name, places, options, fixed, homography)
            return self.out
        value = np.zeros((source.planes, 4), np.float32)
        value[:, : source.channels] = self.value.reshape(source.planes, source.channels)
        get, width = cpu._scratch.get, target.width
        scratch = [get("warp_whole", (3, width), np.int32), get("warp_weight", (2, width))]
        scratch += [get("warp_position", (3, width), np.float64), get("warp_line", (width * source.channels + 4,))]
        for number in range(source.images):
            places |= {"source": source.address(self.image, number), "target": target.address(self.out, number)}
            cpu._function(name)(*places.values(), *options.values(), fixed, homography, value, *scratch)
        return self.out

    def _launch(self, name: str, places: dict[str, Any], options: dict[str, Any], fixed: Any, homography: Any) -> None:
        source, target, value = self.source, self.target, self.value
        if len(value) > 4 and len(set(value.tolist())) > 1:
            raise UsageError(f"value {value.tolist()}: on a GPU at most four planes may have different values")
        moved = fixed.copy()
        if not self.linear:  # nearest: half a pixel is added
            moved[[2, 5]] += 1 << 31
        numbers = homography.tobytes() + moved.tobytes() + np.resize(value, 4).tobytes() + bytes(8)
        images = {"images": source.images, "source_image": source.image_pitch, "target_image": target.image_pitch}
        vectors = target.whole_vectors(self.out)
        aligned = not any(number % 16 for number in (places["source"], source.row_pitch, source.image_pitch))
        if options["kind"] == AFFINE and self.linear and name == "warp_u8_3" and vectors and aligned:
            reach = _reach(fixed.tolist())
            if reach is not None and (value == np.rint(value)).all():
                colour = sum(int(level) << 8 * k for k, level in enumerate(value))
                kernel.launch("warp_tile", **places, **images, **reach, value=colour, numbers=numbers)
                return
        kernel.launch(name, **places, **images, **options, vectors=int(vectors), numbers=numbers)


def _reach(fixed: list[int]) -> dict[str, int] | None:
    """How far the positions of a block reach from that of its first pixel; None: too far for `warp_tile`."""
    (left, right), (top, bottom) = (
        (sum(min(0, step) for step in steps), sum(max(0, step) for step in steps))
        for steps in ((fixed[k] * (SIDE - 1), fixed[k + 1] * (SIDE - 1)) for k in (0, 3))
    )
    # One pixel for the fractions at both ends, the neighbour, and up to three more on the left.
    columns, rows = ((far >> 32) + 3 for far in (right - left, bottom - top))
    if (columns + 3) * 3 > REACH or rows > HEIGHT:
        return None
    return {"left": left, "right": right, "top": top, "bottom": bottom}


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
