"""What the comparison with mediapipe's mattes is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import protocol
from benchmarks.results import pages, selfie
from benchmarks.selfie import beside, stretched
from benchmarks.tflite import Table
from framefuse.prediction import Matte, MattePart


def test_corners_are_stretched_to_centres() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3) * 10
    np.testing.assert_array_equal(stretched(image, (2, 2)), image)
    rows = stretched(image, (4, 2))[0, :, 0, 0]
    assert rows.tolist() == [0, 30, 60, 30], "the last row lies half beyond the image, which is black"


def test_masks_are_compared_at_the_size_of_the_frame() -> None:
    alpha = np.zeros((4, 4), np.float32)
    alpha[:, 2:] = 1
    theirs = np.zeros((2, 8, 8), np.float32)
    theirs[0, :, 4:], theirs[1, :, :4] = 1, 1
    found = beside([Matte((MattePart((0, 0, 8, 8), alpha),), (8, 8))] * 2, theirs)
    assert (found["iou"]["min"], found["iou"]["max"], found["reached"]) == (0, 1, 1)


def test_fields_of_a_flatbuffer() -> None:
    """A table at 16 with the fields 0 (int32) and 2 (a vector of int32), and its table of fields at 4."""
    head = np.array([16], "<u4").tobytes() + np.array([10, 12, 4, 0, 8, 0], "<u2").tobytes()
    data = head + np.array([12, 7, 4, 2, 5, 6], "<i4").tobytes()
    table = Table.root(data)
    assert (table.number(0, "i"), table.number(1, "i", 3), table.number(9, "i", 4)) == (7, 3, 4)
    assert table.array(2, np.int32).tolist() == [5, 6] and not table.array(1, np.int32).size
    assert table.tables(1) == []
    with pytest.raises(ValueError, match="no field 1"):
        table.table(1)


def test_the_table_says_where_the_reach_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ious = {"min": 0.97, "median": 0.99, "mean": 0.98, "max": 1.0}
    near = {"iou": ious, "reached": 3, "difference": ious}
    row = {"model": "general", "frames": 4, "size": [8, 6], "network": 1e-5, "guided": ious}
    monkeypatch.setattr(protocol, "RECORDS", tmp_path)
    pages.load.cache_clear()
    made = {"record": "selfie", "reach": 0.98, "clip": "a.mp4", "peer": "mediapipe 1"}
    own = {"model": "body-n", "of": "carphone", "frames": 4, "iou": ious}
    protocol.write(made | {"shipped": [own], "rows": [row | {"direct": near, "matched": near | {"reached": 4}}]})
    lines, table = selfie.parity(pages.Records()), selfie.shipped(pages.Records())
    pages.load.cache_clear()
    assert table[2] == "| body-n | carphone | 4 | 0.970 | 0.980 |"
    assert "| general | framefuse | 0.9700 | 0.9900 | 0.9800 | 3 of 4 |" in lines[2]
    assert "| mediapipe |" in lines[3] and "4 of 4" in lines[3] and "8x6" in lines[-1]
