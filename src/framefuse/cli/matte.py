"""framefuse matte: people cut out of a video, VR video too."""

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, run
from framefuse.cli.options import ConfigFile, Preset, PrintReport, Quiet, option, with_fields
from framefuse.common.files import os_errors_as
from framefuse.common.text import counted
from framefuse.config import load_settings, schema_of
from framefuse.errors import SinkError, UsageError

if TYPE_CHECKING:
    from framefuse.pipeline import Pipeline
    from framefuse.report.report import Report

FIELDS: Final = (
    *("device", "engine", "precision", "imgsz", "batch", "streams", "conf", "classes", "stereo"),
    *("matte_view", "matte_steady", "matte_eyes", "matte_holes", "matte_feather"),
    *("start", "end", "vid_stride", "readers", "decode_threads"),
    *("project", "name", "exist_ok", "encoder", "crf", "encode_preset", "encode_threads", "show"),
)
MODEL: Final = "body-n"
DEFAULTS: Final[dict[str, Any]] = {
    "stereo": "auto",
    "project": Path("runs/matte"),
    "name": "matte",
    "save_matte": "gray",
}


@partial(with_fields, fields=FIELDS, defaults=DEFAULTS)
def matte(
    source: Annotated[str, typer.Argument(help="video, image, folder, quoted glob '*.jpg', or address")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="where the video goes; default: into runs/matte")
    ] = None,
    model: Annotated[
        str | None,
        option("MODEL", f"segmenter: an ONNX file or the name of a shipped one (default: {MODEL})", "--model", "-m"),
    ] = None,
    mode: Annotated[
        str | None,
        option(
            "|".join(schema_of("save_matte")["enum"]), "what is written (default: gray, the matte itself)", "--mode"
        ),
    ] = None,
    config: ConfigFile = None,
    preset: Preset = None,
    print_report: PrintReport = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Cut people out of a video: a gray matte, a transparent video, a green or a blurred background."""
    from framefuse.sinks import VP9, WEBM
    from framefuse.sources import is_camera, videos_in

    given |= {} if mode is None else {"save_matte": mode}
    effective = load_settings(config, preset, given, defaults=DEFAULTS, environment=os.environ)
    settings, model = effective.settings, model or effective.model or MODEL
    if target is not None and target.suffix == WEBM and (settings.save_matte, settings.encoder) == ("alpha", "auto"):
        settings = settings.model_copy(update={"encoder": VP9})
    if target is not None and settings.save_matte == "png":
        raise UsageError(f"png writes a folder of images, not {target}", remedy="leave OUT out; --project says where")
    if target is not None:
        transparent = WEBM if settings.encoder == VP9 else ".mov"
        _check_target(target, transparent if settings.save_matte == "alpha" else ".mp4", settings.exist_ok)
        check_out(target, source, model, config, name="OUT")
        if "://" not in source and not is_camera(source) and (count := len(videos_in(source))) > 1:
            message = f"OUT is for one video, and SOURCE names {count}"
            raise UsageError(message, remedy="leave OUT out; --project says where")

    from framefuse.pipeline import Pipeline
    from framefuse.runtime.requested_sinks import STILLS

    pipeline = Pipeline(source, model, settings=settings)
    pipeline.inputs += [config] if config else []
    if target is not None and pipeline.sources[0].info.kind in STILLS:
        pipeline.close()
        raise UsageError(f"images become images, not {target}", remedy="leave OUT out; --project says where")
    if target is None:
        return run(pipeline, quiet=quiet, print_report=print_report)
    report = None
    try:
        code = run(pipeline, quiet=quiet)
        report = _moved(pipeline, target)
    finally:
        if print_report:
            typer.echo((report or pipeline.report).to_json())
    if not quiet:
        typer.echo(f"moved to {target}", err=True)
    return code


def _moved(pipeline: "Pipeline", target: Path) -> "Report":
    """Move the video that a run has written; its report, which names it there."""
    report = pipeline.report  # before the move: it names the files that exist
    videos = [path for path in map(Path, report.outputs) if path.suffix == target.suffix]
    if len(videos) != 1:
        raise SinkError(f"the run wrote {counted(len(videos), 'video')}, so none is moved to {target}")
    with os_errors_as(SinkError, f"{videos[0]} cannot be moved to {target}", "move it yourself"):
        shutil.move(videos[0], target)
    report = replace(report, outputs=[str(target if Path(path) == videos[0] else path) for path in report.outputs])
    if pipeline.folder:
        report.save(pipeline.folder)
    return report


def _check_target(target: Path, suffix: str, exist_ok: bool) -> None:
    if target.suffix != suffix:
        remedy = f"end it in {suffix}, or leave OUT out if SOURCE is an image"
        raise UsageError(f"{target} cannot hold this mode, which writes {suffix}", remedy=remedy)
    if target.exists() and not exist_ok:
        raise UsageError(f"{target} exists", remedy="choose another name, or add --exist-ok")
