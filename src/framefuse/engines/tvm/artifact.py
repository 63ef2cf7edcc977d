"""Compiled networks in the engine cache, keyed by model, shape, precision, target and tuning database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from framefuse.engines.cache import Cached, EngineCache, model_hash
from framefuse.engines.tvm import compiling
from framefuse.engines.tvm.importer import import_model
from framefuse.engines.tvm.package import versions
from framefuse.engines.tvm.records import Records
from framefuse.engines.tvm.targets import Target
from framefuse.errors import EngineError

SUFFIX = ".so"


def artifact(
    model: Path,
    shape: tuple[int, int, int, int],
    target: Target,
    precision: str,
    *,
    cudnn: bool = False,
    records: Records | None = None,
) -> Cached:
    """The shared library of a model, from the cache or compiled now.

    Raises:
        ModelError: the model cannot be read, or TVM lacks one of its operators.
        EngineError: TVM cannot compile it, or the cache cannot be written.
        CapabilityError: no linker is installed.
    """
    digest = records.digest if records is not None else ""
    key = {
        "model": model_hash(model),
        "engine": "tvm",
        "version": f"{versions()} lowering {compiling.LOWERING_VERSION}",
        "device": target.text,
        "precision": precision,
        "shapes": json.dumps(shape),
        "flags": f"cudnn={int(cudnn)} tuning={digest or 'none'}",
    }

    def build(path: Path) -> None:
        lowered = compiling.lower(import_model(model, shape), target, precision, cudnn=cudnn)
        database: Any = records.copy() if records is not None and digest else None
        compiling.compile_to(path, lowered, target, database=database)

    try:
        return EngineCache("tvm").get(key, build, suffix=SUFFIX)
    except OSError as error:
        raise EngineError(f"the compiled model cannot be written: {error}", remedy="set XDG_CACHE_HOME") from error
