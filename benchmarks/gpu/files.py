"""Frames a second from 1080p H.264 files on a GPU: to detections, and of the decoders alone, in the same run.

    python -m benchmarks.gpu.files CLIP.mp4 [--streams 8 14 21]

Rows, each in a process of its own:

- `decode`: PyNvVideoCodec alone (threaded, core, several processes); frames are fetched and forgotten.
  The fastest of them, for a number of streams, is 100 %
- `detect`: `Pipeline([file, file, ...], model, device="cuda", batch=8)` with its default settings otherwise
- `fleet`: the same by `Fleet(files, model, devices=["cuda:0", "cuda:0"])`: processes that share the GPU, each with its
  default settings, as `framefuse predict` starts them

The clock of `detect` and `fleet` runs while all streams are being read; that of `decode` begins when
each has given its first batch, and ends with the last. So a fleet has a second rate, from the first frame of any of its
processes to the last of any (`whole_fps`): that is what may be compared with decoding alone. It depends on how long the
files are, and is compared with files of the same length: `"times"` in a row repeats the clip.

A single stream is a long file that is cut, as it is by default; it is compared with the fastest decoding of several.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.clips import long_clip
from benchmarks.gpu import decoders, fleet
from benchmarks.protocol import save

WARMUP = 40
"""Frames a stream that are not counted."""


class Clock:
    """Counts frames from when every stream has given `WARMUP` to when the first one ends."""

    def __init__(self, streams: int) -> None:
        self.counts = dict.fromkeys(range(streams), 0)
        self.begin: tuple[float, int] | None = None
        self.last: tuple[float, int] | None = None
        self._lock = threading.Lock()

    def frame(self, stream: int) -> None:
        self.counts[stream] += 1
        if self.begin is None and min(self.counts.values()) >= WARMUP:
            with self._lock:
                self.begin = self.begin or (time.perf_counter(), sum(self.counts.values()))

    def end(self) -> None:
        with self._lock:
            self.last = self.last or (time.perf_counter(), sum(self.counts.values()))

    def fps(self) -> float:
        assert self.begin is not None and self.last is not None
        return (self.last[1] - self.begin[1]) / (self.last[0] - self.begin[0])


def detect_row(clip: Path, model: Path, streams: int, batch: int, options: dict[str, Any]) -> dict[str, Any]:
    """The pipeline on a list of files."""
    from framefuse.pipeline import Pipeline

    begun = time.perf_counter()
    readers = streams if streams > 1 else 0
    pipeline = Pipeline(links(clip, streams), model, device="cuda", batch=batch, readers=readers, **options)
    opened = time.perf_counter() - begun
    clock, numbers, boxes = Clock(streams), dict[str, int](), 0
    length = None
    started, cpu = time.perf_counter(), time.process_time()
    for result in pipeline:
        number = numbers.setdefault(result.frame.source_id, len(numbers))
        clock.frame(number)
        boxes += len(result.detections.confidence)
        length = length or pipeline.sources[0].info.frames
        if clock.last is None and clock.counts[number] == length:
            clock.end()
    wall = time.perf_counter() - started
    clock.end()
    count, report = sum(clock.counts.values()), pipeline.report
    stages = {stage.name: {"busy_p50_ms": round(stage.busy_ms.p50, 3), "wait_in_ms": round(stage.wait_in_ms / count, 4),
                           "wait_out_ms": round(stage.wait_out_ms / count, 4), "cpu_ms": stage.cpu_ms,
                           "own_cpu_ms": round(stage.own_cpu_ms, 4)}
              for stage in report.stages}  # fmt: skip
    copies = {f"{copy.stage} {copy.direction} {copy.kind}": copy.bytes_per_frame for copy in report.copies}
    return {"fps": round(clock.fps(), 1), "batch": batch, "options": options, "frames": count,
            "boxes_a_frame": round(boxes / count, 2), "seconds": round(wall, 2),
            "opened_s": round(opened, 2),
            "cpu_us_a_frame": round((time.process_time() - cpu) / count * 1e6), "input": report.model.input,
            "stages": stages, "bytes_a_frame": copies, "notes": pipeline.sources[0].info.notes}  # fmt: skip


def fleet_row(clip: Path, model: Path, streams: int, processes: int) -> dict[str, Any]:
    """The same by a `Fleet` that gives the GPU several processes: `fps` while all of them run, `whole_fps` from the
    first frame of any to the last of any."""
    found = fleet.run(",".join("0" * processes), links(clip, streams), model, {})
    if "error" in found:
        raise RuntimeError(found["error"])
    return {"fps": round(found["steady_fps"], 1), "whole_fps": round(found["fps"], 1), "frames": found["frames"],
            "seconds": round(found["seconds"], 2), "start_seconds": round(found["start_seconds"], 2),
            "workers": found["workers"]}  # fmt: skip


def links(clip: Path, count: int) -> list[Path]:
    """The clip under several names: a file that is named twice is read twice, one after the other."""
    made = [clip.parent / f"{number}_{clip.name}" for number in range(count)]
    for link in made:
        if not link.exists():
            os.link(clip, link)
    return made


def decode_row(clip: Path, kind: str, streams: int, processes: int) -> dict[str, Any]:
    return decoders.measure(str(clip), kind, streams, 8, processes)


def row(plan: dict[str, Any], clip: Path, model: Path) -> dict[str, Any]:
    """One row, in this process."""
    name, streams, times = plan["row"], plan["streams"], plan.get("times", 1)
    if times > 1:
        clip = long_clip(clip, clip.with_name(f"{times}x_{clip.name}"), times)
    if name == "fleet":
        return fleet_row(clip, model, streams, plan["processes"])
    if name == "decode":
        return decode_row(clip, plan["decoder"], streams, plan.get("processes", 1))
    return detect_row(clip, model, streams, plan.get("batch", 8), plan.get("options", {}))


def plans(streams: list[int]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for count in streams:
        made += [{"row": "decode", "decoder": kind, "streams": count} for kind in ("threaded", "core")]
        made.append({"row": "detect", "streams": count})
        made += [{"row": "fleet", "streams": count, "processes": processes} for processes in (2, 3)]
        made.append({"row": "decode", "decoder": "threaded", "streams": count, "processes": 2})
    return made


def command(plan: dict[str, Any], clip: Path, model: Path) -> list[str]:
    module = [sys.executable, "-m", "benchmarks.gpu.files"]
    return [*module, str(clip), "--model", str(model), "--row", json.dumps(plan)]


def run(plan: dict[str, Any], clip: Path, model: Path, seconds: float) -> dict[str, Any]:
    """A row in a process of its own, given up after `seconds`."""
    try:
        done = subprocess.run(command(plan, clip, model), capture_output=True, text=True, timeout=seconds)
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            return plan | {"error": done.stderr.strip()[-1500:]}
        return plan | json.loads(lines[-1])
    except subprocess.TimeoutExpired as error:
        return plan | {"error": f"no answer within {seconds:g} s", "output": str(error.stdout or b"")[-500:]}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each number of streams and length of files the fastest decoding, and what the others keep of it."""
    found = []
    for count, times in sorted({(row["streams"], row.get("times", 1)) for row in rows}):
        mine = [row for row in rows if (row["streams"], row.get("times", 1)) == (count, times) and "fps" in row]
        decoded = [row for row in (rows if count == 1 else mine) if row["row"] == "decode" and "fps" in row]
        best = max((row["fps"] for row in decoded), default=0.0)
        line: dict[str, Any] = {"streams": count, "times": times, "decode_only_fps": best}
        for name in ("detect", "fleet"):
            fps = max((row["fps"] for row in mine if row["row"] == name), default=None)
            if fps and best:
                line |= {f"{name}_fps": fps, f"{name}_of_decode": round(fps / best, 3)}
        if best and (whole := max((row["whole_fps"] for row in mine if row["row"] == "fleet"), default=None)):
            line |= {"fleet_whole_fps": whole, "fleet_whole_of_decode": round(whole / best, 3)}
        found.append(line)
    return found


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 14, 21])
    parser.add_argument("--seconds", type=float, default=40, help="a row may take so long")
    parser.add_argument("--total", type=float, default=400, help="no row is begun after so many seconds")
    parser.add_argument("--plans", type=json.loads, help="JSON list of rows, instead of the usual ones")
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    if options.row:
        print(json.dumps(row(options.row, options.clip, options.model)))
        return
    begun, rows = time.monotonic(), []
    for plan in options.plans or plans(options.streams):
        if time.monotonic() - begun > options.total:
            break
        rows.append(run(plan, options.clip, options.model, options.seconds))
        print({key: value for key, value in rows[-1].items() if key not in ("stages", "notes")}, flush=True)
        save("gpu_files", {"model": options.model.name, "summary": summary(rows), "rows": rows,
                           "clip": "the benchmark clip again and again, 1080p H.264, 2.6 Mb/s"},
             "CUDA kernel", "engine cudnn", "program", "CUDA program", "pipeline", "fleet")  # fmt: skip
    for line in summary(rows):
        print(line)


if __name__ == "__main__":
    main()
