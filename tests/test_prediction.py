"""What users do with the objects of a frame."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framefuse.errors import CapabilityError
from framefuse.kernels.masks.instances import mask_runs
from framefuse.prediction import Classification, Detections, FrameInfo, Masks, Result

NAMES = {0: "car", 1: "traffic <light>"}


def detections(**more: Any) -> Detections:
    xyxy = np.array([[0, 0, 10, 20], [5, 5, 7, 9], [100, 50, 300, 60]], np.float32)
    return Detections(xyxy, np.array([0.9, 0.5, 0.25], np.float32), np.array([1, 0, 7]), NAMES, **more)


def test_one_at_a_time() -> None:
    found = detections()
    first, second, third = found
    assert (first.name, first.confidence, first.class_id) == ("traffic <light>", pytest.approx(0.9), 1)
    assert [one.name for one in found] == ["traffic <light>", "car", "7"] and len(found) == 3
    assert second.xyxy.tolist() == [5, 5, 7, 9] and third.tracker_id is None
    assert found[-1].name == found[np.int64(2)].name == "7"
    assert detections(tracker_id=np.array([4, 5, 6]))[1].tracker_id == 5
    for row in (3, -4):
        with pytest.raises(IndexError):
            found[row]
    assert list(Detections.none(NAMES)) == []


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        (slice(1, None), [1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        ([2, 0], [2, 0]),
        ([True, False, True], [0, 2]),
        (np.array([False, True, False]), [1]),
        (np.array([1, 1]), [1, 1]),
        ([], []),
        (np.zeros(3, bool), []),
    ],
)
def test_some_of_them(rows: Any, kept: list[int]) -> None:
    masks = np.arange(12).reshape(3, 2, 2) % 2 == 0
    whole = detections(
        runs=mask_runs(masks),
        tracker_id=np.array([4, 5, 6]),
        keypoints=np.arange(18.0).reshape(3, 2, 3),
        xywhr=np.arange(15.0).reshape(3, 5),
    )
    found = whole[rows]
    assert isinstance(found, Detections) and found.names is NAMES
    for part in ("xyxy", "confidence", "class_id", "mask", "tracker_id", "keypoints", "xywhr", "obb"):
        assert getattr(found, part).tolist() == [getattr(whole, part)[row].tolist() for row in kept]


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(IndexError):
        detections()[[True, False]]


def test_selecting_by_what_they_are() -> None:
    found = detections()
    assert [one.name for one in found[found.confidence > 0.4]] == ["traffic <light>", "car"]
    assert len(found[found.class_id == 3]) == 0


def test_centres_and_sizes() -> None:
    assert detections().xywh.tolist() == [[5, 10, 10, 20], [6, 7, 2, 4], [200, 55, 200, 10]]
    assert detections().xywh.dtype == np.float32 and Detections.none(NAMES).xywh.shape == (0, 4)


def test_as_a_table() -> None:
    pytest.importorskip("pandas")
    table = detections().to_pandas()
    assert list(table) == ["x1", "y1", "x2", "y2", "confidence", "class_id", "name"]
    assert table.name.tolist() == ["traffic <light>", "car", "7"] and table.x2.tolist() == [10, 7, 300]
    assert detections(tracker_id=np.array([4, 5, 6])).to_pandas().tracker_id.tolist() == [4, 5, 6]
    assert len(Detections.none(NAMES).to_pandas()) == 0


@pytest.mark.parametrize("full", [True, False])
def test_from_supervision(full: bool) -> None:
    """Its Detections have these attributes; all but `xyxy` and `data` may be None."""
    theirs = SimpleNamespace(
        xyxy=np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]),
        mask=None,
        confidence=np.array([0.5, 0.25]) if full else None,
        class_id=np.array([3, 1]) if full else None,
        tracker_id=np.array([8, 9]) if full else None,
        data={"class_name": np.array(["dog", "cat"])} if full else {},
    )
    found = Detections.from_supervision(theirs)
    assert found.xyxy.tolist() == theirs.xyxy.tolist() and found.xyxy.dtype == np.float32
    assert [one.name for one in found] == (["dog", "cat"] if full else ["0", "0"])
    assert found.confidence.tolist() == ([0.5, 0.25] if full else [1, 1])
    assert [one.tracker_id for one in found] == ([8, 9] if full else [None, None])


def test_to_supervision_and_back() -> None:
    pytest.importorskip("supervision")
    back = Detections.from_supervision(detections().to_supervision())
    assert [one.name for one in back] == [one.name for one in detections()]
    assert back.xyxy.tolist() == detections().xyxy.tolist()
    assert back.tracker_id is None
    tracked = replace(detections(), tracker_id=np.arange(len(detections())) * 10 - 1)
    theirs = tracked.to_supervision()
    assert theirs[theirs.tracker_id >= 0].tracker_id.tolist() == [9, 19][: len(tracked) - 1]
    assert Detections.from_supervision(theirs).tracker_id.tolist() == tracked.tracker_id.tolist()  # type: ignore[union-attr]


def test_in_a_notebook() -> None:
    frame = FrameInfo(3, None, Fraction(1), 64, 48, "<clip>.mp4")
    page = Result(frame, detections())._repr_html_()
    assert "traffic &lt;light&gt;" in page and "&lt;clip&gt;.mp4, frame 3, 64x48" in page and "<light>" not in page
    assert page.count("<tr>") == 4
    masks = Masks(np.array([[0, 1], [1, 1]], np.uint8), NAMES)
    assert "75.0%" in Result(frame, Detections.none(NAMES), masks=masks)._repr_html_()


def test_boxes_that_are_large_enough() -> None:
    found = detections()
    assert len(found.at_least(0, 400, 100)) == 3
    assert found.at_least(200, 400, 100).confidence.tolist() == pytest.approx([0.9, 0.25])
    assert found.at_least(0.05, 400, 100).class_id.tolist() == [7]  # 2,000 of 40,000 pixels
    assert len(found.at_least(1.0, 400, 100)) == 0


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found, best = detections(), Classification(np.array([0.1, 0.9], np.float32), NAMES)
    for package, convert in (
        ("pandas", found.to_pandas),
        ("supervision", found.to_supervision),
        ("supervision", best.to_supervision),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(CapabilityError, match=f"package {package} is not installed") as caught:
            convert()
        assert caught.value.remedy == f"pip install {package}"
