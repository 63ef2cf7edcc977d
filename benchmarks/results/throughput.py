"""docs/results/throughput.md: single requests of many clients."""

from __future__ import annotations

from typing import Any

from benchmarks.results.pages import Records, Table


def _name(records: Records, gpu: bool) -> dict[str, Any]:
    return records("throughput_gpu" if gpu else "throughput")


def closed(records: Records, gpu: bool = False) -> list[str]:
    """What clients that wait for their answers get."""
    record = _name(records, gpu)
    first = record["closed"][0]["rate"]
    rows = [f"| {record['clients']} clients | requests/s | ratio | p50 ms | p99 ms |", "|---|---|---|---|---|"]
    for row in record["closed"]:
        times = f"{row['p50_ms']:.1f} | {row['p99_ms']:.1f}"
        where = ", clients on one core" if row.get("cores") == "one" else ""
        rows.append(f"| {row['rules']}{where} | {row['rate']:,.1f} | {row['rate'] / first:.2f} | {times} |")
    sizes = ", ".join(f"{size}: {ms:.2f}" for size, ms in record["batch_ms"].items())
    return [*rows, "", f"Model: {record['model']}. Milliseconds of a batch, by its size: {sizes}."]


def deadlines(records: Records, gpu: bool = False) -> list[str]:
    """Requests at random times, with a deadline."""
    record = _name(records, gpu)
    rows = [
        "| load | offered/s | answered/s | refused at once | admitted and in time | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|",
    ]
    cases = [(f"{row['rules']}: {row['load']}", row) for row in record["open"]]
    cases += [("Batcher: 0.8 times its throughput, the soak", record["soak"])] if "soak" in record else []
    for title, row in cases:
        rows.append(
            f"| {title} | {row['offered']:,.1f} | {row['rate']:,.1f} | {row['refused']:.1%} "
            f"| {row['in_time']:.2%} of {row['admitted']:,} | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} |"
        )
    lines = [*rows, "", f"The deadline is {record['deadline_ms']:g} ms after a request is submitted."]
    if "soak" in record:
        soak = record["soak"]
        lines.append(
            f"In the soak the last minute has {soak['last_rate']:,.1f} answers a second, and the first had "
            f"{soak['first_rate']:,.1f}."
        )
    return lines


def rules(records: Records) -> list[str]:
    """The same requests under several rules."""
    record = records("throughput_gpu")
    rows = ["| share of the highest rate | rules | answered/s | p50 ms | p99 ms |", "|---|---|---|---|---|"]
    for row in record["rules"]:
        times = f"{row['p50_ms']:.1f} | {row['p99_ms']:.1f}"
        rows.append(f"| {row['load']:g} | {row['rules']} | {row['rate']:,.1f} | {times} |")
    return rows


HOURS, GPUS, FPS = 1000, 64, 30


def plan(records: Records) -> list[str]:
    """What a job of many hours on many GPUs would take, at the measured rate of one. Nothing of it was run."""
    record = records("gpu_files")
    rate = next(row["fleet_whole_fps"] for row in record["summary"] if (row["streams"], row["times"]) == (14, 4))
    boxes = next(row["boxes_a_frame"] for row in record["rows"] if row["row"] == "detect")
    megabits = float(record["clip"].rpartition("H.264, ")[2].partition(" Mb/s")[0])
    frames = HOURS * 3600 * FPS
    seconds = frames / (rate * GPUS)
    read = HOURS * 3600 * megabits / 8e3
    units = HOURS * 30
    each = 120 * FPS / rate * 3
    rows = [
        ("frames, at 30 a second", f"{frames / 1e6:,.0f} million"),
        ("rate of a GPU, files to boxes, start-up included", f"{rate:,.0f} frames/s"),
        (f"time on {GPUS} GPUs", f"{seconds / 60:.0f} minutes"),
        (
            f"read, at {megabits:g} Mb/s of video",
            f"{read:,.0f} GB, {read / seconds:.1f} GB/s from what all machines share",
        ),
        ("boxes, at those of the benchmark clip", f"{frames * boxes / 1e6:,.0f} million"),
        (
            "units, ranges of two minutes",
            f"{units:,}, {units / GPUS:,.0f} a GPU, of {each:.1f} s each",
        ),
    ]
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


TABLES: dict[str, Table] = {
    "ray-plan": plan,
    "throughput": closed,
    "throughput-deadlines": deadlines,
    "throughput-gpu": lambda records: closed(records, gpu=True),
    "throughput-deadlines-gpu": lambda records: deadlines(records, gpu=True),
    "throughput-rules": rules,
}
"""The tables of the docs, made from the records: `python -m benchmarks.results`."""
