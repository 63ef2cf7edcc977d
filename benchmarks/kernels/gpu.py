"""The GPU rows of benchmarks.kernels: our launch plans in a CUDA graph, peers in graphs where they can be captured.

A row "plain call" is the public function, called from Python each time; "plan" repeats the launches of one such call.

Rows compare with CV-CUDA and PyTorch on the same buffers' contents; `opencv` compares with OpenCV on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import cupy as cp
import cv2
import numpy as np

from benchmarks.kernels.cpu_peers import PAD, Chains, Geometry
from benchmarks.kernels.gpu_after import AFTER
from benchmarks.kernels.gpu_peers import CvCuda, Torch
from benchmarks.kernels.gpu_timing import Call, Gpu, optional
from benchmarks.kernels.inputs import SIZES, frame_of, image
from benchmarks.kernels.rows import OURS, Row, collect, input_bytes, kernel, payload

SIZE = "1920x1080 -> 640 letterbox"
FOUR, FUSED = "CV-CUDA cvtcolor+resize+convertto+reformat", "CV-CUDA ResizeCropConvertReformat"


def surfaces(count: int, batch: int, width: int, height: int) -> tuple[list[Any], list[list[Any]]]:
    """`count` batches of NV12 surfaces (batch, 3H/2, W), and the Frames over them."""
    luma, chroma = image(width, height, "nv12")
    packed = np.concatenate((luma, chroma.reshape(-1, width)))
    stacks, frames = [], []
    for k in range(count):
        stack = cp.asarray(np.stack([np.roll(packed, 7 * (k * batch + b), axis=1) for b in range(batch)]))
        stacks.append(stack)
        frames.append([frame_of((s[:height], s[height:].reshape(-1, width // 2, 2)), "nv12") for s in stack])
    return stacks, frames


def options(geometry: Geometry, interpolation: str = "linear", std: float = 255.0) -> dict[str, Any]:
    return {"content": geometry.content, "interpolation": interpolation, "pad_value": float(PAD), "mean": (0.0,) * 3,
            "std": (std,) * 3, "channel_order": "rgb"}  # fmt: skip


def preprocess_call(frames: list[Any], out: Any, geometry: Geometry, interpolation: str = "linear") -> Call:
    """Our preprocess of a batch on the GPU: one launch."""
    chosen = options(geometry, interpolation)
    if len(frames) == 1:
        return partial(kernel("preprocess"), frames[0], out[0], **chosen)
    content = chosen.pop("content")
    return partial(kernel("preprocess_batch", "preprocess"), frames, out, contents=[content] * len(frames), **chosen)


def check_preprocess(
    call: Call, frame: Any, out: Any, geometry: Geometry, allowed: float, interpolation: str = "linear"
) -> float:
    """Largest difference to the float64 reference in grey levels; raises where it exceeds `allowed`."""
    from framefuse.kernels import reference

    call()
    cp.cuda.Device().synchronize()
    host = frame_of(tuple(cp.asnumpy(plane) for plane in frame.planes), frame.format.name)
    exact = np.empty((3, geometry.size[1], geometry.size[0]), np.float32)
    reference.preprocess(host, exact, **options(geometry, interpolation))
    worst = float(np.abs(cp.asnumpy(out).astype(np.float64) - exact).max() * 255)
    if not worst <= allowed:
        raise AssertionError(f"differs from the reference by {worst} grey levels, {allowed} are allowed")
    return worst


def preprocess_nv12(gpu: Gpu) -> Iterator[Row]:
    """NV12 -> FP16 NCHW letterbox at batch 1, 8 and 32, beside CV-CUDA's chain of four and its fused operator."""
    geometry = Geometry(*SIZES[SIZE])
    moved = input_bytes("nv12", 1920, 1080, geometry.content[2:])
    for batch in (1, 8, 32):
        size = 3 * 640 * 640 * 2
        ring = gpu.ring(int(batch * (moved["sectors"] + size)))
        stacks, frames = surfaces(ring, batch, 1920, 1080)
        outs = [cp.zeros((batch, 3, 640, 640), cp.float16) for _ in range(ring)]
        row = Row(f"preprocess_nv12, batch {batch}", f"NV12 {SIZE}, RGB float16 NCHW, batch {batch}")
        plain = [preprocess_call(frames[k], outs[k], geometry) for k in range(ring)]
        peers: dict[str, list[Call]] = {OURS: [gpu.plan(call) for call in plain]}
        row.error[OURS] = check_preprocess(plain[0], frames[0][-1], outs[0][-1], geometry, 0.1)
        _cvcuda_preprocess(gpu, row, peers, stacks, batch)
        _torch_preprocess(row, peers, geometry, batch)
        gpu.time(row, peers)
        if batch == 1:
            row.hold("us", row.us[OURS], at_most=4.0)
        planes, sectors = (batch * (moved[kind] + size) for kind in ("planes", "sectors"))
        row.moved(planes, sectors, copy=gpu.copy)
        if batch > 1:
            row.hold("times the floor (sectors)", row.us[OURS] / row.floor_us["sectors"], at_most=1.6)
        row.faster_than(FOUR, 6.0)
        row.faster_than(FUSED, 2.0)
        yield row


def _cvcuda_preprocess(gpu: Gpu, row: Row, peers: dict[str, list[Call]], stacks: list[Any], batch: int) -> None:
    """Stretched to 640x640, since CV-CUDA's resize fills its output: no letterbox, so nothing to pad."""
    count = min(len(stacks), 8)
    rgb = cp.empty((batch, 1080, 1920, 3), cp.uint8)
    small, floats = cp.empty((batch, 640, 640, 3), cp.uint8), cp.empty((batch, 640, 640, 3), cp.float32)
    outs = [cp.empty((batch, 3, 640, 640), cp.float32) for _ in range(count)]
    different = min(count, 2 + 24 // batch)
    bgrs = [cp.asarray(np.stack([image(1920, 1080, "bgr24", k)[0]] * batch)) for k in range(different)]
    optional(row, peers, FOUR, lambda: _chains(gpu, stacks[:count], rgb, small, floats, outs))
    optional(row, peers, FUSED, lambda: [CvCuda(gpu.stream).fused(bgrs[k % different], outs[k]) for k in range(count)])


def _chains(gpu: Gpu, stacks: list[Any], rgb: Any, small: Any, floats: Any, outs: list[Any]) -> list[Call]:
    cv = CvCuda(gpu.stream)
    return [cv.nv12_chain(stack[..., None], rgb, small, floats, out) for stack, out in zip(stacks, outs, strict=True)]


def _fused(gpu: Gpu, stacks: list[Any], outs: list[Any]) -> list[Call]:
    cv = CvCuda(gpu.stream)
    return [cv.fused(stack, out) for stack, out in zip(stacks, outs, strict=True)]


def _torch_preprocess(row: Row, peers: dict[str, list[Call]], geometry: Geometry, batch: int) -> None:
    bgr = cp.asarray(np.stack([image(1920, 1080, "bgr24")[0]] * batch))
    out = cp.empty((batch, 3, 640, 640), cp.float16)
    name = "PyTorch, BGR, eager operators"
    optional(row, peers, name, lambda: [Torch().letterbox(bgr, out, geometry.content)] * 2)


def preprocess_bgr(gpu: Gpu) -> Iterator[Row]:
    """BGR -> FP32 stretched to 640x640: the very work of CV-CUDA's fused operator."""
    geometry = Geometry((1920, 1080), (640, 640), "stretch")
    for batch in (1, 8):
        ring = gpu.ring(batch * (1920 * 1080 * 3 + 3 * 640 * 640 * 4))
        stacks = [cp.asarray(np.stack([image(1920, 1080, "bgr24", k)[0]] * batch)) for k in range(min(ring, 16))]
        outs = [cp.zeros((batch, 3, 640, 640), cp.float32) for _ in stacks]
        theirs = [cp.zeros_like(out) for out in outs]
        title = f"BGR 1920x1080 -> 640 stretch, RGB float32 NCHW, batch {batch}"
        row = Row(f"preprocess_bgr, stretch, batch {batch}", title)
        frames = [[frame_of((image,), "bgr24") for image in stack] for stack in stacks]
        calls = [preprocess_call(frames[k], outs[k], geometry) for k in range(len(stacks))]
        row.error[OURS] = check_preprocess(calls[0], frames[0][0], outs[0][0], geometry, 0.02)
        peers: dict[str, list[Call]] = {OURS: [gpu.plan(call) for call in calls]}
        optional(row, peers, FUSED, lambda: _fused(gpu, stacks, theirs))  # noqa: B023
        gpu.time(row, peers)
        if FUSED in row.us:
            row.error[FUSED] = float(cp.abs(theirs[0] - outs[0]).mean()) * 255
        row.faster_than(FUSED, 2.0)
        moved = input_bytes("bgr24", 1920, 1080, (640, 640))
        row.moved(*(batch * (moved[kind] + 3 * 640 * 640 * 4) for kind in ("planes", "sectors")), copy=gpu.copy)
        yield row


def opencv(gpu: Gpu) -> Iterator[Row]:
    """One BGR frame on the GPU against the best OpenCV chain on the host, with and without the upload of the frame.

    The work of the published figures (40.5x nearest, 25.4x bilinear): BGR 1080p to letterboxed float32 RGB planes.
    Wall clock, from the call in Python to the result on the GPU, of the public function and of its launch plan; OpenCV
    with one thread and with all.
    """
    geometry = Geometry(*SIZES[SIZE])
    (bgr,) = image(1920, 1080, "bgr24")
    pinned = cp.cuda.alloc_pinned_memory(bgr.nbytes)
    host = np.frombuffer(pinned, np.uint8, bgr.size).reshape(bgr.shape)
    host[:] = bgr
    device, out = cp.asarray(bgr), cp.zeros((1, 3, 640, 640), cp.float32)
    frame = frame_of((device,), "bgr24")
    for interpolation, published, flag in (("nearest", 40.5, cv2.INTER_NEAREST), ("linear", 25.4, cv2.INTER_LINEAR)):
        call = preprocess_call([frame], out, geometry, interpolation)
        title = f"BGR {SIZE}, RGB float32 NCHW, {interpolation}; OpenCV on the host's CPU"
        row = Row(f"opencv, {interpolation}", title)
        row.error[OURS] = check_preprocess(call, frame, out[0], geometry, 0.02, interpolation)
        gpu.once(call)
        plan = gpu.plan(call)

        def upload(run: Call = plan) -> None:
            device.set(host, stream=gpu.stream)
            run()

        chains = Chains(geometry)
        chains.interpolation = flag
        ways = chains.all()
        for threads, name in ((cv2.getNumberOfCPUs(), "OpenCV, all threads"), (1, "OpenCV, 1 thread")):
            cv2.setNumThreads(threads)  # not between the runs of one measurement: it makes new threads
            best = min(ways, key=lambda way: _seconds(ways[way], bgr))
            gpu.wall(row, {OURS: call, "framefuse, plan replayed": plan, "framefuse with upload": upload,
                           name: partial(ways[best], bgr)})  # fmt: skip
            row.how[name] = best
        device_row = Row("", "")
        gpu.time(device_row, {OURS: [plan] * 20})
        row.us["framefuse, GPU's clock"] = device_row.us[OURS]
        row.how[OURS] = "preprocess(frame, out, ...), wall clock"
        row.faster_than("OpenCV, 1 thread", published)
        yield row


def _seconds(chain: Callable[[Any], Any], bgr: Any) -> float:
    """Median of a few calls."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        chain(bgr)
        times.append(time.perf_counter() - start)
    return sorted(times)[4]


ROWS: dict[str, Callable[[Gpu], Iterator[Row]]] = {
    "preprocess_nv12": preprocess_nv12,
    "preprocess_bgr": preprocess_bgr,
    "opencv": opencv,
    **AFTER,
}


def run(wanted: list[str], *, runs: int, warmups: int, seconds: float = inf) -> dict[str, Any]:
    """All rows whose name contains one of `wanted`, as a payload for protocol.save."""
    cv2.setNumThreads(1)
    gpu = Gpu(runs, warmups)
    print(f"{gpu.name}: copy bandwidth {gpu.copy:.0f} GB/s, L2 cache {gpu.cache / 1e6:.0f} MB")
    rows = collect(ROWS, wanted, gpu, seconds=seconds)
    return payload(rows, gpu=gpu.name, copy_gb_s=gpu.copy, l2_bytes=gpu.cache)
