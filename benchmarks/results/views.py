"""docs/results/views.md: what tiles, eyes and regions find, and what they cost."""

from __future__ import annotations

from typing import Any

from benchmarks.results.pages import Records, Table

SIZES = ("small", "medium", "large")


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def accuracy(records: Records) -> list[str]:
    """A line for each world, model and look; the second look says how many points it is above the first."""
    rows: list[dict[str, Any]] = records("views")["accuracy"]
    lines = [
        f"| world, model | look | mAP50-95 | {' | '.join(SIZES)} | mAP50 | P | R |",
        "|---" * (len(SIZES) + 6) + "|",
    ]
    for row in rows:
        first = next(r for r in rows if (r["world"], r["model"]) == (row["world"], row["model"]))

        def cell(row: dict[str, Any] = row, first: dict[str, Any] = first, size: str = "") -> str:
            value, base = (r["by_size"][size] if size else r["map50_95"] for r in (row, first))
            more = "" if row is first or value is None else f" ({100 * (value - (base or 0)):+.1f})"
            return percent(value) + more

        cells = [f"{row['world']}, {row['model']}", row["look"], cell(), *(cell(size=size) for size in SIZES)]
        cells += [percent(row[key]) for key in ("map50", "precision", "recall")]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for row in {row["world"]: row for row in rows}.values():
        low, middle, high = row["sides"]
        lines.append(
            f"- {row['world']}: {row['frames']} frames of {row['seeds']} seeds of `{row['address']}`, "
            f"{row['objects']:,} objects, {row['small']:,} of them small and {row['large']:,} large; the longer side "
            f"of half of them is below {middle:.0f} pixels, of a tenth below {low:.0f}, of nine tenths below {high:.0f}"
        )
    return lines


def sahi(records: Records) -> list[str]:
    found = records("views")["sahi"]
    lines = [
        "| peer | frames/s | times SAHI with ONNX Runtime | CPU ms a frame | mAP50-95 | small | medium | large | P "
        "| R |",
        "|---" * 10 + "|",
    ]
    for name, row in found["peers"].items():
        cells = [name, f"{row['fps']:.2f}", f"{row['ratio']:.2f}", f"{row['cpu_ms_per_frame']:.0f}"]
        cells += [percent(row["map50_95"]), *(percent(row["by_size"][size]) for size in SIZES)]
        lines.append(f"| {' | '.join([*cells, percent(row['precision']), percent(row['recall'])])} |")
    versions = found["peers"]["SAHI, ONNX Runtime"]["packages"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("sahi", "ultralytics", "onnxruntime", "openvino"))
    return [
        *lines,
        "",
        f"{found['model']} on `{found['clip']}`, tiles `{found['tiles']}`. Versions of the peers: {named}.",
    ]


def preprocess(records: Records) -> list[str]:
    found = records("views")["preprocess"]
    lines = ["| work | ms | times the whole frame | ns a pixel of the inputs |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {row['ms']:.2f} | {row['ratio']:.1f} | {row['ns_per_pixel']:.2f} |"
        for name, row in found["rows"].items()
    ]
    return [*lines, "", f"An input has {found['bytes']:,} bytes ({found['dtype']}, {found['memory_format']})."]


def compared(part: str, title: str, first: str) -> Table:
    """A line for each peer of a part with `fps` and `ratio`."""

    def made(records: Records) -> list[str]:
        rows = records("views")[part]
        memory = " most memory, KiB |" if part == "whole" else ""
        lines = [f"| {title} | way | frames/s | times {first} |{memory}", "|---|---|---|---|" + "---|" * bool(memory)]
        for row in rows:
            what = row.get("what") or f"{row['model']}, {row['engine']}"
            for way, peer in row["peers"].items():
                more = f" {peer['peak_kib']:,.0f} |" if memory else ""
                lines.append(f"| {what} | {way} | {peer['fps']:,.1f} | {peer['ratio']:.2f} |{more}")
        return lines

    return made


def gpu(records: Records) -> list[str]:
    found = records("views_gpu")
    lines = [
        "| case | median, µs | p99, µs | frames/s | graph launches a frame | rows a launch | on the device, µs "
        "| preprocess, model, postprocess, µs |",
        "|---" * 8 + "|",
    ]
    for row in found["rows"]:
        stages = ", ".join(f"{value:.0f}" for value in row["stages_us"])
        lines.append(
            f"| {row['case']} | {row['median_us']:,.0f} | {row['p99_us']:,.0f} | {row['fps']:,.0f} "
            f"| {row['launches']:g} | {row['rows_a_launch']:g} | {row['device_us']:,.0f} | {stages} |"
        )
    return [*lines, "", f"Model: {found['model']}, engine {found['engine']}."]


TABLES: dict[str, Table] = {
    "views_accuracy": accuracy,
    "views_sahi": sahi,
    "views_preprocess": preprocess,
    "views_eyes": compared("eyes", "model", "two crops"),
    "views_whole": compared("whole", "what runs", "no views"),
    "views_gpu": gpu,
}
