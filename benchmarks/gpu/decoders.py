"""How many frames a second NVDEC's decoders give alone: frames are fetched and forgotten. Rows of benchmarks.gpu.files.

Two ways of PyNvVideoCodec: `threaded` (ThreadedDecoder, which decodes ahead) and `core` (demuxer and decoder, packet by
packet). Each stream is decoded to its end; the clock runs from the moment when
all decoders have given their first batch.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any


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
    decoder = nvc.ThreadedDecoder(clip, buffer_size=2 * batch, **common)
    left = len(decoder)
    while left > 0 and (frames := decoder.get_batch_frames(min(batch, left))):
        left -= len(frames)
        yield frames
    decoder.end()


def consume(clip: str, kind: str, decoders: int, batch: int, ready: Any) -> tuple[float, float, int]:
    """Run decoders in threads; (start, end, frames) in the clock that processes share."""
    counts, errors = [0] * decoders, list[str]()
    gate, opening = threading.Barrier(decoders + 1), threading.Lock()

    def decode(number: int) -> None:
        try:
            with opening:  # one after the other: imports, contexts and modules are set up here
                stream = batches(clip, kind, batch)
                next(stream)
            gate.wait()
            gate.wait()
            for frames in stream:
                counts[number] += len(frames)
        except Exception as error:  # into the result: the other decoders go on
            errors.append(f"{type(error).__name__}: {error}")
            gate.abort()

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(decoders)]
    for thread in threads:
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
    if errors:
        raise RuntimeError("; ".join(sorted(set(errors)))[:500])
    return start, end, sum(counts)


def child(clip: str, kind: str, decoders: int, batch: int, barrier: Any, results: Any) -> None:
    """One of several processes."""
    try:
        results.put(consume(clip, kind, decoders, batch, barrier.wait))
    except Exception as error:
        barrier.abort()
        results.put(f"{type(error).__name__}: {error}")


def measure(clip: str, kind: str, decoders: int, batch: int, processes: int) -> dict[str, Any]:
    """Frames a second of all decoders together."""
    share = [decoders // processes + (number < decoders % processes) for number in range(processes)]
    if processes == 1:
        found: list[Any] = [consume(clip, kind, decoders, batch, lambda: None)]
    else:
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(processes), context.Queue()
        children = [context.Process(target=child, args=(clip, kind, count, batch, barrier, results)) for count in share]
        for process in children:
            process.start()
        try:
            found = [results.get(timeout=40) for _ in children]
        finally:
            for process in children:
                process.join(5)
                process.kill()
    row: dict[str, Any] = {"decoder": kind, "processes": processes, "batch": batch}
    if failed := [value for value in found if isinstance(value, str)]:
        return row | {"error": failed[0][:300]}
    frames = sum(count for _, _, count in found)
    seconds = max(end for _, end, _ in found) - min(start for start, _, _ in found)
    return row | {"frames": frames, "fps": round(frames / seconds, 1)}
