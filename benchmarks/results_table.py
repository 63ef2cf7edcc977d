"""Makes docs/results/kernels.md from the recorded results, and says when they are older than the kernels.

    python -m benchmarks.results_table            # write the page
    python -m benchmarks.results_table --check    # exit 1 where the page or a recorded result is stale

A kernel result carries a hash of src/framefuse/kernels/tir; where that differs, the page says so in its first lines.
--check looks at every other recorded GPU result too (benchmarks/gpu_sources.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import gpu_sources
from benchmarks.kernel_rows import OURS, source_hash
from benchmarks.protocol import RESULTS, ROOT

PAGE = ROOT / "docs" / "results" / "kernels.md"
TITLES = {"kernels_cpu": "CPU", "kernels_gpu": "GPU"}
INTRODUCTION = """# Kernels: measured

Made by `python -m benchmarks.results_table` from `benchmarks/results/*.json`; do not edit. Times are medians in
microseconds a call. All peers of a row ran interleaved in one run, into buffers that existed before, and each result
was checked before it was timed: compare the ratios, not the times. "x" is how many times faster framefuse is.

- **bytes**: whole planes read and written; in brackets only the 32-byte sectors that must be touched.
- **of a copy**: those bytes over our time, as a share of the bandwidth of a plain copy measured in the same run. A
  cache that still holds the input makes it exceed 100 %.
- **graph**: calls on rotating buffers, more than the cache holds, captured in one CUDA graph. **stream**: launched from
  Python one by one, for what cannot be captured.

`python -m benchmarks.kernels cpu` and `python -m benchmarks.kernels gpu` measure again; `benchmarks/device/` has the
scripts for a GPU machine without internet.
"""


def load() -> dict[str, dict[str, Any]]:
    """Recorded results by name."""
    paths = {name: RESULTS / f"{name}.json" for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def stale(results: dict[str, dict[str, Any]]) -> list[str]:
    """Which results were measured on other kernel sources than these, in words."""
    now = {name: source_hash("gpu" if "gpu" in result else "cpu") for name, result in results.items()}
    return [
        f"{name} was measured on kernel sources {result['source_hash']}; they are {now[name]} now"
        for name, result in results.items()
        if result["source_hash"] != now[name]
    ]


def number(value: float) -> str:
    """Three significant digits without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bound(target: dict[str, Any]) -> str:
    return f"≥ {target['at_least']:g}" if target["at_least"] is not None else f"≤ {target['at_most']:g}"


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line a target: what was asked for, what was measured, whether it is met."""
    held = [(row, target) for row in rows for target in row["targets"]]
    yield f"\n### Targets: {sum(target['met'] for _, target in held)} of {len(held)} met\n"
    yield "| row | target | measured | |\n|---|---|---|---|"
    for row, target in held:
        mark = "met" if target["met"] else "**missed**"
        yield f"| {row['id']} | {target['what']} {bound(target)} | {number(target['measured'])} | {mark} |"


def details(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Every peer of every row."""
    yield "\n### All peers\n"
    for row in rows:
        yield f"\n**{row['id']}** - {row['title']}\n"
        if row["note"]:
            yield f"{row['note'].strip()}\n"
        if row["status"] != "measured":
            yield f"{row['status']}.\n"
            continue
        if row["bytes"]:
            yield moved(row) + "\n"
        yield "| peer | µs | x | P95 | differs by | how |\n|---|---|---|---|---|---|"
        ours = row["us"].get(OURS)
        for name, us in row["us"].items():
            ratio = number(us / ours) if ours and name != OURS else ""
            late = number(row["stats"][name]["p95"] * 1e3) if name in row["stats"] else ""
            error = f"{row['error'][name]:.2g}" if name in row["error"] else ""
            yield f"| {name} | {number(us)} | {ratio} | {late} | {error} | {row['how'].get(name, '')} |"


def moved(row: dict[str, Any]) -> str:
    """Bytes, floor and bandwidth of a row in words."""
    megabytes = {kind: f"{count / 1e6:.2f} MB" for kind, count in row["bytes"].items()}
    floors = {kind: f"{number(us)} µs" for kind, us in row["floor_us"].items()}
    shares = {kind: f"{row['bandwidth'].get(f'{kind}_share_of_copy', 0):.0%}" for kind in row["bytes"]}

    def both(parts: dict[str, str]) -> str:
        return parts["planes"] + (f" ({parts['sectors']})" if "sectors" in parts else "")

    return f"bytes {both(megabytes)}, at copy bandwidth {both(floors)}; of a copy: {both(shares)}."


def page(results: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    parts += [f"> **Stale:** {line}." for line in stale(results)]
    for name, result in results.items():
        about = result["environment"]
        machine = result.get("gpu") or about["cpu"]
        versions = ", ".join(f"{package} {version}" for package, version in about["packages"].items())
        parts.append(f"\n## {TITLES[name]}: {machine}\n")
        parts.append(
            f"{about['time']}, kernel sources {result['source_hash']}, "
            f"copy bandwidth {number(result['copy_gb_s'])} GB/s, "
            f"{about['cores']} cores, load {about['load_average'][0]}, Python {about['python']}, {versions}."
        )
        parts += [*summary(result["rows"]), *details(result["rows"])]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    results = load()
    text, old = page(results), stale(results)
    if args.check:
        old = list(dict.fromkeys([*old, *gpu_sources.stale()]))
    for line in old:
        print(f"STALE: {line}", file=sys.stderr)
    if args.check:
        current = PAGE.read_text() if PAGE.exists() else ""
        sys.exit(bool(old) or current != text)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text)
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
