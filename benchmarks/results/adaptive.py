"""docs/results/adaptive.md: what adaptive compute saves, and what it loses."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.results.pages import Records, Table

DEFAULT = "adaptive 0.96"
LOSS = 0.5
"""Points of mAP that a saving may lose."""


def clips(records: Records) -> list[str]:
    """Every policy on every schedule: medians over the seeds."""
    record, found = records("adaptive"), defaultdict[str, dict[str, list[tuple[float, float]]]](dict)
    for clip in record["clips"]:
        for row in clip["rows"]:
            found[row["policy"]].setdefault(clip["clip"], []).append((row["ms"], row["map"]))
    names = list(dict.fromkeys(clip["clip"] for clip in record["clips"]))
    lines = [f"| policy | {' | '.join(f'{name}: ms, mAP' for name in names)} |", "|---|" + "---|" * len(names)]
    for policy, rows in found.items():
        each = [[median(values) for values in zip(*rows[name], strict=True)] for name in names]
        cells = [f"{ms:.1f}, {ap:.1f}" for ms, ap in each]
        bold = "**" if policy == DEFAULT else ""
        lines.append(f"| {bold}{policy}{bold} | {' | '.join(cells)} |")
    seeds = {name: sum(clip["clip"] == name for clip in record["clips"]) for name in names}
    text = ", ".join(f"{count} of {name}" for name, count in seeds.items())
    return [*lines, "", f"Medians over the seeds: {text}."]


def savings(records: Records) -> list[str]:
    """What can be saved on each clip at a loss of LOSS points, by linear interpolation between the measured points."""
    lines = [
        f"| clip | seed | best rung, mAP | adaptive saves at -{LOSS} | oracle | best stride, interpolated | tracked |",
        "|---|---|---|---|---|---|---|",
    ]
    for clip in records("adaptive")["clips"]:
        best = next(row["map"] for row in clip["rows"] if row["policy"] == "fixed scout-s 640")
        cells = [
            f"{1 - _share(clip['rows'], kind, ending, best - LOSS):.0%}"
            for kind, ending in (("adaptive", ""), ("oracle", ""), ("stride", "interpolated"), ("stride", "tracked"))
        ]
        lines.append(f"| {clip['clip']} | {clip['seed']} | {best:.1f} | {' | '.join(cells)} |")
    return lines


def _share(rows: list[dict[str, Any]], kind: str, ending: str, wanted: float) -> float:
    """Least share of the compute of the best rung at which a family of policies reaches a mAP."""
    top = next(row for row in rows if row["policy"] == "fixed scout-s 640")
    mine = [row for row in rows if row["policy"].startswith(kind) and row["policy"].endswith(ending)]
    points = sorted((row["share"], row["map"]) for row in [*mine, {**top, "share": 1.0}])
    reached = [share for share, ap in points if ap >= wanted]
    for (low, before), (high, after) in pairwise(points):
        if before < wanted <= after:
            reached.append(low + (high - low) * (wanted - before) / (after - before))
    return min(reached)


def guard(records: Records) -> list[str]:
    """The agreement that was asked for, and what came of it on each schedule: over the seeds."""
    found = defaultdict[tuple[str, str], list[dict[str, float]]](list)
    for clip in records("adaptive")["clips"]:
        for row in clip["rows"]:
            if row["policy"].startswith("adaptive"):
                found[clip["clip"], row["policy"].removeprefix("adaptive ")].append(row)
    lines = [
        "| clip | asked for | real, lowest to highest | expected, lowest to highest | audits | decisions, µs a frame |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for (name, asked), rows in sorted(found.items()):
        ranges = [f"{min(row[key] for row in rows):.3f} to {max(row[key] for row in rows):.3f}"
                  for key in ("agreement", "expected")]  # fmt: skip
        audits, spent = (median(row[key] for row in rows) for key in ("audits", "decision_us"))
        lines.append(f"| {name} | {asked} | {' | '.join(ranges)} | {audits:.0f} | {spent:.0f} |")
    return lines


def speed(records: Records) -> list[str]:
    """Frames a second of the whole pipeline."""
    lines = ["| clip | every frame, frames/s | adaptive, frames/s | ratio |", "|---|---|---|---|"]
    for name, rows in records("adaptive")["end_to_end"].items():
        plain, ours = rows["every frame"], rows["adaptive"]
        lines.append(f"| {name} | {plain:.1f} | {ours:.1f} | {ours / plain:.2f} |")
    return lines


def rungs(records: Records) -> list[str]:
    lines = ["| rung | ms a frame |", "|---|---|"]
    rows = records("adaptive")["rungs"]
    return [*lines, *(f"| {row['model']} {row['imgsz']} | {row['ms']:.1f} |" for row in rows)]


TABLES: dict[str, Table] = {
    "adaptive savings": savings,
    "adaptive clips": clips,
    "adaptive guard": guard,
    "adaptive speed": speed,
    "adaptive rungs": rungs,
}
