"""framefuse repair: complete the outputs of a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
        typer.echo("every output is complete")
    return int(any(repair.failed for repair in repairs))
