"""Which plan may be used here: the keys of the cache, and plans in files of their own with a JSON beside them.

A plan belongs to one version of TensorRT, one GPU and one driver. TensorRT for RTX compiles when it runs, so its plans
belong to a version and a kind of machine only.
"""

import json
import platform
import re
from pathlib import Path
from typing import Any

from framefuse.common.files import file_hash, os_errors_as, write_atomically
from framefuse.cuda import device
from framefuse.engines.cache import DAMAGED, Cached, EngineCache, model_hash
from framefuse.engines.onnx_shapes import read_profile
from framefuse.engines.tensorrt.build import Bindings, Plan, Shapes, bindings, build_plan
from framefuse.errors import EngineError, ModelError, SinkError

SUFFIX = ".plan"
FLAGS = "strongly typed, input HWC8 float16"
"""Flags of every plan of this version."""
HERE = ("engine", "version", "device", "driver", "platform")
"""Entries of a key that state where a plan may be used."""


def place(found: Bindings) -> dict[str, str]:
    """Everything outside the model that decides whether a plan may be used.

    Raises:
        CapabilityError: TensorRT, but no GPU. (TensorRT for RTX needs none to build.)
    """
    values = {"engine": found.name, "version": found.version, "platform": f"{platform.system()} {platform.machine()}"}
    if found.rtx:
        return values | {"device": "any RTX GPU", "driver": "any"}
    name, major, minor, driver = this_gpu()
    return values | {"device": f"{name}, sm_{major}{minor}", "driver": str(driver)}


def this_gpu() -> tuple[str, int, int, int]:
    """Name, major and minor compute capability of the current GPU, and the number of its driver."""
    runtime = device.cupy().cuda.runtime
    found = runtime.getDeviceProperties(runtime.getDevice())
    return str(found["name"], "utf-8"), found["major"], found["minor"], runtime.driverGetVersion()


def key(found: Bindings, model: Path, precision: str, shapes: Shapes, workspace_mb: int = 0) -> dict[str, str]:
    """Key of a plan in the cache."""
    flags = f"{FLAGS}, workspace {workspace_mb or 'default'} MiB"
    return place(found) | dict(model=model_hash(model), precision=precision, shapes=str(shapes), flags=flags)


def cached(
    model: Path, precision: str, request: tuple[int, int, int], *, workspace_mb: int = 0, found: Bindings | None = None
) -> tuple[Cached, Shapes]:
    """A plan for an input of (batch, height, width): one in the cache that allows it, or one built now, for the shapes
    that the file states (`framefuse.build_engine`), or for exactly this one.

    Raises:
        ModelError, EngineError, UsageError, CapabilityError: as `build_plan`.
    """
    found, cache = found or bindings(), EngineCache("tensorrt")
    stated = read_profile(model)
    own = Shapes.exact(*request) if stated is None else Shapes(stated.min, stated.opt, stated.max)
    wanted = key(found, model, precision, own, workspace_mb)
    shapes = _wider(cache, wanted, request) or own

    def build(path: Path) -> None:
        path.write_bytes(_plan(cache, found, model, shapes, precision, workspace_mb).content)

    with os_errors_as(EngineError, f"a plan cannot be kept in {cache.folder}", "set XDG_CACHE_HOME"):
        return cache.get(wanted | {"shapes": str(shapes)}, build, suffix=SUFFIX), shapes


def build(
    model: Path,
    shapes: Shapes,
    *,
    precision: str = "auto",
    output: Path | None = None,
    workspace_mb: int = 0,
    found: Bindings | None = None,
) -> tuple[Path, Plan]:
    """Build a plan and write it: to `output`, with a JSON beside it, or into the cache, where the engine finds it.

    Raises:
        ModelError, EngineError, UsageError, CapabilityError: as `build_plan`.
        SinkError: it cannot be written.
    """
    found, cache = found or bindings(), EngineCache("tensorrt")
    about = key(found, model, precision, shapes, workspace_mb)
    plan = _plan(cache, found, model, shapes, precision, workspace_mb)
    remedy = "set XDG_CACHE_HOME, or name a file with --out" if output is None else "name another file with --out"
    with os_errors_as(SinkError, f"{output or cache.folder} cannot be written", remedy):
        if output is not None:
            write(output, plan, about)
            return output, plan
        return cache.get(about, lambda path: path.write_bytes(plan.content), suffix=SUFFIX).path, plan


def write(path: Path, plan: Plan, about: dict[str, str]) -> None:
    """Write a plan and then its description, so that an incomplete pair is refused."""
    write_atomically(path, plan.content)
    stated = about | {"precision": plan.precision, "shapes": str(plan.shapes)}
    seconds = {"parse": round(plan.parse_s, 3), "build": round(plan.build_s, 3)}
    size, digest = len(plan.content), file_hash(path)
    facts = dict(key=stated, bytes=size, seconds=seconds, messages=plan.messages, sha256=digest)
    write_atomically(_description(path), json.dumps(facts, indent=1).encode())


def read(path: Path, found: Bindings) -> tuple[bytes, Shapes, str]:
    """A plan that was written, its shapes and its precision.

    Raises:
        ModelError: there is no description, the plan is truncated or another one, or belongs to another version, GPU
            or driver.
    """
    again = "build it again: framefuse build MODEL.onnx --engine tensorrt --out PLAN"
    try:
        facts: dict[str, Any] = json.loads(_description(path).read_text(encoding="utf-8"))
        about, size, expected = facts["key"], int(facts["bytes"]), facts["sha256"]
        shapes, precision = Shapes.parse(about["shapes"]), str(about["precision"])
        content = path.read_bytes()
    except FileNotFoundError as error:
        message = f"{error.filename} is missing; without its description a plan may be of any model and version"
        raise ModelError(message, remedy=again) from error
    except DAMAGED as error:
        raise ModelError(f"{_description(path)} describes no plan: {error!r}", remedy=again) from error
    if len(content) < size:
        raise ModelError(f"{path} is truncated: {len(content)} bytes of {size}", remedy=again)
    if file_hash(path) != expected:
        raise ModelError(f"{path} is not the plan that {_description(path).name} describes", remedy=again)
    here = place(found)
    other = [f"{name} {about.get(name)!r}, here {here[name]!r}" for name in HERE if about.get(name) != here[name]]
    if other:
        raise ModelError(f"{path} was built for another place: {'; '.join(other)}", remedy=again)
    return content, shapes, precision


def _description(path: Path) -> Path:
    return Path(f"{path}.json")


def _wider(cache: EngineCache, wanted: dict[str, str], request: tuple[int, int, int]) -> Shapes | None:
    """Shapes of a cached plan with the same key otherwise that also allows the request."""
    same = {name: value for name, value in wanted.items() if name != "shapes"}
    for path in sorted(cache.folder.glob("*.json")) if cache.folder.is_dir() else ():
        try:
            other = json.loads(path.read_text(encoding="utf-8"))["key"]
            shapes = Shapes.parse(other["shapes"])
        except DAMAGED:  # the cache reports damage itself
            continue
        if all(other.get(name) == value for name, value in same.items()) and shapes.allow(*request):
            return shapes
    return None


def _plan(cache: EngineCache, found: Bindings, model: Path, shapes: Shapes, precision: str, workspace_mb: int) -> Plan:
    """A plan built with the timing cache of this place."""
    timing = cache.folder / (re.sub("[^0-9A-Za-z]", "_", "-".join(place(found).values())) + ".timing")
    return build_plan(model, shapes, precision=precision, workspace_mb=workspace_mb, timing_cache=timing, found=found)
