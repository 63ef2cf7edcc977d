"""The table of engines in docs/internals/engines.md, made from their capabilities.

python -m benchmarks.engine_table FILE    # renews it there
"""

from __future__ import annotations

import sys
from pathlib import Path

from framefuse.engines import Backend, backends

BEGIN, END = "<!-- made by benchmarks.engine_table -->\n", "<!-- end -->\n"
DEVICES = {"cpu": "CPU", "cuda": "CUDA"}


def markdown() -> str:
    """The table."""
    lines = ["| engine | precisions | in our CUDA graph | installed by |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, backends())]) + "\n"


def renewed(page: str) -> str:
    """A page with the table in its place.

    Raises:
        ValueError: the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN.strip()} with {END.strip()} after it")
    return before + begin + markdown() + end + after


def _row(backend: Backend) -> str:
    known = backend.capabilities
    precisions = []
    for device, names in known.precisions.items():
        text = f"{DEVICES[device]}: {', '.join(names)}"
        if known.quantised_as_written and device == "cpu":
            text += ", int8 as written"
        if known.cpu_flags and device == "cpu":
            text += f" ({' and '.join(known.cpu_flags)} where the CPU has them)"
        precisions.append(text + (", layer by layer with `--calib`" if known.calibrates else ""))
    graph = "" if "cuda" not in known.devices else "yes" if known.capturable else "between two graphs"
    install = "; ".join(f"`{backend.install(device)}`" for device in known.devices)
    return (
        f"| `{backend.name}` | {'; '.join(precisions)} | {graph} | {'framefuse itself' if backend.core else install} |"
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
