"""docs/results/mattes.md: mattes of VR video on the CPU."""

from __future__ import annotations

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


TABLES: dict[str, Table] = {"matte-quality": quality, "matte-speed": speed}
