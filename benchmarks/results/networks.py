"""docs/results/networks.md: networks of many kinds beside ONNX Runtime, OpenVINO and PyTorch."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from benchmarks.results.pages import Records, Table


def networks(records: Records) -> list[str]:
    """Images a second of the networks alone."""
    found = records("networks")["rows"]
    auto = found[0]["precision"]
    rows = [
        f"| network | input | {auto}: framefuse | OpenVINO | ratio | FP32: framefuse | OpenVINO | ratio | ONNX Runtime "
        "| ratio | outputs apart |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        rates = row["rates"]
        cells = [row["name"], "x".join(map(str, row["shape"][2:]))]
        for ours, theirs in (("framefuse, auto", ("OpenVINO, auto",)), ("framefuse", ("OpenVINO", "ONNX Runtime"))):
            cells.append(f"{rates[ours]:.1f}")
            for other in theirs:
                cells += [f"{rates[other]:.1f}", f"{rates[ours] / rates[other]:.2f}"]
        rows.append(f"| {' | '.join(cells)} | {row['agrees']:.0e} |")
    return rows


PEERS = ("ONNX Runtime", "PyTorch", "torch.compile")


def on_gpu(records: Records) -> list[str]:
    """Microseconds of the networks alone, with PyTorch beside."""
    found = _measured(records)
    rows = [
        f"| network | precision | batch | framefuse | {' | ratio | '.join(PEERS)} | ratio | outputs apart |",
        f"|---|---|---|---|{'---|---|' * len(PEERS)}---|",
    ]
    for row in found:
        apart = "" if row.get("apart") is None else f"{row['apart']:.0e}"
        rows.append(
            f"| {row['network']} | {row['precision']} | {row['batch']} | {_sides(row['sides'], 'us')} | {apart} |"
        )
    said = [
        f"{row['network']} in {row['precision']}, batch {row['batch']}, {part}: {name}"
        + (f" fails ({side['failed']})." if "failed" in side else f": {side['note']}.")
        for row in found
        for part, sides in (("network", row["sides"]), ("surface", row.get("surface", {})))
        for name, side in sides.items()
        if isinstance(side, dict) and side.keys() & {"failed", "note"}
    ]
    lines = [" ".join(line.split()) for line in said]  # a message may have several
    return [*rows, *(["", " <br>".join(lines)] if lines else [])]


def surfaces(records: Records) -> list[str]:
    """Microseconds from surfaces to results."""
    rows = [
        f"| network | peers in | batch | calls | framefuse | {' | ratio | '.join(PEERS)} | ratio | objects: "
        "framefuse, PyTorch |",
        f"|---|---|---|---|---|{'---|---|' * len(PEERS)}---|",
    ]
    for row in _measured(records):
        if "surface" in row:
            sides, given = row["surface"], f"{row['network']} | {row['precision'].upper()} | {row['batch']}"
            objects = ", ".join(str(sides.get(name, {}).get("objects", "")) for name in ("framefuse", "PyTorch"))
            kinds = {"us": "in a row"} if "calls" in sides else {}  # before, calls came one by one
            for kind, calls in (kinds | {"wait_us": "waited for"}).items():
                rows.append(f"| {given} | {calls} | {_sides(sides, kind)} | {objects} |")
    return rows


def _measured(records: Records) -> list[dict[str, Any]]:
    return sorted(records("networks_gpu")["rows"], key=itemgetter("network", "precision", "batch"))


def _sides(sides: dict[str, Any], kind: str) -> str:
    """Our time, and that of each peer with how many times ours it is."""
    ours = sides.get("framefuse", {})
    cells = [f"{ours[kind]:.0f}" if kind in ours else "fails" if "failed" in ours else ""]
    for name in PEERS:
        side = sides.get(name, {})
        ratio = f"{side[kind] / ours[kind]:.2f}" if kind in side and kind in ours else ""
        cells += [f"{side[kind]:.0f}" if kind in side else "fails" if "failed" in side else "", ratio]
    return " | ".join(cells)


TABLES: dict[str, Table] = {"networks": networks, "networks_gpu": on_gpu, "networks_gpu_surface": surfaces}
