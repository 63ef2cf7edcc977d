"""Tables and pages of what was measured on GPUs."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.results.pages import Records, Table

Row = dict[str, Any]
MERGED = ("merged 1 stream", "merged 4 streams")
ONE_GPU, TWO_GPUS = "0,0,0", "0,0,0,1,1,1"
PATHS = {
    "usual, a Python row loop": "OpenCV, NumPy row loop",
    "usual": "OpenCV, NumPy, OpenCV's NMS",
    "our host path": "framefuse's CPU kernels on the host",
    "torch": "PyTorch and torchvision on the GPU",
    "fused": "**fused: one graph**",
}


def table(head: str, rows: list[str]) -> list[str]:
    return [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *rows]


def picked(rows: list[Row], **wanted: Any) -> Row:
    """The first row with these values, or an empty one; `times` of a row of files is 1 where it is not said."""
    ran = ({"times": 1, **row} for row in rows if "error" not in row)
    return next((row for row in ran if all(row.get(key) == value for key, value in wanted.items())), {})


def summary(records: Records) -> list[str]:
    """The table of the README: each line is of one record, peers of the same run."""
    lines: list[str] = []
    engines = records("engines_cuda")
    for batch in (1, 8, 32):
        case = next(
            (case for case in engines["cases"] if case["model"] == "yolov8n.onnx" and case["shape"][0] == batch), None
        )
        times = {
            row["engine"]: row["device_time"]["median"]
            for row in (case or {"rows": []})["rows"]
            if row["device_time"] and row["precision"] == "fp16" and "measured" not in row
        }
        if "cudnn" in times:
            names = {"onnxruntime": "ONNX Runtime CUDA", "torch": "PyTorch", "tvm": "TVM with cuDNN"}
            shown = {
                name: f"{time:.2f} ms" if batch == 1 else f"{batch / time * 1e3:,.0f} images/s"
                for name, time in times.items()
            }
            ours, peers = shown["cudnn"], [f"{names[name]} {shown[name]}" for name in shown if name in names]
            lines.append(f"| YOLOv8n 640x640, batch {batch}, on the device | {ours} | {'; '.join(peers)} |")
    rows = {row["path"]: row for row in records("central_table")["rows"]}
    beside = "; ".join(f"{PATHS[path]} {rows[path]['ms']:.1f}" for path in ("usual", "torch") if path in rows)
    lines.append(f"| 1080p frame to boxes, batch 1 | {rows['fused']['ms']:.2f} ms | {beside} |")
    files = records("gpu_files")
    for times, long in ((4, " long"), (1, "")):
        alone = picked(files["summary"], streams=14, times=times).get("decode_only_fps")
        beside = f"decoding alone {alone:,.0f}" if alone else "-"
        whole = picked(files["rows"], row="fleet", streams=14, times=times, processes=3).get("whole_fps")
        one = picked(files["rows"], row="detect", streams=14, times=times).get("fps")
        lines += [
            f"| 14{long} files of 1080p to boxes, {what} | {fps:,.0f} frames/s | {beside} |"
            for what, fps in (("three processes, first frame to last", whole), ("one process", one))
            if fps
        ]
    fleet = records("fleet")
    if TWO_GPUS in fleet["fps"]:
        lines.append(
            f"| a list of {fleet['files']} files on two GPUs, while all processes run "
            f"| {fleet['steady_fps'][TWO_GPUS]:,.0f} frames/s "
            f"| one GPU: {fleet['steady_fps'][ONE_GPU]:,.0f} |"
        )
    lines += [
        f"| accuracy of {row['model']}, FP16 against FP32 | {row['points']:+.2f} mAP points "
        f"| {row['part_at_0.95']:.1%} of boxes at IoU >= 0.95 |"
        for row in records("gpu_accuracy")["rows"]
    ]
    return table(" | framefuse | peers, same run", lines)


def files(records: Records) -> list[str]:
    found = records("gpu_files")
    lines = []
    for part in found["summary"]:
        streams, times = part["streams"], part["times"]
        best = part["decode_only_fps"]

        def rate(fps: float | None, best: float = best) -> str:
            return "" if fps is None else f"{fps:,.0f}" + (f" ({fps / best:.2f})" if best else "")

        fleet = picked(found["rows"], row="fleet", streams=streams, times=times, processes=3)
        one = picked(found["rows"], row="detect", streams=streams, times=times)
        seconds = f" in {fleet['seconds']:.0f} s" if fleet else ""
        steady = f"{fleet['fps']:,.0f}" if fleet else ""
        files = "1, cut" if streams == 1 else streams
        lines.append(
            f"| {files} | {300 * 4 * times:,} | {f'{best:,.0f}' if best else 'not measured'} "
            f"| {rate(fleet.get('whole_fps'))}{seconds} | {steady} | {rate(one.get('fps'))} |"
        )
    return table(
        "streams | frames a file | decode only | Fleet of 3 processes, first frame to last | the same, while all run "
        "| one Pipeline",
        lines,
    )


def fleet(records: Records) -> list[str]:
    found = records("fleet")
    lines = []
    for plan, fps in found["fps"].items():
        gain = next((gain for gain in found["gains"] if gain["plan"] == plan), None)
        steady = found["steady_fps"][plan]
        more = f" ({gain['steady_fps_of_best']:.2f}x)" if gain else ""
        lines.append(f"| `--gpus {plan}` | {steady:,.0f}{more} | {fps:,.0f} |")
    return table(
        f"{found['files']} files, {found['clip']} | frames/s while all processes run "
        "| from the first frame to the last",
        lines,
    )


def central(records: Records) -> list[str]:
    rows = {row["path"]: row for row in records("central_table")["rows"]}
    lines = []
    for path, title in PATHS.items():
        if row := rows.get(path):
            stages = [
                f"{row['stages_ms'][stage]:.2f}" if stage in row["stages_ms"] else "-"
                for stage in ("preprocess", "upload", "inference", "download", "postprocess")
            ]
            lines.append(
                f"| {title} | {' | '.join(stages)} | {row['ms']:.2f} | {row['fps']:,.0f} | {row['of_fused']:.1f} |"
            )
    return table("path | preprocess | upload | inference | download | post-process | all, ms | FPS | x", lines)


def network(name: str) -> Table:
    def made(records: Records) -> list[str]:
        lines = []
        for row in records(name)["rows"]:
            one, four = (row.get(kind) for kind in MERGED)
            build = row["build"]
            seconds = " / ".join(
                f"{build[kind]['build_s']:.1f}" if "build_s" in build[kind] else "-" for kind in ("cold", "cached")
            )
            if one and four:
                rate = row["batch"] / four["network"] * 1e6
                lines.append(
                    f"| {row['batch']} | {one['network']:,.0f} | {four['network']:,.0f} | {rate:,.0f} "
                    f"| {four['decoded']:,.0f} | {seconds} |"
                )
        return table(
            "batch | one stream, µs | four streams, µs | images/s | with packing and decoding, µs "
            "| build: cold / cached, s",
            lines,
        )

    return made


def program(records: Records) -> list[str]:
    lines = []
    for row in records("gpu_program")["rows"]:
        if row["path"] == "gpu" and row["folded"]:
            lines.append(
                f"| {row['batch']} | {row['graph_us']:,.0f} | {row['wall']['median_us']:,.0f} "
                f"| {row['wall']['p99_us']:,.0f} "
                f"| {row['fps']:,.0f} | {row['bytes_a_frame']['pixels']:.0f} / {row['bytes_a_frame']['control']:.0f} |"
            )
    return table(
        "batch | graph on the device, µs | surface to boxes, wall, µs: median | P99 | frames/s, two in flight "
        "| bytes a frame across the bus: pixels / tables",
        lines,
    )


def precision(records: Records) -> list[str]:
    kinds = {
        "fp16": "all FP16 (default)",
        "fastest": "each layer in its fastest type, regardless of the results",
        "fp8": "FP8 wherever possible",
        "int8": "INT8 wherever possible",
        "chosen": "**chosen within the budget of 95 %**",
    }
    found = records("cudnn_precision")["found"]
    head = " | ".join(
        [
            "images/s (agreement with FP16)",
            *(f"{each['model'].removesuffix('.onnx')}, batch {each['batch']}" for each in found),
        ]
    )
    lines = []
    for kind, title in kinds.items():
        cells = []
        for each in found:
            row = each["rows"].get(kind)
            agreement = row.get("agreement") if row and kind != "fp16" else None
            cells.append(
                "-" if not row else f"{row['images_per_s']:,.0f}" + ("" if agreement is None else f" ({agreement:.0%})")
            )
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return table(head, lines)


def tvm_cuda(records: Records) -> list[str]:
    streams = ("cudnn 1 stream", "cudnn 4 streams")
    lines = []
    for model, rows in records("tvm_cuda")["models"].items():
        for name in ("tvm + cuDNN", "tvm alone", *(["tvm tuned"] if "tvm tuned" in rows else []), *streams):
            row, traced = rows[name], rows.get(f"{name}, kernels", {})
            if "us" not in row:
                lines.append(f"| {model}: {name} | failed: {row.get('failed', 'not run')} | | | | |")
                continue
            ratio = row["us"] / min(rows[other]["us"] for other in streams if "us" in rows[other])
            alone = f"{rows['without convolutions']['us']:.0f}" if name == "tvm + cuDNN" else "-"
            lines.append(
                f"| {model}: {name} | {row['us']:,.0f} | {ratio:.2f}x | {row['error']:.1%} "
                f"| {traced.get('launches', '-')} | {alone} |"
            )
    return table(
        "640x640, batch 1, FP16 | device, µs | over the faster `cudnn` | error | kernels | without convolutions, µs",
        lines,
    )


def accuracy(records: Records) -> list[str]:
    found = records("gpu_accuracy")
    goals = found["goals"]
    lines = [
        f"| {row['model']} | {row['frames']} | {row['reference']:.2f} | {row['gpu']:.2f} | {row['points']:+.2f} "
        f"| {row['boxes']} | {row['part_at_0.95']:.2%} | {row['median_iou']:.4f} | {row['unmatched']} "
        f"| {row['suppressed']} | {row['furthest_unmatched']:.3f} | {'yes' if all(row['met'].values()) else 'missed'} |"
        for row in found["rows"]
    ]
    head = (
        f"model | frames | mAP50-95 FP32 | GPU FP16 | points ({goals['points']}) | boxes "
        f"| IoU >= 0.95 ({goals['part_at_0.95']:.0%}) | median IoU ({goals['median_iou']}) | without a partner "
        f"| of these, both have before suppression | furthest other from 0.25 ({goals['furthest_unmatched']}) | met"
    )
    return [*table(head, lines), "", *(f"    {uri}" for uri in found["data"])]


def ledger(records: Records) -> list[str]:
    lines = []
    for name, row in records("ledger")["rows"].items():
        if "failed" in row:
            lines.append(f"| {name} | | | | failed: {row['failed']} | |")
            continue
        lines += [
            f"| {name} | {way} | {row['ledger'][way]:,.1f} | {row['cupti'][way]:,.1f} "
            f"| {row['difference'][way]:+.2%} | {row['largest_copy'][way]:,} |"
            for way in ("h2d", "d2h", "d2d")
            if row["ledger"][way] or row["cupti"][way]
        ]
    return table("bytes a frame | direction | ledger | CUPTI | difference | largest single copy", lines)


def ledger_waits(records: Records) -> list[str]:
    lines = []
    for name, row in records("ledger")["rows"].items():
        if "failed" not in row:
            waits = ", ".join(f"{call} {count:.3g}" for call, count in row["waits_a_batch"].items()) or "none"
            lines.append(f"| {name} | {row['graph_launches_a_batch']:.3g} | {waits} |")
    return table("run | graph launches a batch | waits a batch, of the launching thread", lines)


def bandwidth(records: Records) -> list[str]:
    found = records("memory")
    copies = {size: {**found["copies"][size], **found["mapped"][size]} for size in found["copies"]}
    lines = []
    for way in next(iter(copies.values())):
        rates = (f"{each[way]['us']:,.0f} µs, {each[way]['gb_s']:,.1f} GB/s" for each in copies.values())
        lines.append(f"| {way} | {' | '.join(rates)} |")
    return table(" | ".join(["way", *copies]), lines)


def managed(records: Records) -> list[str]:
    found = records("memory")["managed"]
    lines = []
    for name, runs in found.items():
        if isinstance(runs, list) and isinstance(runs[0], dict):
            us, rate = (median(run[key] for run in runs) for key in ("us", "gb_s"))
            lines.append(f"| {name} | {us / 1e3:,.1f} ms | {rate:,.1f} GB/s |")
    return table(f"{found['bytes'] / 2**30:.0f} GiB, touched by | time | rate", lines)


def ways_in(records: Records) -> list[str]:
    lines = [
        f"| {name} | {row['median_us']:,.0f} | {row['p99_us']:,.0f} | {row['fps']:,.0f} |"
        for name, row in records("memory")["ways_in"].items()
        if isinstance(row, dict)
    ]
    return table("`--memory`, batch, engine | alone, µs: median | P99 | frames/s, two in flight", lines)


def planned(records: Records) -> list[str]:
    """The memory that was predicted, and what a run took."""
    rows = [row for row in records("planner")["rows"] if "failed" not in row]
    lines = [
        f"| {row['model']} | {row['batch']} | {row['imgsz']} | {row['streams']} | {row['predicted'] / 1e6:,.0f} "
        f"| {row['peak'] / 1e6:,.0f} | {row['predicted'] / row['peak'] - 1:+.1%} |"
        for row in rows
    ]
    head = "model | batch | `--imgsz` | streams | predicted, MB | measured peak, MB | difference"
    apart = [abs(row["predicted"] / row["peak"] - 1) for row in rows]
    said = f"The median difference is {median(apart):.1%}, the largest {max(apart):.1%}."
    return [*table(head, lines), "", said]


def beside_a_neighbour(records: Records) -> list[str]:
    lines, rows = [], records("planner")["beside"]
    most = max(row["frames"] for row in rows if "frames" in row)
    for row in rows:
        became = row.get("failed") or row.get("refused") or "; ".join(row["choices"])
        kind = "failed" if "failed" in row else "refused" if "refused" in row else f"{row['frames']} of {most} frames"
        lines.append(f"| {row['share']:.0%} | {row['free_mb']:,.0f} | {kind} | {became} |")
    return table("taken by others | free, MB | the run | because", lines)


def heads(records: Records) -> list[str]:
    """Postprocessing inside the captured graph."""
    found = records("heads_gpu")["rows"]
    tasks = list(dict.fromkeys(row["task"] for row in found))
    lines = []
    for candidates in dict.fromkeys(row["candidates"] for row in found):
        rows = [picked(found, task=task, candidates=candidates) for task in tasks]
        lines.append(f"| {candidates:,} | " + " | ".join(f"{row['us']:.0f} ({row['objects']})" for row in rows) + " |")
    return table("candidates | " + " | ".join(f"{task}, µs (objects)" for task in tasks), lines)


def faults(records: Records) -> list[str]:
    return [line for title, text in records("gpu_faults")["faults"].items() for line in (f"## {title}", "", text, "")]


def cold_start(records: Records) -> list[str]:
    """Seconds from the start of a process to the first boxes."""
    rows = records("cold_start")["rows"]

    def middle(model: str, kind: str, key: str, start: str = "empty caches") -> str:
        found = [row[key] for row in rows if (row["model"], row["kind"], row["start"]) == (model, kind, start)
                 and key in row]  # fmt: skip
        return f"{median(found):.2f}" if found else ""

    lines = [
        "| model | first boxes of an image, s | of a video, s | of a video, after a run, s "
        "| measured kernels run after, s | a call before, ms | a call after, ms | another size, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = [
            middle(model, "images", "first_s"),
            middle(model, "video", "first_s"),
            middle(model, "video", "first_s", "after a run"),
            middle(model, "images", "tuned_s"),
            middle(model, "images", "before_ms"),
            middle(model, "images", "after_ms"),
            middle(model, "other size", "second_size_s", "after a run") or "one size only",
        ]
        lines.append(f"| {Path(model).stem} | {' | '.join(cells)} |")
    rounds = 1 + max(row["round"] for row in rows)
    of = f"Medians of {rounds} processes" if rounds > 1 else "From one process each"
    return [*lines, "", f"{of}. An image is 1920x1080 and comes from the host's memory."]


TABLES: dict[str, Table] = {
    "cold_start": cold_start,
    "gpu_summary": summary,
    "gpu_files": files,
    "fleet": fleet,
    "central_table": central,
    "network": network("cudnn_network"),
    "network_yolo11n": network("cudnn_network_yolo11n"),
    "gpu_program": program,
    "cudnn_precision": precision,
    "tvm_cuda": tvm_cuda,
    "gpu_accuracy": accuracy,
    "ledger": ledger,
    "ledger_waits": ledger_waits,
    "memory_bandwidth": bandwidth,
    "memory_managed": managed,
    "memory_ways": ways_in,
    "planner": planned,
    "planner_beside": beside_a_neighbour,
    "heads_gpu": heads,
    "gpu_faults": faults,
}
