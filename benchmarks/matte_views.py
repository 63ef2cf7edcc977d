"""Does a model find people better in a rectilinear view of a panorama than in the panorama itself?

    python -m benchmarks.matte_views

Frames of the synthetic world, each eye by itself, are put in front of a camera and seen as an equirectangular picture
of 180 degrees or as a fisheye picture of 190 degrees, 960x960. They stand there in two ways, 110 degrees wide:

- `plane`: on a flat wall, which a rectilinear view shows exactly as the model knows it
- `ring`: on a cylinder around the camera, as people do who stand around it; it goes on mirrored to all sides

Compared with the exact masks, seen in the same way, are the mattes of body-n: of the picture itself, as `framefuse
matte` makes them; of the picture in more detail, with as many samples as both of the following take together; of a
rectilinear view of 100 or 110 degrees, mapped back onto the picture, whose own matte counts outside of it. IoU and F of
the boundary as in benchmarks/segmentation.py, of what is in a cone of 100 degrees and of the whole picture.

The last line of the output is JSON; there is no record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.segmentation import EYE, SEEDS, boundary_f, folder, iou, world_of
from framefuse import Pipeline
from framefuse.kernels.geometry.call import remap
from framefuse.kernels.geometry.projections import equirectangular_to_perspective, fisheye_to_perspective
from framefuse.prediction import Matte, MattePart

FISHEYE, SCENE, CONE = 190, 110, 100
"""Degrees."""
FRAMES = range(45, 270, 45)
FIRST = 90
"""Frames of each world, of which one eye each is looked at; where its busy middle begins."""
VIEW = 768
"""Side of a view, in pixels."""
GRID = 640
"""Samples of a side of a matte that is mapped back: as many for a degree as the view has."""
DETAIL = 544
"""Side of a model input that has as many samples as two of 384x384."""

Image = NDArray[np.uint8]
Maps = tuple[NDArray[np.float32], NDArray[np.float32]]


def rays(projection: str, size: int) -> NDArray[np.float64]:
    """Right, down and forward of each pixel of a picture; NaN outside of the circle of a fisheye picture."""
    y, x = ((np.mgrid[:size, :size] + 0.5) / size * 2 - 1) * (np.pi / 2)
    if projection == "equirect":
        return np.stack([np.sin(x) * np.cos(y), np.sin(y), np.cos(x) * np.cos(y)])
    theta = np.hypot(x, y) * FISHEYE / 180
    share = np.sinc(theta / np.pi) * FISHEYE / 180
    return np.where(np.hypot(x, y) <= np.pi / 2, np.stack([share * x, share * y, np.cos(theta)]), np.nan)


def onto(directions: NDArray[np.float64], fov: float, size: int) -> Maps:
    """Where a pinhole camera has these directions; NaN behind it and outside of its picture."""
    right, down, forward = directions
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = (side / forward / np.tan(np.radians(fov / 2)) for side in (right, down))
    seen = (forward > 0) & (np.abs(x) <= 1) & (np.abs(y) <= 1)
    return pixels(np.where(seen, x, np.nan), size), pixels(np.where(seen, y, np.nan), size)


def around(directions: NDArray[np.float64], size: int) -> Maps:
    """Where a cylinder has these directions whose picture is SCENE degrees wide, and mirrored beyond its edges."""
    right, down, forward = directions
    across = np.arctan2(right, forward) / np.radians(SCENE / 2)
    up = down / np.maximum(np.hypot(right, forward), 1e-9) / np.tan(np.radians(SCENE / 2))
    mirrored = [1 - np.abs((side + 1) % 4 - 2) for side in (across, up.clip(-9, 9))]
    return pixels(mirrored[0], size), pixels(mirrored[1], size)


def pixels(place: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """-1..1 to 0..size, at centres."""
    return ((place + 1) / 2 * size - 0.5).astype(np.float32)


def warped(image: NDArray[Any], maps: Maps, *, replicate: bool = True, smooth: bool = True) -> NDArray[Any]:
    """An image (h, w) or (h, w, 3) by tables; 0 where these are NaN."""
    found = remap(
        np.ascontiguousarray(image if image.ndim == 3 else image[..., None]), *maps,
        border="constant", interpolation="linear" if smooth else "nearest",
    )  # fmt: skip
    return found if image.ndim == 3 else found[..., 0]


def mattes(images: Sequence[Image], **options: Any) -> list[NDArray[np.float32]]:
    """What the model says about each, at its own resolution."""
    run = Pipeline(list(images), "body-n", save_matte="png", matte_steady=0.0, project=folder(), **options)
    return [result.matte.parts[0].alpha for result in run if result.matte is not None]


def whole(alpha: NDArray[np.float32], image: Image) -> NDArray[np.bool_]:
    """The mask at the size of the picture, whose edges it follows."""
    luma = (image @ np.array([0.299, 0.587, 0.114]) + 0.5).astype(np.uint8)
    mask: NDArray[np.bool_] = Matte((MattePart((0, 0, EYE, EYE), alpha),), (EYE, EYE)).alpha(luma) > 127
    return mask


def measure(projection: str, scene: str) -> list[dict[str, Any]]:
    directions = rays(projection, EYE)
    place = onto(directions, SCENE, EYE) if scene == "plane" else around(directions, EYE)
    pictures, truths = [], []
    for seed in SEEDS:
        world = world_of(seed)
        for number, index in enumerate(FRAMES):
            snapshot, eye = world[index], slice(number % 2 * EYE, (number % 2 + 1) * EYE)
            pictures.append(warped(snapshot.image[:, eye], place))
            person = (snapshot.truth.class_mask[:, eye] > 0).astype(np.uint8)
            truths.append(warped(person, place, smooth=False) > 0)
    cone = np.nan_to_num(directions[2]) >= np.cos(np.radians(CONE / 2))
    own, detailed = mattes(pictures), mattes(pictures, imgsz=DETAIL)
    found = {"the picture itself": own, f"the picture at {DETAIL}x{DETAIL}": detailed}
    coarse = rays(projection, GRID)
    for fov in (100, 110):
        size = (EYE, EYE), (VIEW, VIEW)
        tables = (
            equirectangular_to_perspective(*size, horizontal_fov=fov, span=180)
            if projection == "equirect"
            else fisheye_to_perspective(*size, horizontal_fov=fov, fov=FISHEYE)
        )
        views = mattes([warped(picture, tables) for picture in pictures])
        back = onto(coarse, fov, views[0].shape[0])
        outside = np.isnan(back[0])
        to_grid = pixels(((np.mgrid[:GRID, :GRID] + 0.5) / GRID * 2 - 1)[1], own[0].shape[0])
        stretched = [warped(alpha, (to_grid, to_grid.T.copy())) for alpha in own]
        found[f"a view of {fov} degrees"] = [
            np.where(outside, other, warped(view, back)) for view, other in zip(views, stretched, strict=True)
        ]
    rows = []
    for way, alphas in found.items():
        masks = [whole(np.ascontiguousarray(alpha), picture) for alpha, picture in zip(alphas, pictures, strict=True)]
        scores: dict[str, Callable[[Any, Any], float]] = {
            "iou_cone": lambda mask, truth: iou(mask & cone, truth & cone),
            "iou": iou,
            "boundary_cone": lambda mask, truth: boundary_f(mask & cone, truth & cone),
            "boundary": boundary_f,
        }
        means = {name: float(np.mean([score(*pair) for pair in zip(masks, truths, strict=True)]))
                 for name, score in scores.items()}  # fmt: skip
        rows.append({"projection": projection, "scene": scene, "way": way, **means})
        print(
            {key: round(value, 4) if isinstance(value, float) else value for key, value in rows[-1].items()}, flush=True
        )
    return rows


def main() -> None:
    rows = [row for projection in ("equirect", "fisheye") for scene in ("plane", "ring")
            for row in measure(projection, scene)]  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
