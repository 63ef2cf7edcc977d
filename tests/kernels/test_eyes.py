"""Mattes of both eyes that support each other, on the host and on a GPU, against a search in plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_on_cpu import on_device
from framefuse.kernels.masks.eyes import DIFFERS, FAR, NEAR, RADIUS, agreed

Pair = tuple[NDArray[np.float32], NDArray[np.float32]]
Agree = Callable[[Pair, Pair, float], Pair]


@pytest.fixture(params=["host", "fibres", pytest.param("cuda", marks=pytest.mark.gpu)])
def agree(request: pytest.FixtureRequest) -> Agree:
    """`agreed`, where the kernel under test runs."""
    move: Callable[[NDArray[Any]], Any] = np.array
    if request.param == "fibres":
        request.getfixturevalue("fibres")
        move = on_device
    elif request.param == "cuda":
        module: Any = pytest.importorskip("cupy")
        move = module.asarray

    def found(alphas: Pair, guides: Pair, weight: float) -> Pair:
        left, right = agreed((move(alphas[0]), move(alphas[1])), (move(guides[0]), move(guides[1])), weight)
        return tuple(np.asarray(one.get() if hasattr(one, "get") else one) for one in (left, right))  # type: ignore[return-value]

    return found


def searched(alphas: Pair, guides: Pair, weight: float) -> list[NDArray[np.float64]]:
    """The formula, sample by sample, in float64."""
    (rows, columns), found = alphas[0].shape, []
    left, right = (np.rint(guide.astype(np.float64) * 255) / 255 for guide in guides)
    for eye, own in enumerate(alphas):
        out = own.astype(np.float64)
        for y, x in np.ndindex(rows, columns):
            best = np.inf, 0
            for shift in range(-int(columns * FAR), int(columns * NEAR) + 1):
                at = x + shift if eye else x
                begin, end = max(shift, 0), columns - 1 + min(shift, 0)
                if not begin <= at <= end:
                    continue
                down = np.arange(y - RADIUS, y + RADIUS + 1).clip(0, rows - 1)[:, None]
                across = np.arange(at - RADIUS, at + RADIUS + 1).clip(begin, end)
                difference = np.abs(left[down, across] - right[down, across - shift]).mean()
                best = min(best, (round(float(difference), 9), shift))
            part = max(1 - best[0] / DIFFERS, 0) * weight
            out[y, x] = (own[y, x] + part * alphas[1 - eye][y, x + best[1] if eye else x - best[1]]) / (1 + part)
        found.append(out)
    return found


def picture(shape: tuple[int, int], shift: int, noise: float) -> tuple[Pair, Pair]:
    """Mattes of noise, and both views of a wall that is `shift` samples further left in the right eye."""
    random = np.random.default_rng(shift + 5)
    wide = random.uniform(0.1, 0.9, (shape[0], shape[1] + 32))
    views = wide[:, 16 : 16 + shape[1]], wide[:, 16 + shift : 16 + shift + shape[1]]
    left, right = ((view + random.normal(0, noise, shape)).clip(0, 1).astype(np.float32) for view in views)
    alphas = (random.uniform(0, 1, shape).astype(np.float32), random.uniform(0, 1, shape).astype(np.float32))
    return alphas, (left, right)


@pytest.mark.parametrize(
    ("shape", "shift"),
    [((1, 1), 0), ((4, 5), 0), ((7, 64), 3), ((6, 97), -2), pytest.param((3, 300), 15, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_the_other_eye_counts_where_it_sees_the_same(
    shape: tuple[int, int], shift: int, noise: float, weight: float, agree: Agree
) -> None:
    alphas, guides = picture(shape, shift, noise)
    for one, other in zip(agree(alphas, guides, weight), searched(alphas, guides, weight), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_each_eye_has_the_mean_of_both(agree: Agree) -> None:
    """Where both see the same wall, as far as it is in both pictures."""
    alphas, guides = picture((9, 96), 4, 0)
    left, right = agree(alphas, guides, 1.0)
    mean = (alphas[0][:, 4:] + alphas[1][:, :-4]) / 2
    np.testing.assert_allclose(left[:, 4:], mean, atol=1e-6)
    np.testing.assert_allclose(right[:, :-4], mean, atol=1e-6)


def test_what_looks_different_keeps_its_own(agree: Agree) -> None:
    alphas, guides = picture((9, 96), 4, 0)
    changed = (guides[0], ((guides[1] + 0.5) % 1).astype(np.float32))
    for one, other in zip(agree(alphas, changed, 1.0), alphas, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(agree(alphas, guides, 0.0), alphas, strict=True):
        np.testing.assert_array_equal(one, other)
