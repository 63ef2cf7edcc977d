"""The CPU rows of benchmarks.kernels: one thread unless a row says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks import protocol
from benchmarks.kernels.cpu_peers import (
    PAD,
    Chains,
    Geometry,
    Swscale,
    Usual,
    masks_to_rle,
    nms_filter,
    smoothed_argmax,
)
from benchmarks.kernels.inputs import SEED, SIZES, class_scores, detections, frame_of, image, instances
from benchmarks.kernels.rows import OURS, Row, collect, input_bytes, kernel, payload
from framefuse.frame import Frame


class Run:
    """How to measure, and the bandwidth to compare with."""

    def __init__(self, runs: int, warmups: int) -> None:
        self.runs, self.warmups = runs, warmups
        self.copy = copy_bandwidth()

    def measure(self, peers: Mapping[str, Callable[[], object]]) -> dict[str, protocol.Measurement]:
        return protocol.measure(peers, runs=self.runs, warmups=self.warmups, seed=SEED)


def copy_bandwidth(size: int = 256 << 20) -> float:
    """GB/s that one thread copies between arrays larger than the cache, bytes read plus bytes written."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    measured = protocol.measure({"copy": lambda: np.copyto(target, source)}, warmups=2, runs=7)
    return 2 * size / measured["copy"].wall.median / 1e6


def ours(
    frame: Frame, geometry: Geometry, dtype: Any = np.float32, interpolation: str = "linear", pad: bool = False
) -> tuple[Callable[..., Any], NDArray[Any]]:
    """Our preprocess of a frame with its options given, and the array that it writes.

    Without `pad` the padding is there already and is left alone, as the best chains of the peers do.
    """
    out = np.empty((3, geometry.size[1], geometry.size[0]), dtype)
    std = (1.0,) * 3 if out.dtype == np.uint8 else (255.0,) * 3
    call = partial(kernel("preprocess"), frame, out, content=geometry.content, interpolation=interpolation,
                   pad_value=float(PAD), mean=(0.0,) * 3, std=std, channel_order="rgb")  # fmt: skip
    call()
    return call if pad else partial(call, pad_value=None), out


def levels(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Mean absolute difference in grey levels of two images in 0..1."""
    return float(np.abs(one.astype(np.float64) - other.reshape(one.shape)).mean() * 255)


def preprocess_bgr(run: Run) -> Iterator[Row]:
    """BGR to RGB float32 at every size, beside the best and the best-known OpenCV chain and the usual way."""
    for size, (source, target, fit) in SIZES.items():
        geometry = Geometry(source, target, fit)
        (bgr,) = planes = image(*source, "bgr24")
        call, out = ours(frame_of(planes, "bgr24"), geometry)
        chains, usual = Chains(geometry), Usual(geometry)
        row = Row(f"preprocess_bgr, {size}", f"BGR {size}, RGB float32 NCHW")
        call()
        # OpenCV rounds to 8 bits after resizing; ours does not: up to half a level, on average a quarter.
        row.error = {name: levels(out, chain(bgr)) for name, chain in chains.all().items()}
        row.error["usual way"] = levels(out, usual(bgr))
        short = _short_run(chains, bgr)
        row.note = (
            "All chains in a short run, us: " + ", ".join(f"{name} {us:.0f}" for name, us in short.items()) + ". "
        )
        best, known = min(short, key=lambda name: short[name]), next(iter(short))
        peers: dict[str, Callable[[], object]] = {OURS: call, "usual way": partial(usual, bgr)}
        peers["framefuse, padding too"] = ours(frame_of(planes, "bgr24"), geometry, pad=True)[0]
        peers |= {name: partial(chains.all()[name], bgr) for name in {best, known}}
        row.record(run.measure(peers))
        row.faster_than([best, known], 2.2)
        row.faster_than("usual way", 3.0, "framefuse, padding too")
        moved = input_bytes("bgr24", *source, geometry.content[2:])
        row.moved(moved["planes"] + out.nbytes, moved["sectors"] + out.nbytes, copy=run.copy)
        yield row


def preprocess_yuv(run: Run) -> Iterator[Row]:
    """I420 and NV12 beside swscale to BGR and the best chain, and beside OpenCV's own conversion."""
    for kind, at_least in (("yuv420p", 2.4), ("nv12", 6.0)):
        for size, (source, target, fit) in SIZES.items():
            geometry = Geometry(source, target, fit)
            planes = image(*source, kind)
            call, out = ours(frame_of(planes, kind), geometry)
            sws, chains = Swscale(planes, kind), Chains(geometry)
            row = Row(f"preprocess_{kind}, {size}", f"{kind} {size}, RGB float32 NCHW")
            call()
            best = _best_chain(chains, sws.bgr())
            peers: dict[str, Callable[[], object]] = {OURS: call}
            peers["swscale bgr24 + best chain"] = partial(_then, sws.bgr, best)
            row.error["swscale bgr24 + best chain"] = levels(out, best(sws.bgr()))
            if all(n % 2 == 0 for n in source):
                stacked = np.concatenate([plane.ravel() for plane in planes]).reshape(-1, source[0])
                code = cv2.COLOR_YUV2BGR_I420 if kind == "yuv420p" else cv2.COLOR_YUV2BGR_NV12
                bgr = np.empty((source[1], source[0], 3), np.uint8)
                converted = partial(cv2.cvtColor, stacked, code, bgr)
                peers["opencv cvtColor + best chain"] = partial(_then, converted, best)
                row.error["opencv cvtColor + best chain"] = levels(out, best(converted()))  # type: ignore[arg-type]
            row.record(run.measure(peers))
            row.faster_than("swscale bgr24 + best chain", at_least)
            row.faster_than("opencv cvtColor + best chain", 1.0)
            moved = input_bytes(kind, *source, geometry.content[2:])
            row.moved(moved["planes"] + out.nbytes, moved["sectors"] + out.nbytes, copy=run.copy)
            yield row


def _then(first: Callable[[], Any], second: Callable[[Any], Any]) -> None:
    second(first())


def _short_run(chains: Chains, bgr: NDArray[np.uint8]) -> dict[str, float]:
    """Microseconds of each chain, beside each other."""
    peers = {name: partial(chain, bgr) for name, chain in chains.all().items()}
    return {name: m.wall.median * 1e3 for name, m in protocol.measure(peers, warmups=3, runs=15).items()}


def _best_chain(chains: Chains, bgr: NDArray[np.uint8]) -> Callable[[NDArray[np.uint8]], Any]:
    short = _short_run(chains, bgr)
    return chains.all()[min(short, key=lambda name: short[name])]


def preprocess_dtype_threads(run: Run) -> Iterator[Row]:
    """uint8 output against float32, two threads against one, nearest against linear."""
    source, target, fit = SIZES["1920x1080 -> 640 letterbox"]
    geometry = Geometry(source, target, fit)
    with ThreadPoolExecutor(2) as pool:
        for kind in ("bgr24", "yuv420p", "nv12"):
            frame = frame_of(image(*source, kind), kind)
            (floats, _), (bytes_, _) = ours(frame, geometry, pad=True), ours(frame, geometry, np.uint8, pad=True)
            nearest, _ = ours(frame, geometry, interpolation="nearest", pad=True)
            middle = target[1] // 2

            def halves(call: Callable[..., Any] = floats, middle: int = middle) -> None:
                other = pool.submit(call, rows=(0, middle))
                call(rows=(middle, target[1]))
                other.result()

            row = Row(f"preprocess_{kind}, dtype and threads", f"{kind} 1920x1080 -> 640 letterbox, ours")
            row.record(run.measure({OURS: floats, "uint8": bytes_, "nearest": nearest, "2 threads": halves}))
            row.hold("float32 / uint8", row.us[OURS] / row.us["uint8"], at_least=1.6)
            row.hold("1 thread / 2 threads", row.us[OURS] / row.us["2 threads"], at_least=1.6)
            yield row


def postprocess_yolo(run: Run) -> Iterator[Row]:
    """(1, 84, 8400) to boxes in source pixels, beside a vectorised filter with cv2.dnn.NMSBoxesBatched."""
    from framefuse.postprocess import postprocess
    from framefuse.preprocess import Preprocess

    placement = Preprocess().place(1920, 1080)
    for candidates, at_least in ((50, 2.5), (200, 3.0), (500, 3.0), (5000, 10.0)):
        output = detections(candidates)
        call = partial(postprocess, [output[None]], "yolov8", [placement], conf=0.25, iou=0.7, max_det=300)
        peer = partial(nms_filter, output, 0.25, 0.7, 300)
        found, (boxes, scores, _) = call(), peer()
        count = int(found.counts[0])
        row = Row(f"postprocess, {candidates} candidates", f"(1, 84, 8400), {candidates} candidates, {count} kept")
        if len(scores) == count:
            mapped = (boxes - np.tile(placement.offset, 2)) / np.tile(placement.scale, 2)
            theirs = mapped.clip(0, np.tile(placement.source, 2))[np.argsort(-scores, kind="stable")]
            row.error["opencv filter+NMSBoxesBatched"] = float(np.abs(theirs - found.boxes[0, :count]).max())
        else:
            row.note = f"OpenCV keeps {len(scores)}, we keep {count}"
        row.record(run.measure({OURS: call, "opencv filter+NMSBoxesBatched": peer}))
        row.faster_than("opencv filter+NMSBoxesBatched", at_least)
        row.moved(output.nbytes, copy=run.copy)
        yield row


def warp(run: Run) -> Iterator[Row]:
    """A rotation with some zoom of a 1080p RGB image, uint8, beside cv2.warpAffine into an existing array."""
    call = kernel("warp_affine", "geometry")
    (rgb,) = image(1920, 1080, "rgb24")
    matrix = cv2.getRotationMatrix2D((960, 540), 7.0, 0.9)
    out, theirs = np.empty_like(rgb), np.empty_like(rgb)
    peer = partial(cv2.warpAffine, rgb, matrix, (1920, 1080), theirs, cv2.INTER_LINEAR, cv2.BORDER_CONSTANT)
    call(rgb, matrix, out)
    peer()
    row = Row("warp_affine", "1920x1080 RGB uint8, bilinear, constant border", note=f"OpenCV {cv2.__version__}.")
    row.error["cv2.warpAffine"] = float(np.abs(out.astype(int) - theirs).mean())
    row.record(run.measure({OURS: partial(call, rgb, matrix, out), "cv2.warpAffine": peer}))
    row.faster_than("cv2.warpAffine", 1.0)
    row.moved(2 * rgb.nbytes, copy=run.copy)
    yield row


def yuv_to_rgb(run: Run) -> Iterator[Row]:
    """1080p YUV to RGB float32 in 0..1, planar, beside swscale to float planes and to rgb24 with OpenCV's scaling."""
    call = kernel("yuv_to_rgb", "colour")
    for kind in ("yuv420p", "nv12"):
        planes = image(1920, 1080, kind)
        sws = Swscale(planes, kind)
        out, theirs = np.empty((3, 1080, 1920), np.float32), np.empty((3, 1080, 1920), np.float32)
        split = [np.empty((1080, 1920), np.uint8) for _ in range(3)]
        ours_ = partial(call, frame_of(planes, kind), out, layout="CHW", scale=1 / 255)

        def packed(sws: Swscale = sws, theirs: Any = theirs, split: Any = split) -> None:
            (plane,) = sws("rgb24")
            cv2.split(plane.reshape(1080, 1920, 3), split)
            for k in range(3):
                cv2.addWeighted(split[k], 1 / 255, split[k], 0, 0, dst=theirs[k], dtype=cv2.CV_32F)

        peers: dict[str, Callable[[], object]] = {OURS: ours_, "swscale rgb24 + opencv split and scale": packed}
        peers["swscale gbrpf32le"] = partial(sws, "gbrpf32le")
        ours_()
        packed()
        row = Row(f"yuv_to_rgb, {kind}", f"{kind} 1920x1080 to RGB float32, planar")
        row.error["swscale rgb24 + opencv split and scale"] = levels(out, theirs)
        row.record(run.measure(peers))
        # The target is swscale doing the same work; OpenCV's arithmetic after its 8-bit conversion is a peer beside it.
        row.faster_than("swscale gbrpf32le", 2.0)
        row.faster_than("swscale rgb24 + opencv split and scale", 1.0)
        row.moved(1.5 * 1920 * 1080 + out.nbytes, copy=run.copy)
        yield row


def masks(run: Run) -> Iterator[Row]:
    """Arg-max over 21 classes at 512x512, then a 7x7 mean of the mask of one class, beside numpy."""
    argmax, blur = kernel("argmax", "masks"), kernel("box_blur", "masks")
    scores = class_scores()
    mask, out = np.empty((1, 512, 512), np.uint8), np.empty((1, 512, 512), np.uint8)

    def ours_() -> None:
        argmax(scores, foreground=1, out=mask)
        blur(mask, 3, out=out)

    ours_()
    row = Row("argmax_smooth", "(1, 21, 512, 512) float32 to a smoothed uint8 mask, 7x7 mean")
    peers = {OURS: ours_, **{f"numpy argmax + {way} mean": partial(smoothed_argmax, scores[0], 1, 3, way)
                             for way in ("numpy", "opencv")}}  # fmt: skip
    for name, peer in list(peers.items())[1:]:
        row.error[name] = float(np.abs(peer().astype(int) - out[0]).max())  # type: ignore[attr-defined]
    row.record(run.measure(peers))
    row.faster_than(list(peers)[1:], 3.0)
    row.moved(scores.nbytes + out.nbytes, copy=run.copy)
    yield row


def instance_masks(run: Run) -> Iterator[Row]:
    """100 instances from prototypes to COCO RLE at 1080p, beside numpy, OpenCV and pycocotools."""
    call = kernel("instance_runs", "instances")
    prototypes, coefficients, boxes = instances()
    content, size = (0, 35, 160, 90), (1080, 1920)

    def ours_() -> Any:
        return call(prototypes, coefficients, boxes, size, content=content).to_coco()

    peers: dict[str, Callable[[], Any]] = {OURS: ours_}
    for way in ("whole", "cropped"):
        peers[f"numpy + opencv + pycocotools, {way} masks"] = partial(
            masks_to_rle, prototypes, coefficients, boxes, size, content, whole=way == "whole"
        )
    row = Row("instance_masks", "100 boxes, prototypes 32x160x160, to 1920x1080 and COCO RLE")
    from pycocotools import mask as coco

    mine = ours_()
    for name, peer in list(peers.items())[1:]:
        wrong = [int((coco.decode(a) != coco.decode(b)).sum()) for a, b in zip(mine, peer(), strict=True)]
        row.error[name] = sum(wrong) / max(1, int(coco.area(mine).sum()))
    row.record(run.measure(peers))
    row.faster_than(list(peers)[1:], 5.0)
    yield row


ROWS: dict[str, Callable[[Run], Iterator[Row]]] = {
    "preprocess_bgr": preprocess_bgr,
    "preprocess_yuv": preprocess_yuv,
    "preprocess_dtype_threads": preprocess_dtype_threads,
    "postprocess": postprocess_yolo,
    "warp_affine": warp,
    "yuv_to_rgb": yuv_to_rgb,
    "argmax_smooth": masks,
    "instance_masks": instance_masks,
}


def run(wanted: list[str], *, runs: int, warmups: int, seconds: float = inf) -> dict[str, Any]:
    """All rows whose name contains one of `wanted`, as a payload for protocol.save."""
    cv2.setNumThreads(1)
    state = Run(runs, warmups)
    print(f"copy bandwidth of one thread: {state.copy:.1f} GB/s")
    rows = collect(ROWS, wanted, state, seconds=seconds)
    return payload(rows, copy_gb_s=state.copy, opencv=cv2.__version__)
