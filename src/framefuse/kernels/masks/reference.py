"""Masks in plain numpy float64: the executable specification of `kernels.masks`, `instances` and `drawing`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Region = tuple[float, float, float, float]


def argmax(scores: NDArray[Any], *, foreground: int | None = None) -> NDArray[np.uint8]:
    """label[n, y, x] = the c with the greatest scores[n, c, y, x]; the lowest c wins a tie, NaN never wins.

    With `foreground`: 255 where that class wins, else 0.
    """
    label: NDArray[Any] = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1)
    if foreground is not None:
        label = np.where(label == foreground, 255, 0)
    return label.astype(np.uint8)


def smooth(mask: NDArray[Any], weights: NDArray[Any], *, scale: float = 1.0) -> Array:
    """out[y, x] = scale * sum_ji w[j] w[i] mask[y + j - r, x + i - r] / (sum w)^2, edges repeated, r = len(w) // 2."""
    radius = len(weights) // 2
    weights = weights / weights.sum()
    out = np.pad(mask.astype(np.float64), [(0, 0)] * (mask.ndim - 2) + [(radius, radius)] * 2, mode="edge")
    for axis in (-2, -1):
        size = out.shape[axis] - 2 * radius
        out = sum(w * np.take(out, range(k, k + size), axis) for k, w in enumerate(weights))
    return out * scale


def gaussian_weights(sigma: float, radius: int | None = None) -> Array:
    """w[i] = exp(-(i - r)^2 / (2 sigma^2)), i = 0..2 r; r = ceil(3 sigma) when left out."""
    radius = int(np.ceil(3 * sigma)) if radius is None else radius
    weights: Array = np.exp(-((np.arange(2 * radius + 1) - radius) ** 2) / (2 * sigma * sigma))
    return weights


def ema(mask: NDArray[Any], state: NDArray[Any], weight: float) -> Array:
    """state + weight * (mask - state)."""
    average: Array = state + weight * (mask.astype(np.float64) - state)
    return average


def _taps(count: int, start: float, length: float, samples: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    first = min(max(int(np.floor(start)), 0), samples - 1)
    last = max(min(int(np.ceil(start + length)), samples) - 1, first)
    position = np.array([min(max(start + (i + 0.5) * length / count - 0.5, first), last) for i in range(count)])
    lower = np.floor(position).astype(np.intp)
    return lower, np.minimum(lower + 1, last), position - lower


def upsample(plane: NDArray[Any], size: tuple[int, int], *, content: Region | None = None) -> Array:
    """(..., h, w) -> (..., *size) bilinear, half-pixel centres: the region `content` stretched over the image.

    Pixel i of n sits at u = start + (i + 1/2) length / n - 1/2 samples of its axis, clamped to the samples that the
    region touches; so a whole plane gives OpenCV's INTER_LINEAR and PyTorch's interpolate(align_corners=False), and an
    integer region the same of the cropped plane.

    Args:
        content: left, top, width, height in samples; the whole plane when left out.
    """
    left, top, width, height = content or (0, 0, plane.shape[-1], plane.shape[-2])
    x0, x1, wx = _taps(size[1], left, width, plane.shape[-1])
    y0, y1, wy = _taps(size[0], top, height, plane.shape[-2])
    values = plane.astype(np.float64)
    wy = wy[:, None]
    values = values[..., y0, :] * (1 - wy) + values[..., y1, :] * wy
    out: Array = values[..., x0] * (1 - wx) + values[..., x1] * wx
    return out


def instance_logits(
    prototypes: NDArray[Any],
    coefficients: NDArray[Any],
    boxes: NDArray[Any],
    size: tuple[int, int],
    *,
    content: Region | None = None,
    crop: Literal["image", "prototypes"] = "image",
) -> Array:
    """(n, *size): the value whose sign is the mask, 0 outside the crop.

    crop="image": logits, stretch to the image, crop to the box in image pixels. Where an edge of `content` lies within
        a sample, but not within one of logits enlarged 2 or 4 times, these are stretched: as the framework's
        `process_mask_native` does (retina_masks=True), whose masks its sign gives.
    crop="prototypes": logits, crop to the box at prototype resolution, stretch. With the whole prototypes as content,
        the model input as size and boxes in its pixels, its sign is the framework's `process_mask(..., upsample=True)`;
        any other content does the same for that part of the model input.
    A box keeps the samples (pixels) x with x1 <= x < x2; none when x1 < x2 and y1 < y2 do not both hold, or with NaN.

    Args:
        prototypes: (c, mh, mw).
        coefficients: (n, c).
        boxes: (n, 4) x1 y1 x2 y2 in pixels of the image.
        size: height and width of the image.
        content: left, top, width, height of the image within the prototypes, in samples; the whole when left out. For
            a letterboxed image, its place in the model input times mw / model width.
    """
    mh, mw = prototypes.shape[1:]
    left, top, width, height = content or (0, 0, mw, mh)
    logits = np.einsum("nc,cyx->nyx", coefficients.astype(np.float64), prototypes.astype(np.float64))
    boxes = boxes.astype(np.float32)
    if crop == "prototypes":
        scale = np.array([width / size[1], height / size[0]] * 2, np.float32)
        logits = logits * _inside(boxes * scale + np.array([left, top] * 2, np.float32), mh, mw)
    if crop == "image":
        edges = np.array([left, top, left + width, top + height])
        whole = {f: np.round(edges * f) for f in (1, 2, 4) if np.abs(edges * f - np.round(edges * f)).max() < 1e-3}
        factor, (left, top, right, bottom) = next(iter(whole.items()), (1, edges))
        logits = upsample(logits, (mh * factor, mw * factor))
        content = left, top, right - left, bottom - top
    logits = upsample(logits, size, content=content)
    if crop == "image":
        logits = logits * _inside(boxes, *size)
    return logits


def instance_masks(*arguments: Any, **options: Any) -> NDArray[np.bool_]:
    """mask[i] = bilinear(coefficients[i] . prototypes) > 0, cropped to the box; arguments as of `instance_logits`.

    sigmoid(v) > 1/2 is v > 0, and the logits are stretched, not their sigmoid, as current YOLO frameworks do.
    """
    return instance_logits(*arguments, **options) > 0


def _inside(boxes: NDArray[np.float32], height: int, width: int) -> NDArray[np.bool_]:
    x, y = np.arange(width), np.arange(height)
    x1, y1, x2, y2 = (boxes[:, k, None] for k in range(4))
    across, down = (x >= x1) & (x < x2) & (y1 < y2), (y >= y1) & (y < y2)
    inside: NDArray[np.bool_] = down[:, :, None] & across[:, None, :]
    return inside


def runs(mask: NDArray[Any]) -> list[int]:
    """COCO run lengths of one (h, w) mask: unset, set, unset, ... pixels, down the columns; the first may be 0."""
    flat = (mask.T != 0).ravel()
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flat)))).tolist()
    return [stop - start for start, stop in zip([0, *edges], [*edges, flat.size], strict=True)]


def run_text(lengths: list[int]) -> bytes:
    """COCO's compressed string: 5 bits a character, differences to the run two before from the fourth run on."""
    characters = []
    for k, length in enumerate(lengths):
        rest = length - lengths[k - 2] if k > 2 else length
        more = True
        while more:
            bits, rest = rest & 31, rest >> 5
            more = rest != (-1 if bits & 16 else 0)
            characters.append(bits + 32 * more + 48)
    return bytes(characters)


def overlay(planes: list[NDArray[Any]], labels: NDArray[Any], inks: NDArray[Any], opacity: NDArray[Any]) -> None:
    """Y, U, V (4:2:0, chroma as 2-D views), in place; a = opacity[label] / 255, ink = inks[label].

    y = y + a (ink_y - y), and u, v the same with a and the ink summed over the 2 x 2 pixels that a chroma sample covers
    (an odd edge is repeated); in integers: (y (255 - a) + ink a + 127) // 255 and
    (u (1020 - sum a) + sum(ink a) + 510) // 1020.
    """
    luma, *chroma = planes
    a = opacity.astype(np.int64)[labels]
    ink = inks.astype(np.int64)[labels]
    luma[...] = (luma * (255 - a) + ink[..., 0] * a + 127) // 255
    h, w = labels.shape
    pad = ((0, h % 2), (0, w % 2))

    def cells(values: NDArray[Any]) -> NDArray[Any]:
        padded = np.pad(values, pad, mode="edge")
        summed: NDArray[Any] = padded.reshape((h + 1) // 2, 2, (w + 1) // 2, 2).sum((1, 3))
        return summed

    for k, plane in enumerate(chroma, 1):
        plane[...] = (plane * (1020 - cells(a)) + cells(ink[..., k] * a) + 510) // 1020


def draw_boxes(
    planes: list[NDArray[Any]], boxes: NDArray[Any], inks: NDArray[Any], width: int, subsample: tuple[int, int] = (2, 2)
) -> None:
    """Frames of `width` pixels just inside each box, in place, the first box on top. Chroma as 2-D views.

    A pixel (x, y) of box x1 y1 x2 y2 (x1 <= x < x2, y1 <= y < y2) is frame when x < x1 + width or x >= x2 - width, or
    the same in y.
    A chroma sample takes the ink of the first box whose frame holds its top-left pixel.
    """
    luma, *chroma = planes
    y, x = np.mgrid[: luma.shape[0], : luma.shape[1]]
    for (x1, y1, x2, y2), ink in zip(boxes[::-1].tolist(), inks[::-1], strict=True):
        inside = (x >= x1) & (x < x2) & (y >= y1) & (y < y2)
        frame = inside & ((x < x1 + width) | (x >= x2 - width) | (y < y1 + width) | (y >= y2 - width))
        luma[frame] = ink[0]
        for k, plane in enumerate(chroma, 1):
            plane[frame[:: subsample[1], :: subsample[0]]] = ink[k]


def composite(foreground: NDArray[Any], background: NDArray[Any], alpha: NDArray[Any]) -> NDArray[np.uint8]:
    """(foreground * a + background * (255 - a) + 127) // 255 per channel; a: uint8 (h, w), images: uint8 (h, w, c)."""
    a = alpha.astype(np.int64)
    a = a[..., None] if foreground.ndim == 3 else a
    return ((foreground * a + background * (255 - a) + 127) // 255).astype(np.uint8)
