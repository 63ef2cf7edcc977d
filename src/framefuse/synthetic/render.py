"""From tracks to pixels: backdrop, shadows and stamps in painter's order, then light, noise and compression."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.synthetic.backdrop import LAPS, MARGIN, paint_backdrop
from framefuse.synthetic.chance import Chance
from framefuse.synthetic.people import DISPARITY, FAR, People
from framefuse.synthetic.sketch import Stamp
from framefuse.synthetic.traffic import DECOY, SHUTTER, Track, Traffic

if TYPE_CHECKING:
    from framefuse.synthetic.world import Snapshot, World

NOISE_ROOM = 64
"""Pixels by which the noise picture is larger than the frame; each frame takes another window of it."""
SHADOW = 64


class Stage:
    """What all frames of a world share."""

    def __init__(self, world: World) -> None:
        self.world = world
        width, height = world.size
        self.eyes = 2 if world.stereo == "sbs" else 1
        self.size = width // self.eyes, height
        aspect = self.size[0] / height
        self.scene = (Traffic if world.scene == "street" else People)(
            world.split, world.seed, world.seconds, aspect, world.complexity
        )
        chance = Chance(world.split, f"stage/{world.scene}/{world.seed}")
        self.backdrop = paint_backdrop(world.split, chance, *self.size, self.scene.horizon)
        self.gain = [
            chance.uniform(0.75, 1.15) * tint for tint in (chance.uniform(0.93, 1.07), 1, chance.uniform(0.93, 1.07))
        ]
        self.drift = [(chance.style(0.0, 0.16), chance.uniform(0.02, 0.12), chance.unit()) for _ in range(2)]
        self.quality = chance.integer(45, 96)
        self.noise = _noise(chance, width + NOISE_ROOM, height + NOISE_ROOM, chance.uniform(0.5, 5.0))
        self.shadow = _soft_disc()
        self.darkness = chance.uniform(0.2, 0.6)
        self.sun = chance.uniform(-0.35, 0.35)


def render(stage: Stage, index: int) -> Snapshot:
    """Frame `index`, and its truth."""
    from framefuse.synthetic.world import Snapshot, Truth

    world = stage.world
    seconds = float(index / world.fps)
    width, height = world.size
    canvas = Image.new("RGB", (width, height))
    instances = np.zeros((height, width), np.uint16)
    bodies = world.scene == "bodies"
    mask = np.zeros((height, width), np.uint8)
    disparity = np.zeros((height, width), np.float32) if stage.eyes == 2 else None
    tracks = stage.scene.present(seconds)
    rows: list[tuple[Track, int, int]] = []
    for eye in range(stage.eyes):
        span = slice(eye * stage.size[0], (eye + 1) * stage.size[0])
        view = _View(
            stage, seconds, eye, instances[:, span], mask[:, span], None if disparity is None else disparity[:, span]
        )
        rows += view.draw(tracks, len(rows), bodies)
        canvas.paste(view.canvas, (eye * stage.size[0], 0))
    picture = _camera(stage, canvas, index, seconds)

    counts = np.bincount(instances.ravel(), minlength=len(rows) + 1)[1:]
    kept = [number for number, row in enumerate(rows) if row[0].class_id != DECOY and counts[number] > 0]
    boxes = [_extent(instances, number + 1, stage, rows[number]) for number in kept]
    table = np.zeros(len(rows) + 1, np.uint16)
    classes = np.zeros(len(rows) + 1, np.uint8)
    for row, number in enumerate(kept):
        table[number + 1], classes[number + 1] = row + 1, rows[number][0].class_id + 1
    truth = Truth(
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        class_id=np.array([rows[number][0].class_id for number in kept], np.int64),
        track_id=np.array([rows[number][0].track_id for number in kept], np.int64),
        visibility=np.array([counts[number] / rows[number][1] for number in kept], np.float32),
        instances=table[instances],
        class_mask=mask if bodies else classes[instances],
        complexity=stage.scene.level(seconds),
        disparity=disparity,
    )
    return Snapshot(index, picture, truth)


class _View:
    """One eye's picture while it is being drawn."""

    def __init__(
        self, stage: Stage, seconds: float, eye: int, instances: NDArray[np.uint16], mask: NDArray[np.uint8],
        disparity: NDArray[np.float32] | None,
    ) -> None:  # fmt: skip
        self.stage, self.seconds, self.eye = stage, seconds, eye
        self.instances, self.mask, self.disparity = instances, mask, disparity
        width, height = stage.size
        self.height = height
        far = round(FAR * height) if disparity is not None else 0
        turn_x, turn_y = stage.scene.camera(seconds)
        left = round((turn_x + stage.scene.speed * seconds) * height) + eye * far
        top = round((MARGIN + turn_y) * height)
        left %= LAPS * width
        self.canvas = stage.backdrop.crop((left, top, left + width, top + height))
        if disparity is not None:
            disparity[...] = far

    def draw(self, tracks: list[Track], first: int, bodies: bool) -> list[tuple[Track, int, int]]:
        """Draw all; gives (track, its pixels in all, eye) in the order of the instance numbers, from `first` + 1."""
        rows: list[tuple[Track, int, int]] = []
        period = float(1 / self.stage.world.fps)
        turn, before = self.stage.scene.camera(self.seconds), self.stage.scene.camera(self.seconds - period)
        height = self.height
        for track in tracks:
            place, last = track.place(self.seconds), track.place(self.seconds - period)
            shift = DISPARITY * track.size if self.disparity is not None else 0.0
            x, y = (place.x - turn[0] - self.eye * shift) * height, (place.y - turn[1]) * height
            blur = (
                SHUTTER / 2 * abs(place.x - last.x - turn[0] + before[0]) * height,
                SHUTTER / 2 * abs(place.y - last.y - turn[1] + before[1]) * height,
            )
            size = place.size * height
            if not bodies:
                self._shade(track, x, y + track.hover * height, size)
            stamp = track.paint.stamp(
                track.figure.sketch(track.phase(self.seconds)), size, x, y, track.mirror, blur, parts=bodies
            )
            self.canvas.paste(stamp.colours, (stamp.x, stamp.y), stamp.alpha)
            rows.append((track, self._claim(stamp, first + len(rows) + 1, shift * height), self.eye))
        return rows

    def _shade(self, track: Track, x: float, y: float, size: float) -> None:
        """A soft shadow on the ground."""
        wide = {1: 1.1, 2: 1.1, 3: 0.9, 5: 0.9, 8: 1.1, 9: 0.9, 7: 0.9}.get(track.class_id, 0.5) * size
        tall = max(2.0, 0.16 * wide)
        if wide < 4:
            return
        soft = self.stage.shadow.resize((max(2, round(wide)), max(2, round(tall))), Image.Resampling.BILINEAR)
        strength = self.stage.darkness
        soft = soft.point([round(value * strength) for value in range(256)])
        self.canvas.paste((0, 0, 0), (round(x - wide / 2 + self.stage.sun * wide), round(y - 0.55 * tall)), soft)

    def _claim(self, stamp: Stamp, number: int, shift: float) -> int:
        """Enter a stamp's pixels into the masks; gives how many it has, those outside the picture included."""
        covered = stamp.covered
        height, width = covered.shape
        rows, columns = self.instances.shape
        top, left = max(0, stamp.y), max(0, stamp.x)
        bottom, right = min(rows, stamp.y + height), min(columns, stamp.x + width)
        if bottom > top and right > left:
            target = (slice(top, bottom), slice(left, right))
            source = (slice(top - stamp.y, bottom - stamp.y), slice(left - stamp.x, right - stamp.x))
            np.copyto(self.instances[target], number, where=covered[source])
            if stamp.parts is not None:
                np.copyto(self.mask[target], stamp.parts[source], where=covered[source])
            if self.disparity is not None:
                np.copyto(self.disparity[target], shift, where=covered[source])
        return int(np.count_nonzero(covered))


def _extent(
    instances: NDArray[np.uint16], number: int, stage: Stage, row: tuple[Track, int, int]
) -> tuple[int, int, int, int]:
    found = instances == number
    columns, rows = np.flatnonzero(found.any(0)), np.flatnonzero(found.any(1))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _camera(stage: Stage, canvas: Image.Image, index: int, seconds: float) -> NDArray[np.uint8]:
    """Light, noise and compression."""
    table: list[int] = []
    (swing, rate, start), (warm, warm_rate, warm_start) = stage.drift
    light = 1 + swing * math.sin(2 * math.pi * (rate * seconds + start))
    tint = 0.4 * warm * math.sin(2 * math.pi * (warm_rate * seconds + warm_start))
    for gain, share in zip(stage.gain, (1 + tint, 1.0, 1 - tint), strict=True):
        table += [min(255, round(value * gain * light * share)) for value in range(256)]
    lit = np.asarray(canvas.point(table))
    height, width = lit.shape[:2]
    chance = Chance(stage.world.split, f"noise/{stage.world.seed}/{index}")
    top, left = chance.integer(0, NOISE_ROOM), chance.integer(0, NOISE_ROOM)
    noisy = lit + stage.noise[top : top + height, left : left + width]
    np.clip(noisy, 0, 255, out=noisy)
    packed = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).save(packed, "JPEG", quality=stage.quality)
    return np.array(Image.open(packed))


def _noise(chance: Chance, width: int, height: int, strength: float) -> NDArray[np.int16]:
    """(height, width, 3) of about normal noise, `strength` grey levels deep: sums of four random bytes."""
    bits = np.random.PCG64(chance.integer(0, 2**63))
    words = bits.random_raw(height * width * 3 // 2 + 1).view(np.uint8).reshape(-1, 4)
    sums = words.sum(axis=1, dtype=np.int16)[: height * width * 3] - np.int16(510)
    scale = np.array([round(value * strength / 147.8) for value in range(-510, 511)], np.int16)
    noise: NDArray[np.int16] = scale[sums + 510].reshape(height, width, 3)
    return noise


def _soft_disc() -> Image.Image:
    axis = (np.arange(SHADOW) + 0.5) / SHADOW * 2 - 1
    reach = np.hypot(axis[None, :], axis[:, None])
    return Image.fromarray((np.clip(1.25 * (1 - reach), 0, 1) * 255).astype(np.uint8))
