"""Rectilinear views of the eyes of VR videos: where they look, what becomes of their mattes, and when they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_on_cpu import on_device
from fake_gpu import Array, Gpu
from framefuse.config import Settings
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame, View
from framefuse.kernels.geometry.call import remap
from framefuse.kernels.geometry.projections import (
    equirectangular_to_perspective,
    fisheye_to_perspective,
    perspective_to_equirectangular,
    perspective_to_fisheye,
)
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.pipeline import Pipeline
from framefuse.prediction import MattePart
from framefuse.runtime.rectilinear import DEGREES, SIDE, Rectilinear, chosen
from framefuse.sources import SourceInfo
from sink_frames import make_clip

SIZE = 200, 100
EYES = [(0, 0, 100, 100), (100, 0, 100, 100)]
PROJECTIONS = ["equirect180", "fisheye190", "fisheye180"]


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (equirectangular_to_perspective, perspective_to_equirectangular),
        (fisheye_to_perspective, perspective_to_fisheye),
    ],
)
def test_tables_lead_back(there: Any, back: Any) -> None:
    """Each pixel of a camera's picture is found at its own place again, by way of the panorama."""
    facts = {"span": 180.0} if there is equirectangular_to_perspective else {"fov": 190.0}
    own, panorama = (81, 61), (600, 600)
    maps = there(panorama, own, horizontal_fov=100, **facts)
    places = back(own, panorama, horizontal_fov=100, **facts)
    y, x = np.mgrid[: own[1], : own[0]]
    for table, expected in zip(places, (x, y), strict=True):
        found = remap(np.ascontiguousarray(table), *maps, layout="CHW")
        inside = np.isfinite(found)
        assert inside[2:-2, 2:-2].all(), "around the edges a neighbour may lie beyond the picture"
        np.testing.assert_allclose(found[inside], expected[inside], atol=0.05)


def test_a_camera_sees_nothing_behind_it() -> None:
    x, y = perspective_to_equirectangular((50, 50), (360, 180), horizontal_fov=90)
    seen = np.isfinite(x)
    assert (seen == np.isfinite(y)).all() and not seen[:, :135].any() and not seen[:, 225:].any()
    assert seen[90, 136:224].all(), "45 degrees to both sides"
    with pytest.raises(UsageError, match=r"not 0\.\.180 degrees"):
        perspective_to_fisheye((50, 50), (100, 100), horizontal_fov=180)


def frames(name: str = "yuv420p") -> Frame:
    """The left eye sees a column of light straight ahead, the right eye a row of it."""
    format = PIXEL_FORMATS[name]
    planes = [np.full(shape, 16 << max(format.bits + format.shift - 8, 0), format.dtype)
              for shape in format.plane_shapes(*SIZE)]  # fmt: skip
    light = 235 << format.bits + format.shift - 8
    planes[0][:, 46:54] = light
    planes[0][46:54, 100:] = light
    return Frame(tuple(planes), format, index=3, source_id="a", matrix="bt709")


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_views_look_straight_ahead(projection: str) -> None:
    frame = frames()
    same, (left, right) = Rectilinear(projection).rows(frame, EYES)
    assert same is frame
    for view in (left, right):
        assert (view.width, view.height, view.index, view.source_id, view.matrix) == (SIDE, SIDE, 3, "a", "bt709")
        assert view.view is None and view.format.name == "yuv420p"
    middle = slice(SIDE // 2 - 20, SIDE // 2 + 20)
    assert left.planes[0][:, middle].min() > 230 and right.planes[0][middle].min() > 230
    assert left.planes[0][:, :200].max() == 16 and right.planes[0][:200].max() == 16


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_rotated_frames_are_seen_upright(rotation: Any) -> None:
    plain = frames()
    coded = tuple(np.ascontiguousarray(np.rot90(plane, rotation // 90)) for plane in plain.planes)
    turned = replace(plain, planes=coded, rotation=rotation)
    for one, other in zip(*(Rectilinear("fisheye190").rows(frame, EYES)[1] for frame in (plain, turned)), strict=True):
        assert other.rotation == 0
        for plane, expected in zip(other.planes, one.planes, strict=True):
            np.testing.assert_array_equal(plane, expected)


@pytest.mark.parametrize("name", ["nv12", "yuv420p", "p010"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_views_on_a_gpu_are_those_of_the_host(projection: str, name: str, gpu: Gpu) -> None:
    """They and the frame may be read once an event has come, before which the frame is not given back."""
    frame = frames(name)
    there = replace(frame, planes=tuple(plane.view(Array) for plane in frame.planes))
    kept, found = Rectilinear(projection).rows(there, EYES)
    assert kept.ready is not None and kept.planes is there.planes
    kept.ready.synchronize()
    for one, other in zip(found, Rectilinear(projection).rows(frame, EYES)[1], strict=True):
        assert one.ready is kept.ready
        for plane, expected in zip(one.planes, other.planes, strict=True):
            difference = np.abs(np.asarray(plane).astype(int) - expected)
            assert difference.max() <= 1 and (difference == 0).mean() > 0.95


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("own", [(48, 48), (40, 60)])
def test_where_a_view_shows_nothing_the_eye_counts(
    own: tuple[int, int], projection: str, there: bool, request: pytest.FixtureRequest
) -> None:
    move: Callable[[Any], Any] = np.array
    if there:
        request.getfixturevalue("fibres")
        move = on_device
    random = np.random.default_rng(0)
    eye, view = random.uniform(0, 0.4, own).astype(np.float32), random.uniform(0.6, 1, (48, 48)).astype(np.float32)
    parts = [MattePart(EYES[0], move(eye)), MattePart(EYES[0], move(view))]
    (joined,) = Rectilinear(projection).joined(parts)
    alpha, (rows, columns) = np.asarray(joined.alpha), (round(own[0] * 5 / 3), round(own[1] * 5 / 3))
    assert alpha.shape == (rows, columns) and joined.region == EYES[0]
    of_view = alpha > 0.5
    assert (alpha[of_view] >= 0.6 - 1e-6).all() and (alpha[~of_view] <= 0.4 + 1e-6).all(), "nothing is mixed"
    assert not of_view[0].any() and not of_view[:, 0].any() and of_view[rows // 2, columns // 2]
    if projection == "equirect180":
        assert of_view[rows // 2].sum() == pytest.approx(columns * DEGREES / 180, abs=2)


def settled(tmp_path: Path, name: str, **options: Any) -> tuple[Settings, str | None]:
    path = tmp_path / name
    path.touch()
    info = SourceInfo(str(path), "file", path=path)
    return chosen(Settings(**{"save_matte": "gray", "stereo": "sbs", **options}), read_card(find_model("body-n")), info)


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        ("a_FISHEYE190.mp4", "auto", "rectilinear"),
        ("a_MKX200.mp4", "auto", "rectilinear"),
        ("a_FISHEYE190.mp4", "panorama", "panorama"),
        ("a_180_LR.mp4", "auto", "panorama"),
        ("a_180_LR.mp4", "rectilinear", "rectilinear"),
        ("a_SBS.mp4", "auto", "panorama"),
    ],
)
def test_what_the_name_says_decides(name: str, asked: str, found: str, tmp_path: Path) -> None:
    settings, why = settled(tmp_path, name, matte_view=asked)
    assert settings.matte_view == found
    assert (why is not None) == (found == "rectilinear")


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("a_SBS.mp4", {}, "neither VR180 nor fisheye"),
        ("a_360_TB.mp4", {}, "neither VR180 nor fisheye"),
        ("a_FISHEYE190.mp4", {"stereo": None}, "eyes are not looked at by themselves"),
        ("a_FISHEYE190.mp4", {"tiles": "2x2"}, "tiles was asked for, too"),
    ],
)
def test_what_has_no_rectilinear_views(name: str, options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        settled(tmp_path, name, matte_view="rectilinear", **options)
    assert settled(tmp_path, name, matte_view="auto", **options)[0].matte_view == "panorama"


def test_a_matte_is_no_finer_than_its_eye() -> None:
    region = (64, 0, 64, 50)
    alphas = (np.full(shape, value, np.float32) for shape, value in (((50, 60), 0.0), ((96, 96), 1.0)))
    (joined,) = Rectilinear("fisheye190").joined([MattePart(region, alpha) for alpha in alphas])
    assert joined.alpha.shape == (50, 64) and joined.alpha[25, 32] == 1 and joined.alpha[0, 0] == 0


def test_views_of_a_function_are_no_eyes(tmp_path: Path) -> None:
    clip, look = make_clip(tmp_path / "a_FISHEYE.mp4", seconds=0.1), lambda frame, latest: [View()]
    with pytest.raises(UsageError, match="views was given beside matte_view"):
        Pipeline(clip, "body-n", save_matte="gray", matte_view="rectilinear", views=look)
    with Pipeline(clip, "body-n", save_matte="gray", views=look, project=tmp_path) as pipeline:
        assert len(list(pipeline)) > 0, "by default the function has its way"


def test_other_runs_than_those_for_mattes_have_none(tmp_path: Path) -> None:
    assert settled(tmp_path, "a_FISHEYE190.mp4", matte_view="auto", save_matte=None)[1] is None
