"""docs/results/tracking.md: how good the tracks are, and what they cost."""

from __future__ import annotations

from typing import Any

from benchmarks.results.pages import Records, Table


def quality(records: Records) -> list[str]:
    """HOTA and IDF1 of every tracker, over all clips and over those of each detector."""
    rows = [
        "| frames | tracker | HOTA | IDF1 | HOTA, boxes of `scout-s` | HOTA, modelled boxes |",
        "|---|---|---|---|---|---|",
    ]
    record = records("tracking")
    for frames, peers in {"all": record["every_frame"], **record["thinned"]}.items():
        rows += [f"| {frames} | {peer} | {_line(scores)} |" for peer, scores in peers.items()]
    return rows


def _line(scores: dict[str, Any]) -> str:
    def mean(detector: str) -> float:
        values = [clip["hota"] for name, clip in scores.items() if name.startswith(detector)]
        return sum(values) / len(values)

    mean_of_all = scores["mean"]
    values = mean_of_all["hota"], mean_of_all["idf1"], mean("scout-s"), mean("modelled")
    return " | ".join(f"{value:.1f}" for value in values)


def times(records: Records) -> list[str]:
    """Milliseconds a frame by number of objects, and how many times those of ours the peer takes."""
    record = records("tracking")["ms"]
    rows = [f"| tracker | {' | '.join(f'{count} objects, ms' for count in record)} |", "|---|" + "---|" * len(record)]
    for peer in next(iter(record.values())):
        rows.append(f"| {peer} | {' | '.join(_ms(record[count], peer) for count in record)} |")
    return rows


def _ms(peers: dict[str, dict[str, float]], peer: str) -> str:
    median, ours = peers[peer]["median"], peers[peer.replace("trackers", "ours")]["median"]
    return f"{median:.3f}" if median == ours else f"{median:.3f} ({median / ours:.1f} x ours)"


TABLES: dict[str, Table] = {"tracking quality": quality, "tracking times": times}
