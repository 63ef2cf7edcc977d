"""framefuse export: write a network of PyTorch as an ONNX file with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefuse.cli.console import check_out
from framefuse.errors import CardError


def export(
    network: Annotated[
        str, typer.Argument(help="torchvision:NAME, PACKAGE.MODULE:FUNCTION, or a TorchScript file", show_default=False)
    ],
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE|none", help="state dictionary; default: the weights that the network comes with"),
    ] = None,
    imgsz: Annotated[str, typer.Option(metavar="N|H,W", help="input size in pixels")] = "640",
    names: Annotated[str | None, typer.Option(metavar="A,B,...", help="class names")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; default: NAME.onnx in this folder")] = None,
) -> int:
    """Write a network of PyTorch as an ONNX file with its card. Models of ultralytics: `yolo export` does that."""
    from framefuse.cli.models import facts
    from framefuse.lab.export import export_model

    check_out(out)
    sides = imgsz.replace("x", ",").split(",")
    if not all(side.isdigit() and int(side) for side in sides) or len(sides) > 2:
        raise typer.BadParameter(f"{imgsz} is neither a number nor two", param_hint="--imgsz")
    height, width = int(sides[0]), int(sides[-1])
    path, card = export_model(
        network, weights=weights, imgsz=(height, width), names=names.split(",") if names else None, out=out
    )
    typer.echo(path)
    if isinstance(card, CardError):
        typer.echo(f"It cannot be used yet: {card.message}\n  -> {card.remedy}", err=True)
    else:
        found = facts(card)
        typer.echo(f"{found['task']}, {found['layout']}, {found['imgsz']}, classes {found['names']}", err=True)
    return 0
