"""framefuse synth: render a clip of the synthetic world, with its ground truth as a COCO file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefuse.cli.console import counter, stderr
from framefuse.cli.options import Quiet, option
from framefuse.errors import SinkError

if TYPE_CHECKING:
    from framefuse.sinks.mp4 import Mp4File
    from framefuse.world import World


def synth(
    uri: Annotated[str, typer.Argument(help="street?seed=7&frames=900&size=1280x720&fps=30&split=test", metavar="URI")],
    out: Annotated[Path, option("DIR", "folder for the video and its ground truth", "--out", "-o")],
    images: Annotated[bool, typer.Option("--images", help="also write each frame as a PNG, for COCO tools")] = False,
    quiet: Quiet = False,
) -> int:
    """Write a video of a seeded synthetic scene, with exact ground truth."""
    from framefuse.world import World

    world = World.parse(uri if "://" in uri else f"synthetic://{uri}")
    with counter("rendering", world.frames, quiet) as count:
        video, truth = write_clip(world, out, images=images, on_frame=count)
    if not quiet:
        stderr().print(f"wrote    {video}\nwrote    {truth}", markup=False)
    return 0


def write_clip(
    world: World, out: Path, *, images: bool = False, on_frame: Callable[[int], None] = lambda done: None
) -> tuple[Path, Path]:
    """Write a world as H.264 video and its ground truth as COCO into a folder, which is created if missing.

    Args:
        images: also write each frame as a PNG.
        on_frame: called after each frame with the number of finished frames.

    Returns:
        the paths of the video and of the COCO file.

    Raises:
        SinkError: a file already exists, or cannot be written.
    """
    from framefuse.cli.interrupts import stop_if_interrupted
    from framefuse.sinks.canvas import planes_of
    from framefuse.sources.synthetic import to_video
    from framefuse.world.coco import CocoTruth

    stem = f"{world.scene}-{world.split}-{world.seed}"
    video, truth = out / f"{stem}.mp4", out / f"{stem}.json"
    pngs = (out / f"{stem}_{number}.png" for number in range(world.frames if images else 0))
    for path in itertools.chain((video, truth), pngs):
        if os.path.lexists(path):
            raise SinkError(f"{path} already exists", remedy="choose another --out, or remove the file")
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = _open(video, world)
        try:
            with CocoTruth(truth, world, stem) as coco:
                for snapshot in world:
                    stop_if_interrupted()
                    for target, source in zip(file.planes(), planes_of(to_video(snapshot.image)), strict=True):
                        target[...] = source
                    file.encode(snapshot.index, Fraction(0))
                    if images:
                        from PIL import Image

                        Image.fromarray(snapshot.image).save(out / f"{stem}_{snapshot.index}.png", compress_level=1)
                    coco.add(snapshot)
                    on_frame(snapshot.index + 1)
        finally:
            file.close(Fraction(0))
    except SinkError as error:
        error.remedy = "free some space, or choose another --out"
        raise
    except OSError as error:
        raise SinkError(f"cannot write into {out}: {error.strerror or error}", remedy="choose another --out") from error
    return video, truth


def _open(path: Path, world: World) -> Mp4File:
    from framefuse.sinks.mp4 import Encoding, Mp4File
    from framefuse.sources.source import SYNTHETIC_TITLE

    return Mp4File(
        path,
        Encoding(
            encoder="libx264",
            options={"crf": "18", "preset": "veryfast"},
            width=world.size[0],
            height=world.size[1],
            threads=0,
            time_base=1 / world.fps,
            rate=world.fps,
            matrix="bt709",
            full_range=False,
            sample_aspect_ratio=Fraction(1),
        ),
        title=SYNTHETIC_TITLE,
    )
