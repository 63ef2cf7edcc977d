"""Options that do nothing, because others that they need are not set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import media
from framefuse import Pipeline


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"track": True, "trail": 3}, "trail without effect: add save or show"),
        ({"hide_labels": True, "line_width": 2}, "line_width and hide_labels without effect: add save or show"),
        (
            {"hide_labels": True, "line_width": 2, "trail": 3, "track": True},
            "trail, line_width and hide_labels without effect: add save or show",
        ),
        ({"track_high": 0.3}, "track_high without effect: add track, events, zones or save_events"),
        ({"track": True, "thumbnails": False}, "thumbnails without effect: add save_events"),
        ({"tiles_whole": False}, "tiles_whole without effect: add tiles"),
        ({"max_latency": 1}, "max_latency without effect: add adaptive"),
        ({"matte_eyes": 1}, "matte_eyes without effect: add save_matte"),
        ({"name": "a"}, "name without effect: add an output, such as save"),
        ({"crf": 30, "save_csv": True}, "crf without effect: add save or save_matte"),
        ({"track_high": 0.3, "stationary": 3, "events": True}, None),
        ({"trail": 3, "events": True, "save": True, "crf": 30, "name": "a"}, None),
        ({"shard": "1/1"}, None),
        ({"preset": "latency"}, None),
        ({}, None),
    ],
)
def test_options_that_do_nothing_by_themselves_are_named(
    options: dict[str, Any], warning: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    media.video(Path("clip.mp4"), frames=2)
    with Pipeline("clip.mp4", "squares", engine="null", device="cpu", **options) as pipeline:
        assert pipeline.report.warnings == ([warning] if warning else [])
        assert warning is None or f"warning  {warning}" in pipeline.report.table()
