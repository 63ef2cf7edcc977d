"""Checks the outputs of an engine now, as the first run of a model has it done beside its work."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from framefuse.config import settings_from
from framefuse.cuda import device as gpus
from framefuse.errors import CapabilityError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.runtime.output_check import Subject, Verdict
from framefuse.runtime.output_distance import check
from framefuse.runtime.plan import plan_run
from framefuse.sources import SourceInfo


def check_outputs(model: str | Path, *, again: bool = False, **options: Any) -> Verdict:
    """How far the outputs of an engine are from FP32 on the CPU, from the cache or measured now.

    Args:
        model: path of an ONNX file, or the name of a shipped model.
        again: whether to measure even if the result is known.
        options: fields of `Settings`: engine, precision, calib, device, imgsz, batch, ...

    Raises:
        CapabilityError: there is nothing to compare with, or the model is recurrent.
        UsageError, ModelError, EngineError: see errors.py.
    """
    card = read_card(find_model(model))
    if card.states:
        raise CapabilityError(f"{card.path.name} is recurrent: each output depends on earlier ones")
    plan = plan_run(card, settings_from(options), None, None).for_input(SourceInfo("", "array", mixed=True))
    spec = plan.preprocess
    subject = Subject(card, plan.engine, plan.engine_options(), "", plan.batch, spec.height, spec.width, plan.gpu)
    with gpus.current(plan.gpu, "open the model"), closing(subject.open()) as engine:
        return check(replace(subject, precision=engine.precision), engine, again=again)
