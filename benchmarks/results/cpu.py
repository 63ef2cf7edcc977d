"""Tables of what was measured on CPUs, and of engines and parity on either device."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.results.pages import Records, Table

PEERS = {
    "ultralytics_onnx": "ultralytics, ONNX 640x640 (what most people run)",
    "opencv_ort_script": "OpenCV + ONNX Runtime script, tuned",
    "ultralytics_onnx_dynamic": "ultralytics, ONNX dynamic (384x640)",
    "ultralytics_openvino": "ultralytics + OpenVINO, 384x640",
    "ultralytics_openvino_int8": "ultralytics + OpenVINO, INT8, 384x640",
    "framefuse": "**framefuse, as it comes (384x640)**",
    "framefuse_int8": "**framefuse, INT8 (`framefuse build --precision int8`)**",
    "ultralytics_save": "ultralytics `save=True`",
    "ultralytics_openvino_save": "the same with OpenVINO",
    "supervision_video": "supervision",
    "framefuse_save": "**framefuse `--save`**",
    "trained_opencv_ort_script": "OpenCV + ONNX Runtime script, tuned",
    "trained_ultralytics_openvino": "ultralytics + OpenVINO",
    "trained_fp32": "**framefuse, FP32**",
    "trained_bf16": "**framefuse, bf16**",
    "trained_int8": "**framefuse, INT8**",
}


def standin(rows: dict[str, Any]) -> list[str]:
    """Which package of the peers was replaced, where one was."""
    found = {row.get("packages", {}).get("torchvision", "") for row in rows.values()}
    if not any("standin" in version for version in found):
        return []
    return [
        "",
        "ultralytics calls OpenCV's C++ NMS instead of torchvision's, which does not import beside a CPU build of",
        "PyTorch (`benchmarks/peers/torchvision_standin`).",
    ]


def int8_note(record: dict[str, Any]) -> list[str]:
    frames, _, flag = record["int8_calibration"].partition("; ")
    return ["", f"INT8 was calibrated on {frames}, with `{flag}`: weights are random, so there is no accuracy to lose."]


def end_to_end(records: Records) -> list[str]:
    record = records("end_to_end")
    rows = record["peers"]
    lines = ["| | fps | CPU-ms a frame | peak MB | x |", "|---|---|---|---|---|"]
    for name, row in sorted(rows.items(), key=lambda item: item[1].get("fps", 0)):
        cells = (
            [row["error"], "", "", ""]
            if "error" in row
            else [
                f"{row['fps']:.1f}",
                f"{row['cpu_ms_per_frame']:.1f}",
                f"{row['peak_rss_mb']:.0f}",
                f"{row['times_baseline']:.2f}",
            ]
        )
        if name.startswith("framefuse"):
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join([PEERS[name], *cells])} |")
    return lines + standin(rows) + int8_note(record)


VARIANTS = {
    "end_to_end_save": (
        "an annotated video is written too",
        ("ultralytics_save", "ultralytics_openvino_save", "supervision_video"),
        "framefuse_save",
        "",
    ),
    "end_to_end_neighbour": (
        "one core is kept busy by another process",
        ("ultralytics_onnx", "ultralytics_openvino", "ultralytics_openvino_int8"),
        "framefuse",
        "framefuse_int8",
    ),
    "end_to_end_768": (
        "a clip of 1366x768",
        ("ultralytics_onnx", "ultralytics_openvino", "ultralytics_openvino_int8"),
        "framefuse",
        "framefuse_int8",
    ),
    "end_to_end_1078": (
        "a clip of 1918x1078",
        ("ultralytics_onnx", "ultralytics_openvino", "ultralytics_openvino_int8"),
        "framefuse",
        "framefuse_int8",
    ),
}


def end_to_end_more(records: Records) -> list[str]:
    lines = ["| fps where | framefuse | INT8 | peers | x the first peer |", "|---|---|---|---|---|"]
    for name, (title, peers, ours, int8) in VARIANTS.items():
        rows = records(name)["peers"]

        def fps(peer: str, rows: dict[str, Any] = rows) -> str:
            return f"{rows[peer]['fps']:.1f}" if "fps" in rows.get(peer, {}) else "-"

        beside = ", ".join(
            f"{PEERS[peer].partition(',')[0]}{' INT8' * ('int8' in peer)} {fps(peer)}" for peer in peers if peer in rows
        )
        ratio = rows[ours].get("times_baseline", 0.0)
        lines.append(f"| {title} | {fps(ours)} | {fps(int8)} | {beside} | {ratio:.2f} |")
    return lines


def end_to_end_trained(records: Records) -> list[str]:
    lines = [
        "| model, 1280x720 street | | fps | CPU-ms a frame | boxes a frame | mAP50-95 of the timed frames |",
        "|---|---|---|---|---|---|",
    ]
    notes: dict[str, None] = {}
    for model in ("scout-n",):
        record, title = records(f"end_to_end_{model.replace('-', '_')}"), model
        notes |= dict.fromkeys(standin(record["peers"]))
        for name, row in sorted(record["peers"].items(), key=lambda item: item[1].get("fps", 0)):
            if "error" in row:
                lines.append(f"| {title} | {PEERS[name]} | failed: {row['error'][:120]} | | | |")
            else:
                score = row.get("map50_95")
                lines.append(
                    f"| {title} | {PEERS[name]} | {row['fps']:.1f} | {row['cpu_ms_per_frame']:.1f} "
                    f"| {row['boxes_per_frame']:.1f} | {'-' if score is None else f'{100 * score:.1f}'} |"
                )
            title = ""
    return lines + list(notes)


def engines(name: str) -> Table:
    """The table of docs/internals/engines.md, and under it who was not measured and why."""

    def made(records: Records) -> list[str]:
        return engine_lines(records(name)["cases"])

    return made


def engine_lines(cases: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| 640x640 | engine | device ms | images/s | host to host, ms: median | min | mean | P95 | P99 | max | std "
        "| FPS | build s | MB | error |",
        "|---" * 15 + "|",
    ]
    absent: dict[str, None] = {}
    before: dict[str, None] = {}
    for case in cases:
        title = f"{case['model'].removesuffix('.onnx')}, batch {case['shape'][0]}"
        if len({other["machine"].get("cpu") for other in cases}) > 1:
            title += f", {case['machine']['cpu']}"
        for row in case["rows"]:
            wall, device = row["wall"], row["device_time"]
            if wall is None:
                name = " ".join(filter(None, (row["engine"], row["precision"])))
                absent[f"- not run: {name}: {row['not_run'][:160]}"] = None
                continue
            if row["engine"] == "null":
                continue
            best, on_device = (device or wall)["median"], f"{device['median']:.3f}" if device else "-"
            rate, fps = (case["shape"][0] / milliseconds * 1e3 for milliseconds in (best, wall["median"]))
            times = " | ".join(
                f"{wall[name]:.3f}" if name in wall else "-"
                for name in ("median", "min", "mean", "p95", "p99", "max", "std")
            )
            if earlier := row.get("measured"):
                before[f"† measured at {earlier['commit'] or 'an unknown commit'}, {earlier['date'] or 'undated'}"] = (
                    None
                )
            lines.append(
                f"| {title} | `{row['engine']}` {row['precision']}{' †' if earlier else ''} | {on_device} "
                f"| {rate:,.{0 if rate > 10 else 2}f} | {times} | {fps:,.{0 if fps > 10 else 2}f} "
                f"| {row['build_seconds']:.1f} | {row['artifact_bytes'] / 1e6:.1f} "
                f"| {'-' if row['error'] is None else format(row['error'], '.1e')} |"
            )
            title = ""
    return [*without_empty_columns(lines), *([""] if before else []), *before, "", *absent]


def without_empty_columns(table: list[str]) -> list[str]:
    """A table without the columns in which every cell is "-"."""
    if len(table) == 2:
        return table
    rows = [line.strip("|").split("|") for line in table]
    kept = [
        column for column, cells in enumerate(zip(*rows[2:], strict=True)) if any(cell.strip() != "-" for cell in cells)
    ]
    return [f"|{'|'.join(row[column] for column in kept)}|" for row in rows]


def tvm_tuning(records: Records) -> list[str]:
    lines = [
        "| model | precision | untuned, ms | tuned, ms | gain | ONNX Runtime FP32, ms | tuned functions | schedules |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, row in sorted(records("tvm_tuning")["models"].items(), reverse=True):
        for precision in ("fp32", "fp16"):
            if f"tuned {precision}" in row:
                about = row[f"tuning {precision}"]
                slow, fast = (row[f"{kind} {precision}"]["median_ms"] for kind in ("untuned", "tuned"))
                lines.append(
                    f"| {model} 640x640 | {precision} | {slow:,.0f} | {fast:,.0f} | {row[f'speedup {precision}']:.2f}x "
                    f"| {row['onnxruntime fp32']['median_ms']:,.0f} | {about['tuned']} of {about['functions']} "
                    f"| {about['schedules']} |"
                )
    return lines


def tensorrt_accuracy(records: Records) -> list[str]:
    rows = records("tensorrt_accuracy")["rows"]
    lines = [
        "| scout-n, by ONNX Runtime | mAP50-95 | small / medium / large | against FP32, points |",
        "|---|---|---|---|",
    ]
    for row in rows:
        sizes = " / ".join(f"{100 * row['by_size'][size]:.1f}" for size in ("small", "medium", "large"))
        points = 100 * (row["map50_95"] - rows[0]["map50_95"])
        lines.append(f"| {row['model']} | {100 * row['map50_95']:.2f} | {sizes} | {points:+.2f} |")
    return lines


def tensorrt_build(records: Records) -> list[str]:
    lines = [
        "| network | precision | ONNX, MB | plan, batch 1: MB | s | plan, batch 1 to 16: MB | s |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = records("tensorrt_build")["rows"]
    for one, many in zip(rows[::2], rows[1::2], strict=True):
        note = " (INT8)" if one["precision"] == "fp8" else ""
        plans = [f"{row['bytes'] / 1e6:.1f} | {row['parse_s'] + row['build_s']:.2f}" for row in (one, many)]
        cells = [one["network"], one["precision"], f"{one['onnx_bytes'] / 1e6:.1f}{note}", *plans]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def parity(name: str) -> Table:
    """The table of docs/results/parity.md, and under it what was not run and why."""

    def made(records: Records) -> list[str]:
        lines = [
            "| model | layout | engine | first difference | boxes of the whole pipeline | against ultralytics |",
            "|---|---|---|---|---|---|",
        ]
        absent: dict[str, list[str]] = {}
        for model, found in records(name)["certificates"].items():
            for engine in found["engines"]:
                if engine["absent"]:
                    absent.setdefault(f"`{engine['name']}`: {engine['absent'][:160]}", []).append(model)
                    continue
                title = f"{engine['name']} {engine['precision']}" + (
                    " on the GPU" if engine["device"] == "cuda" else ""
                )
                step = next((step["stage"] for step in engine["steps"] if step["verdict"] != "exact"), "none")
                whole = engine["steps"][-1]["found"] if engine["steps"] else engine["checks"][-1]["found"]
                verdict = " **outside**" if engine["verdict"] == "outside" else ""
                peer = engine["peer"][-1]["found"] if engine["peer"] else "-"
                lines.append(f"| {model} | {found['layout']} | {title}{verdict} | {step} | {whole} | {peer} |")
        return [*lines, "", *(f"- {', '.join(models)}: not run, {why}" for why, models in absent.items())]

    return made


def synthetic(records: Records) -> list[str]:
    found = records("synthetic")
    lines = ["| scene | frames/s, image and ground truth |", "|---|---|"]
    lines.append(f"| a whole schedule at 640x360, two processes on two cores | {median(found['fps_two_cores']):.0f} |")
    lines += [f"| {scene}, one core | {fps:.0f} |" for scene, fps in found["fps_one_core"].items()]
    best = max(found.get("colour_baseline", {}).values(), default=None)
    return lines + ([] if best is None else [f"| mAP50-95 that colour alone reaches | {best:.4f} |"])


def model_call(records: Records) -> list[str]:
    lines = [
        "| model, input | boxes an image | network alone, ms | `model(image)`, ms | ratio | a Pipeline an image, ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in records("model_call")["rows"]:
        lines.append(
            f"| {row['model']}, {row['input']} | {row['boxes']:.1f} | {row['network']:.1f} | {row['call']:.1f} "
            f"| {row['ratio']:.2f} | {row['pipeline']:.0f} |"
        )
    return lines


def sweep(records: Records) -> list[str]:
    record = records("sweep")
    lines = ["| grid | settings | trackings | s | s a tracking |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        times = row["tracking_seconds"]
        each = f"{min(times):.2f} to {max(times):.2f}" if times else "-"
        lines.append(f"| {row['grid']} | {row['settings']:,} | {row['trackings']} | {row['median']:.2f} | {each} |")
    above = f"{record['boxes_per_frame']:.1f} recorded boxes a frame, {record['boxes_above_0.1']:.1f} of them above 0.1"
    return [*lines, "", f"{record['frames']:,} frames; {above}."]


def short_clips(records: Records) -> list[str]:
    record = records("short_clips")
    rows = {(row["frames"], row["side"]): row for row in record["rows"]}
    lines = ["| clips | seconds | one file of the same frames | an earlier version |", "|---|---|---|---|"]
    for frames in dict.fromkeys(frames for frames, _ in rows):
        cells = [f"{record['clips']} of {frames} frames"]
        for side in ("clips", "one file", "clips, before"):
            row = rows.get((frames, side))
            shown = "" if row is None or side == "clips" else f" ({row['ratio']:.2f}x)"
            cells.append("" if row is None else f"{row['seconds']:.1f}{shown}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


TABLES: dict[str, Table] = {
    "short_clips": short_clips,
    "sweep": sweep,
    "model_call": model_call,
    "end_to_end": end_to_end,
    "end_to_end_more": end_to_end_more,
    "end_to_end_trained": end_to_end_trained,
    "engines_cpu": engines("engines_cpu"),
    "engines_cuda": engines("engines_cuda"),
    "tvm_tuning": tvm_tuning,
    "tensorrt_accuracy": tensorrt_accuracy,
    "tensorrt_build": tensorrt_build,
    "parity": parity("parity"),
    "parity_gpu": parity("parity_gpu"),
    "synthetic": synthetic,
}
