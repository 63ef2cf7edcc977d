"""The memory that a run is predicted to take, and what is left out where that does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framefuse import Pipeline
from framefuse.cli.profile import predicted
from framefuse.config import Settings, settings_from
from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import compile_network
from framefuse.engines.cudnn.convolutions import Layer
from framefuse.engines.cudnn.network import Conv
from framefuse.engines.cudnn.plans import PlanCache
from framefuse.errors import CapabilityError, UsageError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.runtime import memory, readers
from framefuse.runtime.batching import captured_rows
from framefuse.runtime.memory import MemoryPlan, fitted, predict
from framefuse.runtime.plan import RunPlan
from framefuse.sources import SourceInfo

SIZE = 1920, 1080


def plan_of(batch: int, **options: Any) -> RunPlan:
    card = read_card(find_model("scout-n"))
    settings = settings_from({"device": "cuda", **options})
    return RunPlan(card, settings, None, "cudnn", batch, 0, {}, card.preprocess)


def part(found: MemoryPlan, name: str) -> float:
    return sum(one.size for one in found.parts if one.name.startswith(name))


def test_activations_grow_with_rows_and_batches_in_flight_but_weights_do_not() -> None:
    one, both, eight = (
        predict(plan_of(batch), batch, slots, SIZE, decoders=0) for batch, slots in ((1, 1), (1, 2), (8, 1))
    )
    assert part(both, "activations") == 2 * part(one, "activations")
    assert part(eight, "activations") == pytest.approx(8 * part(one, "activations"), rel=0.01)
    assert part(one, "weights") == part(eight, "weights") == pytest.approx(1.5e6, rel=0.05)
    assert part(eight, "frames from the host") == 8 * 1.5 * 2048 * 1080


def test_workspaces_of_kernels_that_were_measured_before_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = part(predict(plan_of(1), 1, 1, SIZE, decoders=0), "activations")
    compiled = compile_network(find_model("scout-n"), 1, 384, 640)
    convs = {
        i: step for i, step in enumerate(compiled.placement.steps) if isinstance(step, Conv) and not step.depthwise
    }
    streams = {i: compiled.schedule.streams[i] for i in convs}
    entries = {
        Layer.of(compiled, conv).text: {"engine": 1, "knobs": {}, "workspace": 1 << 20} for conv in convs.values()
    }
    PlanCache({"gpu": "one"}).update(entries)
    PlanCache({"gpu": "another, of an older version"}).update({"layer": {"engine": 1, "knobs": {}}})
    after = part(predict(plan_of(1), 1, 1, SIZE, decoders=0), "activations")
    assert after - before == pytest.approx(len(set(streams.values())) << 20, abs=4)
    (tmp_path / "framefuse" / "cudnn" / "damaged.json").write_text('{"plans": []}')
    assert part(predict(plan_of(1), 1, 1, SIZE, decoders=0), "activations") == after


def test_masks_take_memory_by_the_width_of_the_frames() -> None:
    plan = plan_of(8)
    assert not part(predict(plan, 8, 2, SIZE, decoders=0), "masks")
    plan = replace(plan, card=read_card(find_model("scout-n-seg")))
    small, large = (predict(plan, 8, 2, size, decoders=0) for size in (SIZE, (3840, 2160)))
    # 300 masks of 96x160 logits and 6 runs a column, and 8 rows with 65,536 runs and 128 a column.
    assert part(small, "masks") == 2 * 4 * (300 * (96 * 160 + 6 * 1920) + 8 * (65_536 + 128 * 1920))
    assert part(large, "masks") - part(small, "masks") == 2 * 4 * (300 * 6 + 8 * 128) * 1920


def test_decoders_and_the_frames_that_they_hold_count() -> None:
    single, several = (predict(plan_of(8), 8, 2, SIZE, decoders=count) for count in (1, 16))
    assert part(several, "decoders") == 16 * part(single, "decoders")
    assert part(several, "rings") == 16 * (3 * 8 + 3 + 1) * 1.5 * 2048 * 1080
    assert not part(predict(plan_of(1), 1, 2, SIZE, decoders=1), "rings")
    assert not part(single, "frames from the host")


def test_partial_batches_have_graphs_of_their_own() -> None:
    assert captured_rows(8, 2, partial=False) == [8, 8]
    assert captured_rows(6, 2, partial=True) == [6, 6, 4, 2, 1]
    assert captured_rows(1, 1, partial=True) == [1]
    names = [one.name for one in predict(plan_of(4, adaptive=True), 4, 2, SIZE, decoders=1).parts]
    assert [name for name in names if name.startswith("activations")] == [
        *("activations, batch 4", "activations, batch 2", "activations, batch 1")
    ]


def test_what_does_not_fit_is_made_smaller_step_by_step_and_then_refused() -> None:
    plan = plan_of(8)
    sizes = [predict(plan, batch, slots, SIZE, decoders=2, context=False).size
             for batch, slots in ((8, 2), (8, 1), (4, 1), (2, 1), (1, 1))]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert fitted(plan, 8, 2, SIZE, sizes[0], decoders=2) == (8, 2, "")
    for expected, size in zip(((8, 1), (4, 1), (2, 1), (1, 1)), sizes[1:], strict=True):
        *found, why = fitted(plan, 8, 2, SIZE, size + 1, decoders=2)
        assert (*found,) == expected and f"{sizes[0] / 1e6:.0f} MB do not fit" in why
    with pytest.raises(
        CapabilityError, match=r"needs \d+ MB of GPU memory, \d+ of them for decoders, and may take 12 MB"
    ):
        fitted(plan, 8, 2, SIZE, 12e6, decoders=2)


def test_an_engine_that_tells_nothing_beforehand() -> None:
    settings = settings_from({"device": "cuda", "engine": "onnxruntime"})
    found = predicted("scout-n", 1, SIZE, settings)
    assert any("onnxruntime tells when it loads" in row[0] for row in found.table())


@pytest.mark.parametrize("limit", [{"max_memory": 500}, {"target_utilization": 0.5}])
def test_a_limit_of_gpu_memory_on_a_cpu_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(limit))} limits the memory of a GPU"):
        Pipeline("synthetic://street?frames=2", "scout-n", device="cpu", **limit)


@pytest.mark.parametrize(("share", "room"), [(None, 17.6e9), (0.8, 4e9)])
def test_a_share_of_the_gpu_stays_free(share: float | None, room: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have taken 60 of its 80 GB."""
    monkeypatch.setattr(device, "memory", lambda: (20e9, 80e9))
    run = plan_of(8) if share is None else plan_of(8, target_utilization=share)
    assert run._room() == pytest.approx(room)


def test_a_run_on_a_gpu_keeps_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory", lambda: (20e9, 80e9))
    run = plan_of(8, max_memory=(memory.CONTEXT + 100e6) / 2**20)
    monkeypatch.setattr(readers, "count", lambda source: 1)
    found = run.for_memory(SourceInfo("", "array", *SIZE))
    assert found.batch * found.settings.slots < 16
    assert predict(found, found.batch, found.settings.slots, SIZE, decoders=0, context=False).size <= 100e6


def test_processes_that_measure_kernels_are_not_part_of_a_limit() -> None:
    free, limited = (plan_of(1, **more).engine_options() for more in ({}, {"max_memory": 2000.0}))
    assert (free.tunes_later, free.helpers) == (True, True)
    assert (limited.tunes_later, limited.helpers) == (False, False)


def test_views_of_a_frame_may_be_in_two_batches_once_memory_has_made_them_smaller() -> None:
    """What merges or joins the views in one batch is off then."""
    card = read_card(find_model("scout-n"))
    for batch, merges, together in ((8, 2, 0), (2, 2, 0), (1, 2, 0), (8, 0, 2), (2, 0, 2), (3, 0, 2), (1, 0, 2)):
        viewer: Any = SimpleNamespace(merges=merges, together=together)
        plan = RunPlan(card, Settings(), None, "cudnn", batch, 0, {}, card.preprocess).fitted(viewer)
        left = 0 if batch == 1 or (together and batch % 2) else 2
        assert (viewer.merges, viewer.together, plan.merges) == (min(merges, left), min(together, left), left)
