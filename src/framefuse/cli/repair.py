"""framefuse repair: complete the outputs of a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def repair(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="folders of runs, such as runs/detect/predict")
    ],
) -> int:
    """Complete the outputs of a run that was killed or whose machine lost power."""
    from framefuse.cli.console import without_controls
    from framefuse.sinks.repair import repair_folder

    done = 0
    for folder in folders:
        for line in repair_folder(folder):
            typer.echo(without_controls(f"{folder}/{line}"))
            done += 1
    if not done:
        typer.echo("every output is complete")
    return 0
