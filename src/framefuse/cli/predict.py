"""framefuse predict: a source and a model in, detections out. framefuse repair: complete outputs of a killed run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from framefuse.cli.console import LEVELS, run, run_fleet, set_up_logs
from framefuse.cli.mistakes import is_media
from framefuse.cli.options import ConfigFile, Preset, PrintReport, Quiet, option, with_fields
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, UsageError

DEFAULTS: Final[Mapping[str, Any]] = {"save_jsonl": True}
"""Defaults of `predict` that differ from those of Settings: a user at a terminal expects an output file."""


@with_fields
def predict(
    source: Annotated[
        str | None, typer.Argument(help="video, image, folder, quoted glob '*.jpg', camera (0) or address (rtsp://...)")
    ] = None,
    model: Annotated[str | None, typer.Argument(help="ONNX file, or the name of a shipped model")] = None,
    sources: Annotated[
        list[str] | None, option("SOURCE", "SOURCE as an option; may be repeated", "--source", "-s")
    ] = None,
    model_option: Annotated[str | None, option("MODEL", "MODEL as an option", "--model", "-m")] = None,
    config: ConfigFile = None,
    preset: Preset = None,
    half: Annotated[bool, typer.Option("--half", help="same as --precision fp16")] = False,
    stdout: Annotated[
        bool, typer.Option("--stdout", help="print one JSON line per frame on stdout instead of writing a file")
    ] = False,
    gpus: Annotated[str | None, option("0,1|all", "distribute the sources over these GPUs, one process each")] = None,
    ray: Annotated[
        str | None, option("ADDRESS", "distribute the files over a Ray cluster: auto, host:port, or local (default)")
    ] = None,
    print_report: PrintReport = False,
    quiet: Quiet = False,
    log_level: Annotated[str | None, option("|".join(LEVELS), "lowest level of log lines (default: warning)")] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="write JSON lines on stderr, by default from level info on")
    ] = False,
    **given: Any,
) -> int:
    """Detect objects in every frame of a source."""
    set_up_logs(log_level, log_json, quiet)
    if sources and source and not model and _is_model(source):
        source, model = None, source
    if model and is_media(model):
        raise typer.BadParameter(f"{model} is not a model")  # mistakes.py says what to write
    if stdout and print_report:
        raise UsageError("--stdout and --json both print on stdout", remedy="leave one of them out")
    if half and given.setdefault("precision", "fp16") != "fp16":
        raise UsageError(f"--half and --precision {given['precision']} conflict", remedy="leave --half out")
    defaults = {} if stdout or given.get("save_matte") else DEFAULTS
    effective = load_settings(config, preset, given, defaults=defaults, environment=os.environ)
    given_sources = [*([] if source is None else [source]), *(sources or [])]
    chosen = effective.source if not given_sources else given_sources[0] if len(given_sources) == 1 else given_sources
    if chosen is None:
        raise UsageError("no source is given", remedy="framefuse predict video.mp4 model.onnx")
    if model and model_option and model != model_option:
        raise UsageError(f"two models are given: {model} and {model_option}", remedy="leave one of them out")
    chosen_model = next((name for name in (model, model_option, effective.model) if name is not None), None)

    if stdout and (gpus is not None or ray is not None):
        raise UsageError("--gpus and --ray write files, so they exclude --stdout", remedy="leave one of them out")
    if ray is not None:
        if gpus is not None:
            raise UsageError("--ray and --gpus were given", remedy="leave --gpus out: --ray uses all GPUs")
        from framefuse.fleet.ray import RayFleet

        job = RayFleet(chosen, chosen_model, address=ray, settings=effective.settings)
        return run_fleet(job, quiet=quiet, print_report=print_report)
    if gpus is not None:
        if effective.settings.device not in ("auto", "cuda"):
            raise UsageError(f"--gpus and --device {effective.settings.device} conflict", remedy="leave one out")
        from framefuse.fleet.fleet import Fleet, parse_devices
        from framefuse.runtime.choices import check_cuda

        try:
            check_cuda()
            devices = parse_devices(gpus)
            for device in devices:
                check_cuda(int(device.removeprefix("cuda:")))
        except CapabilityError as error:
            raise CapabilityError(f"--gpus {gpus}: {error.message}", remedy="leave --gpus out") from error
        fleet = Fleet(chosen, chosen_model, devices=devices, settings=effective.settings)
        return run_fleet(fleet, quiet=quiet, print_report=print_report)

    if not stdout and isinstance(chosen, str | list) and effective.settings.device != "cpu":
        from framefuse.fleet.fleet import Fleet, several_pay

        if found := several_pay(chosen, effective.settings):
            fleet = Fleet(chosen, chosen_model, devices=found[0], settings=effective.settings, why=found[1])
            return run_fleet(fleet, quiet=quiet, print_report=print_report)

    from framefuse.pipeline import Pipeline
    from framefuse.sinks.records import to_json

    pipeline = Pipeline(chosen, chosen_model, settings=effective.settings)
    pipeline.inputs += [config] if config else []
    if stdout:
        info = pipeline.sources[0].info
        many = len(pipeline.sources) > 1 or bool(info.parts) or info.kind == "images" or isinstance(chosen, list)
        return run(pipeline, quiet=quiet, on_result=lambda result: print(to_json(result, name_source=many), flush=True))
    return run(pipeline, quiet=quiet, print_report=print_report)


def _is_model(word: str) -> bool:
    """Whether a word that stands alone beside --source is the model."""
    from framefuse.models import KNOWN, SHIPPED, fetched_model
    from framefuse.models.openvino_file import SUFFIXES

    return (
        word in SHIPPED
        or word in KNOWN
        or Path(word).suffix in (".onnx", ".json", *SUFFIXES)
        or bool(fetched_model(word))
    )


def repair(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="folders of runs, such as runs/predict/predict")
    ],
) -> int:
    """Complete the outputs of a run that was killed or whose machine lost power."""
    from framefuse.common.text import without_controls
    from framefuse.sinks.repair import repair_folder

    repairs = []
    for folder in folders:
        for repair in repair_folder(folder):
            repairs.append(repair)
            typer.echo(without_controls(str(repair)))
    if not repairs:
        typer.echo(without_controls(f"nothing to repair in {', '.join(map(str, folders))}"))
    return int(any(repair.failed for repair in repairs))
