"""framefuse doctor: what works on this machine, what does not, and what to do about it (exit code 3 if a core part does
not work). framefuse repair: complete the outputs of a run that was killed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from framefuse.cli.options import PrintJson
from framefuse.errors import CapabilityError

STYLES = {"PASS": "green", "FAIL": "bold red", "ABSENT": "dim"}


def doctor(print_json: PrintJson = False) -> int:
    """Run a tiny job on every part and report what works."""
    from framefuse.lab.doctor import checks, facts

    if print_json:
        found = list(checks())
        typer.echo(json.dumps({"facts": facts(), "checks": [dataclasses.asdict(check) for check in found]}, indent=2))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        for key, value in facts().items():
            console.print(Text(f"{key:<29}", style="dim").append(value, style="not dim"))
        console.print()
        found = []
        for check in checks():
            found.append(check)
            console.print(
                Text(f"{check.status:<8}", style=STYLES[check.status]).append(
                    f"{check.name:<29}{check.detail}", style="not bold default"
                )
            )
            if check.remedy:
                console.print(Text(f"{'':<8}{'':<29}-> {check.remedy}", style="dim"))
    broken = [check.name for check in found if check.core and check.status != "PASS"]
    if broken:
        raise CapabilityError(f"the core does not work here: {', '.join(broken)}", remedy="see the lines above")
    return 0


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
