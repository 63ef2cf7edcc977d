"""Names that nearly exist: what is suggested, what is not, and the table of what other tools call it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framefuse.cli.app import app
from framefuse.common.names import VALUES, WISHES, nearby, nearest, wish
from framefuse.config import RUN, Settings, schema_of

KNOWN = [*Settings.model_fields, *sorted(RUN), "config", "json", "quiet", "stdout"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("max-dett", "max_det"),
        ("max_detections", "max_det"),
        ("maxdet", "max_det"),
        ("confidence", "conf"),
        ("modle", "model"),
        ("save-crops", "save_crop"),
        ("jsn", "json"),
        ("thread", "threads"),
        ("agnostic", "agnostic_nms"),
        ("fps", "target_fps"),
    ],
)
def test_what_is_spelt_or_meant_alike_is_suggested(name: str, expected: str) -> None:
    assert nearest(name, KNOWN) == [expected]


@pytest.mark.parametrize("name", ["no-such-option", "save-everything", "show-me", "max", "visualize", "", "-"])
def test_words_that_say_little_suggest_nothing(name: str) -> None:
    assert nearest(name, KNOWN) == []


def test_the_spelling_alone() -> None:
    assert nearest("max_dett", KNOWN, spelling=True) == ["max_det"]
    assert nearest("model_path", KNOWN, spelling=True) == []


def test_every_wish_names_what_exists() -> None:
    import typer

    predict = typer.main.get_command(app).commands["predict"]  # type: ignore[attr-defined]
    options = {option for parameter in predict.params for option in parameter.opts}
    names = [name for names in WISHES for name in names.split()]
    assert len(names) == len(set(names))
    assert not set(names) & set(Settings.model_fields)
    for answer in WISHES.values():
        for place, field, value in re.findall(r"(\{(\w+)=?(\w*)\})", answer):
            assert f"--{field.replace('_', '-')}" in options, place
            if value and field != "engine":
                assert value in schema_of(field)["enum"], place
    for ours in set(VALUES.values()) - {"tensorrt"}:
        assert any(ours.split(":")[0] in schema_of(field).get("enum", ()) for field in ("device", "precision"))


def test_a_wish_is_for_a_command_that_can_fulfil_it() -> None:
    assert wish("--conf-thres", lambda field, value: f"<{field}{value}>") == "use <conf>"
    assert wish("gpu_id", lambda field, value: f"<{field}={value}>") == "use <device=cuda>"
    assert wish("conf-thres", lambda field, value: None) is None
    assert wish("nothing-like-it", lambda field, value: field) is None


def test_files_near_one_that_is_missing(tmp_path: Path) -> None:
    clips = tmp_path / "clips"
    clips.mkdir()
    assert nearby(clips / "street.mp4", {".mp4"}) == "check the path"
    for name in ("street-1.mp4", "street-2.MP4", "street.json", "a.mp4", "b.mp4"):
        (clips / name).touch()
    assert nearby(clips / "street-3.mp4", {".mp4"}) == f"did you mean {clips}/street-1.mp4 or {clips}/street-2.MP4?"
    assert nearby(clips / "stret.json", {".json"}) == f"did you mean {clips}/street.json?"
    assert nearby(clips / "x.mp4", {".mp4"}) == "check the path; the folder has a.mp4, b.mp4, street-1.mp4 and 1 more"
    assert nearby(tmp_path / "klips/a.mp4", {".mp4"}).endswith(f"does not exist, but {clips} does")
    assert nearby(tmp_path / "x/y/a.mp4", {".mp4"}) == f"the folder {tmp_path}/x/y does not exist"
