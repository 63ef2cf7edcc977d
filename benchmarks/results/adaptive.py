"""docs/results/adaptive.md: what adaptive compute saves, and what it loses."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.results.pages import Records, Table

DEFAULT = "adaptive 0.96"
LOSS = 0.5
"""Points of mAP that a saving may lose."""


FAMILIES = {
    "fixed": ("fixed", "", "#888888", ""),
    "stride, tracked": ("stride", "tracked", "#d95f02", ""),
    "stride, interpolated": ("stride", "interpolated", "#1b9e77", ""),
    "random": ("random", "", "#e6ab02", ""),
    "edges": ("edges", "", "#a6761d", ""),
    "oracle": ("oracle", "", "#222222", "4 3"),
    "adaptive": ("adaptive", "", "#1f5fd0", ""),
}
"""Line of the plot -> how the names of its policies begin and end, colour, dashes."""
WIDTH, HEIGHT, MARGIN = 400, 260, 44
"""Pixels of a panel of the plot, and of the space for its axes."""


Grouped = dict[str, dict[str, list[dict[str, Any]]]]
"""Policy -> clip -> its rows, one a seed."""


def _grouped(record: dict[str, Any]) -> Grouped:
    found: Grouped = {}
    for clip in record["clips"]:
        for row in clip["rows"]:
            found.setdefault(row["policy"], {}).setdefault(clip["clip"], []).append(row)
    return found


def _median(rows: list[dict[str, Any]], key: str) -> float:
    return median(row[key] for row in rows)


def _medians(record: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """Policy -> clip -> ms a frame and mAP: medians over the seeds."""
    return {
        policy: {name: (_median(rows, "ms"), _median(rows, "map")) for name, rows in clips.items()}
        for policy, clips in _grouped(record).items()
    }


def clips(records: Records) -> list[str]:
    """Every policy on every schedule: medians over the seeds."""
    record = records("adaptive")
    names = list(dict.fromkeys(clip["clip"] for clip in record["clips"]))
    lines = [f"| policy | {' | '.join(f'{name}: ms, mAP' for name in names)} |", "|---|" + "---|" * len(names)]
    for policy, rows in _medians(record).items():
        cells = [f"{rows[name][0]:.1f}, {rows[name][1]:.1f}" for name in names]
        bold = "**" if policy == DEFAULT else ""
        lines.append(f"| {bold}{policy}{bold} | {' | '.join(cells)} |")
    seeds = {name: sum(clip["clip"] == name for clip in record["clips"]) for name in names}
    text = ", ".join(f"{count} of {name}" for name, count in seeds.items())
    return [*lines, "", f"Medians over the seeds: {text}."]


def front(record: dict[str, Any]) -> str:
    """SVG: accuracy over cost of every policy, a panel for each clip."""
    found = _medians(record)
    names = list(dict.fromkeys(clip["clip"] for clip in record["clips"]))
    costs = [ms for rows in found.values() for ms, _ in rows.values()]
    low, high = math.log(0.9 * min(costs)), math.log(1.1 * max(costs))
    parts = []
    for number, name in enumerate(names):
        left, top = WIDTH * (number % 2), HEIGHT * (number // 2)
        best = max(rows[name][1] for rows in found.values())
        floor = max(0.0, 5 * math.floor(min(rows[name][1] for rows in found.values()) / 5))
        ceiling = 5 * math.ceil((best + 0.5) / 5)

        def place(
            ms: float, ap: float, left: int = left, top: int = top, floor: float = floor, ceiling: int = ceiling
        ) -> str:
            x = left + MARGIN + (math.log(ms) - low) / (high - low) * (WIDTH - MARGIN - 12)
            y = top + HEIGHT - MARGIN - (ap - floor) / (ceiling - floor) * (HEIGHT - MARGIN - 28)
            return f"{x:.1f},{y:.1f}"

        def text(at: str, words: str, anchor: str, dx: int = 0, dy: int = 0) -> str:
            x, y = map(float, at.split(","))
            return f'<text x="{x + dx:.0f}" y="{y + dy:.0f}" text-anchor="{anchor}">{words}</text>'

        start, end = math.exp(low), math.exp(high)
        parts.append(text(f"{left + WIDTH / 2},{top + 18}", f"{name}: mAP50-95 over ms a frame", "middle"))
        for ap in range(int(floor), int(ceiling) + 1, 5):
            parts.append(f'<polyline class="grid" points="{place(start, ap)} {place(end, ap)}"/>')
            parts.append(text(place(start, ap), str(ap), "end", -5, 4))
        for ms in (5, 10, 20, 50):
            parts.append(f'<polyline class="grid" points="{place(ms, floor)} {place(ms, ceiling)}"/>')
            parts.append(text(place(ms, floor), str(ms), "middle", 0, 15))
        for begins, ends, colour, dashes in FAMILIES.values():
            mine = [rows[name] for policy, rows in found.items() if policy.startswith(begins) and policy.endswith(ends)]
            points = [place(*point) for point in sorted(mine)]
            joined = begins != "fixed"
            line = f'<polyline fill="none" stroke="{colour}" stroke-dasharray="{dashes}" points="{" ".join(points)}"/>'
            parts += [line] * joined
            dots = (point.split(",") for point in points)
            parts += [f'<circle cx="{x}" cy="{y}" r="2.6" fill="{colour}"/>' for x, y in dots]
    height = HEIGHT * math.ceil(len(names) / 2) + 30
    for number, (label, (_, _, colour, _)) in enumerate(FAMILIES.items()):
        x, y = 16 + number * 116 - 12 * (number > 2), height - 12
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{x + 8}" y="{y}">{label}</text>')
    style = "text{font:11px sans-serif;fill:#333}.grid{stroke:#ddd;fill:none}"
    box = f'viewBox="0 0 {2 * WIDTH} {height}" width="{2 * WIDTH}" height="{height}"'
    rows = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}><style>{style}</style>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{rows}\n</svg>\n'
    )


def overload(records: Records) -> list[str]:
    """Ages of the results before, while and after other processes take the machine."""
    record = records("overload")
    lines = [
        "| | phase | results after, p50, ms | p95, ms | too late | frames inferred | rungs of the looks |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in record["table"].items():
        for row in rows:
            looks = ", ".join(f"{rung.split()[-1]}: {share:.0%}" for rung, share in row["looks"].items())
            looks = looks if name == "with rungs" else "640: 100%"
            cells = f"{row['p50_ms']:.0f} | {row['p95_ms']:.0f} | {row['late']:.0%} | {row['inferred']:.0%} | {looks}"
            lines.append(f"| {name} | {row['phase']} | {cells} |")
    switches = " and ".join(map(str, record["switches"]))
    limit, seconds = record["limit_ms"], record["seconds"]
    return [
        *lines,
        "",
        f"Limit: {limit:.0f} ms. Phases of {seconds:.0f} s; {switches} switches in the runs with rungs.",
    ]


def streaming(records: Records) -> list[str]:
    """What is known of the present frame: medians over the seeds."""
    found = _grouped(records("streaming"))
    names = list(found["adaptive"])
    head = " | ".join(f"{name}: as it is, moved" for name in names)
    lines = [f"| policy | frames with a result | age of a result, ms | {head} |", "|---|---|---|" + "---|" * len(names)]
    for policy, clips in found.items():
        every = [row for rows in clips.values() for row in rows]
        each = [f"{_median(clips[name], 'as it is'):.1f}, {_median(clips[name], 'moved'):.1f}" for name in names]
        share, age = _median(every, "results"), _median(every, "age_ms")
        lines.append(f"| {policy} | {share:.0%} | {age:.0f} | {' | '.join(each)} |")
    return lines


def switching(records: Records) -> list[str]:
    """What the first look after a switch costs."""
    lines = ["| rung | a look, ms | the first look after another rung, ms |", "|---|---|---|"]
    rows = records("overload")["switching"]
    return [*lines, *(f"| {row['rung']} | {row['steady_ms']:.2f} | {row['after_ms']:.2f} |" for row in rows)]


def watts(records: Records) -> list[str]:
    """What a GPU draws at one rate."""
    record = records("adaptive_gpu")
    plain = record["policies"]["every frame"]
    lines = [
        "| policy | frames/s | inferred | watts | joules a frame | above idle | mAP50-95 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in record["policies"].items():
        less = f" ({row['watts'] / plain['watts'] - 1:+.0%})" if row is not plain else ""
        each, above = 1e3 * row["joules"], 1e3 * row["joules_above_idle"]
        lines.append(
            f"| {name} | {row['fps']:,.0f} | {row['share']:.0%} | {row['watts']:.0f}{less} | {each:.0f} mJ | "
            f"{above:.0f} mJ | {row['map']:.1f} |"
        )
    facts = f"{record['streams']} streams in {record['workers']} processes, idle {record['idle_watts']:.0f} W"
    return [*lines, "", f"{facts}; the rate asked for was {record['rate']:,.0f} frames/s."]


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


def tracks(records: Records) -> list[str]:
    """HOTA of a tracker on the results, and mAP by size and speed: medians over the seeds."""
    found = _grouped(records("adaptive"))
    names = list(found[DEFAULT])
    groups = ("small", "medium", "large"), ("slow", "medium speed", "fast")
    lines = [f"| policy | {' | '.join(f'{name}: HOTA; small, medium, large; slow, medium, fast' for name in names)} |"]
    lines += ["|---|" + "---|" * len(names)]
    for policy, clips in found.items():
        if "hota" in clips[names[0]][0]:
            cells = []
            for name in names:
                maps = [", ".join(f"{_median(clips[name], key):.0f}" for key in group) for group in groups]
                cells.append("; ".join([f"{_median(clips[name], 'hota'):.1f}", *maps]))
            bold = "**" if policy == DEFAULT else ""
            lines.append(f"| {bold}{policy}{bold} | {' | '.join(cells)} |")
    return lines


def regions(records: Records) -> list[str]:
    """What looks at regions could save at most: medians over the seeds."""
    clips = _grouped(records("adaptive"))[DEFAULT]
    shares = [f"{100 * _median(rows, 'beside_objects'):.0f}%" for rows in clips.values()]
    return [f"| | {' | '.join(clips)} |", "|---|" + "---|" * len(clips), f"| saved at most | {' | '.join(shares)} |"]


def predictors(records: Records) -> list[str]:
    """How well the losses of a block are told beforehand."""
    record = records("predictors")
    names = list(record["judged"])
    lines = [f"| signs | method | {' | '.join(f'{name}: correlation, error' for name in names)} |"]
    lines += ["|---|---|" + "---|" * len(names)]
    for row in record["rows"]:
        cells = [f"{row[name]['correlation']:.3f}, {row[name]['error']:.4f}" for name in names]
        bold = "**" if (row["signs"], row["method"]) == ("boxes", "ridge") else ""
        lines.append(f"| {bold}{row['signs']}{bold} | {row['method']} | {' | '.join(cells)} |")
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
    "adaptive tracks": tracks,
    "adaptive regions": regions,
    "predictors": predictors,
    "streaming": streaming,
    "overload": overload,
    "switching": switching,
    "adaptive gpu": watts,
}
