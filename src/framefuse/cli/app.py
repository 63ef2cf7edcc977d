"""The command line: every verb, and `main`, which turns errors into messages and exit codes.

Data goes to stdout, everything else to stderr. Exit codes: 0 success, 1 failure, 2 usage error, 3 this machine lacks
something that was requested, 4 quality gate failed, 5 some inputs could not be read, 130 interrupted, 141 the reader of
stdout has gone. Heavy modules are imported only when a verb needs them.
"""

import sys
from collections.abc import Sequence
from traceback import walk_tb
from typing import Annotated

import typer

from framefuse.cli import config, doctor, engines, interrupts, matte, models, predict, profile, sweep, synth, val
from framefuse.cli.console import print_error, set_up_logs
from framefuse.cli.interrupts import INTERRUPTED, ReaderGone, interrupted
from framefuse.cli.mistakes import explain, reconsider
from framefuse.cli.options import App, normalise
from framefuse.common.machine import lacks_memory
from framefuse.common.version import __version__
from framefuse.errors import FramefuseError, SinkError

ABOUT = "Video in, detections out, with as little work per frame as the hardware allows."
SHOWN = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
app = App(name="framefuse", help=ABOUT, context_settings=SHOWN, rich_markup_mode=None)
app.command(epilog="Example: framefuse predict video.mp4 yolov8n.onnx --conf 0.4 --save")(predict.predict)
app.command(epilog="Example: framefuse matte clip_180_LR.mp4 --mode green")(matte.matte)
app.command()(synth.demo)
app.command(epilog="Example: framefuse synth 'street?seed=7&frames=300' --out clip")(synth.synth)
app.command(epilog="Example: framefuse val model.onnx --data truth.json --precision fp32,bf16")(val.val)
app.command(epilog="Example: framefuse profile scout-n scout-s --source video.mp4")(profile.profile)
app.command(epilog="Example: framefuse tune-batch yolov8n.onnx --max-latency 20ms")(profile.tune_batch)
app.command(epilog="Example: framefuse plan yolov8n.onnx --streams 16 --size 1920x1080")(profile.plan)
app.command(epilog="Example: framefuse build yolov8n.onnx --precision int8 --calib video.mp4")(models.build)
app.command(epilog="Example: framefuse export torchvision:lraspp_mobilenet_v3_large --imgsz 520")(models.export)
app.command(epilog="Example: framefuse parity model.onnx --source clip.mp4 --out page.html")(val.parity)
app.command(epilog="Example: framefuse sweep cam.mp4 scout-n --conf 0.2,0.3,0.5")(sweep.sweep)
app.command(epilog="Example: framefuse tune yolov8n.onnx --size 640x384 --tasks 16 --slice 300")(models.tune)
app.command(epilog="Example: framefuse repair runs/predict/predict")(predict.repair)
app.command()(doctor.doctor)
app.command(epilog="Example: framefuse power --seconds 10 --save-idle")(doctor.power)
app.add_typer(doctor.bench)
app.add_typer(config.app)
app.add_typer(doctor.kernels)
app.add_typer(models.app)
app.add_typer(engines.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"framefuse {__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Options before the verb. `--debug` is accepted anywhere; `main` reads it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. `framefuse.cli.entry` calls it for the shell command."""
    words = normalise(sys.argv[1:] if argv is None else argv) or ["--help"]
    debug = "--debug" in words
    set_up_logs(json_lines="--log-json" in words)  # also for what is wrong with the command line
    try:
        code = app(args=[word for word in words if word != "--debug"], prog_name="framefuse", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # this is how typer reports Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, Exception) as error:
        return _print(error, debug, words)


def _print(error: BaseException, debug: bool, words: Sequence[str]) -> int:
    """Print the error that ended the command, and return the exit code."""
    if isinstance(error, ReaderGone):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt) or interrupted():
        if isinstance(error, SinkError):  # any other error is a consequence of the interruption
            print_error(error.message, error.remedy, stage=error.stage)
        if not interrupts.ends_normally:
            print_error("interrupted", traceback=debug)
        return INTERRUPTED
    code, cause = 1, error.__cause__ if isinstance(error, typer.Abort) and error.__cause__ else error
    if isinstance(error, FramefuseError):
        said, code = reconsider(error, words), error.exit_code
    elif isinstance(error, typer.TyperException):
        said, code = explain(error, words), 2
    elif lack := lacks_memory(cause):
        remedy = "allow more (ulimit -v, or the limit of the container), or use a smaller --batch or --imgsz"
        said = f"not enough memory: {lack}", remedy
    else:
        owner, whose = (f"{name} raised ", "ask who wrote it") if (name := _plug_in(cause)) else ("", "this is a bug")
        said = f"{owner}{type(cause).__name__}: {cause}", f"{whose}; --debug shows the traceback"
    print_error(*said, stage=getattr(error, "stage", None), traceback=debug)
    return code


def _plug_in(error: BaseException) -> str | None:
    """The plug-in (see `entry_points`) whose code raised an error, or could not be imported."""
    from importlib.metadata import entry_points

    seen = [str(getattr(error, "name", "")), str(getattr(getattr(error, "obj", None), "__name__", ""))]
    for frame, _ in walk_tb(error.__traceback__):
        seen += [module := str(frame.f_globals.get("__name__")), f"{module}:{frame.f_code.co_qualname.split('.')[0]}"]
    points = [point for kind in ("source", "sink", "engine") for point in entry_points(group=f"framefuse.{kind}s")]
    points.sort(key=lambda point: (point.value not in seen, point.module not in seen))  # a package may have several
    packages = {name.partition(".")[0] for name in seen}
    found = [point for point in points if point.module.partition(".")[0] in packages]
    return f"{found[0].group[10:-1]} {found[0].name} ({found[0].value})" if found else None
