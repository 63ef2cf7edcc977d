"""Mattes that are steadied from frame to frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framefuse.config import Settings
from framefuse.errors import CardError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels.masks.instances import mask_runs
from framefuse.postprocess.mattes import Foreground
from framefuse.prediction import FrameInfo, Matte, MattePart, Result
from framefuse.preprocess import Preprocess
from framefuse.runtime.matting import Matting, of_objects
from framefuse.runtime.program import FrameResult
from framefuse.sources import SourceInfo
from sink_frames import MS, NONE, detections

SIZE = 64, 32


def found(index: int, alpha: Any, luma: int = 100, *, pts: int | None = None, source: str = "a") -> FrameResult:
    width, height = SIZE
    shapes = PIXEL_FORMATS["yuv420p"].plane_shapes(width, height)
    planes = tuple(np.full(shape, value, np.uint8) for shape, value in zip(shapes, (luma, 128, 128), strict=True))
    time = index * 40 if pts is None else pts
    frame = Frame(planes, PIXEL_FORMATS["yuv420p"], index=index, pts=time, time_base=MS, source_id=source)
    part = MattePart((0, 0, width, height), np.full((8, 16), alpha, np.float32))
    return FrameResult(Result(FrameInfo.of(frame), NONE, matte=Matte((part,), SIZE)), frame)


def alphas(results: list[FrameResult], steady: float = 1.0, kind: str = "file") -> list[float]:
    matting = Matting(Settings(matte_steady=steady), lambda source: SourceInfo(source, kind))
    mattes = [
        result.result.matte for result in matting.follow(results, lambda source: ord(source), lambda reader: None)
    ]
    return [float(matte.parts[0].alpha.mean()) for matte in mattes if matte is not None]


def test_what_flickers_where_nothing_moves_is_damped() -> None:
    flicker = [found(i, 0.5 + 0.4 * (-1) ** i) for i in range(40)]
    plain, steady = alphas(flicker, 0), alphas(flicker)
    assert np.abs(np.diff(plain)).mean() == pytest.approx(0.8)
    assert np.abs(np.diff(steady))[4:-4].mean() < 0.2
    assert np.abs(np.diff(alphas(flicker, kind="live")))[4:].mean() < 0.3


@pytest.mark.parametrize(("kind", "seen"), [("file", [0, 0, 0, 0]), ("live", [0, 1, 0, 0])])
def test_what_one_frame_alone_shows_is_taken_out_of_files(kind: str, seen: list[float]) -> None:
    """Even where something moves. A live source does not wait for its next frame."""
    moves = [found(i, float(i == 1), luma=60 + 12 * i) for i in range(4)]
    assert alphas(moves, kind=kind) == seen


def test_what_stays_is_averaged_over_the_frames_around_it() -> None:
    """A step in a still picture is a ramp over three frames on each side; a live source knows only those before."""
    step = [found(i, float(i > 5)) for i in range(12)]
    np.testing.assert_allclose(alphas(step), [0, 0, 0, *(k / 7 for k in range(1, 7)), 1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(alphas(step, kind="live"), [*[0] * 6, *(k / 4 for k in range(1, 5)), 1, 1], atol=1e-6)
    np.testing.assert_allclose(alphas(step, 0), [0] * 6 + [1] * 6)


def test_nothing_is_known_after_an_interruption() -> None:
    """However short it is."""
    step = [found(i, float(i > 5)) for i in range(12)]
    for one in step[6:]:
        object.__setattr__(one.result.frame, "connection", 1)
    assert alphas(step, kind="live") == alphas(step) == [0] * 6 + [1] * 6


def test_each_result_comes_once_and_in_order(gone: int = 5) -> None:
    def results() -> Any:
        for i in range(gone):
            yield found(i, 0, source="ab"[i % 2])
        raise RuntimeError("the disk is full")

    matting = Matting(Settings(), lambda source: SourceInfo(source, "file"))
    seen = []
    with pytest.raises(RuntimeError, match="full"):
        for one in matting.follow(results(), lambda source: ord(source), lambda reader: None):
            seen.append(one.result.frame.index)
    assert sorted(seen) == list(range(gone))
    assert [index for index in seen if index % 2] == [1, 3] and [index for index in seen if not index % 2] == [0, 2, 4]


@pytest.mark.parametrize("kind", ["file", "live"])
@pytest.mark.parametrize("steady", [0.0, 1.0])
def test_holes_are_filled_up_to_a_share_of_the_view(kind: str, steady: float) -> None:
    def least(share: float) -> list[float]:
        pierced = np.ones((8, 16))
        pierced[3, 5] = 0.3
        matting = Matting(Settings(matte_holes=share, matte_steady=steady), lambda source: SourceInfo(source, kind))
        frames = [found(i, pierced) for i in range(3)]
        mattes = [one.result.matte for one in matting.follow(frames, lambda source: 0, lambda reader: None)]
        return [float(matte.parts[0].alpha.min()) for matte in mattes if matte is not None]

    assert least(0.009) == [1] * 3, "1 sample of 8x16"
    assert least(0) == pytest.approx([0.3] * 3)


@pytest.mark.parametrize(("stereo", "seen"), [("sbs", 0.5), ("tb", 0.5), ("left", 1.0), (None, 1.0)])
def test_both_eyes_support_each_other(stereo: str | None, seen: float) -> None:
    """Where both see the same, which is everywhere here. Settings that look at one eye have nothing to support it."""
    one = found(0, 0.0)
    eyes = [MattePart((left, 0, 32, 32), np.full((8, 8), left > 0, np.float32)) for left in (0, 32)]
    one = one._replace(result=replace(one.result, matte=Matte(tuple(eyes), SIZE)))
    for weight, expected in ((0.0, [0.0, 1.0]), (1.0, [1 - seen if seen < 1 else 0.0, seen])):
        matting = Matting(Settings(matte_eyes=weight, stereo=stereo), lambda source: SourceInfo(source, "file"))
        (after,) = matting.follow([one], lambda source: 0, lambda reader: None)
        assert after.result.matte is not None
        assert [float(part.alpha.mean()) for part in after.result.matte.parts] == expected


def test_what_moves_is_followed_at_once() -> None:
    moves = [found(i, float(i > 2), luma=60 + 12 * i) for i in range(6)]
    assert alphas(moves) == alphas(moves, kind="live") == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "second", [found(1, 1, luma=180), found(1, 1, pts=2000), found(1, 1, pts=-40), found(1, 1, source="b")]
)
def test_nothing_stays_after_a_cut_a_gap_a_seek_or_of_another_source(second: FrameResult) -> None:
    assert alphas([found(0, 0), second]) == [0, 1]


def test_the_matte_of_a_frame_is_put_together_from_its_views() -> None:
    left, right = np.zeros((4, 4), np.float32), np.ones((4, 4), np.float32)
    whole = Matte((MattePart((0, 0, 33, 20), left), MattePart((33, 0, 31, 20), right)), (64, 20)).alpha()
    assert (whole[:, :33] == 0).all() and (whole[:, 33:] == 255).all()
    assert (Matte((), (5, 3)).alpha() == 0).all()


def test_the_matte_of_objects_is_their_union() -> None:
    one = detections((0, 0, 32, 32, 0.9, 0), (40, 8, 60, 24, 0.8, 0))
    masks = np.zeros((2, 32, 64), bool)
    masks[0, :, :32], masks[1, 8:24, 40:60] = True, True

    matte = of_objects(replace(one, runs=mask_runs(masks)), SIZE)
    alpha = matte.alpha()
    assert alpha[16, 10] == 255 and alpha[16, 50] == 255 and alpha[4, 50] == 0
    assert (of_objects(one, SIZE).alpha() == 0).all(), "boxes without masks cover nothing"


def mattes(scores: Any, names: dict[int, str], classes: tuple[int, ...] = (), size: tuple[int, int] = (64, 64)) -> Any:
    spec = Preprocess(64, 64)
    return Foreground(names, classes)(np.asarray(scores, np.float32), [spec.place(*size)])[0].parts[0].alpha


def test_foreground_of_scores() -> None:
    names = {0: "sky", 1: "background", 2: "person"}
    scores = np.zeros((1, 3, 16, 16))
    scores[:, 2, :, 8:] = 20
    scores[:, 1, :, :8] = 20
    assert mattes(scores, names)[:, [0, 15]].round(3).tolist() == [[0, 1]] * 16
    assert mattes(scores, names, (0, 1))[:, [0, 15]].round(3).tolist() == [[1, 0]] * 16
    assert mattes(scores[:, ::2], {})[:, [0, 15]].round(3).tolist() == [[0.5, 1]] * 16, "class 0 is the background"


def test_one_channel_is_a_matte_or_its_logit() -> None:
    ramp = np.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    np.testing.assert_allclose(mattes(ramp, {}), ramp[0, 0], atol=1e-6)
    np.testing.assert_allclose(mattes(ramp * 200 - 100, {}), 1 / (1 + np.exp(100 - ramp[0, 0] * 200)), atol=1e-6)


def test_a_matte_may_overshoot() -> None:
    """Sigmoids round, and networks interpolate: one value beyond 0..1 does not make logits of the others."""
    ramp = np.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    for least, most in ((0, 1 + 1e-6), (-1e-6, 1), (-0.08, 1.08)):
        found = mattes(least + ramp * (most - least), {})
        np.testing.assert_allclose(found, (least + ramp[0, 0] * (most - least)).clip(0, 1), atol=1e-6)


def test_padding_is_cut_off() -> None:
    scores = np.full((1, 1, 16, 16), -50.0)
    scores[:, :, 4:12] = 50  # a frame of 64x32 lies in the middle of 64x64
    assert mattes(scores, {}, size=(64, 32)).shape == (8, 16)
    assert mattes(scores, {}, size=(64, 32)).min() > 0.99


def test_bad_scores_are_refused() -> None:
    with pytest.raises(CardError, match="all 2 classes are background"):
        mattes(np.zeros((1, 2, 16, 16)), {0: "void", 1: "background"})
    scores = np.zeros((1, 2, 16, 16))
    scores[0, 1, 3, 3] = np.nan
    with pytest.raises(Exception, match="of its scores"):
        mattes(scores, {})


def test_results_keep_everything_else() -> None:
    one = found(0, 1)
    one = one._replace(result=replace(one.result, rung="x", arrival=3.0))
    (after,) = Matting(Settings(), lambda source: SourceInfo(source, "file")).follow(
        [one], lambda source: 0, lambda reader: None
    )
    assert (after.result.rung, after.result.arrival, after.frame) == ("x", 3.0, one.frame)


def test_a_source_that_has_ended_does_not_keep_its_last_frames_waiting() -> None:
    """Another goes on."""
    matting, read = Matting(Settings(), lambda source: SourceInfo(source, "file")), [0, 0]

    def results() -> Any:
        for i in range(4):
            read[0] += 1
            yield found(i, 0, source="a")
        for i in range(3):
            read[1] += 1
            yield found(i, 0, source="b")

    seen = []
    left = {ord("a"): lambda: 4 - len([one for one in seen if one == "a"]) if read[1] else None, ord("b"): lambda: None}
    for one in matting.follow(results(), ord, lambda reader: left[reader]()):
        seen.append(one.result.frame.source_id)
    assert seen == [*"aaaabbb"]


def test_images_are_not_steadied_by_each_other() -> None:
    one = [found(i, float(i == 1)) for i in range(3)]
    timeless = [row._replace(result=replace(row.result, frame=replace(row.result.frame, pts=None))) for row in one]
    assert alphas(timeless) == [0, 1, 0]


def test_classes_that_the_model_does_not_have() -> None:
    with pytest.raises(UsageError, match="class 7 was asked for, and the model has 3 classes"):
        mattes(np.zeros((1, 3, 16, 16)), {}, (7,))
