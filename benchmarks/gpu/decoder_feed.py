"""Times many NVDEC decoders that feed a captured preprocess graph through a pointer table, in one process and several.

    python -m benchmarks.gpu.decoder_feed CLIP.mp4 [--decoders 14] [--batch 8] [--processes 1 2 4]

What a CPython program can keep of the decoders' speed, given one GIL a process. Loops:

- decode only: `simple` (SimpleDecoder, batches), `threaded` (ThreadedDecoder, which decodes ahead), `core` (demuxer and
  decoder, packet by packet); frames are fetched and forgotten. The fastest of all is 100 %.
- `own`: each decoder's thread writes the addresses of its batch into its own table, copies the table to the GPU,
  launches its own graph (letterbox NV12 -> 640x640 float16 NHWC of 8 channels) and waits for it
- `owner`: decoder threads hand batches to one thread that owns the GPU: it writes, copies and launches; each decoder
  waits for its own event, since its surfaces are used again afterwards
- `frames`: as `owner`, through `Frame` and `PreprocessTable.set`, as a general program must where sizes differ

Each stream is decoded to its end; the clock runs from the moment when all decoders have given their first batch.
Recorded as benchmarks/records/decoder_feed.json. The last line of the output is JSON.
"""

import argparse
import multiprocessing
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import save

SIZE = 640
OPTIONS: dict[str, Any] = {
    "content": (0, 140, 640, 360), "interpolation": "linear", "pad_value": 114.0, "mean": (0.0, 0.0, 0.0),
    "std": (255.0, 255.0, 255.0), "channel_order": "rgb",
}  # fmt: skip


def batches(clip: str, kind: str, batch: int) -> Iterator[list[Any]]:
    """Decoded frames on the GPU, a batch at a time. A batch may be overwritten when the next is asked for."""
    import PyNvVideoCodec as nvc

    common: dict[str, Any] = {"gpu_id": 0, "use_device_memory": True, "output_color_type": nvc.OutputColorType.NATIVE}
    if kind == "core":
        demuxer = nvc.CreateDemuxer(filename=clip)
        decoder = nvc.CreateDecoder(gpuid=0, codec=demuxer.GetNvCodecId(), usedevicememory=True)
        for packet in demuxer:
            frames = decoder.Decode(packet)
            if frames:
                yield frames
        return
    if kind == "simple":
        decoder = nvc.SimpleDecoder(clip, **common)
    else:
        decoder = nvc.ThreadedDecoder(clip, buffer_size=2 * batch, **common)
    left = len(decoder)
    while left > 0 and (frames := decoder.get_batch_frames(min(batch, left))):
        left -= len(frames)
        yield frames
    if kind == "threaded":
        decoder.end()


class Graph:
    """A captured preprocess of one batch, and the table through which it finds the images."""

    def __init__(self, first: Any, batch: int) -> None:
        import cupy as cp

        from framefuse.frame import PIXEL_FORMATS
        from framefuse.kernels.preprocess.cuda import PreprocessTable

        self.stream = cp.cuda.Stream(non_blocking=True)
        self.done = cp.cuda.Event(block=True, disable_timing=True)
        with self.stream:
            self.out = cp.empty((batch, SIZE, SIZE, 8), cp.float16)
            self.table = PreprocessTable(PIXEL_FORMATS["nv12"], self.out, memory_format="nhwc")
            for slot in range(batch):
                self.set(slot, first)
            self.table.upload(self.stream.ptr)
            self.table.launch(self.stream.ptr)
            self.stream.synchronize()
            self.stream.begin_capture()
            self.table.launch(self.stream.ptr)
            self.graph = self.stream.end_capture()
        self.addresses = self.table._rows.view(np.int64)[:, :2]

    def set(self, slot: int, decoded: Any) -> None:
        """Write a row through a Frame."""
        import cupy as cp

        from framefuse.frame import PIXEL_FORMATS, Frame

        pixels = cp.from_dlpack(decoded)
        height = pixels.shape[0] * 2 // 3
        planes = (pixels[:height], pixels[height:].reshape(height // 2, -1, 2))
        self.table.set(slot, Frame(planes, PIXEL_FORMATS["nv12"], matrix="bt709", owner=decoded), **OPTIONS)

    def point(self, frames: list[Any]) -> None:
        """Write the addresses alone: images of one stream differ in nothing else."""
        for slot, frame in enumerate(frames):
            self.addresses[slot] = frame.GetPtrToPlane(0), frame.GetPtrToPlane(1)

    def launch(self, frames: list[Any]) -> None:
        """Start; `done` is recorded behind it."""
        import cupy as cp

        event = getattr(frames[-1], "decoder_stream_event", None)
        if isinstance(event, int) and event:
            cp.cuda.runtime.streamWaitEvent(self.stream.ptr, event)
        self.table.upload(self.stream.ptr)
        self.graph.launch(self.stream)
        self.done.record(self.stream)


def consume(clip: str, kind: str, how: str, decoders: int, batch: int, ready: Any) -> tuple[float, float, int]:
    """Run decoders in threads; (start, end, frames) in the clock that processes share."""
    counts, errors = [0] * decoders, list[str]()
    gate, opening = threading.Barrier(decoders + 1), threading.Lock()
    work: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def decode(number: int) -> None:
        try:
            with opening:  # one after the other: imports, contexts and modules are set up here
                stream = batches(clip, kind, batch)
                frames = next(stream)
                graph = None if how == "decode" else Graph(frames[0], batch)
            gate.wait()
            gate.wait()
            launched = threading.Event()
            for frames in stream:
                counts[number] += len(frames)
                if graph is None:
                    continue
                if how == "own":
                    graph.point(frames)
                    graph.launch(frames)
                else:
                    launched.clear()
                    work.put((graph, frames, launched))
                    launched.wait()
                graph.done.synchronize()
        except Exception as error:  # into the result: the other decoders go on
            errors.append(f"{type(error).__name__}: {error}")
            gate.abort()

    def own() -> None:
        while (item := work.get()) is not None:
            graph, frames, launched = item
            if how == "frames":
                for slot, frame in enumerate(frames):
                    graph.set(slot, frame)
            else:
                graph.point(frames)
            graph.launch(frames)
            launched.set()

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(decoders)]
    owner = threading.Thread(target=own)
    for thread in (*threads, owner):
        thread.start()
    try:
        gate.wait(120)
        ready()
        start = time.monotonic()
        gate.wait(120)
    except threading.BrokenBarrierError:
        start = time.monotonic()
    for thread in threads:
        thread.join()
    end = time.monotonic()
    work.put(None)
    owner.join()
    if errors:
        raise RuntimeError("; ".join(sorted(set(errors)))[:500])
    return start, end, sum(counts)


def child(arguments: tuple[Any, ...], barrier: Any, results: Any) -> None:
    """One of several processes."""
    try:
        results.put(consume(*arguments, barrier.wait))
    except Exception as error:
        barrier.abort()
        results.put(f"{type(error).__name__}: {error}")


def measure(clip: str, kind: str, how: str, decoders: int, batch: int, processes: int) -> dict[str, Any]:
    """Frames a second of all decoders together, and CPU seconds a thousand frames."""
    share = [decoders // processes + (number < decoders % processes) for number in range(processes)]
    cpu = time.process_time()
    if processes == 1:
        found: list[Any] = [consume(clip, kind, how, decoders, batch, lambda: None)]
    else:
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(processes), context.Queue()
        children = [
            context.Process(target=child, args=((clip, kind, how, count, batch), barrier, results)) for count in share
        ]
        for process in children:
            process.start()
        try:
            found = [results.get(timeout=40) for _ in children]
        finally:
            for process in children:
                process.join(5)
                process.kill()
    row: dict[str, Any] = {"loop": how, "decoder": kind, "decoders": decoders, "processes": processes, "batch": batch}
    if failed := [value for value in found if isinstance(value, str)]:
        return row | {"error": failed[0][:300]}
    frames = sum(count for _, _, count in found)
    seconds = max(end for _, end, _ in found) - min(start for start, _, _ in found)
    if processes == 1:
        row["cpu_s_per_1000"] = round((time.process_time() - cpu) / frames * 1000, 3)
    return row | {"frames": frames, "fps": round(frames / seconds, 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip")
    parser.add_argument("--decoders", type=int, default=14)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=150, help="no further row is begun after this")
    parser.add_argument("--rows", nargs="+", help="these only, as decoder:loop:processes")
    options = parser.parse_args()
    started, rows = time.monotonic(), []
    plan = [("threaded", "decode", 1), ("threaded", "own", 1), ("threaded", "owner", 1), ("threaded", "frames", 1)]
    plan += [("threaded", how, count) for count in options.processes[1:] for how in ("decode", "own")]
    plan += [("simple", "decode", 1), ("core", "decode", 1), ("threaded", "decode", 1), ("simple", "own", 1)]
    if options.rows:
        plan = [(kind, how, int(count)) for kind, how, count in (row.split(":") for row in options.rows)]
    for kind, how, processes in plan:
        if time.monotonic() - started > options.seconds:
            break
        try:
            row = measure(options.clip, kind, how, options.decoders, options.batch, processes)
        except Exception as error:  # a loop that this version refuses: the others count
            row = {
                "loop": how,
                "decoder": kind,
                "processes": processes,
                "error": f"{type(error).__name__}: {error}"[:300],
            }
        rows.append(row)
        print(row, flush=True)
    best = max((row["fps"] for row in rows if row["loop"] == "decode" and "fps" in row), default=0)
    if not best:
        sys.exit("no decoder could be measured; nothing is recorded")
    for row in rows:
        if best and "fps" in row:
            row["of_decode_only"] = round(row["fps"] / best, 3)
    save("decoder_feed", {"clip": Path(options.clip).name, "rows": rows, "decode_only_fps": best},
         "CUDA kernel", "CUDA program")  # fmt: skip


if __name__ == "__main__":
    main()
