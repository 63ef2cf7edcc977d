"""docs/results/heads.md: masks, keypoints and oriented boxes beside ultralytics and supervision, and detectors without
anchors beside transformers."""

from __future__ import annotations

from benchmarks.results.pages import Records, Table


def parity(records: Records) -> list[str]:
    """The same as ultralytics finds."""
    rows = [
        "| model | theirs | ours | found again | box or corner, px | confidence | keypoint, px | mask IoU, 1080p "
        "| other sizes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in records("heads")["parity"]:
        ious = [row.get(name, {}).get("median") for name in ("mask_iou", "mask_iou_of_other_sizes")]
        masks = " | ".join("" if iou is None else f"{iou:.3f}" for iou in ious)
        points = f"{row['worst_keypoint']:.2f}" if "worst_keypoint" in row else ""
        rows.append(
            f"| {row['model']} | {row['theirs']} | {row['ours']} | {row['found']} | {row['worst_pixels']:.2f} "
            f"| {row['worst_confidence']:.4f} | {points} | {masks} |"
        )
    notes = [f"{row['model']}: {'; '.join(row['warnings'])}." for row in records("heads")["parity"] if row["warnings"]]
    return [*rows, "", *notes] if notes else rows


def cost(records: Records) -> list[str]:
    """Milliseconds of a 1080p frame."""
    found = records("heads")["cost"]
    rows = ["| a frame of 1080p | ms |", "|---|---|"]
    rows += [f"| {name} | {value:.2f} |" for name, value in found["milliseconds"].items()]
    ours = sum(value for name, value in found["milliseconds"].items() if name.startswith("segment"))
    rows.append(f"| masks, run lengths and drawing, ultralytics and supervision | {found['supervision']:.0f} |")
    ratio = found["supervision"] / ours
    return [*rows, "", f"{found['objects']} objects; ours is {ours:.2f} ms for the last row, a ratio of {ratio:.0f}."]


def speed(records: Records) -> list[str]:
    """From the clip to an annotated video."""
    rows = ["| model | objects a frame | runs | frames/s | framefuse is faster by |", "|---|---|---|---|---|"]
    for row in records("heads")["speed"]:
        for name, fps in row["fps"].items():
            ratio = "" if name == "framefuse" else f"{row['ratio'][name]:.2f}"
            rows.append(f"| {row['model']} | {row['objects']:.0f} | {name} | {fps:.1f} | {ratio} |")
    return rows


def detr(records: Records) -> list[str]:
    """The same as transformers finds."""
    rows = [
        "| model | theirs | ours | found again | box, px | confidence | smallest IoU |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in records("detr")["parity"]:
        rows.append(
            f"| {row['model']} | {row['theirs']} | {row['ours']} | {row['found']} | {row['pixels']:.4f} "
            f"| {row['confidence']:.4f} | {row['iou']:.5f} |"
        )
    notes = [f"{row['model']}: {'; '.join(row['warnings'])}." for row in records("detr")["parity"] if row["warnings"]]
    return [*rows, "", *notes] if notes else rows


TABLES: dict[str, Table] = {"heads-parity": parity, "heads-cost": cost, "heads-speed": speed, "detr": detr}
