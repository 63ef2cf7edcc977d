"""Tables for `remap` that view panoramas and fisheye images, computed once for a view on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError


def equirectangular_to_perspective(
    source_size: tuple[int, int],
    size: tuple[int, int],
    *,
    horizontal_fov: float,
    yaw: float = 0.0,
    pitch: float = 0.0,
    roll: float = 0.0,
    span: float = 360.0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y for `remap` that show part of an equirectangular panorama as a pinhole camera does.

    A pixel looks along d = R ((x - (w - 1) / 2) / f, (y - (h - 1) / 2) / f, 1), f = w / (2 tan(horizontal_fov / 2)),
    with x to the right, y down, z forward, and R = R_y(yaw) R_x(pitch) R_z(roll). With longitude = atan2(d_x, d_z) and
    latitude = atan2(d_y, hypot(d_x, d_z)),
        map_x = (longitude / span + 1/2) W - 1/2
        map_y = (latitude / 180 degrees + 1/2) H - 1/2.
    At the seam of a full panorama use border="replicate": it repeats half a pixel there.

    Args:
        source_size: W, H of the panorama, or of one eye of a stereo panorama.
        size: w, h of the view.
        horizontal_fov: degrees across the view, less than 180.
        yaw, pitch, roll: degrees to the right, up, and clockwise.
        span: degrees of longitude across the panorama; 180 for VR180.
    """
    right, down, forward = _rays(size, horizontal_fov, yaw, pitch, roll)
    return _on_panorama(right, down, forward, source_size, span)


PROJECTIONS: dict[str, Callable[[Any], Any]] = {
    "equidistant": lambda theta: theta,
    "equisolid": lambda theta: np.sin(theta / 2),
    "stereographic": lambda theta: np.tan(theta / 2),
    "orthographic": np.sin,
}
"""Radius in a fisheye image, up to a factor, as a function of the angle from the optical axis."""


def fisheye_to_perspective(
    source_size: tuple[int, int],
    size: tuple[int, int],
    *,
    horizontal_fov: float,
    fov: float = 180.0,
    projection: Literal["equidistant", "equisolid", "stereographic", "orthographic"] = "equidistant",
    centre: tuple[float, float] | None = None,
    radius: float | None = None,
    yaw: float = 0.0,
    pitch: float = 0.0,
    roll: float = 0.0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y for `remap` that show part of a circular fisheye image as a pinhole camera does.

    With d as in `equirectangular_to_perspective` and theta = atan2(hypot(d_x, d_y), d_z), the angle from the axis,
        (map_x, map_y) = centre + radius p(theta) / p(fov / 2) (d_x, d_y) / hypot(d_x, d_y),
    where p is theta (equidistant), sin(theta / 2) (equisolid), tan(theta / 2) (stereographic) or sin(theta)
    (orthographic). Beyond fov / 2 both are NaN, which `remap` reads as outside.

    Args:
        source_size: width, height of the fisheye image.
        size: width, height of the view.
        horizontal_fov: degrees across the view, less than 180.
        fov: degrees across the circle.
        centre: of the circle in pixels; None: of the image.
        radius: of the circle in pixels; None: half of the shorter side.
        yaw, pitch, roll: degrees to the right, up, and clockwise.
    """
    if projection not in PROJECTIONS:
        raise UsageError(f"projection {projection!r} is not one of {', '.join(PROJECTIONS)}")
    right, down, forward = _rays(size, horizontal_fov, yaw, pitch, roll)
    aside = np.hypot(right, down)
    theta, edge = np.arctan2(aside, forward), np.radians(fov) / 2
    reach = PROJECTIONS[projection](theta) / PROJECTIONS[projection](edge)
    reach = np.where(theta <= edge, reach * (min(source_size) / 2 if radius is None else radius), np.nan)
    scale = np.divide(reach, aside, out=np.zeros_like(aside), where=aside > 0)
    middle = ((source_size[0] - 1) / 2, (source_size[1] - 1) / 2) if centre is None else centre
    return (middle[0] + scale * right).astype(np.float32), (middle[1] + scale * down).astype(np.float32)


def equirectangular_to_fisheye(
    source_size: tuple[int, int], size: tuple[int, int], *, fov: float = 180.0, span: float = 360.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y for `remap` that show part of an equirectangular panorama as an equidistant fisheye image.

    A pixel at (x, y) from the middle looks along theta = fov / 2 hypot(x, y) / r from the axis, r half of the shorter
    side. Its longitude and latitude lead to map_x and map_y as in `equirectangular_to_perspective`. Beyond r both are
    NaN, which `remap` reads as outside.

    Args:
        source_size: W, H of the panorama, or of one eye of a stereo panorama.
        size: w, h of the fisheye image.
        fov: degrees across its circle.
        span: degrees of longitude across the panorama; 180 for VR180.
    """
    width, height = size
    y = np.arange(height, dtype=np.float32)[:, None] - np.float32(height - 1) / 2
    x = np.arange(width, dtype=np.float32)[None] - np.float32(width - 1) / 2
    aside = np.hypot(x, y)
    theta = aside / (min(size) / 2) * np.radians(fov) / 2
    theta[aside > min(size) / 2] = np.nan
    share = np.divide(np.sin(theta), aside, out=np.zeros_like(aside), where=aside > 0)
    return _on_panorama(share * x, share * y, np.cos(theta), source_size, span)


def perspective_to_equirectangular(
    source_size: tuple[int, int], size: tuple[int, int], *, horizontal_fov: float, span: float = 360.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y for `remap` that show what a pinhole camera sees straight ahead as part of an equirectangular
    panorama: the inverse of `equirectangular_to_perspective`. Where the camera sees nothing, both are NaN.

    Args:
        source_size: width, height of the camera's picture.
        size: W, H of the panorama.
        horizontal_fov: degrees across the camera's picture, less than 180.
        span: degrees of longitude across the panorama; 180 for VR180.
    """
    x, y = _middles(size)
    longitude, latitude = x / size[0] * np.radians(span), y / size[1] * np.pi
    right, forward = np.cos(latitude) * np.sin(longitude), np.cos(latitude) * np.cos(longitude)
    return _on_picture(right, np.sin(latitude), forward, source_size, horizontal_fov)


def perspective_to_fisheye(
    source_size: tuple[int, int], size: tuple[int, int], *, horizontal_fov: float, fov: float = 180.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y for `remap` that show what a pinhole camera sees straight ahead as part of an equidistant fisheye
    image, in whose middle its circle is as large as fits: the inverse of `fisheye_to_perspective`. Where the camera
    sees nothing, both are NaN.

    Args:
        source_size: width, height of the camera's picture.
        size: width, height of the fisheye image.
        horizontal_fov: degrees across the camera's picture, less than 180.
        fov: degrees across the circle.
    """
    x, y = _middles(size)
    theta = np.hypot(x, y) / (min(size) / 2) * np.radians(fov) / 2
    share = np.sinc(theta / np.pi) / (min(size) / 2) * np.radians(fov) / 2  # sin(theta) / hypot(x, y)
    return _on_picture(share * x, share * y, np.cos(theta.clip(0, np.pi)), source_size, horizontal_fov)


def _middles(size: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x and y of the pixels of an image from its middle."""
    y, x = np.mgrid[: size[1], : size[0]]
    return x - (size[0] - 1) / 2, y - (size[1] - 1) / 2


def _on_picture(
    right: NDArray[Any], down: NDArray[Any], forward: NDArray[Any], source_size: tuple[int, int], horizontal_fov: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y of the directions in the picture of a pinhole camera; NaN where it does not see them."""
    if not 0 < horizontal_fov < 180 or min(source_size) < 1:
        raise UsageError(f"horizontal_fov {horizontal_fov} or size {source_size} is not 0..180 degrees, or empty")
    width, height = source_size
    focal = width / (2 * np.tan(np.radians(horizontal_fov) / 2))
    depth = np.where(forward > 0, forward, np.nan)
    x, y = right / depth * focal, down / depth * focal
    seen = (np.abs(x) <= width / 2) & (np.abs(y) <= height / 2)
    map_x, map_y = (np.where(seen, side + (count - 1) / 2, np.nan) for side, count in ((x, width), (y, height)))
    return map_x.astype(np.float32), map_y.astype(np.float32)


def _on_panorama(
    right: NDArray[Any], down: NDArray[Any], forward: NDArray[Any], source_size: tuple[int, int], span: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """map_x and map_y of the directions in an equirectangular panorama."""
    longitude = np.arctan2(right, forward)
    latitude = np.arctan2(down, np.hypot(right, forward))
    map_x = (longitude / np.radians(span) + 0.5) * source_size[0] - 0.5
    map_y = (latitude / np.pi + 0.5) * source_size[1] - 0.5
    return map_x.astype(np.float32), map_y.astype(np.float32)


def _rays(
    size: tuple[int, int], horizontal_fov: float, yaw: float, pitch: float, roll: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Direction of each pixel of a pinhole camera: right, down, forward."""
    width, height = size
    if not 0 < horizontal_fov < 180 or min(size) < 1:
        raise UsageError(f"horizontal_fov {horizontal_fov} or size {size} is not 0..180 degrees, or empty")
    focal = width / (2 * np.tan(np.radians(horizontal_fov) / 2))
    y, x = np.mgrid[:height, :width]
    rays = np.stack([(x - (width - 1) / 2) / focal, (y - (height - 1) / 2) / focal, np.ones((height, width))])
    a, b, c = np.radians((yaw, pitch, roll))
    turn_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    turn_x = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    turn_z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    right, down, forward = np.einsum("ij,jhw->ihw", turn_y @ turn_x @ turn_z, rays)
    return right, down, forward
