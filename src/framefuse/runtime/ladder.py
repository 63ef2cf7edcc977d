"""Opens the rungs of a ladder that a run may step down to."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from framefuse.adaptive.ladder import GAIN
from framefuse.engines import open_engine
from framefuse.errors import ConfigError, GpuMemoryError
from framefuse.models import find_model
from framefuse.models.card import Card, read_card
from framefuse.runtime.choices import Below
from framefuse.runtime.plan import RunPlan, plan_run
from framefuse.runtime.program import Program
from framefuse.runtime.rungs import Rungs
from framefuse.sources import SourceInfo

SMALLER = 0.65, 0.5
"""Sizes of the rungs below a model without a ladder, as shares of its own."""


def rungs_below(card: Card, plan: RunPlan) -> list[Below]:
    """Rungs below a model without a ladder: smaller sizes. None on a GPU, where each would take long to prepare."""
    if not card.dynamic_size or plan.settings.on_gpu:
        return []
    engine = {"engine": plan.engine, "precision": plan.settings.precision}
    sizes = [tuple(int(share * side) for side in (plan.preprocess.height, plan.preprocess.width)) for share in SMALLER]
    return [(card.path, {"imgsz": list(card.nearest_size(*size)), **engine}) for size in sizes]


def with_rungs(top: Program, plan: RunPlan, lower: Sequence[Below], info: SourceInfo, **options: Any) -> Program:
    """The program with rungs below it; itself alone if none is worth it or has room.

    Args:
        lower: the rungs, the best one first. One is left out if it saves less than GAIN of the time of the one above.
        options: those of `RunPlan.make_program`.

    Raises:
        ConfigError: a rung has other classes.
    """
    programs, costs = [top], [top.row_seconds()]
    engines = {(top.card.path, plan.engine, plan.settings.precision): top.engine}
    with ExitStack() as opened:
        for model, measured in lower:
            card = read_card(find_model(model))
            if card.names != top.card.names:
                others = f"{card.path.name} has other classes than {top.card.path.name}"
                remedy = "profile models with the same classes"
                raise ConfigError(f"{others}, so it is no rung of the same ladder", remedy=remedy)
            settings = plan.settings.model_copy(update=dict(measured))
            sub = plan_run(card, settings, None, None).for_input(info)
            sub = replace(sub, batch=plan.batch, upload_mode=plan.upload_mode)
            key = card.path, sub.engine, settings.precision
            shared = engines.get(key)
            with ExitStack() as tried:
                try:
                    engine = shared or open_engine(sub.engine, card.path, sub.engine_options())
                    program = sub.make_program(engine, closes_engine=shared is None, **options)
                    tried.callback(program.close)
                    cost = program.row_seconds()
                except GpuMemoryError as error:
                    top.reasons.append(f"rung {card.path.stem} {measured['imgsz']} was left out: {error.message}")
                    continue
                if cost > (1 - GAIN) * costs[-1]:
                    continue
                opened.push(tried.pop_all())
            engines[key] = engine
            programs.append(program)
            costs.append(cost)
        opened.pop_all()
    return Rungs(programs, costs) if len(programs) > 1 else top
