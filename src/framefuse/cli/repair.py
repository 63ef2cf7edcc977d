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
    from framefuse.common.text import without_controls
    from framefuse.sinks.repair import NOT_REPAIRED, repair_folder

    lines = []
    for folder in folders:
        for line in repair_folder(folder):
            lines.append(line)
            typer.echo(without_controls(f"{folder}/{line}"))
    if not lines:
        typer.echo("every output is complete")
    return int(any(f": {NOT_REPAIRED}: " in line for line in lines))
