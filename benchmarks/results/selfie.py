"""Mattes of people beside mediapipe's."""

from __future__ import annotations

from benchmarks.results.pages import Records, Table


def parity(records: Records) -> list[str]:
    """The same mattes as mediapipe's, of frames that each side stretches in its own way, and in mediapipe's."""
    found = records("selfie")
    reach = f"frames of IoU {found['reach']:.2f} or more"
    rows = [
        f"| model | frames stretched as by | least IoU | median | mean | {reach} | mean difference of soft masks |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        for way, kind in (("framefuse", "direct"), ("mediapipe", "matched")):
            ious, apart = row[kind]["iou"], row[kind]["difference"]["mean"]
            reached = f"{row[kind]['reached']} of {row['frames']}"
            figures = f"{ious['min']:.4f} | {ious['median']:.4f} | {ious['mean']:.4f} | {reached} | {apart:.1g}"
            rows.append(f"| {row['model']} | {way} | {figures} |")
    width, height = found["rows"][0]["size"]
    notes = [f"{found['clip']}, {width}x{height}, beside {found['peer']}."]
    for row in found["rows"]:
        notes.append(
            f"{row['model']}: the converted network alone differs by {row['network']:.1g} at most; the matte that is "
            f"written, which follows edges of the frame, has IoUs of {row['guided']['min']:.4f} (least) and "
            f"{row['guided']['median']:.4f} (median)."
        )
    return [*rows, "", " ".join(notes)]


def shipped(records: Records) -> list[str]:
    """How much of real people the networks find that are trained on synthetic ones."""
    found = records("selfie")
    rows = ["| model | picture | frames | least IoU | mean IoU |", "|---|---|---|---|---|"]
    for row in found["shipped"]:
        frames = row["frames"]
        rows.append(f"| {row['model']} | {row['of']} | {frames} | {row['iou']['min']:.3f} | {row['iou']['mean']:.3f} |")
    return [*rows, "", f"Beside the masks of the general network of {found['peer']}."]


TABLES: dict[str, Table] = {"selfie-parity": parity, "selfie-shipped": shipped}
