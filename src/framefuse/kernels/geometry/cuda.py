"""Launches of the warps on arrays of a GPU, on CuPy's current stream."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.errors import UsageError
from framefuse.kernels.colour.image import Image, on_gpu

AFFINE, PERSPECTIVE, TABLE = 0, 1, 2

SIDE = 32
"""Pixels of a block of `warp_tile` in x and in y, as in `tir_cuda_warp_tile.py`."""
REACH, HEIGHT = 177, 60
"""Bytes of a source row, at any alignment, and source rows for which a block of `warp_tile` has room."""


def warp(
    image: Any,
    source: Image,
    out: Any,
    target: Image,
    value: NDArray[np.float32],
    *,
    kind: int,
    linear: bool,
    replicate: bool,
    fixed: NDArray[np.int64] | None,
    homography: NDArray[np.float64] | None,
    maps: tuple[Any, Any],
    map_pitches: tuple[int, int],
) -> None:
    """One launch for all images. `value` is the border's, one for each channel and plane.

    Raises:
        UsageError: more than four planes have different border values, or a table is not on the GPU.
        CapabilityError: no GPU, no CuPy or no NVRTC.
    """
    if len(value) > 4 and len(set(value.tolist())) > 1:
        raise UsageError(f"value {value.tolist()}: on a GPU at most four planes may have different values")
    if kind == TABLE and not all(on_gpu(table) for table in maps):
        raise UsageError("map_x and map_y are not on the GPU, where the image is")
    arguments: dict[str, Any] = {
        "source": device.address(image),
        "source_pitch": source.row_pitch,
        "source_image": source.image_pitch,
        "height": source.height,
        "width": source.width,
        "target": device.address(out),
        "target_pitch": target.row_pitch,
        "target_image": target.image_pitch,
        "columns": target.width,
        "rows": target.height,
        "images": source.images,
        "replicate": int(replicate),
    }
    offsets = [0] * 6 if fixed is None else [int(number) for number in fixed]
    if not linear and fixed is not None:  # nearest: half a pixel is added
        offsets[2], offsets[5] = offsets[2] + (1 << 31), offsets[5] + (1 << 31)
    arguments |= {f"m{k}": number for k, number in enumerate(offsets)}
    pitches = (target.row_pitch, target.plane_pitch, target.image_pitch)
    whole = target.width % 4 == 0 and all(pitch % 4 == 0 for pitch in pitches)
    whole = whole and arguments["target"] % (4 * target.dtype.itemsize) == 0
    aligned = all(number % 16 == 0 for number in (arguments["source"], source.row_pitch, source.image_pitch))
    three_bytes = source.dtype == np.uint8 and source.channels == 3
    if kind == AFFINE and linear and three_bytes and whole and aligned and (value == np.rint(value)).all():
        reach = _reach(offsets)
        if reach is not None:
            border = sum(int(level) << 8 * k for k, level in enumerate(value))
            kernel.launch("warp_tile", value=border, **reach, **arguments)
            return
    values = [float(v) for v in value] if len(value) <= 4 else [float(value[0])] * 4
    values += [values[0]] * (4 - len(values))
    arguments |= {f"h{k}": 0.0 if homography is None else float(homography[k]) for k in range(9)}
    arguments |= {f"value{k}": values[k] for k in range(4)}
    kernel.launch(
        f"warp_{'u8' if source.dtype == np.uint8 else 'f32'}_{source.channels}",
        source_plane=source.plane_pitch,
        target_plane=target.plane_pitch,
        planes=source.planes,
        vectors=int(whole),
        kind=kind,
        linear=int(linear),
        half=0.0 if linear else 0.5,
        map_x=device.address(maps[0]) if kind == TABLE else 0,
        map_y=device.address(maps[1]) if kind == TABLE else 0,
        map_x_pitch=map_pitches[0],
        map_y_pitch=map_pitches[1],
        **arguments,
    )


def _reach(offsets: list[int]) -> dict[str, int] | None:
    """How far the positions of a block reach from that of its first pixel; None: too far for `warp_tile`."""
    (left, right), (top, bottom) = (
        (sum(min(0, step) for step in steps), sum(max(0, step) for step in steps))
        for steps in ((offsets[k] * (SIDE - 1), offsets[k + 1] * (SIDE - 1)) for k in (0, 3))
    )
    # One pixel for the fractions at both ends, the neighbour, and up to three more on the left.
    columns, rows = ((far >> 32) + 3 for far in (right - left, bottom - top))
    if (columns + 3) * 3 > REACH or rows > HEIGHT:
        return None
    return {"left": left, "right": right, "top": top, "bottom": bottom}
