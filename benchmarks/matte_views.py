"""Are people found better in a rectilinear view of a panorama, too, than in the panorama alone?

    python -m benchmarks.matte_views

Frames of the synthetic world are put in front of a camera, and seen by both eyes as an equirectangular picture of 180
degrees or as a fisheye picture of 190 degrees, 960x960 each. They stand there in two ways, 110 degrees wide:

- `plane`: on a flat wall, which a rectilinear view shows exactly as the model knows it
- `ring`: on a cylinder around the camera, as people do who stand around it; it goes on mirrored to all sides

Compared with the exact masks, seen in the same way, is what `framefuse matte` makes of an H.264 video with body-n, each
frame by itself: of the eyes alone (`--matte-view panorama`); of the eyes alone in more detail, as many samples as eyes
and views have together; and of eyes and views (`--matte-view rectilinear`). IoU and F of the boundary are those of
benchmarks/segmentation.py, of what is in a cone of 100 degrees and of whole eyes, whose upper and lower parts show
people upside down on the ring.

The last line of the output is JSON; there is no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.segmentation import EYE, SEEDS, boundary_f, folder, iou, world_of
from framefuse import Pipeline
from framefuse.kernels.geometry.call import remap
from framefuse.sinks.images import planes_of

FISHEYE, SCENE, CONE = 190, 110, 100
"""Degrees."""
FRAMES = range(45, 270, 45)
"""Of each world."""
NAMES = {"equirect": "180_LR", "fisheye": f"FISHEYE{FISHEYE}"}
"""How the names of videos end."""
WAYS: dict[str, dict[str, Any]] = {
    "panorama": {},
    "panorama, 544x544": {"imgsz": 544},
    "rectilinear": {"matte_view": "rectilinear"},
}

Maps = tuple[NDArray[np.float32], NDArray[np.float32]]
Mask = NDArray[np.bool_]


def rays(projection: str) -> NDArray[np.float64]:
    """Right, down and forward of each pixel of an eye; NaN outside of the circle of a fisheye picture."""
    y, x = ((np.mgrid[:EYE, :EYE] + 0.5) / EYE * 2 - 1) * (np.pi / 2)
    if projection == "equirect":
        return np.stack([np.sin(x) * np.cos(y), np.sin(y), np.cos(x) * np.cos(y)])
    theta = np.hypot(x, y) * FISHEYE / 180
    share = np.sinc(theta / np.pi) * FISHEYE / 180
    return np.where(np.hypot(x, y) <= np.pi / 2, np.stack([share * x, share * y, np.cos(theta)]), np.nan)


def plane(right: NDArray[Any], down: NDArray[Any], forward: NDArray[Any]) -> Maps:
    """Where directions meet the picture on the wall; NaN outside of it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = (side / forward / np.tan(np.radians(SCENE / 2)) for side in (right, down))
    seen = (forward > 0) & (np.abs(x) <= 1) & (np.abs(y) <= 1)
    return pixels(np.where(seen, x, np.nan)), pixels(np.where(seen, y, np.nan))


def ring(right: NDArray[Any], down: NDArray[Any], forward: NDArray[Any]) -> Maps:
    """Where directions meet the picture on the cylinder."""
    across = np.arctan2(right, forward) / np.radians(SCENE / 2)
    along = down / np.maximum(np.hypot(right, forward), 1e-9) / np.tan(np.radians(SCENE / 2))
    x, y = (1 - np.abs((side + 1) % 4 - 2) for side in (across, along.clip(-9, 9)))
    return pixels(x), pixels(y)


def pixels(place: NDArray[np.float64]) -> NDArray[np.float32]:
    """-1..1 to 0..EYE, at centres."""
    return ((place + 1) / 2 * EYE - 0.5).astype(np.float32)


def seen(image: NDArray[np.uint8], maps: Maps, *, smooth: bool = True) -> NDArray[np.uint8]:
    """Both eyes (h, 2 w, c) by tables; 0 where these are NaN."""
    how: Any = "linear" if smooth else "nearest"
    eyes = (np.ascontiguousarray(image[:, begin : begin + EYE]) for begin in (0, EYE))
    return np.hstack([remap(eye, *maps, interpolation=how) for eye in eyes])


def clip_of(path: Path, maps: Maps) -> list[Mask]:
    """Writes the video; the exact masks of its frames."""
    truths = []
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": "18"})
        stream.width, stream.height, stream.pix_fmt = 2 * EYE, EYE, "yuv420p"
        for snapshot in (world_of(seed)[index] for seed in SEEDS for index in FRAMES):
            frame = av.VideoFrame.from_ndarray(seen(snapshot.image, maps), format="rgb24")
            container.mux(stream.encode(frame))
            people = (snapshot.truth.class_mask > 0).astype(np.uint8)[..., None]
            truths.append(seen(people, maps, smooth=False)[..., 0] > 0)
        container.mux(stream.encode(None))
    return truths


def masks_of(path: Path, options: dict[str, Any]) -> Iterator[Mask]:
    run = Pipeline(path, "body-n", stereo="auto", save_matte="gray", matte_steady=0.0, project=folder(), **options)
    with av.open(str(path)) as container:
        lumas = (planes_of(one)[0].copy() for one in container.decode(video=0))
        for result, luma in zip(run, lumas, strict=True):
            assert result.matte is not None
            yield result.matte.alpha(luma) > 127


def measure(projection: str, scene: str) -> Iterator[dict[str, Any]]:
    directions = rays(projection)
    cone = np.nan_to_num(directions[2]) >= np.cos(np.radians(CONE / 2))
    path = folder() / f"{scene}_{NAMES[projection]}.mp4"
    truths = clip_of(path, {"plane": plane, "ring": ring}[scene](*directions))
    for way, options in WAYS.items():
        found: dict[str, list[float]] = {}
        for mask, truth in zip(masks_of(path, options), truths, strict=True):
            for begin in (0, EYE):
                a, b = mask[:, begin : begin + EYE], truth[:, begin : begin + EYE]
                for name, pair in {"cone": (a & cone, b & cone), "whole": (a, b)}.items():
                    found.setdefault(f"iou, {name}", []).append(iou(*pair))
                    found.setdefault(f"boundary, {name}", []).append(boundary_f(*pair))
        means = {name: round(float(np.mean(values)), 4) for name, values in found.items()}
        yield {"projection": projection, "scene": scene, "way": way, **means}


def main() -> None:
    rows = []
    for projection in NAMES:
        for scene in ("plane", "ring"):
            for row in measure(projection, scene):
                print(row, flush=True)
                rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
