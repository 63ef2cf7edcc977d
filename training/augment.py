"""Batches: views of random frames at random scale and position, with random light and noise, all on the GPU.

A view is out = source * scale + offset, per axis; a negative scale flips. Boxes and masks follow the same formula.
A batch depends on its seed only, so a resumed run sees the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from framefuse.common.keypoints import MIRRORED
from training.data import Frames
from training.losses import Objects
from training.rendering import IGNORED, NONE

GREY = 114 / 255
"""Padding around an image, 0..1, as in the preprocessing of the card."""
FEWEST = 0.35
"""An object with less than this fraction of its box in the view is ignored."""
SMALLEST = 4.0
"""An object with a shorter side, in pixels, is ignored."""


@dataclass(frozen=True)
class Augmentation:
    """How much a view may differ from the frame."""

    zoom: tuple[float, float] = (0.6, 1.7)
    """Range of the scale, log-uniform; at 1 the frame fits the canvas (in a mosaic: the whole canvas)."""
    plain: float = 0.35
    """Fraction of views that show the whole frame, fitted as at inference except for flips and light."""
    mosaic: float = 0.3
    """Fraction of batches whose images consist of four views each."""
    light: float = 0.15
    """Largest change of brightness, contrast and colour balance."""
    noise: float = 0.03
    """Largest standard deviation of added noise, on the scale 0..1."""
    composed: float = 0.0
    """Fraction of the images of a batch that compose.py makes; segmenters only."""
    toward: int | None = None
    """Class of which every view that is not plain shows an object."""


@dataclass(frozen=True)
class Batch:
    """Images (b, 3, h, w) float32 in 0..1, objects, and masks (b, h, w) int64 if the frames have them."""

    images: Tensor
    objects: Objects
    masks: Tensor | None
    keypoints: Tensor | None = None
    """(b, m, 17, 3) x, y, v; a batch of mosaics has none."""


def look(frames: Frames, rows: Tensor, scale: Tensor, offset: Tensor, size: tuple[int, int]) -> Batch:
    """The frames `rows` (b,), seen through `scale` and `offset` (b, 2), x first, on a canvas of (height, width)."""
    images = frames.images[rows].permute(0, 3, 1, 2).float() / 255
    height, width = images.shape[2:]
    extent = torch.tensor([width, height], dtype=torch.float32, device=rows.device)
    lines = []
    for axis, pixels in ((0, size[1]), (1, size[0])):
        out = torch.arange(pixels, device=rows.device, dtype=torch.float32) + 0.5
        lines.append(2 * (out[None] - offset[:, axis, None]) / scale[:, axis, None] / extent[axis] - 1)
    places = torch.stack([lines[0][:, None].expand(-1, size[0], -1), lines[1][:, :, None].expand(-1, -1, size[1])], -1)
    seen = functional.grid_sample(images - GREY, places, padding_mode="zeros", align_corners=False) + GREY
    masks = None
    if frames.masks is not None:
        # Nearest neighbour; the padding is background.
        drawn = frames.masks[rows][:, None].float()
        masks = functional.grid_sample(drawn, places, "nearest", "zeros", align_corners=False)[:, 0].long()

    ends = frames.boxes[rows].unflatten(-1, (2, 2)) * scale[:, None, None] + offset[:, None, None]
    boxes = torch.cat([ends.amin(2), ends.amax(2)], -1)
    limit = torch.tensor([size[1], size[0]] * 2, dtype=torch.float32, device=rows.device)
    inside = torch.minimum(boxes.clamp(min=0), limit)
    left = (inside[..., 2:] - inside[..., :2]).clamp(min=0)
    whole = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    kept = (left.prod(-1) > FEWEST * whole.prod(-1)) & (left.amin(-1) > SMALLEST)
    classes = frames.classes[rows]
    classes = torch.where(kept | (classes == NONE), classes, IGNORED)
    points = None
    if frames.keypoints is not None:
        points = frames.keypoints[rows].clone()
        points[..., :2] = points[..., :2] * scale[:, None, None] + offset[:, None, None]
        points[..., 2] *= ((points[..., :2] >= 0) & (points[..., :2] < limit[:2])).all(-1)
        points = torch.where((scale[:, 0] < 0)[:, None, None, None], points[:, :, MIRRORED], points)
    return Batch(seen, Objects(inside, torch.where(left.amin(-1) > 0, classes, NONE)), masks, points)


def fitted(frames: Frames, rows: Tensor, size: tuple[int, int]) -> Batch:
    """The frames as at inference: fitted into (height, width), centred, with grey padding."""
    height, width = frames.images.shape[1:3]
    scale = min(size[0] / height, size[1] / width)
    offset = [(size[1] - round(width * scale)) // 2, (size[0] - round(height * scale)) // 2]
    ones = torch.ones(len(rows), 2, device=rows.device)
    return look(frames, rows, ones * scale, ones * torch.tensor(offset, device=rows.device), size)


def draw(
    frames: Frames,
    how: Augmentation,
    count: int,
    size: tuple[int, int],
    generator: torch.Generator,
    *,
    mosaic: bool,
    part: tuple[int, int] | None = None,
) -> Batch:
    """A batch of `count` augmented images on canvases of (height, width), or on parts of that size of them."""
    if mosaic:
        quarter = (size[0] // 2, size[1] // 2)
        four = _views(frames, how, 4 * count, quarter, quarter, generator, zoomed=2.0)
        corner = torch.tensor(
            [[0, 0], [quarter[1], 0], [0, quarter[0]], [quarter[1], quarter[0]]], device=generator.device
        )
        boxes = (four.objects.boxes.unflatten(0, (count, 4)) + corner.repeat(1, 2)[None, :, None]).flatten(1, 2)
        objects = _compact(Objects(boxes, four.objects.classes.view(count, -1)), frames.classes.shape[1])
        masks = None if four.masks is None else _tile(four.masks[:, None], count)[:, 0]
        batch = Batch(_tile(four.images, count), objects, masks)
    else:
        batch = _views(frames, how, count, size, part or size, generator, zoomed=1.0)
    return replace(batch, images=relight(batch.images, how, generator))


def _views(
    frames: Frames,
    how: Augmentation,
    count: int,
    size: tuple[int, int],
    canvas: tuple[int, int],
    generator: torch.Generator,
    *,
    zoomed: float,
) -> Batch:
    """Random views of random frames at the scale of `size`; `zoomed` multiplies that of views that are not plain."""
    device = generator.device

    def chance(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    offered = torch.arange(len(frames), device=device)
    if how.toward is not None:
        offered = torch.nonzero((frames.classes == how.toward).any(1))[:, 0]
    rows = offered[torch.randint(len(offered), (count,), generator=generator, device=device)]
    height, width = frames.images.shape[1:3]
    fit = min(size[0] / height, size[1] / width)
    low, high = (torch.tensor(zoom).log() for zoom in how.zoom)
    zoom = zoomed * (low + (high - low) * chance(count, 1)).exp() * (0.9 + 0.2 * chance(count, 2))
    zoom = torch.where(chance(count, 1) < how.plain, 1.0, zoom)
    scale = fit * zoom
    extent = torch.tensor([canvas[1], canvas[0]], device=device)
    room = extent - scale * torch.tensor([width, height], device=device)
    place = torch.where(zoom == 1, 0.5, chance(count, 2))
    offset = (room * place).round()
    flip = chance(count) < 0.5
    if how.toward is not None:
        own = (frames.classes[rows] == how.toward).float() * chance(count, frames.classes.shape[1])
        box = frames.boxes[rows].gather(1, own.argmax(1)[:, None, None].expand(-1, 1, 4))[:, 0]
        box = torch.where(
            flip[:, None], box.new_tensor([width, 0, width, 0]) + box * box.new_tensor([-1, 1, -1, 1]), box
        )
        middle = scale * (box[:, :2] + box[:, 2:]) / 2
        offset = torch.where(zoom == 1, offset, (extent * (0.3 + 0.4 * chance(count, 2)) - middle).round())
    offset[:, 0] += flip * scale[:, 0] * width
    scale[:, 0] *= 1 - 2 * flip.float()
    return look(frames, rows, scale, offset, canvas)


def _tile(parts: Tensor, count: int) -> Tensor:
    """(4 count, c, h, w) to (count, c, 2 h, 2 w)."""
    _, channels, height, width = parts.shape
    quad = parts.view(count, 2, 2, channels, height, width)
    return quad.permute(0, 3, 1, 4, 2, 5).reshape(count, channels, 2 * height, 2 * width)


def _compact(objects: Objects, rows: int) -> Objects:
    """At most `rows` objects, those to find before the ignored; a fixed number, since counting waits for the GPU."""
    last = torch.where(objects.classes >= 0, 0, torch.where(objects.classes == IGNORED, 1, 2))
    order = last.argsort(dim=1, stable=True)[:, :rows]
    return Objects(objects.boxes.gather(1, order[..., None].expand(-1, -1, 4)), objects.classes.gather(1, order))


def relight(images: Tensor, how: Augmentation, generator: torch.Generator) -> Tensor:
    """Random brightness, contrast, saturation, colour balance, blur and noise for each image."""
    count = len(images)

    def around(*shape: int) -> Tensor:
        return 2 * torch.rand(count, *shape, 1, 1, generator=generator, device=images.device) - 1

    grey = images.mean(1, keepdim=True)
    images = torch.lerp(grey, images, 1 + 2 * how.light * around(1))
    level = images.mean((2, 3), keepdim=True)
    images = (images - level) * (1 + how.light * around(1)) + level * (1 + how.light * around(1))
    images = images * (1 + how.light / 2 * around(3))
    soft = functional.avg_pool2d(images, 3, 1, 1, count_include_pad=False)
    images = torch.lerp(images, soft, (around(1) - 0.5).clamp(min=0) * 2)
    deviation = how.noise * around(1).clamp(min=0)
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    return (images + deviation * noise).clamp(0, 1)
