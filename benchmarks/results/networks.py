"""docs/results/networks.md: networks of many kinds beside ONNX Runtime and OpenVINO."""

from __future__ import annotations

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


TABLES: dict[str, Table] = {"networks": networks}
