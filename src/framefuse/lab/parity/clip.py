"""The clip that is compared if no source is given."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from framefuse.sources.synthetic import to_video
from framefuse.world import World


def default_clip(folder: Path, frames: int) -> Path:
    """A short H.264 clip with objects for most detectors."""
    path = folder / "clip.mp4"
    world = World.parse(f"synthetic://street?seed=3&complexity=0.6&frames={frames}")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(world.fps), options={"crf": "20"})
        (stream.width, stream.height), stream.pix_fmt = world.size, "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = 1  # BT.709
        context.color_range = 1
        for snapshot in world:
            image = to_video(snapshot.image)
            image.pts, image.time_base = snapshot.index, 1 / Fraction(world.fps)
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path
