"""docs/results/mattes.md: mattes of VR video."""

from __future__ import annotations

from typing import Any

from benchmarks.results.pages import Records, Table

SIZES = "small", "medium", "large"


def quality(records: Records) -> list[str]:
    """IoU, boundary, flicker and agreement of the ways to make a matte."""
    found = records("segmentation")
    rows = [
        "| | IoU | small / medium / large | boundary F | small / medium / large | flicker | flips, per 10,000 pixels "
        "| both eyes agree, IoU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["quality"]:
        ious, edges = (
            " / ".join(f"{row.get(f'{name}_{size}', float('nan')):.3f}" for size in SIZES)
            for name in ("iou", "boundary")
        )
        rows.append(
            f"| {row['way']} | {row['iou']:.3f} | {ious} | {row['boundary']:.3f} | {edges} "
            f"| {row['flicker']:.2f} | {1e4 * row['flips']:.1f} | {row['agreement']:.3f} |"
        )
    width, height = found["size"]
    return [*rows, "", f"{found['frames']} frames of {width}x{height}, {found['quality'][0]['eyes']} eyes."]


def speed(records: Records) -> list[str]:
    """Frames a second of the modes."""
    rows = ["| mode | framefuse matte | OpenCV and ONNX Runtime | framefuse is faster by |", "|---|---|---|---|"]
    found = records("segmentation")["speed"]
    theirs = {row["mode"]: row["fps"] for row in found if row["who"] != "framefuse"}
    for row in found:
        if row["who"] == "framefuse":
            other = theirs.get(row["mode"])
            ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
            rows.append(f"| {row['mode']} | {row['fps']:.1f} | {'' if other is None else f'{other:.1f}'} | {ratio} |")
    return rows


def on_gpu(records: Records) -> list[str]:
    """From a surface of the decoder to composed planes on the host."""
    record = records("matte_gpu")
    rows = ["| mode | frames | median ms | p99 ms | frames/s |", "|---|---|---|---|---|"]
    for row in record["alone"]:
        rows.append(f"| {row['mode']} | one at a time | {row['ms']['median']:.2f} | {row['ms']['p99']:.2f} | |")
        if matte := row.get("matte_ms"):
            times = f"{matte['median']:.2f} | {matte['p99']:.2f}"
            rows.append(f"| {row['mode']} | one at a time, to planes in the memory of the GPU | {times} | |")
    for encoded in ("", ", encoded"):
        for row in record["encoded" if encoded else "paced"]:
            times = f"{row['ms']['median']:.2f} | {row['ms']['p99']:.2f} | {row['rate']}"
            rows.append(f"| {row['mode']} | {row['rate']} a second{encoded}, {row['dropped']} dropped | {times} |")
    for row in record["stream"]:
        rows.append(f"| {row['mode']} | as many as it takes | | | {row['fps']:.0f} |")
    width, height = record["size"]
    engine = record["alone"][0]["engine"]
    about = f"{record['model']}, {engine}; frames of {width}x{height}, both eyes in one batch."
    return [*rows, "", " ".join([about, *_earlier(record, "alone", "paced", "encoded", "stream")])]


def _earlier(record: dict[str, Any], *parts: str) -> list[str]:
    """Which parts of the record were measured at another commit than the last one."""
    last, known = record["commit"], record.get("commits", {})
    earlier = [part for part in parts if known.get(part, last) != last]
    return [f"Part `{part}` is of commit `{known[part][:7]}`." for part in earlier]


def steps_on_gpu(records: Records) -> list[str]:
    """Kernels beside the same steps in operators of PyTorch."""
    rows = ["| step | framefuse, us | PyTorch, us | ratio |", "|---|---|---|---|"]
    record = records("matte_gpu")
    for row in record["steps"]:
        if "step" in row:
            ours, theirs = row["us"]["framefuse"], row["us"]["PyTorch"]
            rows.append(f"| {row['step']} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.1f} |")
    return _with(rows, _earlier(record, "steps"))


def _with(rows: list[str], said: list[str]) -> list[str]:
    """A table, and what is said below it."""
    return [*rows, "", " ".join(said)] if said else rows


def files_on_gpu(records: Records) -> list[str]:
    """Frames a second of a file, beside a loop that is written first."""
    record = records("matte_gpu")
    if not (found := record.get("file")):
        return ["This part of the record is missing."]
    rows = ["| mode | framefuse matte | PyAV, OpenCV and PyTorch | ratio |", "|---|---|---|---|"]
    for row in found:
        rates = " | ".join(f"{rate:.0f}" for rate in row["fps"].values())
        rows.append(f"| {row['mode']} | {rates} | {row['ratio']:.1f} |")
    return _with(rows, _earlier(record, "file"))


TABLES: dict[str, Table] = {
    "matte-quality": quality,
    "matte-speed": speed,
    "matte-gpu": on_gpu,
    "matte-steps-gpu": steps_on_gpu,
    "matte-file-gpu": files_on_gpu,
}
