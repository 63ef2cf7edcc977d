"""The GPU rows of benchmarks.kernels for what comes after the model, and for whole images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy as cp
import cv2
import numpy as np

from benchmarks.kernels.gpu_peers import CvCuda, Torch
from benchmarks.kernels.gpu_timing import Call, Gpu, optional
from benchmarks.kernels.inputs import class_scores, detections, frame_of, image, instances
from benchmarks.kernels.rows import OURS, Row, kernel

CONF, IOU, MAX_DET = 0.25, 0.7, 300
PLAN, PLAIN = "framefuse, plan replayed from Python", "framefuse, plain call from Python"
MAP = (1.0, 1.0, 0.0, 140.0, 3.0, 3.0, 1920.0, 1080.0)
"""Of 1080p letterboxed to 640: units, offset, source pixels per model pixel, size of the source."""


def like(found: Any) -> Any:
    """Arrays on the GPU for `detections` to write to, as it made them on the host."""
    return type(found)(*(cp.zeros(array.shape, array.dtype) for array in found))


def check_found(found: Any, expected: Any) -> None:
    """Raises unless the boxes on the GPU are those of the CPU: counts and classes equal, numbers to rounding."""
    mine = type(found)(*(cp.asnumpy(array) for array in found))
    np.testing.assert_array_equal(mine.counts, expected.counts)
    for row, count in enumerate(expected.counts):
        np.testing.assert_array_equal(mine.classes[row, :count], expected.classes[row, :count])
        np.testing.assert_array_equal(mine.scores[row, :count], expected.scores[row, :count])
        np.testing.assert_allclose(mine.boxes[row, :count], expected.boxes[row, :count], atol=1e-3)


def postprocess(gpu: Gpu) -> Iterator[Row]:
    """(N, 84, 8400) to boxes, batch 1 and 8, beside torchvision; then end to end beside our own CPU path."""
    call = kernel("detections", "boxes")
    fixed = {"layout": "yolov8", "conf": CONF, "iou": IOU, "max_det": MAX_DET}
    times: dict[tuple[int, int], float] = {}
    for candidates, bound in ((50, 20.0), (200, 20.0), (500, 20.0), (8000, 80.0)):
        for batch in (1, 8):
            host = np.stack([detections(candidates, seed=k) for k in range(batch)])
            ring = gpu.ring(host.nbytes)
            maps = np.tile(np.array(MAP, np.float32), (batch, 1))
            outputs = [cp.asarray(host) for _ in range(ring)]
            expected = call([host], maps=maps, **fixed)
            founds = [like(expected) for _ in range(ring)]
            table = cp.asarray(maps)
            calls = [partial(call, [outputs[k]], maps=table, out=founds[k], **fixed) for k in range(ring)]
            row = Row(f"postprocess, {candidates} candidates, batch {batch}",
                      f"({batch}, 84, 8400) float32, {candidates} candidates an image")  # fmt: skip
            gpu.once(calls[0])
            check_found(founds[0], expected)
            peers: dict[str, list[Call]] = {OURS: [gpu.plan(call) for call in calls]}
            torch_ = "PyTorch filter + torchvision batched_nms"
            alone = "torchvision.ops.nms of the candidates alone"
            optional(row, peers, torch_, lambda: [Torch().nms(outputs[0], CONF, IOU, MAX_DET)] * 2)  # noqa: B023
            if batch == 1:
                optional(row, peers, alone, lambda: _nms_alone(host[0]))  # noqa: B023
            gpu.time(row, peers, graph={torch_: False, alone: False})
            times[candidates, batch] = row.us[OURS]
            if batch == 1:
                row.hold("us", row.us[OURS], at_most=bound)
            else:
                row.hold("times batch 1", row.us[OURS] / times[candidates, 1], at_most=2.0)
            row.faster_than([name for name in peers if name != OURS] or torch_, 1.0)
            row.moved(host.nbytes, copy=gpu.copy)
            yield row
        yield _end_to_end(gpu, call, fixed, candidates)


def _nms_alone(output: Any) -> list[Call]:
    """torchvision's NMS of candidates that were found before."""
    best = output[4:].max(0)
    keep = best > CONF
    centre, size = output[:2, keep], output[2:4, keep]
    boxes = np.concatenate((centre - size / 2, centre + size / 2)).T.astype(np.float32)
    return [Torch().nms_alone(cp.asarray(boxes), cp.asarray(best[keep]), IOU)] * 2


def _end_to_end(gpu: Gpu, call: Callable[..., Any], fixed: dict[str, Any], candidates: int) -> Row:
    """From raw outputs on the GPU to boxes on the host: our GPU kernels and a copy of the boxes, against a copy of the
    outputs and our CPU kernels. Both copies go to pinned memory."""
    host = detections(candidates)[None]
    maps = np.array([MAP], np.float32)
    device, found = cp.asarray(host), like(call([host], maps=maps, **fixed))
    pinned = [_pinned(array.shape, array.dtype) for array in found]
    landing = _pinned(host.shape, host.dtype)
    run, how = gpu.captured([gpu.plan(partial(call, [device], maps=cp.asarray(maps), out=found, **fixed))])

    def on_gpu() -> None:
        run()
        for array, target in zip(found, pinned, strict=True):
            array.get(stream=gpu.stream, out=target, blocking=False)
        gpu.stream.synchronize()

    def on_cpu() -> None:
        device.get(stream=gpu.stream, out=landing, blocking=False)
        gpu.stream.synchronize()
        call([landing], maps=maps, **fixed)

    row = Row(f"postprocess end to end, {candidates} candidates", "raw outputs on the GPU to boxes on the host")
    cpu, alone = "our CPU kernels after a copy", "our CPU kernels alone, outputs on the host"
    gpu.wall(row, {OURS: on_gpu, cpu: on_cpu, alone: partial(call, [host], maps=maps, **fixed)})
    row.how[OURS] = f"{how}, wall clock"
    row.faster_than(cpu, 1.0)
    return row


def _pinned(shape: tuple[int, ...], dtype: Any) -> Any:
    size = int(np.prod(shape))
    memory = cp.cuda.alloc_pinned_memory(size * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, size).reshape(shape)


def warp_affine(gpu: Gpu) -> Iterator[Row]:
    """A rotation with some zoom of 1080p RGB, uint8, batch 1 and 8."""
    call = kernel("warp_affine", "geometry")
    (rgb,) = image(1920, 1080, "rgb24")
    matrix = cv2.getRotationMatrix2D((960, 540), 7.0, 0.9)
    inverse = cv2.invertAffineTransform(matrix)
    exact = call(rgb, matrix)
    for batch in (1, 8):
        ring = gpu.ring(2 * rgb.nbytes * batch, most=16)
        images = [cp.asarray(np.stack([rgb] * batch)) for _ in range(ring)]
        outs, theirs = ([cp.zeros_like(image) for image in images] for _ in range(2))
        row = Row(f"warp_affine, batch {batch}", f"1920x1080 RGB uint8, bilinear, constant border, batch {batch}")
        plans = [gpu.plan(partial(call, images[k], matrix, outs[k])) for k in range(ring)]
        peers: dict[str, list[Call]] = {OURS: plans}
        gpu.once(peers[OURS][0])
        worst = int(np.abs(cp.asnumpy(outs[0][-1]).astype(int) - exact).max())
        row.error[OURS] = worst
        if worst > 1:
            raise AssertionError(f"warp_affine differs from the CPU by {worst}")
        name, torch_ = "CV-CUDA warp_affine", "PyTorch grid_sample, float32"
        planar = cp.asarray(np.stack([rgb.transpose(2, 0, 1).astype(np.float32)] * batch))
        optional(row, peers, name, lambda: _cvcuda_warps(gpu, images, matrix, theirs))  # noqa: B023
        optional(row, peers, torch_, lambda: [Torch().warp(planar, inverse, cp.empty_like(planar))] * 2)  # noqa: B023
        gpu.time(row, peers)
        if name in row.us:
            row.error[name] = float(np.abs(cp.asnumpy(theirs[0][0]).astype(int) - exact).mean())
        row.faster_than(name, 2.0)
        row.faster_than(torch_, 2.0)
        row.moved(2 * rgb.nbytes * batch, copy=gpu.copy)
        yield row


def _cvcuda_warps(gpu: Gpu, images: list[Any], matrix: Any, outs: list[Any]) -> list[Call]:
    cv = CvCuda(gpu.stream)
    return [cv.warp(image, matrix.astype(np.float32), out) for image, out in zip(images, outs, strict=True)]


def yuv_to_rgb(gpu: Gpu) -> Iterator[Row]:
    """1080p NV12 to float32 RGB in 0..1, planar; a batch is one launch."""
    call = kernel("yuv_to_rgb", "colour")
    planes = image(1920, 1080, "nv12")
    packed = np.concatenate((planes[0], planes[1].reshape(-1, 1920)))
    exact = call(frame_of(planes, "nv12"), np.empty((3, 1080, 1920), np.float32), layout="CHW", scale=1 / 255)
    for batch in (1, 8):
        moved = batch * (packed.nbytes + 3 * 1920 * 1080 * 4)
        ring = gpu.ring(moved, most=8)
        stacks = [cp.asarray(np.stack([packed] * batch)) for _ in range(ring)]
        outs = [cp.zeros((batch, 3, 1080, 1920), cp.float32) for _ in range(ring)]
        frames = [[frame_of((s[:1080], s[1080:].reshape(540, 960, 2)), "nv12") for s in stack] for stack in stacks]

        row = Row(f"yuv_to_rgb, batch {batch}", f"NV12 1920x1080 to RGB float32, planar, batch {batch}")
        peers: dict[str, list[Call]] = {
            OURS: [gpu.plan(partial(call, frames[k], outs[k], layout="CHW", scale=1 / 255)) for k in range(ring)]
        }
        gpu.once(peers[OURS][0])
        worst = float(np.abs(cp.asnumpy(outs[0][-1]) - exact).max() * 255)
        row.error[OURS] = worst
        if not worst <= 0.02:
            raise AssertionError(f"yuv_to_rgb differs from the CPU by {worst} grey levels")
        name, torch_ = "CV-CUDA cvtcolor+convertto", "PyTorch operators"
        optional(row, peers, name, lambda: _cvcuda_to_rgb(gpu, stacks))  # noqa: B023
        optional(row, peers, torch_, lambda: [Torch().to_rgb(stacks[0], cp.empty_like(outs[0]))] * 2)  # noqa: B023
        gpu.time(row, peers)
        row.moved(moved, copy=gpu.copy)
        if batch == 8:
            row.hold("share of the copy bandwidth", row.bandwidth["planes_share_of_copy"], at_least=0.8)
        row.faster_than([name, torch_], 1.0)
        yield row


def _cvcuda_to_rgb(gpu: Gpu, stacks: list[Any]) -> list[Call]:
    cv, (batch, rows, width) = CvCuda(gpu.stream), stacks[0].shape
    shape = (batch, rows * 2 // 3, width, 3)
    rgb, floats = cp.empty(shape, cp.uint8), cp.empty(shape, cp.float32)
    return [cv.to_rgb(stack[..., None], rgb, floats) for stack in stacks]


def argmax_smooth(gpu: Gpu) -> Iterator[Row]:
    """Arg-max over 21 classes at 512x512, then a 7x7 mean of the mask of one class."""
    argmax, blur = kernel("argmax", "masks"), kernel("box_blur", "masks")
    host = class_scores()
    expected = blur(argmax(host, foreground=1), 3)
    ring = gpu.ring(host.nbytes)
    scores = [cp.asarray(host) for _ in range(ring)]
    masks, outs = ([cp.zeros((1, 512, 512), cp.uint8) for _ in range(ring)] for _ in range(2))

    def whole(k: int) -> None:
        argmax(scores[k], foreground=1, out=masks[k])
        blur(masks[k], 3, out=outs[k])

    row = Row("argmax_smooth", "(1, 21, 512, 512) float32 to a smoothed uint8 mask, 7x7 mean")
    peers: dict[str, list[Call]] = {OURS: [gpu.plan(partial(whole, k)) for k in range(ring)]}
    gpu.once(peers[OURS][0])
    row.error[OURS] = float(np.abs(cp.asnumpy(outs[0]).astype(int) - expected).max())
    if row.error[OURS] > 0:
        raise AssertionError(f"the mask differs from the CPU by {row.error[OURS]}")
    torch_ = "PyTorch argmax + avg_pool2d"
    theirs = cp.zeros((1, 512, 512), cp.uint8)
    optional(row, peers, torch_, lambda: [Torch().argmax_smooth(each, theirs, 7) for each in scores])
    gpu.time(row, peers)
    if torch_ in row.us:
        row.error[torch_] = float(np.abs(cp.asnumpy(theirs).astype(int) - expected).max())
    row.faster_than(torch_, 3.0)
    row.moved(host.nbytes + 512 * 512, copy=gpu.copy)
    yield row


def instance_masks(gpu: Gpu) -> Iterator[Row]:
    """100 instances from prototypes to RLE at 1080p on the GPU; the peer makes masks, without RLE."""
    call = kernel("instance_runs", "instances")
    host = instances()
    content, size = (0, 35, 160, 90), (1080, 1920)
    arrays = [cp.asarray(array) for array in host]
    mine = partial(call, *arrays, size, content=content, workspace=kernel("Workspace", "instances")())
    result: list[Any] = []
    gpu.once(lambda: result.append(mine()))
    if result[0].to_coco() != call(*host, size, content=content).to_coco():
        raise AssertionError("the RLE of the GPU differs from the CPU's")
    row = Row("instance_masks", "100 boxes, prototypes 32x160x160, to 1920x1080 and RLE")
    peers: dict[str, list[Call]] = {OURS: [gpu.plan(mine)] * 4}
    torch_ = "PyTorch masks, without RLE"
    optional(row, peers, torch_, lambda: [Torch().instance_masks(*arrays, size, content)] * 2)
    gpu.time(row, peers)
    row.hold("us", row.us[OURS], at_most=1000.0)
    row.faster_than(torch_, 1.0)
    yield row


def suppression(gpu: Gpu) -> Iterator[Row]:
    """Boxes and scores alone, to the indices that are kept; after 10,000 random cases gave the same as torchvision."""
    call = kernel("nms", "boxes")
    row = Row("nms, parity", "10,000 random cases: ties, copies, boxes without area; classes; thresholds 0 to 1")
    row.error["torchvision.ops.nms"] = _differing_cases(call, 10_000)
    row.note = "differs by: cases whose kept boxes are not those of torchvision.ops.nms, class by class"
    if row.error["torchvision.ops.nms"]:
        raise AssertionError(f"{row.error} of 10,000 cases differ")
    yield row
    rng = np.random.default_rng(5)
    for count in (50, 500, 5_000, 30_000):
        corner, size = rng.uniform(0, 640, (count, 2)), rng.uniform(8, 200, (count, 2))
        host = np.concatenate((corner, corner + size), 1).astype(np.float32)
        scores = rng.permutation(np.linspace(0, 1, count, dtype=np.float32))
        boxes, points = cp.asarray(host), cp.asarray(scores)
        out = cp.zeros(count, np.int32), cp.zeros(1, np.int32)
        mine = partial(call, boxes, points, iou=IOU, out=out)
        gpu.once(mine)
        expected = Torch().kept(host, scores, IOU)
        np.testing.assert_array_equal(out[0][: int(out[1][0])].get(), expected)
        row = Row(f"nms, {count} boxes", f"{count} boxes and scores to {len(expected)} indices, all of them")
        peers: dict[str, list[Call]] = {OURS: [gpu.plan(mine)] * 4}
        name = "torchvision.ops.nms"
        peers[name] = [Torch().nms_alone(boxes, points, IOU)] * 2
        gpu.time(row, peers, graph={name: False})
        row.faster_than(name, 1.0)
        yield row


def _differing_cases(call: Callable[..., Any], cases: int) -> int:
    """torchvision leaves the order of equal scores open: it is given the boxes in ours, and falling scores.

    Its kernel for the CPU, which divides as documented; that for CUDA fuses steps and decides some ties differently.
    """
    rng, torch = np.random.default_rng(11), Torch()
    differing = 0
    for _ in range(cases):
        count = int(rng.integers(1, 60))
        corner = rng.integers(0, 40, (count, 2)) * rng.choice([0.25, 1.0, 7.3])
        boxes = np.concatenate((corner, corner + rng.integers(0, 30, (count, 2)) * 0.5), 1).astype(np.float32)
        boxes[: count // 4] = boxes[count // 4]
        scores = (rng.integers(0, 8, count) / 8).astype(np.float32)
        classes = rng.integers(0, 3, count)
        iou = float(rng.choice([0.0, 0.3, 0.45, 0.5, 0.7, 1.0]))
        order = np.argsort(-scores, kind="stable")
        kept = np.zeros(count, bool)
        for name in np.unique(classes):
            index = order[classes[order] == name]
            falling = np.arange(len(index), 0, -1, dtype=np.float32)
            kept[index[torch.kept(boxes[index], falling, iou)]] = True
        mine = call(cp.asarray(boxes), cp.asarray(scores), cp.asarray(classes), iou=iou).get()
        differing += mine.tolist() != order[kept[order]].tolist()
    return differing


AFTER: dict[str, Callable[[Gpu], Iterator[Row]]] = {
    "postprocess": postprocess,
    "suppression": suppression,
    "warp_affine": warp_affine,
    "yuv_to_rgb": yuv_to_rgb,
    "argmax_smooth": argmax_smooth,
    "instance_masks": instance_masks,
}
