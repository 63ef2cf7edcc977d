"""Tables and pages of what was measured on GPUs."""

from __future__ import annotations

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


def picked(rows: list[Row], **wanted: Any) -> Row | None:
    """The first row with these values; `times` of a row of files is 1 where it is not said."""
    return next(
        (
            row
            for row in rows
            if all(row.get(key, 1 if key == "times" else None) == value for key, value in wanted.items())
            and "error" not in row
        ),
        None,
    )


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
            if batch == 1:
                ours, peers = (
                    f"{times['cudnn']:.2f} ms",
                    [f"{names[n]} {t:.2f}" for n, t in times.items() if n in names],
                )
            else:
                rates = {name: f"{batch / time * 1e3:,.0f}" for name, time in times.items()}
                ours, peers = f"{rates['cudnn']} images/s", [f"{names[n]} {rates[n]}" for n in rates if n in names]
            lines.append(f"| YOLOv8n 640x640, batch {batch}, on the device | {ours} | {'; '.join(peers)} |")
    rows = {row["path"]: row for row in records("central_table")["rows"]}
    beside = "; ".join(f"{PATHS[path]} {rows[path]['ms']:.1f}" for path in ("usual", "torch") if path in rows)
    lines.append(f"| 1080p frame to boxes, batch 1 | {rows['fused']['ms']:.2f} ms | {beside} |")
    files = records("gpu_files")
    for times in (4, 1):
        found = next((s for s in files["summary"] if (s["streams"], s["times"]) == (14, times)), {})
        for key, what in (("fleet_whole", "three processes, first frame to last"), ("detect", "one process")):
            if f"{key}_fps" in found:
                long = " long" if times > 1 else ""
                lines.append(
                    f"| 14{long} files of 1080p to boxes, {what} | {found[f'{key}_fps']:,.0f} frames/s "
                    f"| decoding alone {found['decode_only_fps']:,.0f} |"
                )
    fleet = records("fleet")
    if TWO_GPUS in fleet["fps"]:
        lines.append(
            f"| a list of {fleet['files']} files on two GPUs, first frame to last "
            f"| {fleet['fps'][TWO_GPUS]:,.0f} frames/s "
            f"| one GPU: {fleet['fps'][ONE_GPU]:,.0f} |"
        )
    lines += [
        f"| accuracy of {row['model']}, FP16 against FP32 | {row['points']:+.2f} mAP points "
        f"| {row['part_at_0.95']:.1%} of boxes at IoU >= 0.95 |"
        for row in records("gpu_accuracy")["rows"]
    ]
    return table(" | framefuse | beside it, same run", lines)


def files(records: Records) -> list[str]:
    found = records("gpu_files")
    lines = []
    for part in found["summary"]:
        streams, times = part["streams"], part["times"]
        best = part["decode_only_fps"]

        def rate(fps: float | None, best: float = best) -> str:
            return "" if fps is None else f"{fps:,.0f}" + (f" ({fps / best:.2f})" if best else "")

        mine = [row for row in found["rows"] if row["streams"] == streams and row.get("times", 1) == times]
        fleet, one = picked(mine, row="fleet", processes=3) or {}, picked(mine, row="detect") or {}
        seconds = f" in {fleet['seconds']:.0f} s" if fleet else ""
        steady = f"{fleet['fps']:,.0f}" if fleet else ""
        lines.append(
            f"| {streams} | {300 * 4 * times:,} | {f'{best:,.0f}' if best else 'not measured'} "
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
        whole = f" ({gain['fps_of_best']:.2f}x)" if gain else ""
        lines.append(f"| `--gpus {plan}` | {steady:,.0f}{more} | {fps:,.0f}{whole} |")
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
        "fastest": "each layer in its fastest type, whatever it does to the results",
        "fp8": "FP8 wherever it may be",
        "int8": "INT8 wherever it may be",
        "chosen": "**chosen under the budget of 95 %**",
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
        for name in ("tvm + cuDNN", "tvm alone", *streams):
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
        f"| {row['boxes']} "
        f"| {row['part_at_0.95']:.2%} | {row['median_iou']:.4f} | {row['unmatched']} | {row['suppressed']} "
        f"| {row['furthest_unmatched']:.3f} | {'yes' if all(row['met'].values()) else 'missed'} |"
        for row in found["rows"]
    ]
    return [
        "# Accuracy on the GPU: measured",
        "",
        "Engine cudnn in float16, from the pixels to the boxes on the GPU, against ONNX Runtime in FP32 on the CPU,",
        "on the same",
        "frames of",
        "",
        *(f"    {uri}" for uri in found["data"]),
        "",
        *table(
            "model | frames | mAP50-95 FP32 | GPU FP16 | points "
            f"({goals['points']}) | boxes | IoU >= 0.95 ({goals['part_at_0.95']:.0%}) "
            f"| median IoU ({goals['median_iou']}) "
            "| without a partner | of these, both have before suppression "
            f"| furthest other from 0.25 ({goals['furthest_unmatched']}) | met",
            lines,
        ),
        "",
        "In brackets: the goal. Boxes: pairs of one class at confidence 0.25 whose shorter side is at least 16",
        "pixels. Where both sides have a box before suppression, with nearly the same confidence, and one side",
        "after it, suppression decides: which of two boxes is the stronger, or whether an overlap reaches 0.7.",
    ]


def ledger(records: Records) -> list[str]:
    found = records("ledger")
    lines, waits = [], []
    for name, row in found["rows"].items():
        if "failed" in row:
            lines.append(f"| {name} | | | | failed: {row['failed']} | |")
            continue
        for way in ("h2d", "d2h", "d2d"):
            if row["ledger"][way] or row["cupti"][way]:
                lines.append(
                    f"| {name} | {way} | {row['ledger'][way]:,.1f} | {row['cupti'][way]:,.1f} "
                    f"| {row['difference'][way]:+.2%} | {row['largest_copy'][way]:,} |"
                )
        waited = ", ".join(f"{call} {count:.3g}" for call, count in row["waits_a_batch"].items()) or "none"
        waits.append(f"| {name} | {row['graph_launches_a_batch']:.3g} | {waited} |")
    return [
        "# The copy ledger, checked",
        "",
        "Every report says how many bytes each stage copied. Whoever copies says so itself, so the sum is checked",
        "here against CUPTI, CUDA's own profiling interface, in the same run, with the copies inside CUDA graphs.",
        "Both count while nothing is in flight, after the model is loaded and the graph captured.",
        "",
        f"{found['model']}, engine {found['engine']}. Bytes a frame; a 1080p NV12 frame has 3,110,400.",
        "",
        *table("run | direction | ledger | CUPTI | difference | largest single copy", lines),
        "",
        *table("run | graph launches a batch | waits a batch, of the launching thread", waits),
        "",
        "PyNvVideoCodec copies each frame once on the GPU, out of the hardware's own surface, and once more where",
        "batches hold several frames of one stream. Kernels read mapped and managed memory, and the driver's faults",
        "move it: CUPTI counts no copies there, the ledger counts whole planes on their way to the GPU, and not",
        "that managed pages return when the host",
        "writes the next frame.",
        "",
        "With one batch at a time the only wait is for its results. The pipeline mostly polls (`cudaEventQuery`),",
        "because frames arrive meanwhile. `cuCtxSynchronize` and `cuStreamSynchronize` come from decoders that",
        "close at the end of a file. Drawing on the host copies every frame to it, and waits.",
    ]


def memory(records: Records) -> list[str]:
    found = records("memory")
    copies = {name: {**found["copies"][name], **found["mapped"][name]} for name in found["copies"]}
    sizes = list(copies)
    lines = [
        f"| {way} | "
        + " | ".join(f"{copies[size][way]['us']:,.0f} µs, {copies[size][way]['gb_s']:,.1f} GB/s" for size in sizes)
        + " |"
        for way in copies[sizes[0]]
    ]
    managed, ways = found["managed"], found["ways_in"]
    touched = [
        f"| {name} | {median(run['us'] for run in runs) / 1e3:,.1f} ms "
        f"| {median(run['gb_s'] for run in runs):,.1f} GB/s |"
        for name, runs in managed.items()
        if isinstance(runs, list) and isinstance(runs[0], dict)
    ]
    entered = [
        f"| {name} | {row['median_us']:,.0f} | {row['p99_us']:,.0f} | {row['fps']:,.0f} |"
        for name, row in ways.items()
        if isinstance(row, dict)
    ]
    mapped, copied = (ways.get(f"{mode}, batch 1, engine cudnn") for mode in ("mapped", "copy"))
    ratio = f" (here {mapped['fps'] / copied['fps']:.2f} times, YOLOv8n at batch 1)" if mapped and copied else ""
    return [
        "# Memory between host and GPU",
        "",
        "Medians; a frame is 1080p NV12, 3.11 MB.",
        "",
        "## Bandwidth",
        "",
        *table(" | ".join(["way", *sizes]), lines),
        "",
        f"## Managed memory, {managed['bytes'] / 2**30:.0f} GiB, one pass over all of it",
        "",
        *table("touched by | time | rate", touched),
        "",
        "## A frame that was decoded on the host, to boxes",
        "",
        *table("`--memory`, batch, engine | latency alone, µs: median | P99 | frames/s, two in flight", entered),
        "",
        "## Conclusion",
        "",
        "1. The CPU's own copy costs most, not the bus: one core writes the decoder's planes to page-locked memory.",
        "   What would help is a decoder that writes there itself.",
        f"2. Mapped memory gives as many frames a second as copies or more{ratio}, where the frame is larger than",
        "   the model's input, probably because the kernel fetches only the rows it needs. `copy` stays the default",
        "   on GPUs with memory of their own, because a kernel that waits for the bus keeps its multiprocessors",
        "   from the model, and reads samples again where it enlarges. On GPUs that share the host's memory",
        "   (Jetson), `mapped` is the default; none was measured.",
        "3. Managed memory is never worth it for frames: the host writes each frame anew, so its pages move both",
        "   ways every time.",
    ]


def faults(records: Records) -> list[str]:
    lines = [
        "# Faults on a GPU: what is said",
        "",
        "Each fault is made for real; of what a command prints, the lines about it are shown, and of what it left",
        'behind what `left.py` finds. `eight/` has eight videos, one of them damaged. "A neighbour" is another',
        "process on the GPU.",
    ]
    for title, text in records("gpu_faults")["faults"].items():
        lines += ["", f"## {title}", "", text]
    return lines


TABLES: dict[str, Table] = {
    "gpu_summary": summary,
    "gpu_files": files,
    "fleet": fleet,
    "central_table": central,
    "network": network("cudnn_network"),
    "network_yolo11n": network("cudnn_network_yolo11n"),
    "gpu_program": program,
    "cudnn_precision": precision,
    "tvm_cuda": tvm_cuda,
}
PAGES: dict[str, Table] = {
    "accuracy_gpu.md": accuracy,
    "ledger.md": ledger,
    "memory.md": memory,
    "faults_gpu.md": faults,
}
