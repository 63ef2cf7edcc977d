"""A procedural moving image: a textured background that scrolls, textured objects that bounce, sensor noise.

No data set is needed and none is used. The texture is value noise in octaves (random lattices, linearly interpolated,
each octave twice as fine and 0.7 times as strong), which has about the 1/f spectrum of photographs, with flat shapes on
top for hard edges. `Scene.render(i)` depends on nothing but the seed and `i`, so any frame can be had alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 1920, 1080
SCROLL_PER_FRAME = 3
SWAY = HEIGHT // 10
SPEED = 8.0
OBJECTS = 14
NOISE_SIGMA = 2.0
NOISE_FIELDS = 8


def resize_linear(image: npt.NDArray[np.float32], height: int, width: int) -> npt.NDArray[np.float32]:
    """Separable linear interpolation of a (H, W, C) lattice whose corner samples land on the corners of the result."""

    def along(axis: int, source: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
        position = np.linspace(0, source.shape[axis] - 1, size, dtype=np.float32)
        low = np.minimum(position.astype(np.int64), source.shape[axis] - 2)
        weight = (position - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        return np.asarray(source.take(low, axis) * (1 - weight) + source.take(low + 1, axis) * weight, np.float32)

    return along(1, along(0, image, height), width)


def texture(rng: np.random.Generator, height: int, width: int, *, coarsest: int = 512) -> Image:
    """Coloured value noise (height, width, 3) with a random palette."""
    total = np.zeros((height, width, 3), np.float32)
    cell, strength = coarsest, 1.0
    while cell >= 2:
        lattice = rng.standard_normal((height // cell + 2, width // cell + 2, 1), np.float32)
        tint = rng.normal(1.0, 0.4, (1, 1, 3)).astype(np.float32)
        total += strength * tint * resize_linear(lattice, height, width)
        cell, strength = cell // 2, strength * 0.7
    base = rng.uniform(70, 180, 3).astype(np.float32)
    return np.asarray(np.clip(base + 38 * total, 0, 255), np.uint8)


def ellipse(height: int, width: int) -> npt.NDArray[np.bool_]:
    """The mask of the ellipse that fills a (height, width) rectangle."""
    y, x = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    return np.asarray(x * x + y * y <= 1)


@dataclass(frozen=True)
class MovingObject:
    """A textured patch that bounces between the borders of the image."""

    patch: Image
    mask: npt.NDArray[np.bool_]
    start: tuple[float, float]
    velocity: tuple[float, float]

    def position(self, index: int, span: tuple[int, int]) -> tuple[int, int]:
        """Top left corner (x, y) in frame `index`: a triangle wave over the free span in each direction."""
        x, y = (
            span[axis] - abs((self.start[axis] + self.velocity[axis] * index) % (2 * span[axis]) - span[axis])
            for axis in (0, 1)
        )
        return int(x), int(y)


class Scene:
    """The moving image, 1920x1080."""

    def __init__(self, *, frames: int = 300, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._background = texture(rng, HEIGHT + 2 * SWAY, WIDTH + SCROLL_PER_FRAME * frames)
        self._add_shapes(rng, 60)
        self._objects = [self._object(rng) for _ in range(OBJECTS)]
        noise = rng.normal(0, NOISE_SIGMA, (NOISE_FIELDS, HEIGHT, WIDTH, 1))
        self._noise = np.rint(noise).astype(np.int16)

    def _add_shapes(self, rng: np.random.Generator, count: int) -> None:
        rows, columns, _ = self._background.shape
        for _ in range(count):
            height, width = rng.integers(HEIGHT // 40, HEIGHT // 4, 2)
            y, x = rng.integers(0, rows - height), rng.integers(0, columns - width)
            mask = ellipse(height, width) if rng.random() < 0.5 else np.ones((height, width), bool)
            self._background[y : y + height, x : x + width][mask] = rng.integers(20, 236, 3)

    def _object(self, rng: np.random.Generator) -> MovingObject:
        height, width = (int(side) for side in rng.integers(HEIGHT // 18, HEIGHT // 3, 2))
        mask = ellipse(height, width) if rng.random() < 0.5 else np.ones((height, width), bool)
        return MovingObject(
            patch=texture(rng, height, width, coarsest=64),
            mask=mask,
            start=(rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT)),
            velocity=(rng.uniform(-SPEED, SPEED), rng.uniform(-SPEED, SPEED)),
        )

    def render(self, index: int) -> Image:
        """Frame `index` as (1080, 1920, 3) RGB."""
        x = SCROLL_PER_FRAME * index
        y = int(SWAY * (1 + np.sin(index / 40)))
        frame = self._background[y : y + HEIGHT, x : x + WIDTH].copy()
        for item in self._objects:
            rows, columns = item.mask.shape
            left, top = item.position(index, (WIDTH - columns, HEIGHT - rows))
            frame[top : top + rows, left : left + columns][item.mask] = item.patch[item.mask]
        return np.asarray(np.clip(frame + self._noise[index % NOISE_FIELDS], 0, 255), np.uint8)
