"""framefuse export: write a network of PyTorch as an ONNX file with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefuse.cli.console import check_out, print_unusable
from framefuse.cli.options import option, size
from framefuse.errors import CardError


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
    from framefuse.cli.models import facts
    from framefuse.lab.export import export_model

    check_out(out)
    classes = names.split(",") if names else None
    path, card = export_model(network, weights=weights, imgsz=size(imgsz), names=classes, out=out)
    typer.echo(path)
    if isinstance(card, CardError):
        print_unusable(card.message, card.remedy)
    else:
        found = facts(card)
        typer.echo(f"{found['task']}, {found['layout']}, {found['imgsz']}, classes {found['names']}", err=True)
    return 0
