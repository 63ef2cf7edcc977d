"""docs/results/kernels.md: what the kernels are held to, and what they and their peers take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.results.pages import Records, Table

OURS = "framefuse"
LAUNCHED = "framefuse, launched from Python"
Row = dict[str, Any]


def number(value: float) -> str:
    """Three significant digits without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def called(row: Row, name: str) -> str:
    """How a peer was called: "graph", "stream" (launched from Python one by one) or "" where there is only one way."""
    return str(row["how"].get(name) or "").partition(":")[0] if row["how"].get(name) else ""


def claims(rows: list[Row]) -> dict[tuple[str, str, str], list[tuple[Row, float | None, bool]]]:
    """Targets by claim: family of rows, what is claimed, and the bound; with each row that was measured for it.

    A measured value is None where the two sides were not called alike: such a pair proves nothing.
    """
    found: dict[tuple[str, str, str], list[tuple[Row, float | None, bool]]] = {}
    for row in rows:
        for target in row["targets"]:
            least = target["at_least"]
            bound = f"≥ {least:g}" if least is not None else f"≤ {target['at_most']:g}"
            what, _, peer = target["what"].removeprefix("framefuse: ").partition("times faster than ")
            key = family(row), f"x faster than {peer}" if peer else what, bound
            measured, met = target["measured"], target["met"]
            if peer and not alike_called(row, target["what"].partition(":")[0], peer):
                launched = row["us"].get(LAUNCHED)
                measured = row["us"][peer] / launched if launched else None
                met = bool(launched) and measured >= least
            found.setdefault(key, []).append((row, measured, met))
    return found


def family(row: Row) -> str:
    """What rows that differ in size or batch alone have in common."""
    return str(row["id"].partition(",")[0])


def alike_called(row: Row, ours: str, peer: str) -> bool:
    ways = {called(row, ours), called(row, peer)}
    return ways != {"graph", "stream"}


def summary(rows: list[Row]) -> Iterator[str]:
    """A line a claim: the worst of its rows decides."""
    found = claims(rows)
    settled = {key: [entry for entry in entries if entry[1] is not None] for key, entries in found.items()}
    met = sum(all(ok for _, _, ok in entries) for entries in settled.values() if entries)
    count = sum(bool(entries) for entries in settled.values())
    yield f"\n### Claims: {met} of {count} met\n"
    yield "| kernel | claim | bound | worst | best | rows | |\n|---|---|---|---|---|---|---|"
    for (name, what, bound), entries in found.items():
        pairs = settled[name, what, bound]
        if not pairs:
            yield f"| {name} | {what} | {bound} | | | {len(entries)} | not comparable: graph against launches |"
            continue
        values = sorted((value for _, value, _ in pairs if value is not None), reverse=bound.startswith("≤"))
        missed = [row["id"].partition(", ")[2] or row["id"] for row, _, ok in pairs if not ok]
        mark = f"**missed**: {'; '.join(missed)}" if missed else "met"
        yield f"| {name} | {what} | {bound} | {number(values[0])} | {number(values[-1])} | {len(pairs)} | {mark} |"


def details(rows: list[Row]) -> Iterator[str]:
    """A line a row: what we and every peer take."""
    yield "\n### Times\n"
    yield "| row | framefuse, µs: median | P95 | MB | of a copy | peers, µs (x framefuse) |\n|---|---|---|---|---|---|"
    for row in rows:
        if row["status"] != "measured":
            yield f"| {row['id']} | {row['status']}: {row['note']} | | | | |"
            continue
        ours = row["us"].get(OURS)
        if not ours:
            yield f"| {row['id']} | | | | | {row['note']} |"
            continue
        late = number(row["stats"][OURS]["p95"] * 1e3) if OURS in row["stats"] else ""
        kind = "sectors" if "sectors" in row["bytes"] else "planes"
        megabytes = f"{row['bytes'][kind] / 1e6:.2f}" if row["bytes"] else ""
        share = row["bandwidth"].get(f"{kind}_share_of_copy")
        peers = []
        for name, us in row["us"].items():
            if name != OURS:
                way = called(row, name) if called(row, name) != called(row, OURS) else ""
                way = f", {'launched' if way == 'stream' else way}" if way in ("graph", "stream") else ""
                peers.append(f"{name} {number(us)} ({number(us / ours)}x{way})")
        yield (
            f"| {row['id']} | {number(ours)} | {late} | {megabytes} | {'' if share is None else f'{share:.0%}'} "
            f"| {'; '.join(peers)} |"
        )


def page(name: str) -> Table:
    def made(records: Records) -> list[str]:
        found = records(name)
        machine = found["machine"]
        packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
        about = f"Copy bandwidth {number(found['copy_gb_s'])} GB/s. Python {machine['python']}, {packages}."
        return [about, *summary(found["rows"]), *details(found["rows"])]

    return made


TABLES: dict[str, Table] = {name: page(name) for name in ("kernels_cpu", "kernels_gpu")}
