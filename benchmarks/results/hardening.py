"""docs/promises.md: what the attack did and found."""

from __future__ import annotations

from benchmarks.results.pages import Records, Table

INPUTS = {
    "damaged videos and images": ("video", "image"),
    "damaged live streams": ("stream",),
    "damaged models": ("model",),
    "damaged cards, configurations, reports, COCO files and addresses": ("card", "config", "report", "coco", "address"),
}


def attack(records: Records) -> list[str]:
    """A line for each kind of attack."""
    record = records("hardening")
    cases, findings = record["fuzz"]["cases"], record["fuzz"]["findings"]
    kills, signals = record["endings"]["kills"], record["endings"]["signals"]
    storm, hangs = record["live"]["storm"], record["live"]["reconnecting"]
    rows = ["| attack | cases | findings |", "|---|---|---|"]
    for title, kinds in INPUTS.items():
        found = sum(name.partition(":")[0] in kinds for name in findings)
        rows.append(f"| {title} | {sum(cases.get(kind, 0) for kind in kinds):,} | {found} |")
    rows += [
        f"| `kill -9` at a random time, then `framefuse repair`: every output is readable | {kills['runs']} "
        f"| {len(kills['findings'])} |",
        f"| SIGINT, SIGTERM, SIGHUP at a random time: every output is complete | {signals['runs']} "
        f"| {len(signals['findings'])} |",
        f"| storm of {storm['streams']} live streams, {storm['seconds'] / 60:.0f} minutes: losses, stalls, restarts, "
        f"changes of codec, size and clock | {storm['reconnects']:,} reconnections, {storm['frames']:,} frames "
        f"| {len(storm['findings'])} |",
        f"| servers that hang up after some frames | {hangs['reconnects']:,} connections | {len(hangs['findings'])} |",
        "",
        f"In the storm {storm['unaccounted']} frames were neither delivered nor counted as dropped; results were "
        f"{storm['age_p50'] * 1e3:.0f} ms old in the median and {storm['age_p99'] * 1e3:.0f} ms in the 99th percentile "
        f"since their frames arrived. What stays in use of the heap when it is over: {kept(storm)} after the storm, "
        f"{kept(hangs)} after the servers that hang up.",
    ]
    return rows


def kept(run: dict[str, float]) -> str:
    return "nothing more than before" if run["kept"] <= 0 else f"{run['kept']:.2f} bytes a frame"


def left_behind(records: Records) -> list[str]:
    """What grows with frames, runs and sources."""
    record = records("growth")
    rows = ["| after | heap, KB for 1,000 more | more threads | more open files |", "|---|---|---|---|"]
    for name, title in (("frames", "frames of one run"), ("cycles", "runs, opened and closed"), ("swaps", "sources")):
        if (found := record.get(name)) is None:
            rows.append(f"| {title}: not measured | | | |")
            continue
        grown = [found[kind]["last"] - found[kind]["first"] for kind in ("threads", "files")]
        heap = round(found["heap"]["per_1000"] / 1e3, 1) + 0.0  # no "-0.0"
        rows.append(f"| {found[name]:,} {title} | {heap:.1f} | {grown[0]} | {grown[1]} |")
    return rows


TABLES: dict[str, Table] = {"hardening": attack, "growth": left_behind}
