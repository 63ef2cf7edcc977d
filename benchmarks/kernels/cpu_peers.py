"""What a user would write on the CPU instead of calling a kernel: OpenCV, numpy, swscale through PyAV, pycocotools.

Each peer is a class or function whose buffers exist before it is timed, where its library allows that. Nothing here is
taken from another project; what others do is described and written anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
PAD = 114


class Geometry:
    """Where an image of `source` (width, height) lands in a square or stretched input of `size` pixels."""

    def __init__(self, source: tuple[int, int], size: tuple[int, int], fit: str = "letterbox") -> None:
        self.source, self.size = source, size
        if fit == "stretch":
            self.content = (0, 0, *size)
            return
        ratio = min(size[0] / source[0], size[1] / source[1])
        width, height = round(source[0] * ratio), round(source[1] * ratio)
        self.content = (round((size[0] - width) / 2 - 0.1), round((size[1] - height) / 2 - 0.1), width, height)


class Chains:
    """BGR image to RGB float32 (3, H, W) in 0..1: the ways to do that with OpenCV, from the usual to the best.

    The padding never changes, so the fast ones write it once and resize straight into the middle of a letterbox.
    """

    def __init__(self, geometry: Geometry) -> None:
        width, height = geometry.size
        left, top, w, h = self.content = geometry.content
        self.interpolation = cv2.INTER_LINEAR
        self.out = np.full((1, 3, height, width), np.float32(PAD / 255), np.float32)
        self.box = self.out[0, :, top : top + h, left : left + w]
        self.border = (top, height - h - top, left, width - w - left)
        self.padded = np.full((height, width, 3), PAD, np.uint8)
        self.inside = self.padded[top : top + h, left : left + w]
        self.small = np.empty((h, w, 3), np.uint8)
        self.planes = [np.empty((h, w), np.uint8) for _ in range(3)]
        self.whole = [np.empty((height, width), np.uint8) for _ in range(3)]
        self.table = (np.arange(256) / 255).astype(np.float32)
        self.floats = np.empty((h, w, 3), np.float32)

    def resize(self, bgr: U8) -> U8:
        height, width = self.small.shape[:2]
        return cv2.resize(bgr, (width, height), dst=self.small, interpolation=self.interpolation)  # type: ignore[return-value]

    def blob(self, bgr: U8) -> F32:
        """resize, copyMakeBorder, blobFromImage: what tutorials show."""
        small = self.resize(bgr)
        top, bottom, left, right = self.border
        cv2.copyMakeBorder(small, top, bottom, left, right, cv2.BORDER_CONSTANT, dst=self.padded, value=(PAD,) * 3)
        return cv2.dnn.blobFromImage(self.padded, 1 / 255, swapRB=True)  # type: ignore[return-value]

    def inside_blob(self, bgr: U8) -> F32:
        """resize into the middle of a letterbox, then blobFromImage."""
        _, _, width, height = self.content
        cv2.resize(bgr, (width, height), dst=self.inside, interpolation=self.interpolation)
        return cv2.dnn.blobFromImage(self.padded, 1 / 255, swapRB=True)  # type: ignore[return-value]

    def split_multiply(self, bgr: U8) -> F32:
        """resize, split, then one multiply with conversion for each plane into its place."""
        cv2.split(self.resize(bgr), self.planes)
        for k in range(3):
            np.multiply(self.planes[2 - k], np.float32(1 / 255), out=self.box[k], dtype=np.float32)
        return self.out

    def split_convert(self, bgr: U8) -> F32:
        """The same with OpenCV's scaled conversion (addWeighted of a plane with nothing)."""
        cv2.split(self.resize(bgr), self.planes)
        for k in range(3):
            plane = self.planes[2 - k]
            cv2.addWeighted(plane, 1 / 255, plane, 0, 0, dst=self.box[k], dtype=cv2.CV_32F)
        return self.out

    def split_table(self, bgr: U8) -> F32:
        """The same with a table of 256 floats."""
        cv2.split(self.resize(bgr), self.planes)
        for k in range(3):
            cv2.LUT(self.planes[2 - k], self.table, dst=self.box[k])
        return self.out

    def numpy_transpose(self, bgr: U8) -> F32:
        """resize, then one strided multiply by numpy."""
        small = self.resize(bgr)
        np.multiply(small[:, :, ::-1].transpose(2, 0, 1), np.float32(1 / 255), out=self.box, dtype=np.float32)
        return self.out

    def normalize_split(self, bgr: U8) -> F32:
        """resize, scale to float while interleaved, then split into place."""
        cv2.multiply(self.resize(bgr), (1 / 255,) * 4, dst=self.floats, dtype=cv2.CV_32F)
        cv2.split(self.floats, [self.box[2], self.box[1], self.box[0]])
        return self.out

    def all(self) -> dict[str, Callable[[U8], F32]]:
        return {
            "opencv resize+border+blobFromImage": self.blob,
            "opencv resize into letterbox+blobFromImage": self.inside_blob,
            "opencv resize+split+numpy multiply": self.split_multiply,
            "opencv resize+split+scaled conversion": self.split_convert,
            "opencv resize+split+table": self.split_table,
            "opencv resize+numpy transposed multiply": self.numpy_transpose,
            "opencv resize+float multiply+split": self.normalize_split,
        }


class Usual:
    """The steps that the most used training framework takes for one image, in its order and with its allocations:

    resize if the size differs, pad to the letterbox, stack as a batch, reverse channels and move them first, make it
    contiguous, convert to float32, divide by 255.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.content, (width, height) = geometry.content, geometry.size
        left, top, w, h = self.content
        self.border = (top, height - h - top, left, width - w - left)

    def __call__(self, bgr: U8) -> F32:
        _, _, width, height = self.content
        image = bgr
        if bgr.shape[1::-1] != (width, height):
            image = cv2.resize(bgr, (width, height), interpolation=cv2.INTER_LINEAR)  # type: ignore[assignment]
        top, bottom, left, right = self.border
        image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(PAD,) * 3)  # type: ignore[assignment]
        batch = np.stack([image])[..., ::-1].transpose(0, 3, 1, 2)
        values = np.ascontiguousarray(batch).astype(np.float32)
        values /= 255
        return values


class Swscale:
    """A frame of PyAV to another pixel format with swscale, on one thread, with one context for all frames."""

    def __init__(self, planes: tuple[U8, ...], kind: str) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self.frame = av.VideoFrame(planes[0].shape[1], planes[0].shape[0], kind)
        for plane, values in zip(self.frame.planes, planes, strict=True):
            rows = values.reshape(values.shape[0], -1)
            np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : rows.shape[1]] = rows
        self.reformatter = VideoReformatter()

    def __call__(self, kind: str) -> list[NDArray[Any]]:
        """The planes of the frame in another format, as views; a new frame each time, as PyAV gives them."""
        self.result = self.reformatter.reformat(self.frame, format=kind, threads=1)
        float_planes = "f32" in kind
        return [
            np.frombuffer(p, np.float32 if float_planes else np.uint8).reshape(p.height, -1)[:, : self._row(p, kind)]
            for p in self.result.planes
        ]

    def bgr(self) -> U8:
        (plane,) = self("bgr24")
        return plane.reshape(plane.shape[0], -1, 3)

    @staticmethod
    def _row(plane: Any, kind: str) -> int:
        return int(plane.width) * (3 if kind in ("bgr24", "rgb24") else 1)


def nms_filter(output: F32, conf: float, iou: float, max_det: int) -> tuple[F32, F32, NDArray[np.int64]]:
    """(4 + nc, N) to boxes, scores, classes: a filter in whole-array numpy, then cv2.dnn.NMSBoxesBatched."""
    scores = output[4:]
    best = scores.max(axis=0)
    index = np.flatnonzero(best > conf)
    confidence = best[index]
    classes = scores[:, index].argmax(axis=0)
    cx, cy, width, height = output[:4, index]
    boxes = np.stack((cx - width / 2, cy - height / 2, width, height), axis=1)
    kept = np.asarray(cv2.dnn.NMSBoxesBatched(boxes, confidence, classes, conf, iou), np.int64).ravel()[:max_det]  # type: ignore[call-overload]
    chosen = boxes[kept]
    chosen[:, 2:] += chosen[:, :2]
    return chosen, confidence[kept], classes[kept]


def smoothed_argmax(scores: F32, foreground: int, radius: int, way: str) -> NDArray[np.uint8]:
    """(classes, H, W) to the mean of the 0/255 mask of one class over (2 radius + 1)^2 pixels, edges repeated.

    numpy adds the shifted masks of each axis; OpenCV has a box filter, which is far faster.
    """
    mask = np.where(scores.argmax(axis=0) == foreground, np.uint8(255), np.uint8(0))
    size = 2 * radius + 1
    if way == "opencv":
        return cv2.blur(mask, (size, size), borderType=cv2.BORDER_REPLICATE)  # type: ignore[return-value]
    height, width = mask.shape
    padded = np.pad(mask, radius, mode="edge").astype(np.uint16)
    rows = sum(padded[k : k + height] for k in range(size))
    total = sum(rows[:, k : k + width].astype(np.uint32) for k in range(size))  # type: ignore[index]
    return ((2 * total + size * size) // (2 * size * size)).astype(np.uint8)  # type: ignore[no-any-return]


def masks_to_rle(
    prototypes: F32,
    coefficients: F32,
    boxes: F32,
    size: tuple[int, int],
    content: tuple[int, int, int, int],
    *,
    whole: bool,
) -> list[Any]:
    """Instance masks at (height, width) as COCO RLE: coefficients @ prototypes, the image's part of it resized,
    cropped to each box, > 0, encoded by pycocotools.

    whole: every mask is resized to the whole image, as frameworks do. Otherwise only under its box, with
    cv2.warpAffine, which is the best that OpenCV offers.
    """
    from pycocotools import mask as coco

    height, width = size
    count, rows, columns = prototypes.shape
    logits = (coefficients @ prototypes.reshape(count, -1)).reshape(-1, rows, columns)
    left, top, w, h = content
    part = np.ascontiguousarray(logits[:, top : top + h, left : left + w])
    full = np.zeros((height, width), np.uint8, order="F")
    found = []
    for mask, box in zip(part, boxes, strict=True):
        x1, y1, x2, y2 = np.ceil(box).astype(int).clip(0, (width, height, width, height))
        full[:] = 0
        if whole:
            large = cv2.resize(mask, (width, height), interpolation=cv2.INTER_LINEAR)[y1:y2, x1:x2]
        else:
            sx, sy = w / width, h / height
            back = np.array([[sx, 0, (x1 + 0.5) * sx - 0.5], [0, sy, (y1 + 0.5) * sy - 0.5]])
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            large = cv2.warpAffine(mask, back, (x2 - x1, y2 - y1), flags=flags, borderMode=cv2.BORDER_REPLICATE)
        full[y1:y2, x1:x2] = large > 0
        found.append(coco.encode(full))
    return found
