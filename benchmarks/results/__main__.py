"""Writes every table of README.md and docs/ that holds measured numbers from the records in benchmarks/records.

    python -m benchmarks.results            # or: make results
    python -m benchmarks.results --stale    # which records were measured on other sources than these, and why

tests/benchmarks/test_results.py fails where a page differs from what this writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import protocol
from benchmarks.results import (
    accuracy,
    adaptive,
    cpu,
    gpu,
    hardening,
    heads,
    kernels,
    mattes,
    networks,
    selfie,
    throughput,
    tracking,
    views,
)
from benchmarks.results.pages import Table, load, render, stale

TABLES: dict[str, Table] = {
    **cpu.TABLES,
    **gpu.TABLES,
    **kernels.TABLES,
    **accuracy.TABLES,
    **hardening.TABLES,
    **adaptive.TABLES,
    **tracking.TABLES,
    **views.TABLES,
    **throughput.TABLES,
    **heads.TABLES,
    **networks.TABLES,
    **mattes.TABLES,
    **selfie.TABLES,
}
"""By the name in a marker."""


def rendered() -> dict[Path, str]:
    """Every page and plot, as it should be."""
    pages = [protocol.ROOT / "README.md", *sorted((protocol.ROOT / "docs").rglob("*.md"))]
    plots = {protocol.ROOT / "docs/results/adaptive.svg": adaptive.front(load("adaptive"))}
    return {page: render(page.read_text(encoding="utf-8"), page, TABLES) for page in pages} | plots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stale", action="store_true", help="write nothing, list the stale records")
    if parser.parse_args().stale:
        for path in sorted(protocol.RECORDS.glob("*.json")):
            print(f"{path.stem}: {stale(load(path.stem)) or 'fresh'}")
        return
    for page, text in rendered().items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(protocol.ROOT))


if __name__ == "__main__":
    main()
