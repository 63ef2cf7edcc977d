"""How soon the threads of a run hand Python's lock over."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framefuse import Pipeline
from framefuse import pipeline as pipeline_module
from framefuse.runtime.threads import HANDOVER_SECONDS, quick_handover
from media import video

USUAL = 5e-3


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def interval() -> Any:
    return pytest.approx(sys.getswitchinterval())


def test_threads_hand_over_soon_only_during_the_block() -> None:
    with quick_handover():
        assert interval() == HANDOVER_SECONDS
    assert interval() == USUAL


def test_the_last_of_overlapping_blocks_restores_what_was_set() -> None:
    first, second = quick_handover(), quick_handover()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert interval() == HANDOVER_SECONDS
    second.__exit__(None, None, None)
    assert interval() == USUAL


def test_an_error_restores_it_too() -> None:
    with pytest.raises(ValueError, match="inside"), quick_handover():
        raise ValueError("inside")
    assert interval() == USUAL


@pytest.mark.parametrize("own", [20e-6, 2e-3])
def test_a_value_that_the_program_sets_meanwhile_stays(own: float) -> None:
    with quick_handover():
        sys.setswitchinterval(own)
    assert interval() == own


def test_a_shorter_interval_of_the_program_is_not_made_longer() -> None:
    sys.setswitchinterval(20e-6)
    with quick_handover():
        assert interval() == 20e-6
    assert interval() == 20e-6


def test_nothing_changes_where_it_is_not_wanted() -> None:
    with quick_handover(False):
        assert interval() == USUAL


def test_a_run_that_is_closed_leaves_nothing_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its iterator is kept; here one on the CPU, as if it made mattes on a GPU."""
    monkeypatch.setattr(pipeline_module, "quick_handover", lambda wanted: quick_handover(not wanted))
    pipeline = Pipeline(video(tmp_path / "clip.mp4", frames=30), "squares", device="cpu", engine="null")
    assert interval() == USUAL
    results = iter(pipeline)
    next(results)
    assert interval() == HANDOVER_SECONDS
    pipeline.close()
    assert interval() == USUAL
    pipeline.close()
    list(results)
    assert interval() == USUAL
