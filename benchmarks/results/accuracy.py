"""docs/results/accuracy.md: the shipped models in every precision, over seeds of the synthetic test split."""

from __future__ import annotations

from typing import Any

from benchmarks.results.pages import Records, Table

SIZES = ("small", "medium", "large")
WEIGHTS = {
    "scout-n": "detector, 0.75 M parameters",
    "scout-s": "detector, 4.4 M parameters",
    "body-n": "segmenter of body parts",
}


def percent(found: dict[str, float] | None, *keys: str) -> str:
    """Figures of a spread, as "74.0" or "57.1 to 76.0"; a record that pooled its seeds has no least and greatest."""
    return " to ".join(f"{100 * found[key]:.1f}" for key in keys) if found and keys[0] in found else "-"


def points(row: dict[str, Any]) -> str:
    """How far a row is from FP32 on the same seed."""
    if "points" not in row:
        return ""
    spread = row["points"]
    range_ = f" ({spread['min']:+.2f} to {spread['max']:+.2f})" if "min" in spread else ""
    return f"{spread['mean']:+.2f}{range_}"


def tables(records: Records) -> list[str]:
    found = records("accuracy")
    lines = [f"World version {found['world']}. Calibration: {found['calibration']}."]
    if found.get("pooled"):
        lines += ["", "This record pooled its seeds: it has no least and greatest."]
    for model, rows in found["models"].items():
        boxes = any("map50" in row.get("spread", {}) for row in rows)
        what, figures = ("mAP50-95", ("map50", *SIZES, "precision", "recall")) if boxes else ("mIoU", ("accuracy",))
        head = ["precision", "engine", "file", "input", "MB", f"{what}, mean", "least to greatest seed"]
        head += ["mAP50", *SIZES, "P", "R"] if boxes else ["pixels"]
        lines += ["", f"## {model}: {WEIGHTS.get(model, '')}", ""]
        lines += [f"| {' | '.join([*head, 'points to FP32'])} |", "|---" * (len(head) + 1) + "|"]
        for row in rows:
            if "error" in row:
                lines.append(f"| {row['precision']} | {row['engine']} | not run |" + " |" * (len(head) - 2))
                continue
            spread = row["spread"]
            cells = [row["precision"], row["engine"], row["file"], row["input"], f"{row['file_mb']:.1f}"]
            cells += [
                f"**{percent(spread['score'], 'mean')}**",
                percent(spread["score"], "min", "max") if "min" in spread["score"] else "-",
            ]
            cells += [percent(spread.get(figure), "mean") for figure in figures]
            lines.append(f"| {' | '.join([*cells, points(row)])} |")
        lines += ["", *(f"- {row['precision']}: {row['error']}" for row in rows if "error" in row)]
    lines += ["", "Content:", ""]
    frames = found["frames_a_seed"]
    for scene, addresses in found["content"].items():
        each = frames[scene] if isinstance(frames, dict) else frames
        lines += [f"- {scene}: {each} frames of each of `{addresses[0]}` to `seed={9000 + len(addresses)}`"]
    return lines


def summary(records: Records) -> list[str]:
    """Mean over seeds, and the least and greatest of them."""
    lines = ["| model | FP32 | bf16 | FP16 | INT8 |", "|---|---|---|---|---|"]
    for model, rows in records("accuracy")["models"].items():
        spreads = {row["precision"]: row["spread"]["score"] for row in rows if "spread" in row}
        cells = []
        for spread in map(spreads.get, ("fp32", "bf16", "fp16", "int8")):
            range_ = f" ({percent(spread, 'min', 'max')})" if spread and "min" in spread else ""
            cells.append(percent(spread, "mean") + range_)
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


TABLES: dict[str, Table] = {"accuracy": tables, "accuracy_summary": summary}
