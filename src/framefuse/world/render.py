"""Render tracks: backdrop, shadows and stamps in painter's order, then lighting, noise and compression.

The backdrop is one wide image that wraps around; every frame shows a window of it. It uses the same textures as the
objects, and contains distractor shapes in the colours of objects.
"""

from __future__ import annotations

import io
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from framefuse.common.keypoints import COCO_KEYPOINTS, MIRRORED
from framefuse.world.address import WorldSpec
from framefuse.world.chance import BANK, Chance, Split, colour, texture
from framefuse.world.sketch import Sketch, Stamp
from framefuse.world.traffic import DECOY, DISPARITY, FAR, SHUTTER, People, Track, Traffic
from framefuse.world.truth import Snapshot, Truth

LAPS = 3
"""Width of the backdrop in frame widths."""
MARGIN = 0.08
"""Margin above and below the frame for the camera's movement, in frame heights."""
NOISE_ROOM = 64
"""Pixels by which the noise image is larger than the frame; each frame uses another window of it."""
SHADOW = 64


class Stage:
    """Data shared by all frames of a world."""

    def __init__(self, world: WorldSpec) -> None:
        self.world = world
        width, height = world.size
        self.eyes = 2 if world.stereo == "sbs" else 1
        self.size = width // self.eyes, height
        self.unit = height / world.far
        """Pixels of what the scene calls a frame height."""
        self.scene = (Traffic if world.scene == "street" else People)(world, self.size[0] / self.unit)
        chance = Chance(world.split, f"stage/{world.scene}/{world.seed}")
        self.backdrop = paint_backdrop(world.split, chance, *self.size, self.scene.horizon / world.far, self.unit)
        tints = chance.uniform(0.93, 1.07), 1, chance.uniform(0.93, 1.07)
        self.gain = [chance.uniform(0.75, 1.15) * tint for tint in tints]
        self.drift = [(chance.style(0.0, 0.16), chance.uniform(0.02, 0.12), chance.unit()) for _ in range(2)]
        self.quality = chance.integer(60, 96)
        self.noise = _noise(chance, width + NOISE_ROOM, height + NOISE_ROOM, chance.uniform(0.5, 4.0))
        axis = (np.arange(SHADOW) + 0.5) / SHADOW * 2 - 1
        disc = np.clip(1.25 * (1 - np.hypot(axis[None, :], axis[:, None])), 0, 1)
        self.shadow = Image.fromarray((disc * 255 * chance.uniform(0.2, 0.6)).astype(np.uint8))
        self.sun = chance.uniform(-0.35, 0.35)


class Drawn(NamedTuple):
    """A drawn object that is not a decoy. The k-th of a frame has number k + 1 in the raw instance mask."""

    track: Track
    pixels: int
    """Number of pixels of the whole object, including hidden ones and those outside the image."""
    window: tuple[slice, slice]
    """Rows and columns of the image that it covers."""
    keypoints: NDArray[np.float32]
    """(17, 3) as in Truth; x and y also outside the image, visible unless outside."""


def render(stage: Stage, index: int) -> Snapshot:
    """Render frame `index` and its ground truth."""
    frame = _Frame(stage, float(index / stage.world.fps))
    for eye in range(stage.eyes):
        frame.draw(eye)
    return Snapshot(index, _camera(stage, frame.canvas, index, frame.seconds), frame.truth())


class _Frame:
    """A frame while it is being drawn."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self.stage, self.seconds = stage, seconds
        self.tracks = stage.scene.present(seconds)
        self.drawn: list[Drawn] = []
        self.canvas = Image.new("RGB", stage.world.size)
        shape = stage.world.size[::-1]
        self.instances = np.zeros(shape, np.uint16)
        """(h, w) numbers as in Drawn; decoys count as background but hide objects behind them."""
        self.classes = np.zeros(shape, np.uint8)
        """(h, w) as in Truth.class_mask."""
        self.far = round(FAR * stage.unit) if stage.eyes == 2 else 0
        self.disparity = np.full(shape, self.far, np.float32) if stage.eyes == 2 else None

    def draw(self, eye: int) -> None:
        """Draw all tracks as one eye sees them."""
        stage, unit, seconds = self.stage, self.stage.unit, self.seconds
        (width, height), street = stage.size, stage.world.scene == "street"
        period = float(1 / stage.world.fps)
        turn, before = stage.scene.camera(seconds), stage.scene.camera(seconds - period)
        left = (round((turn[0] + stage.scene.speed * seconds) * unit) + eye * self.far) % (LAPS * width)
        top = round((MARGIN * stage.world.far + turn[1]) * unit)
        canvas = stage.backdrop.crop((left, top, left + width, top + height))
        for track in self.tracks:
            (*place, size), last = track.place(seconds), track.place(seconds - period)
            size *= unit
            shift = DISPARITY * track.size if stage.eyes == 2 else 0.0
            x, y = (place[0] - turn[0] - eye * shift) * unit, (place[1] - turn[1]) * unit
            moved = (place[axis] - last[axis] - turn[axis] + before[axis] for axis in range(2))
            blur_x, blur_y = (SHUTTER / 2 * abs(distance) * unit for distance in moved)
            if street:
                _shade(stage, canvas, track, x, y + track.hover * unit, size)
            sketch = Sketch(track.figure.yaw, track.figure.elevation)
            track.figure.draw(sketch, track.phase(seconds))
            stamp = track.paint.stamp(sketch, size, (x, y), track.span < 0, (blur_x, blur_y), stage.size, not street)
            if stamp is None:
                continue
            canvas.paste(stamp.image, (stamp.x, stamp.y), stamp.image)
            decoy = track.class_id == DECOY
            window = self._claim(stamp, eye, 0 if decoy else len(self.drawn) + 1, track.class_id + 1, shift * unit)
            if not decoy:
                points = _keypoints(sketch, size, (x, y), track.span < 0, stage.size)
                points[:, 0] += eye * width
                self.drawn.append(Drawn(track, stamp.pixels, window, points))
        self.canvas.paste(canvas, (eye * width, 0))

    def _claim(self, stamp: Stamp, eye: int, number: int, class_number: int, disparity: float) -> tuple[slice, slice]:
        """Write a stamp's pixels to the arrays; returns their window in the whole image."""
        (height, width), (columns, rows) = stamp.covered.shape, self.stage.size
        top, left = max(0, stamp.y), max(0, stamp.x)
        bottom, right = min(rows, stamp.y + height), min(columns, stamp.x + width)
        source = slice(top - stamp.y, bottom - stamp.y), slice(left - stamp.x, right - stamp.x)
        window = slice(top, bottom), slice(eye * columns + left, eye * columns + right)
        covered = stamp.covered[source]
        np.copyto(self.instances[window], number, where=covered)
        np.copyto(self.classes[window], class_number if stamp.parts is None else stamp.parts[source], where=covered)
        if self.disparity is not None:
            np.copyto(self.disparity[window], disparity, where=covered)
        return window

    def truth(self) -> Truth:
        seen: list[tuple[Drawn, int, tuple[int, int, int, int]]] = []
        points = np.zeros((len(self.drawn), len(COCO_KEYPOINTS), 3), np.float32)
        rows = np.zeros(len(self.drawn) + 1, np.uint16)
        for number, item in enumerate(self.drawn, 1):
            found = self.instances[item.window] == number
            if pixels := int(np.count_nonzero(found)):
                x, y = np.flatnonzero(found.any(0)), np.flatnonzero(found.any(1))
                top, left = item.window[0].start, item.window[1].start
                box = left + int(x[0]), top + int(y[0]), left + int(x[-1]) + 1, top + int(y[-1]) + 1
                points[len(seen)] = self._seen(item.keypoints, number)
                seen.append((item, pixels, box))
                rows[number] = len(seen)
        return Truth(
            boxes=np.array([box for _, _, box in seen], np.float32).reshape(-1, 4),
            class_id=np.array([item.track.class_id for item, _, _ in seen], np.int64),
            track_id=np.array([item.track.track_id for item, _, _ in seen], np.int64),
            visibility=np.array([pixels / item.pixels for item, pixels, _ in seen], np.float32),
            instances=self.instances if len(seen) == len(self.drawn) else rows.take(self.instances),
            class_mask=self.classes,
            complexity=self.stage.scene.complexity_of(self.tracks),
            keypoints=points[: len(seen)],
            disparity=self.disparity,
        )

    def _seen(self, points: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        """Keypoints of a drawn object as in Truth: those behind other objects marked as hidden."""
        shown = points.copy()
        inside = np.flatnonzero(points[:, 2])
        # A place just inside the right edge of the right eye is rounded to the edge.
        last = np.nextafter(np.array(self.instances.shape[::-1], np.float32), np.float32(0))
        shown[inside, :2] = np.minimum(points[inside, :2], last)
        x, y = shown[inside, :2].astype(int).T
        shown[inside[self.instances[y, x] != number], 2] = 1
        shown[points[:, 2] == 0] = 0
        return shown


def _keypoints(
    sketch: Sketch, size: float, at: tuple[float, float], mirror: bool, view: tuple[int, int]
) -> NDArray[np.float32]:
    """(17, 3) of a person as in Truth, visible unless outside the view; zeros for other figures."""
    found = np.zeros((len(COCO_KEYPOINTS), 3), np.float32)
    if sketch.keypoints:
        places = np.array(sketch.keypoints) * ((-size if mirror else size), -size) + at
        found[:, :2] = places[MIRRORED] if mirror else places
        found[:, 2] = 2 * ((found[:, :2] >= 0) & (found[:, :2] < view)).all(1)
    return found


def _shade(stage: Stage, canvas: Image.Image, track: Track, x: float, y: float, size: float) -> None:
    """A soft shadow on the ground."""
    wide = {1: 1.1, 2: 1.1, 3: 0.9, 5: 0.9, 8: 1.1, 9: 0.9, 7: 0.9}.get(track.class_id, 0.5) * size
    tall = max(2.0, 0.16 * wide)
    if wide >= 4:
        soft = stage.shadow.resize((max(2, round(wide)), max(2, round(tall))), Image.Resampling.BILINEAR)
        canvas.paste((0, 0, 0), (round(x - wide / 2 + stage.sun * wide), round(y - 0.55 * tall)), soft)


def _camera(stage: Stage, canvas: Image.Image, index: int, seconds: float) -> NDArray[np.uint8]:
    """Apply lighting, noise and compression."""
    (swing, rate, start), (warm, warm_rate, warm_start) = stage.drift
    light = 1 + swing * math.sin(2 * math.pi * (rate * seconds + start))
    tint = 0.4 * warm * math.sin(2 * math.pi * (warm_rate * seconds + warm_start))
    levels, gains = np.arange(256), zip(stage.gain, (1 + tint, 1.0, 1 - tint), strict=True)
    curves = [np.minimum(255, np.rint(levels * gain * light * share)) for gain, share in gains]
    lit = np.asarray(canvas.point(np.concatenate(curves).astype(int).tolist()))
    height, width = lit.shape[:2]
    chance = Chance(stage.world.split, f"noise/{stage.world.seed}/{index}")
    top, left = chance.integer(0, NOISE_ROOM), chance.integer(0, NOISE_ROOM)
    noisy = lit + stage.noise[top : top + height, left : left + width]
    np.clip(noisy, 0, 255, out=noisy)
    packed = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).save(packed, "JPEG", quality=stage.quality)
    return np.array(Image.open(packed, formats=["JPEG"]))


def _noise(chance: Chance, width: int, height: int, strength: float) -> NDArray[np.int16]:
    """(height, width, 3) of roughly normal noise with a deviation of `strength` levels: sums of four random bytes."""
    bits = np.random.PCG64(chance.integer(0, 2**63))
    words = bits.random_raw(height * width * 3 // 2 + 1).view(np.uint8).reshape(-1, 4)
    sums = words.sum(axis=1, dtype=np.int16)[: height * width * 3] - np.int16(510)
    scale = np.array([round(value * strength / 147.8) for value in range(-510, 511)], np.int16)
    noise: NDArray[np.int16] = scale[sums + 510].reshape(height, width, 3)
    return noise


def paint_backdrop(split: Split, chance: Chance, width: int, height: int, horizon: float, unit: float) -> Image.Image:
    """RGB image of LAPS * width by (1 + 2 MARGIN) * height pixels, extended on the right by its first `width` columns.

    The ground begins at `horizon`, in frame heights from the top. Textures and shapes are scaled to `unit` pixels: the
    height, or less if the camera is far away.
    """
    lap, tall = LAPS * width, height + 2 * round(MARGIN * height)
    image = Image.new("RGB", (lap, tall))
    line = round((horizon + MARGIN) * height)
    _cover(image, split, chance, (0, 0, lap, line), chance.uniform(0.6, 1.2) * unit)
    if chance.happens(0.7):
        sky = Image.new("RGB", (lap, line), colour(chance))
        image.paste(Image.blend(image.crop((0, 0, lap, line)), sky, chance.uniform(0.3, 0.9)), (0, 0))
    _skyline(image, split, chance, line, unit)
    _cover(image, split, chance, (0, line, lap, tall), chance.uniform(0.5, 1.0) * unit)
    _bands(image, chance, line, tall)
    _shapes(image, split, chance, unit, round(LAPS * (height / unit) ** 2))
    if chance.happens(0.5):
        image = image.filter(ImageFilter.BoxBlur(chance.uniform(0.2, 1.2) * unit / 360))
    full = Image.new("RGB", (lap + width, tall))
    full.paste(image, (0, 0))
    full.paste(image.crop((0, 0, width, tall)), (lap, 0))
    return full


def _cover(image: Image.Image, split: Split, chance: Chance, box: tuple[int, int, int, int], side: float) -> None:
    """Fill a rectangle with repeats of one texture, `side` pixels each."""
    left, top, right, bottom = box
    step = max(8, round(side))
    repeats = max(1, round((right - left) / step))
    step = -(-(right - left) // repeats)
    piece = texture(split, chance.integer(0, BANK)).patch(step, step, 1.0, 0.0, 0.0)
    for x in range(left, right, step):
        for y in range(top, bottom, step):
            image.paste(piece.crop((0, 0, min(step, right - x), min(step, bottom - y))), (x, y))


def _skyline(image: Image.Image, split: Split, chance: Chance, line: int, unit: float) -> None:
    """Textured blocks along the horizon."""
    x = 0
    while x < image.width:
        wide = min(round(chance.uniform(0.1, 0.6) * unit), image.width - x)
        tall = round(chance.style(0.05, 0.85) * line)
        if wide > 3 and tall > 3 and chance.happens(0.75):
            piece = texture(split, chance.integer(0, BANK)).patch(wide, tall, chance.uniform(0.2, 1), chance.unit(), 0)
            image.paste(piece, (x, line - tall))
        x += max(4, wide + round(chance.uniform(-0.02, 0.1) * unit))


def _bands(image: Image.Image, chance: Chance, line: int, tall: int) -> None:
    """Kerbs and lane markings on the ground."""
    pen = ImageDraw.Draw(image)
    for _ in range(chance.integer(0, 4)):
        y, thick = chance.uniform(line, tall), chance.uniform(0.005, 0.04) * (tall - line)
        ink = colour(chance)
        dash = chance.uniform(0.1, 0.5) * tall if chance.happens(0.5) else float(image.width)
        x = 0.0
        while x < image.width:
            pen.rectangle((x, y, x + 0.6 * dash, y + thick), fill=ink)
            x += dash


def _shapes(image: Image.Image, split: Split, chance: Chance, unit: float, share: int) -> None:
    """Distractors: bars, rings, half discs, crosses, triangles and blobs in textures and plain colours."""
    for _ in range(share * chance.integer(5, 16)):
        size = unit * 0.03 * (0.3 / 0.03) ** chance.unit()
        wide = max(4, round(size * chance.uniform(0.4, 1.8)))
        tall = max(4, round(size))
        x, y = chance.integer(0, image.width - wide), chance.integer(0, max(1, image.height - tall))
        mask = Image.new("L", (2 * wide, 2 * tall))
        _shape(ImageDraw.Draw(mask), chance, 2 * wide - 1, 2 * tall - 1)
        mask = mask.reduce(2)
        if chance.happens(0.75):
            ink = texture(split, chance.integer(0, BANK)).patch(wide, tall, chance.uniform(0.2, 1), chance.unit(), 0)
        else:
            ink = Image.new("RGB", (wide, tall), colour(chance))
        image.paste(ink, (x, y), mask)


def _shape(pen: ImageDraw.ImageDraw, chance: Chance, w: int, h: int) -> None:
    kind = chance.integer(0, 6)
    if kind == 0:
        pen.polygon([(0, h * 0.2), (w, 0), (w * 0.9, h), (w * 0.1, h * 0.8)], fill=255)
    elif kind == 1:
        pen.ellipse((0, 0, w, h), fill=255)
        pen.ellipse((w * 0.3, h * 0.3, w * 0.8, h * 0.8), fill=0)
    elif kind == 2:
        pen.pieslice((0, 0, w, 2 * h), 180, 360, fill=255)
    elif kind == 3:
        pen.rectangle((w * 0.4, 0, w * 0.6, h), fill=255)
        pen.rectangle((0, h * 0.4, w, h * 0.6), fill=255)
    elif kind == 4:
        pen.polygon([(0, 0), (w, h * chance.unit()), (w * chance.unit(), h)], fill=255)
    else:
        spikes = [(chance.uniform(0.25, 0.5), 2 * math.pi * number / 9) for number in range(9)]
        pen.polygon([(w * (0.5 + r * math.cos(a)), h * (0.5 + r * math.sin(a))) for r, a in spikes], fill=255)
