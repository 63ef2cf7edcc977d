"""Pictures of people that no world renders: cut out by their masks, in other clothes, before other backgrounds.

Views turn, shear and bend; parts of bodies get cloth, skin and shade; behind and before them lie shapes of any texture;
then the picture is blurred, compressed, dimmed and full of noise as those of cameras are. All of it runs on the device
of the frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from framefuse.world.living import FOOT, HEAD, LOWER_ARM, LOWER_LEG, TORSO, UPPER_ARM, UPPER_LEG
from training.augment import GREY, Augmentation, Batch, relight
from training.data import Frames
from training.losses import Objects
from training.rendering import NONE

LIGHT, NOISE = 0.35, 0.09
"""As `Augmentation.light` and `noise`: more than where the world is to be recognised."""
LEAVES = 14
"""Shapes of a background."""
SKINS = (0.95, 0.8, 0.7), (0.3, 0.19, 0.14)
"""The palest and the darkest."""
COARSE = 8
"""Pixels between the points of a frame among which the one to look at is chosen."""
Chance = Callable[..., Tensor]
"""Shape to uniform random numbers in 0..1."""


def compose(frames: Frames, how: Augmentation, count: int, size: tuple[int, int], generator: torch.Generator) -> Batch:
    """`count` pictures (height, width) with their masks; no objects."""
    device = generator.device
    assert frames.masks is not None

    def chance(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    def some(share: float) -> Tensor:
        """(count, 1, 1, 1) bool."""
        return chance(count, 1, 1, 1) < share

    rows = torch.randint(len(frames), (count,), generator=generator, device=device)
    places = _places(frames.masks[rows], size, chance, generator)
    images, masks = frames.images[rows].permute(0, 3, 1, 2).float() / 255, frames.masks[rows][:, None].float()
    people = (masks > 0).float()
    seen = functional.grid_sample(torch.cat([images * people, people, images], 1), places, align_corners=False)
    parts = functional.grid_sample(masks, places, "nearest", align_corners=False).long()
    alpha, source = seen[:, 3:4], seen[:, 4:]
    framed = (places.abs().amax(-1) <= 1)[:, None]
    own = seen[:, :3] / alpha.clamp(min=0.05)

    cloths = [textures(count, size, chance) for _ in range(4)]
    behind = torch.where(some(0.6), leaves(cloths, chance), cloths[0])
    behind = torch.where(some(0.4), _blurred(behind, 4), torch.where(some(0.2), _blurred(behind, 16), behind))
    worn = torch.where(some(0.45), own, _dressed(own, parts, cloths[1:], chance))
    bend = 2 * _bumps(count, size, 3, chance) - 1
    worn = worn * (1 + 0.7 * chance(count, 1, 1, 1) * bend)
    soft = torch.lerp(alpha, _blurred(alpha, 3), chance(count, 1, 1, 1))
    made = torch.lerp(behind, worn, soft)
    scene = torch.where(framed, torch.where(alpha > 0, torch.lerp(source, worn, alpha), source), behind)
    made = torch.where(some(0.25), scene, made)

    # Things before the people, and the padding of frames of another shape.
    before = _shape(count, size, 0.05, 0.25, chance) * some(0.3)
    made, parts = torch.lerp(made, cloths[3], before), torch.where(before > 0.5, 0, parts)
    made = degraded(made, how, chance, generator)
    x, y = _axes(size, device)
    border = 1 - 0.45 * chance(count, 1, 1, 1)
    outside = torch.where(some(0.5), x.abs(), y.abs()).expand(count, 1, *size) > border
    outside = outside & some(0.3)
    made, parts = torch.where(outside, GREY, made), torch.where(outside, 0, parts)
    rows_of_objects = frames.classes.shape[1]
    nothing = torch.full((count, rows_of_objects), NONE, device=device)
    return Batch(made, Objects(torch.zeros(count, rows_of_objects, 4, device=device), nothing), parts[:, 0])


def joined(one: Batch, other: Batch) -> Batch:
    """The pictures of both, in this order."""
    assert one.masks is not None and other.masks is not None
    boxes = torch.cat([one.objects.boxes, other.objects.boxes])
    objects = Objects(boxes, torch.cat([one.objects.classes, other.objects.classes]))
    return Batch(torch.cat([one.images, other.images]), objects, torch.cat([one.masks, other.masks]))


def _places(masks: Tensor, size: tuple[int, int], chance: Chance, generator: torch.Generator) -> Tensor:
    """(b, h, w, 2) where to look at frames with these masks (b, h, w), for `grid_sample`: near a point of a person,
    most often of the head, at any scale, turned, sheared and bent."""
    count, height, width = masks.shape
    device = masks.device
    coarse = masks[:, ::COARSE, ::COARSE].flatten(1)
    weight = (coarse > 0).float() + 5 * (coarse == HEAD) + 1e-3
    point = torch.multinomial(weight, 1, generator=generator)[:, 0]
    across = -(-width // COARSE)
    centre = torch.stack([point % across, point // across], 1) * float(COARSE)

    scale = max(size[0] / height, size[1] / width) * (math.log(0.45) + math.log(3 / 0.45) * chance(count, 1)).exp()
    extent = torch.tensor([width, height], dtype=torch.float32, device=device)
    canvas = torch.tensor([size[1], size[0]], dtype=torch.float32, device=device)
    # The frame covers the canvas if it is large enough, or ends at its bottom, where people stand.
    offset = canvas * (0.15 + 0.7 * chance(count, 2)) - centre * scale
    room = canvas - extent * scale
    offset = torch.where(room < 0, torch.maximum(torch.minimum(offset, torch.zeros_like(offset)), room), offset)
    offset[:, 1] = torch.where(room[:, 1] < 0, offset[:, 1], room[:, 1])

    x, y = _axes(size, device)
    grid = torch.cat([x.expand(1, 1, *size), y.expand(1, 1, *size)], 1).expand(count, -1, -1, -1)
    waves = functional.interpolate(chance(count, 2, 6, 6) - 0.5, size, mode="bicubic", align_corners=False)
    grid = grid + 0.3 * chance(count, 1, 1, 1) * waves
    angle = (chance(count) + chance(count) - 1) * 0.5
    cos, sin, shear = angle.cos(), angle.sin(), 0.3 * (chance(count) - 0.5)
    turn = torch.stack([torch.stack([cos, shear - sin], 1), torch.stack([sin, cos], 1)], 1)
    ratio = canvas / canvas.min()
    bent = torch.einsum("bij,bjhw->bhwi", turn, grid * ratio[None, :, None, None]) / ratio
    pixels = (bent + 1) / 2 * canvas
    return 2 * (pixels - offset[:, None, None]) / scale[:, None, None] / extent - 1


def _axes(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """x (1, w) and y (h, 1) from -1 to 1."""
    y, x = (torch.arange(side, device=device, dtype=torch.float32) for side in size)
    return ((2 * x + 1) / size[1] - 1)[None], ((2 * y + 1) / size[0] - 1)[:, None]


def _blurred(images: Tensor, width: int) -> Tensor:
    """Averages over about `width` pixels."""
    height, across = images.shape[2:]
    if width <= 3:
        return functional.avg_pool2d(images, width, 1, width // 2, count_include_pad=False)
    small = functional.avg_pool2d(images, width // 2, ceil_mode=True)
    return functional.interpolate(small, (height, across), mode="bilinear", align_corners=False)


def _bumps(count: int, size: tuple[int, int], cells: int, chance: Chance, channels: int = 1) -> Tensor:
    """(count, channels, h, w) in 0..1, smooth between `cells` random values along each axis."""
    return functional.interpolate(chance(count, channels, cells, cells), size, mode="bilinear", align_corners=False)


def colours(count: int, chance: Chance) -> Tensor:
    """(count, 3, 1, 1): of any brightness, mostly dull."""
    grey = chance(count, 1, 1, 1)
    return torch.lerp(grey.expand(-1, 3, -1, -1), chance(count, 3, 1, 1), chance(count, 1, 1, 1) ** 2)


def textures(count: int, size: tuple[int, int], chance: Chance) -> Tensor:
    """(count, 3, h, w) in 0..1: two colours mixed by noise of many scales, stripes, checks or a gradient, or one."""
    roughness = 0.4 + 0.5 * chance(count, 1, 1, 1)
    noise, total = torch.zeros(()), torch.zeros(())
    for octave in range(6):
        share = roughness**octave
        noise = noise + share * _bumps(count, size, 3 * 2**octave, chance)
        total = total + share
    noise = ((noise / total - 0.5) * 3 + 0.5).clamp(0, 1)
    x, y = _axes(size, noise.device)
    angle, pace = math.pi * chance(2, count, 1, 1, 1), 4 * 12 ** chance(2, count, 1, 1, 1)
    turns = angle[0], angle[0] + math.pi / 2
    waves = [(pace[k] * (x * turn.cos() + y * turn.sin()) + 6 * angle[1]).sin() for k, turn in enumerate(turns)]
    bend = 1 + 30 * chance(count, 1, 1, 1) ** 2
    stripes, checks = ((wave * bend).clamp(-1, 1) / 2 + 0.5 for wave in (waves[0], waves[0] * waves[1]))
    gradient = ((x * angle[0].cos() + y * angle[0].sin()) / 2.8 + 0.5).clamp(0, 1)
    kind = chance(count, 1, 1, 1)
    share = torch.where(kind < 0.35, noise, torch.where(kind < 0.5, stripes, torch.where(kind < 0.6, checks, gradient)))
    made = torch.lerp(colours(count, chance), colours(count, chance), share)
    return (made + 0.3 * chance(count, 1, 1, 1) ** 2 * (noise - 0.5)).clamp(0, 1)


def _shape(count: int, size: tuple[int, int], low: float, high: float, chance: Chance) -> Tensor:
    """(count, 1, h, w) in 0..1: an ellipse, a box or a diamond, with axes of `low` to `high` of the canvas."""
    device = chance(1).device
    x, y = _axes(size, device)
    middle = 2.2 * chance(2, count, 1, 1, 1) - 1.1
    angle = math.pi * chance(count, 1, 1, 1) * (chance(count, 1, 1, 1) < 0.6)
    reach = 2 * low * (high / low) ** chance(2, count, 1, 1, 1)
    a = ((x - middle[0]) * angle.cos() + (y - middle[1]) * angle.sin()).abs() / reach[0]
    b = ((y - middle[1]) * angle.cos() - (x - middle[0]) * angle.sin()).abs() / reach[1]
    kind = chance(count, 1, 1, 1)
    far = torch.where(kind < 0.4, torch.hypot(a, b), torch.where(kind < 0.9, torch.maximum(a, b), a + b))
    edge = 0.5 * min(size) * reach.amin(0)
    return ((1 - far) * edge + 0.5).clamp(0, 1)


def leaves(cloths: list[Tensor], chance: Chance) -> Tensor:
    """Shapes over shapes, the last small: pictures with the statistics of photographs (dead leaves; Lee, Mumford and
    Huang 2001), in the textures `cloths` (count, 3, h, w) of all pictures of the batch."""
    made = cloths[0]
    count, size = len(made), (made.shape[2], made.shape[3])
    for number in range(LEAVES):
        order = chance(count).argsort()
        cloth = cloths[number % len(cloths)][order] * (0.5 + 0.8 * chance(count, 1, 1, 1))
        high = 0.6 * 0.84**number
        made = torch.lerp(made, cloth.clamp(0, 1), _shape(count, size, 0.15 * high, high, chance))
    return made


def _dressed(own: Tensor, parts: Tensor, cloths: list[Tensor], chance: Chance) -> Tensor:
    """People in other cloths and skins; faces and hair often stay."""
    count = len(own)
    upper, lower, shoe = cloths[0], cloths[1], cloths[2] * 0.4
    tone = chance(count, 1, 1, 1)
    pale, deep = (torch.tensor(rgb, device=own.device).view(1, 3, 1, 1) for rgb in SKINS)
    grey = own.mean(1, keepdim=True)
    skin = torch.lerp(pale, deep, tone) * (0.9 + 0.2 * chance(count, 3, 1, 1)) * (0.4 + grey)
    stays = chance(count, 1, 1, 1) < 0.6
    arm = torch.where(chance(count, 1, 1, 1) < 0.6, upper, skin)
    folds = 0.75 + 0.5 * _bumps(count, (own.shape[2], own.shape[3]), 12, chance)
    upper, lower = upper * folds, lower * folds
    above = (HEAD, torch.where(stays, own, skin)), (TORSO, upper), (UPPER_ARM, upper * 0.92), (LOWER_ARM, arm)
    made = own
    for part, paint in (*above, (UPPER_LEG, lower), (LOWER_LEG, lower), (FOOT, shoe)):
        made = torch.where(parts == part, paint, made)
    return made


def degraded(images: Tensor, how: Augmentation, chance: Chance, generator: torch.Generator) -> Tensor:
    """Fewer pixels, motion, light and noise, compression; each of some images."""
    count = len(images)

    def some(share: float) -> Tensor:
        return chance(count, 1, 1, 1) < share

    images = torch.where(some(0.3), _blurred(images, 4), torch.where(some(0.12), _blurred(images, 8), images))
    images = torch.where(some(0.15), _moved(images, chance), images)
    images = images.clamp(1e-3, 1) ** (2 ** (1.8 * chance(count, 1, 1, 1) - 0.9))
    images = relight(images, replace(how, light=LIGHT, noise=NOISE), generator)
    return torch.where(some(0.4), compressed(images, 0.02 * 12 ** chance(count, 1, 1, 1)), images)


def _moved(images: Tensor, chance: Chance, reach: int = 4) -> Tensor:
    """Averages along a line of up to 2 * reach + 1 pixels, of another direction in each image."""
    count, channels = images.shape[:2]
    axis = torch.arange(-reach, reach + 1, device=images.device, dtype=torch.float32)
    angle = math.pi * chance(count, 1, 1)
    along = axis[None, None] * angle.cos() + axis[None, :, None] * angle.sin()
    aside = axis[None, :, None] * angle.cos() - axis[None, None] * angle.sin()
    kernel = (1 - aside.abs()).clamp(min=0) * (along.abs() <= 1 + (reach - 1) * chance(count, 1, 1))
    kernel = (kernel / kernel.sum((1, 2), keepdim=True)).repeat_interleave(channels, 0)[:, None]
    padded = functional.pad(images, [reach] * 4, mode="replicate").flatten(0, 1)[None]
    return functional.conv2d(padded, kernel, groups=count * channels).view_as(images)


def compressed(images: Tensor, step: Tensor) -> Tensor:
    """The cosine transform of each 8x8 block, as in JPEG, in steps (count, 1, 1, 1), fine frequencies in larger ones.

    Height and width are multiples of 8.
    """
    axis = torch.arange(8, device=images.device, dtype=torch.float32)
    basis = (math.pi / 8 * (axis[None] + 0.5) * axis[:, None]).cos() * 0.5
    basis[0] *= math.sqrt(0.5)
    blocks = images.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)  # b, c, rows, columns, 8, 8
    found = basis @ blocks @ basis.T
    steps = step[..., None, None] * (1 + 0.5 * (axis[None] + axis[:, None]))
    blocks = basis.T @ ((found / steps).round() * steps) @ basis
    return blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3).clamp(0, 1)
