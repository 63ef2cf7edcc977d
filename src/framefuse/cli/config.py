"""framefuse config: the options, their effective values, and where each value comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from framefuse.cli.console import print_table
from framefuse.cli.options import Command, ConfigFile, Preset, PrintJson, text, with_settings
from framefuse.cli.predict import DEFAULTS
from framefuse.common.redact import redact_source
from framefuse.config import GROUPS, VARIABLE, Settings, group_of, load_settings
from framefuse.errors import UsageError

app = typer.Typer(name="config", help="Show the options, or write a configuration file.")


@app.command(cls=Command)
@with_settings
def show(config: ConfigFile = None, preset: Preset = None, print_json: PrintJson = False, **given: Any) -> int:
    """Print the values that 'predict' would use, and where each one comes from."""
    effective = load_settings(config, preset, given, defaults=DEFAULTS, environment=os.environ)
    source = effective.source
    shown = list(map(redact_source, source)) if isinstance(source, list) else source and redact_source(source)
    run = {"source": shown, "model": effective.model and redact_source(effective.model)}
    values = effective.settings.model_dump(mode="json")
    if print_json:
        settings = {field: {"value": value, "from": effective.origin[field]} for field, value in values.items()}
        typer.echo(json.dumps({**run, "settings": settings}, indent=2))
        return 0
    variables = {key: f"{VARIABLE}{key.upper()}" for key in run}
    rows = [
        [f"  {key}", text(value), f"variable {variables[key]}" if variables[key] in os.environ else f"file {config}"]
        for key, value in run.items()
        if value is not None
    ]
    for title in GROUPS:
        fields = [field for field in values if group_of(field) == title]
        rows += [[""], [title], *([f"  {field}", text(values[field]), effective.origin[field]] for field in fields)]
    print_table(("setting", "value", "from"), rows, dim=lambda row: row[2] == "default")
    return 0


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="file to write", show_default=False)] = Path("framefuse.yaml"),
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing file")] = False,
) -> int:
    """Write a YAML file with every option, its default and what it does."""
    if file.exists() and not force:
        raise UsageError(f"{file} exists", remedy="choose another name, or overwrite it with --force")
    try:
        file.write_text(commented_yaml(file.name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", remedy="choose a writable folder") from error
    typer.echo(f"{file}: use it with 'framefuse predict --config {file}'", err=True)
    return 0


@app.command()
def reference() -> int:
    """Print the option reference as Markdown (docs/reference/options.md)."""
    from framefuse.cli.reference import markdown

    typer.echo(markdown(), nl=False)
    return 0


def commented_yaml(name: str) -> str:
    """Text of a configuration file with every option at its default, commented out."""
    lines = [
        f"# framefuse predict --config {name}",
        "# Remove the '# ' before an option to change it. Environment variables (FRAMEFUSE_CONF) and options on the",
        "# command line override this file.",
        "",
        "# source: video.mp4",
        "# model: model.onnx",
        "# preset: latency",
    ]
    group = ""
    for field, value in Settings(**DEFAULTS).model_dump(mode="json").items():
        if group_of(field) != group:
            group = group_of(field)
            lines += ["", f"## {group}"]
        lines.append(f"# {field}: {json.dumps(value)}".ljust(32) + f"  # {Settings.model_fields[field].description}")
    return "\n".join(lines) + "\n"
