"""The clip that is compared if no source is given."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.models.card import Card


def default_clip(card: Card, folder: Path, frames: int) -> Path:
    """A short H.264 clip with objects for most detectors."""
    path = folder / "clip.mp4"
    if card.path.stem == "squares":
        from framefuse.models.clip import squares_clip

        squares_clip(path, frames=frames, seed=1)
        return path
    import av

    from framefuse.world import World

    world = World.parse(f"synthetic://street?seed=3&complexity=0.6&frames={frames}")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(world.fps), options={"crf": "20"})
        stream.width, stream.height = world.size
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = 1  # BT.709
        context.color_range = 1
        for snapshot in world:
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(snapshot.image), format="rgb24")
            image = image.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
            image.pts, image.time_base = snapshot.index, 1 / Fraction(world.fps)
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path


__all__ = ["default_clip"]
