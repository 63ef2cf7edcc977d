"""framefuse models: list the models known by name, show the card of one, or fetch one. framefuse export: write one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefuse.cli.console import check_out, print_rows, print_table
from framefuse.cli.options import PrintJson, option, size
from framefuse.common.redact import redact_source
from framefuse.errors import CardError

if TYPE_CHECKING:
    from framefuse.models.card import Card

app = typer.Typer(name="models", help="List the models known by name, show the card of one, or fetch one.")


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the models known by name, show the card of one, or fetch one."""
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(print_json: PrintJson = False) -> int:
    """List the models known by name, and free ones that others publish and 'framefuse models get' fetches."""
    from framefuse.models import KNOWN, fetched_models, list_models

    rows = [(name, "in the package", "Apache-2.0", about) for name, about in list_models().items()]
    fetched = fetched_models()
    for name, about in fetched.items():
        rows.append((name, "fetched", str(about.get("licence", "not stated")), str(about.get("source", ""))))
    for name, known in KNOWN.items():
        if name not in fetched:
            rows.append((name, f"framefuse models get {name}", known.licence, known.about))
    heads = ("model", "where", "licence", "what it does")
    print_rows(heads, rows, print_json)
    return 0


@app.command()
def show(model: Annotated[str, typer.Argument(help="name or ONNX file")], print_json: PrintJson = False) -> int:
    """Print the card of a model, and where each fact comes from."""
    from framefuse.models import find_model
    from framefuse.models.card import read_card

    card = read_card(find_model(model))
    rows = [(key, value, card.origin.get(key, "")) for key, value in facts(card).items()]
    if print_json:
        typer.echo(json.dumps({key: {"value": value, "from": origin} for key, value, origin in rows}, indent=2))
    else:
        print_table(("fact", "value", "from"), rows)
    return 0


@app.command(epilog="Example: framefuse models get hf://onnx-community/rtdetr_r18vd --name cars")
def get(
    source: Annotated[
        str,
        typer.Argument(
            help="a name that 'framefuse models' lists, hf://OWNER/REPO[@REVISION][/FILE.onnx], https://..., or a file",
            show_default=False,
        ),
    ],
    name: Annotated[str | None, typer.Option(help="what to call it; default: as it is called there")] = None,
    sha256: Annotated[str | None, option("HEX", "refuse a file that has another SHA-256")] = None,
    print_json: PrintJson = False,
) -> int:
    """Fetch a model once; from then on, its name is enough. Prints its licence and its hash."""
    from framefuse.models.hub import get_model

    typer.echo(f"fetching {redact_source(source)}", err=True)
    found = get_model(source, name=name, sha256=sha256)
    if print_json:
        typer.echo(json.dumps(asdict(found), indent=2, default=str))
    else:
        megabytes = f"{found.size / 1e6:,.1f} MB"
        shown = ("name", found.name), ("licence", found.licence), ("SHA-256", found.sha256), ("size", megabytes)
        print_table(("fact", "value"), [*shown, ("source", found.source), ("file", str(found.path))])
    if found.problem:
        _print_unusable(*found.problem.split("\n", 1))
    else:
        typer.echo(f"Use it by its name: framefuse predict video.mp4 {found.name}", err=True)
    return 0


def export(
    network: Annotated[str, typer.Argument(help="torchvision:NAME, PACKAGE.MODULE:FUNCTION, or a TorchScript file")],
    weights: Annotated[
        str | None, option("FILE|none", "state dictionary; default: the weights that the network comes with")
    ] = None,
    imgsz: Annotated[str, option("N|H,W", "input size in pixels")] = "640",
    names: Annotated[str | None, option("A,B,...", "class names")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; default: NAME.onnx in this folder")] = None,
) -> int:
    """Write a network of PyTorch as an ONNX file with its card. Models of ultralytics: `yolo export` does that."""
    from framefuse.lab.building import export_model

    check_out(out)
    classes = names.split(",") if names else None
    path, card = export_model(network, weights=weights, imgsz=size(imgsz), names=classes, out=out)
    typer.echo(path)
    if isinstance(card, CardError):
        _print_unusable(card.message, card.remedy)
    else:
        found = facts(card)
        typer.echo(f"{found['task']}, {found['layout']}, {found['imgsz']}, classes {found['names']}", err=True)
    return 0


def _print_unusable(why: str, remedy: str | None = None) -> None:
    """Say that a model was written, but lacks something."""
    typer.echo(f"It cannot be used yet: {why}" + (f"\n  -> {remedy}" if remedy else ""), err=True)


def facts(card: Card) -> dict[str, str]:
    """A card as text, with the keys of a YAML card."""
    spec = card.preprocess
    names = ", ".join(card.names.values())
    return {
        "path": str(card.path),
        "licence": str(card.about.get("licence", "not stated")),
        "task": card.task,
        "layout": card.layout,
        "imgsz": f"{spec.height} {spec.width}" + (", free" if card.dynamic_size else ""),
        "batch": "free" if card.dynamic_batch else str(card.batch),
        "input": f"{card.input_name} {card.input_dtype}",
        "outputs": ", ".join(card.outputs),
        "names": f"{card.class_count}: " + (names if len(names) <= 60 else names[:57] + "..."),
        "fit": spec.fit,
        "rect": "on" if spec.rectangular else "off",
        "stride": str(spec.stride),
        "interpolation": spec.interpolation,
        "pad_value": f"{spec.pad_value:g}",
        "mean": " ".join(f"{value:g}" for value in spec.mean),
        "std": " ".join(f"{value:g}" for value in spec.std),
        "channel_order": spec.channel_order,
    }
