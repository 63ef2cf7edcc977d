"""Frames a second from 1080p H.264 files on a GPU: to detections, to RGB, and of the decoders alone, in the same run.

    python -m benchmarks.gpu.files CLIP.mp4 [--streams 8 14 21]

Rows, each in a process of its own:

- `decode`: PyNvVideoCodec's three ways (threaded, simple, core) and two processes; frames are fetched and forgotten.
  The fastest of them, for a number of streams, is 100 %
- `source`: framefuse's own decoding of the same files, frames released as they come
- `rgb`: the same, each frame turned into float32 RGB (1080, 1920, 3) on the GPU
- `detect`: `Pipeline([file, file, ...], model, device="cuda", batch=8)` with its default settings otherwise
- `fleet`: the same by `Fleet(files, model, devices=["cuda:0", "cuda:0"])`: processes that share the GPU

The clock of `source`, `rgb`, `detect` and `fleet` runs while all streams are being read; that of `decode` begins when
each has given its first batch, and ends with the last. So a fleet has a second rate, from the first frame of any of its
processes to the last of any (`whole_fps`): that is what may be compared with decoding alone. It depends on how long the
files are, and is compared with files of the same length: `"times"` in a row repeats the clip.
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
from benchmarks.gpu import decoder_feed, fleet
from benchmarks.protocol import save

WARMUP = 40
"""Frames a stream that are not counted."""


class Clock:
    """Counts frames from when every stream has given `WARMUP` to when the first one ends."""

    def __init__(self, streams: int) -> None:
        self.counts = dict.fromkeys(range(streams), 0)
        self.begin: tuple[float, int] | None = None
        self.last: tuple[float, int] | None = None
        self.marks: list[tuple[float, int]] = []
        """Every 16 frames of a stream between begin and last: when, and how many there were in all."""
        self._lock = threading.Lock()

    def frame(self, stream: int) -> None:
        self.counts[stream] += 1
        if self.begin is None and min(self.counts.values()) >= WARMUP:
            with self._lock:
                self.begin = self.begin or (time.perf_counter(), sum(self.counts.values()))
        if self.begin and not self.last and self.counts[stream] % 16 == 0:
            self.marks.append((time.monotonic(), sum(self.counts.values())))

    def end(self) -> None:
        with self._lock:
            self.last = self.last or (time.perf_counter(), sum(self.counts.values()))

    def fps(self) -> float:
        assert self.begin is not None and self.last is not None
        return (self.last[1] - self.begin[1]) / (self.last[0] - self.begin[0])


class LockWaits:
    """How long a thread waits for the GIL after a call that gave it up and never blocks: reading a packet of a file
    that is cached in memory. What is not processor time of the thread is waiting."""

    def __init__(self) -> None:
        self.calls, self.waited = 0, 0.0

    def install(self) -> None:
        """Measure every packet that sources read from now on."""
        from framefuse.sources import files

        opened, waits = files.open_container, self

        class Container:
            def __init__(self, path: Path) -> None:
                self._container = opened(path)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._container, name)

            def demux(self, stream: Any) -> Any:
                packets = self._container.demux(stream)
                while True:
                    cpu, started = time.thread_time(), time.perf_counter()
                    packet = next(packets, None)
                    wall = time.perf_counter() - started
                    waits.calls, waits.waited = waits.calls + 1, waits.waited + wall - (time.thread_time() - cpu)
                    if packet is None:
                        return
                    yield packet

        files.open_container = Container

    def facts(self) -> dict[str, Any]:
        return {"lock_wait_us": round(self.waited / max(1, self.calls) * 1e6, 1)}


def source_row(clip: Path, streams: int, rgb: bool, held: int = 1) -> tuple[dict[str, Any], Clock]:
    """Our own decoding, one thread a file."""
    import cupy as cp
    import numpy as np

    from framefuse import kernels
    from framefuse.sources import SourceOptions, open_source

    sources = [open_source(clip, SourceOptions(device="cuda", held=held)) for _ in range(streams)]
    notes, clock = sources[0].info.notes, Clock(streams)

    def read(number: int) -> None:
        stream, read = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(disable_timing=True)
        calls: dict[int, Any] = {}
        with stream:
            out = cp.empty((1080, 1920, 3), np.float32) if rgb else None
            for frame in sources[number]:
                if out is not None:
                    stream.wait_event(frame.ready)
                    address = frame.planes[0].data.ptr
                    if address not in calls:  # a decoder has a few surfaces
                        calls[address] = kernels.recorded(kernels.yuv_to_rgb, frame, out, scale=1 / 255)
                    calls[address](stream.ptr)
                    read.record(stream)
                frame.lease.release(read if rgb else None)
                clock.frame(number)
            clock.end()
            stream.synchronize()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(streams)]
    started, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = sum(clock.counts.values())
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    return {"fps": round(clock.fps(), 1), "frames": count, "seconds": round(seconds, 2),
            "cpu_us_a_frame": round(used / count * 1e6), "notes": notes}, clock  # fmt: skip


def detect_row(clip: Path, model: Path, streams: int, batch: int, options: dict[str, Any]) -> dict[str, Any]:
    """The pipeline on a list of files."""
    from framefuse.pipeline import Pipeline

    waits = LockWaits()
    waits.install()
    begun = time.perf_counter()
    pipeline = Pipeline(links(clip, streams), model, device="cuda", batch=batch, readers=streams, **options)
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
            **waits.facts(), "boxes_a_frame": round(boxes / count, 2), "seconds": round(wall, 2),
            "opened_s": round(opened, 2),
            "cpu_us_a_frame": round((time.process_time() - cpu) / count * 1e6), "input": report.model.input,
            "stages": stages, "bytes_a_frame": copies, "notes": pipeline.sources[0].info.notes}  # fmt: skip


def fleet_row(clip: Path, model: Path, streams: int, processes: int) -> dict[str, Any]:
    """The same by a `Fleet` that gives the GPU several processes: `fps` while all of them run, `whole_fps` from the
    first frame of any to the last of any."""
    options = {"readers": -(-streams // processes), "batch": 8}
    found = fleet.run(",".join("0" * processes), links(clip, streams), model, options)
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


def spread(plan: dict[str, Any], clip: Path, model: Path) -> dict[str, Any]:
    """A row in several processes, each with its share of the streams; counted while all of them run."""
    processes, streams = plan["processes"], plan["streams"]
    shares = [streams // processes + (number < streams % processes) for number in range(processes)]
    plans = [{**plan, "streams": share, "processes": 1, "marks": True} for share in shares]
    children = [subprocess.Popen(command(one, clip, model), stdout=subprocess.PIPE, text=True) for one in plans]
    found = [json.loads(child.communicate()[0].strip().splitlines()[-1]) for child in children]
    begin, end = max(row["marks"][0][0] for row in found), min(row["marks"][-1][0] for row in found)
    count = 0
    for row in found:
        inside = [total for moment, total in row["marks"] if begin <= moment <= end]
        count += inside[-1] - inside[0]
    return {"fps": round(count / (end - begin), 1), "frames": sum(row["frames"] for row in found)}


def decode_row(clip: Path, kind: str, streams: int, processes: int) -> dict[str, Any]:
    return decoder_feed.measure(str(clip), kind, "decode", streams, 8, processes)


def row(plan: dict[str, Any], clip: Path, model: Path) -> dict[str, Any]:
    """One row, in this process."""
    name, streams, times = plan["row"], plan["streams"], plan.get("times", 1)
    if times > 1:
        clip = long_clip(clip, clip.with_name(f"{times}x_{clip.name}"), times)
    if name == "fleet":
        return fleet_row(clip, model, streams, plan["processes"])
    if name in ("source", "rgb") and plan.get("processes", 1) > 1:
        return spread(plan, clip, model)
    if name == "decode":
        return decode_row(clip, plan["decoder"], streams, plan.get("processes", 1))
    if name in ("source", "rgb"):
        found, clock = source_row(clip, streams, name == "rgb", plan.get("held", 1))
        return found | ({"marks": clock.marks} if plan.get("marks") else {})
    return detect_row(clip, model, streams, plan.get("batch", 8), plan.get("options", {}))


def plans(streams: list[int]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for count in streams:
        made += [{"row": "decode", "decoder": kind, "streams": count} for kind in ("threaded", "core", "simple")]
        made += [{"row": name, "streams": count} for name in ("source", "rgb", "detect")]
        for processes in (2, 3):
            made += [{"row": name, "streams": count, "processes": processes} for name in ("rgb", "fleet")]
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
        best = max((row["fps"] for row in mine if row["row"] == "decode"), default=0.0)
        line: dict[str, Any] = {"streams": count, "times": times, "decode_only_fps": best}
        for name in ("source", "rgb", "detect", "fleet"):
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
