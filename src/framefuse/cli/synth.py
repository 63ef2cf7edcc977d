"""framefuse synth and framefuse demo: videos of the synthetic world, with their exact ground truth."""

import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import counter, run, stderr
from framefuse.cli.interrupts import stop_if_interrupted
from framefuse.cli.options import ConfigFile, Preset, PrintReport, Quiet, option, with_fields
from framefuse.config import Settings, load_settings
from framefuse.errors import QualityError, SinkError

if TYPE_CHECKING:
    from framefuse.world import World

SAVED: Final = "save", "save_txt", "save_json", "save_jsonl", "save_csv"
DEFAULTS: Final[Mapping[str, Any]] = {"project": "runs/demo", "name": "demo", **dict.fromkeys(SAVED, True)}
MODEL: Final = "scout-n"
SCENE: Final = "synthetic://street?seed=9&size=1280x720&split=test"
"""Textures, shapes and movements that the model has never seen."""
FRAMES: Final = 300
RECORDED: Final = {"precision": 0.833, "recall": 0.766}
"""Scores of the shipped model on the clip of FRAMES frames. It misses small, distant and half hidden objects."""
MARGIN: Final = 0.02
"""How far below RECORDED a run may score. Engines and precisions are within 0.005 of each other."""
COLLAPSE: Final = {"precision": 0.6, "recall": 0.6}
"""Minimum scores where RECORDED does not apply: other clip lengths, or settings that change the detections."""
SAME: Final = ("conf", "iou", "max_det", "classes", "agnostic_nms", "imgsz", "rect", "vid_stride")
"""Settings that must have their defaults for RECORDED to apply."""


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
    world: "World", out: Path, *, images: bool = False, on_frame: Callable[[int], None] = lambda done: None
) -> tuple[Path, Path]:
    """Write a world as H.264 video and its ground truth as COCO into a folder, which is created if missing; returns
    their paths. `on_frame` is called after each frame with the number of finished frames.

    Raises:
        SinkError: a file already exists, or cannot be written.
    """
    from framefuse.sinks.images import planes_of
    from framefuse.sinks.mp4 import Encoding, Mp4File
    from framefuse.sources.images import to_video
    from framefuse.sources.source import SYNTHETIC_TITLE
    from framefuse.world.coco import CocoTruth

    stem = f"{world.scene}-{world.split}-{world.seed}"
    video, truth = out / f"{stem}.mp4", out / f"{stem}.json"
    pngs = (out / f"{stem}_{number}.png" for number in range(world.frames if images else 0))
    for path in (video, truth, *pngs):
        if os.path.lexists(path):
            raise SinkError(f"{path} already exists", remedy="choose another --out, or remove the file")
    try:
        out.mkdir(parents=True, exist_ok=True)
        options = {"crf": "18", "preset": "veryfast"}
        colour: dict[str, Any] = {"matrix": "bt709", "full_range": False, "sample_aspect_ratio": Fraction(1)}
        encoding = Encoding("libx264", options, 0, 1 / world.fps, world.fps, *world.size, **colour)
        file = Mp4File(video, encoding, title=SYNTHETIC_TITLE)
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


@with_fields
def demo(
    frames: Annotated[int, option("N", "length of the clip in frames", min=1, max=10_000_000)] = FRAMES,
    config: ConfigFile = None,
    preset: Preset = None,
    print_report: PrintReport = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Generate a clip of a street, detect the objects in it, and compare with the ground truth."""
    settings = load_settings(config, preset, given, defaults=DEFAULTS, environment=os.environ).settings

    from framefuse.lab.evaluation import Score, open_data
    from framefuse.pipeline import Pipeline
    from framefuse.sinks.run_folder import make_run_folder
    from framefuse.world import World

    folder = make_run_folder(settings.project, settings.name, settings.exist_ok)
    world = World.parse(f"{SCENE}&frames={frames}")
    for old in folder.glob("input/street-*"):  # left by another run, with --exist-ok
        old.unlink()
    with counter("rendering", frames, quiet) as count:
        clip, truth = write_clip(world, folder / "input", on_frame=count)
    pipeline = Pipeline(clip, MODEL, settings=settings, project=folder.parent, name=folder.name, exist_ok=True)
    score = Score(open_data(truth, clip), pipeline.card)
    run(pipeline, quiet=quiet, print_report=print_report, on_result=score.add, verdict=score.sentence)
    rates, least = score.rates(), required(frames, settings)
    if any(rates[name] < least[name] for name in least):
        expected = f"{least['precision']:.3f} and {least['recall']:.3f}"
        why = f"the detections do not match the clip: {score.in_words()}; expected at least {expected}"
        raise QualityError(why, remedy="run 'framefuse doctor', which tests every part by itself")
    return 0


def required(frames: int, settings: Settings) -> dict[str, float]:
    """Minimum precision and recall; lower scores mean that something is broken."""
    if frames == FRAMES and all(getattr(settings, key) == Settings.model_fields[key].default for key in SAME):
        return {name: value - MARGIN for name, value in RECORDED.items()}
    return dict(COLLAPSE)
