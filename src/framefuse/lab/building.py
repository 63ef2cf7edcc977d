"""From a PyTorch model or an ONNX file to a ready engine in one call: export, lower, build, check.

    built = build_engine(model, shapes={"min": (1, 3, 320, 320), "opt": (1, 3, 640, 640), "max": (8, 3, 640, 640)},
                         precision="fp16", engine="onnxruntime", device="cuda", output="model-fp16.onnx")
    Pipeline("video.mp4", built.path, engine=built.engine, device="cuda")

The output is an ONNX file, which every engine reads. Its metadata hold the profile of shapes, which `open_engine`
enforces for every engine. A TensorRT plan goes into the cache, where the engine finds it; TensorRT for RTX builds it
without a GPU.

    export_model("torchvision:lraspp_mobilenet_v3_large") -> lraspp_mobilenet_v3_large.onnx and .yaml

Only networks that end in a tensor or in a dictionary with the entry `out`, as torchvision's segmenters do, can be
exported so; detectors that give lists of boxes have exporters of their own.
"""

import contextlib
import importlib
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import yaml

from framefuse.common.files import os_errors_as, write_atomically
from framefuse.common.text import first_line
from framefuse.engines import Device, EngineOptions, Precision, open_engine
from framefuse.engines.onnx_shapes import PROFILE_KEY, Profile
from framefuse.errors import CapabilityError, CardError, FramefuseError, ModelError, SinkError, UsageError
from framefuse.lab.loading import Benchmark, LoadedEngine, choose_engine, load_engine
from framefuse.models import find_model
from framefuse.models.card import Card, read_card
from framefuse.models.onnx_file import is_quantised, load_onnx, read_onnx

OPSET = 17
AXES = ("batch", "channels", "height", "width")


@dataclass(frozen=True)
class BuiltEngine:
    """What `build_engine` made."""

    path: Path
    engine: str
    device: str
    precision: str
    """The precision that runs."""
    profile: Profile
    bytes: int
    seconds: float
    """From the call until the engine has run once; for TensorRT, until the plan is built."""
    reasons: list[str] = field(default_factory=list)
    """Each choice, with its reason."""

    def load(self) -> LoadedEngine:
        """Open it for arrays; close what comes back."""
        ran = cast(Device, self.device), cast(Precision, self.precision)
        return load_engine(self.path, engine=self.engine, device=ran[0], precision=ran[1])

    def benchmark(self, *, warmup: int = 20, runs: int = 100, batch: int | None = None) -> Benchmark:
        """Open it, time it and close it; see `LoadedEngine.benchmark`."""
        with self.load() as engine:
            return engine.benchmark(warmup=warmup, runs=runs, batch=batch)


def build_engine(
    model: Any,
    *,
    shapes: Mapping[str, Sequence[int]] | Sequence[int],
    precision: Precision = "auto",
    output: str | Path | None = None,
    engine: str = "auto",
    device: Device = "auto",
    calib: Any = None,
    metadata: Mapping[str, str] | None = None,
    exist_ok: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> BuiltEngine:
    """Make an engine from a model: export to ONNX, lower, build for a profile of shapes, and run once.

    Args:
        model: an `nn.Module`, an ONNX file, or the name of a shipped model.
        shapes: input shapes (batch, 3, height, width): one, or `{"min", "opt", "max"}`.
        precision: of the engine; int8 needs `calib`, unless the model is already quantised.
        output: file to write; default: NAME-PRECISION.onnx in the current folder.
        engine: name; auto: the fastest installed one that has the precision on the device.
        device: auto: a usable GPU if there is one.
        calib: any source of frames like those that the model will see.
        metadata: entries to add to the ONNX, as exporters write them (names, stride, ...); they replace existing
            entries of the same name, and all others stay.
        exist_ok: overwrite an existing file.
        say: called with a line of progress at each step.

    Raises:
        UsageError: invalid shapes or shapes that the model rules out, an unknown engine, an output that exists.
        ModelError: the model cannot be exported, or has operators that the engine lacks.
        CapabilityError: PyTorch, the engine or the device is missing.
        QualityError: int8 loses too much accuracy.
        SinkError: the output cannot be written.
    """
    started = time.perf_counter()
    if precision not in get_args(Precision):
        message = f"precision {precision!r} is not one of {', '.join(get_args(Precision))}"
        raise UsageError(message, remedy="choose one of these")
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}  # without importing PyTorch
    is_module = "torch.nn.modules.module.Module" in kinds
    if not is_module and not isinstance(model, str | Path):
        raise UsageError(f"model is a {type(model).__name__}", remedy="pass an nn.Module, an ONNX file or a model name")
    if output is not None and not isinstance(output, str | Path):
        raise UsageError(f"output is a {type(output).__name__}", remedy="pass the path of the file to write")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise UsageError(f"metadata is a {type(metadata).__name__}", remedy="pass a mapping of names to texts")
    profile = Profile.of(shapes)
    backend, device, choice = choose_engine(engine, device, precision)
    name, reasons = backend.name, [choice]
    stem = type(model).__name__.lower() if is_module else Path(model).stem
    target = Path(f"{stem}-{precision if precision != 'auto' else 'built'}.onnx" if output is None else output)
    if target.suffix != ".onnx":
        raise UsageError(f"output {str(output)!r} is not named .onnx", remedy="name it NAME.onnx")
    if target.exists() and not exist_ok:
        raise UsageError(f"{target} exists", remedy="choose another output, or pass exist_ok=True")
    if not is_module and target.exists() and Path(model).exists() and target.samefile(model):
        raise UsageError(f"output {target} is the model itself", remedy="choose another output")
    quantised = precision == "int8" and not is_module and is_quantised(find_model(model))
    if precision == "int8" and calib is None and not quantised:
        raise UsageError("int8 needs frames to calibrate with", remedy="pass calib: images or a video of its use")
    card = target.with_suffix(".yaml")
    before = {path: path.read_bytes() if path.is_file() else None for path in (target, card)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if is_module:
            say(f"exporting {type(model).__name__} to ONNX")
            free = {number: axis for number, axis in enumerate(AXES) if profile.min[number] != profile.max[number]}
            try:
                _trace(model, path, profile.opt, free)
            except Exception as error:  # whatever the module's own code or the exporter raises
                message = f"PyTorch cannot export {type(model).__name__} at {profile.opt}: {first_line(error)}"
                raise ModelError(message, remedy="export it to ONNX yourself") from error
            reasons.append(f"exported from PyTorch, opset {OPSET}")
        else:
            import onnx

            given = find_model(model)
            read_onnx(given)
            onnx.save(load_onnx(given), path)  # with its weights embedded
            if given.with_suffix(".yaml").exists():
                path.with_suffix(".yaml").write_bytes(given.with_suffix(".yaml").read_bytes())
        _state(path, metadata or {})
        _check_sizes(path, profile)
        if quantised:
            reasons.append("the model is already quantised: left unchanged")
        elif precision == "int8" or (precision == "fp16" and name == "tensorrt"):  # which runs what the file says
            from framefuse.lab.lowering import build_model

            lowered = Path(folder) / "lowered.onnx"
            try:
                report = build_model(path, precision=precision, calib=calib, out=lowered, say=say)
            except FramefuseError as error:
                error.message = error.message.replace(str(path), target.name)
                raise
            path, reasons = lowered, [*reasons, report.summary().replace(str(lowered), target.name)]
        _state(path, {PROFILE_KEY: profile.to_json()})
        say(f"building for {name} on {device}: {profile}")
        with os_errors_as(SinkError, f"{target} cannot be written", "choose another output"):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, path.read_bytes())
            if path.with_suffix(".yaml").exists():
                write_atomically(card, path.with_suffix(".yaml").read_bytes())
    try:
        if name == "tensorrt":
            real, more = _plan(target, profile)
        else:
            real, more = _run_once(name, target, profile, EngineOptions(device, precision))
    except BaseException:
        for place, content in before.items():
            place.unlink(missing_ok=True)
            if content is not None:  # restore the previous file
                place.write_bytes(content)
        raise
    size, seconds = target.stat().st_size, time.perf_counter() - started
    return BuiltEngine(target, name, device, real, profile, size, seconds, [*reasons, *more])


def export_model(
    network: str,
    *,
    weights: str | None = None,
    imgsz: tuple[int, int] = (640, 640),
    names: Sequence[str] | None = None,
    out: Path | None = None,
) -> tuple[Path, Card | CardError]:
    """Write a network as ONNX with a free batch size, and its card beside it. Returns the file, and its card, or why it
    needs more in the card before it can be used.

    Args:
        network: torchvision:NAME; PACKAGE.MODULE:FUNCTION, a function without arguments that returns a torch.nn.Module;
            or a TorchScript file.
        weights: file of a state dictionary; "none": as initialised; default: those that the network comes with, which
            torchvision downloads.
        imgsz: height and width of the input, in pixels.
        names: class names; default: those of torchvision's weights.
        out: default: NAME.onnx in the current folder.

    Raises:
        CapabilityError: PyTorch or torchvision is not installed.
        UsageError: there is no such network or file, or `out` exists.
        ModelError: the network cannot be exported.
    """
    try:
        import torch
    except ImportError as error:
        raise CapabilityError("export needs PyTorch", remedy="pip install 'framefuse[torch]'") from error
    place, _, name = network.rpartition(":")
    path = out or Path(f"{(name if place else Path(network).stem).rpartition('.')[2]}.onnx")
    if path.exists():
        raise UsageError(f"{path} exists", remedy="choose another --out")
    facts: dict[str, Any] = {"imgsz": list(imgsz)}
    if place == "torchvision":
        module, found = _of_torchvision(name, weights)
        facts |= found
    else:
        module = _of_program(place, name) if place else _of_file(torch, Path(network))
    if weights not in (None, "none"):
        module.load_state_dict(torch.load(str(weights), map_location="cpu", weights_only=True))
    try:
        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_hook(_one_output)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            written = Path(scratch, path.name)
            _trace(module, written, (1, 3, *imgsz), {0: "batch"}, ["output"])
            written.replace(path)
    except Exception as error:  # almost any: the network's own code runs
        remedy = "a network takes images (batch, 3, height, width) and returns a tensor, or a dictionary with `out`"
        raise ModelError(f"{network} cannot be exported: {first_line(error)}", remedy=remedy) from error
    if names:
        facts["names"] = list(names)
    path.with_suffix(".yaml").write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    try:
        return path, read_card(path)
    except CardError as error:
        return path, error


def _trace(module: Any, path: Path, shape: Sequence[int], free: Mapping[int, str], names: Sequence[str] = ()) -> None:
    """Write a network of PyTorch as ONNX with these outputs, or all that it has; the axes `free` are dynamic."""
    import torch

    example, was_training, parameter = torch.zeros(*shape), module.training, next(module.parameters(), None)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch addresses them to exporter developers
            module.eval()
            if parameter is not None:
                example = example.to(parameter.device, parameter.dtype)
            if not names:
                outputs = module(example)
                values = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
                count = sum(isinstance(value, torch.Tensor) for value in values)
                names = [f"output{number}" for number in range(count)]
            axes: dict[str, Any] = {"images": free} if free else {}
            if 0 in free:
                axes |= {name: {0: "batch"} for name in names}
            torch.onnx.export(
                module, (example,), str(path), opset_version=OPSET, input_names=["images"], output_names=names,
                dynamic_axes=axes, dynamo=False,
            )  # fmt: skip
    finally:
        module.train(was_training)


def _check_sizes(path: Path, profile: Profile) -> None:
    """Raise ModelError without one input of four axes, UsageError if the profile contradicts an axis that is fixed."""
    inputs = read_onnx(path).inputs
    if len(inputs) != 1 or len(inputs[0].shape) not in (0, len(AXES)):
        message = f"the model has the inputs {', '.join(map(str, inputs)) or 'none'}, expected one image"
        raise ModelError(message, remedy="export it with a single input (batch, 3, height, width)")
    stated = inputs[0].shape or (None,) * len(AXES)
    for axis, fixed, low, high in zip(AXES, stated, profile.min, profile.max, strict=True):
        if fixed is not None and (low, high) != (fixed, fixed):
            message = f"the profile {profile} has {axis} {low} to {high}, but the model fixes it at {fixed}"
            raise UsageError(message, remedy=f"use {axis} {fixed}, or export the model with a dynamic {axis}")


def _state(path: Path, metadata: Mapping[str, str]) -> None:
    """Write metadata into an ONNX file; its other entries stay."""
    import onnx

    network = onnx.load(path)
    entries = {entry.key: entry.value for entry in network.metadata_props}
    entries |= {str(key): str(value) for key, value in metadata.items()}
    onnx.helper.set_model_props(network, entries)
    onnx.save(network, path)


def _plan(path: Path, profile: Profile) -> tuple[str, list[str]]:
    """Build the TensorRT plan into the cache."""
    from framefuse.engines.tensorrt.build import Shapes, bindings, precision_of
    from framefuse.engines.tensorrt.plans import build

    found = bindings()
    shapes = Shapes(profile.min, profile.opt, profile.max)
    kept, plan = build(path, shapes, precision=precision_of(load_onnx(path)), found=found)
    return plan.precision, [
        f"{found}: {kept.name}, {len(plan.content) / 1e6:.1f} MB, built in {plan.parse_s + plan.build_s:.1f} s; not run"
    ]


def _run_once(name: str, path: Path, profile: Profile, options: EngineOptions) -> tuple[str, list[str]]:
    """Open the engine and run it once at the optimal shape, which shows that it works and fills its caches."""
    with contextlib.closing(open_engine(name, path, options)) as built:
        pool = built.request_pool(profile.opt[0], *profile.opt[2:], 1)
        slot = pool.acquire()
        assert slot is not None
        pool.submit(slot)
        pool.wait(slot)
        pool.release(slot)
        pool.close()
        return built.precision, list(built.reasons)


def _of_torchvision(name: str, weights: str | None) -> tuple[Any, dict[str, Any]]:
    """A network of torchvision, and what its weights say about it."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another PyTorch
        raise CapabilityError(f"torchvision cannot be used: {error}", remedy="pip install torchvision") from error
    if name not in models.list_models(models.segmentation):
        known = ", ".join(models.list_models(models.segmentation))
        remedy = f"export one of {known}; detectors and classifiers of torchvision are not supported"
        raise UsageError(f"torchvision has no segmenter {name!r}", remedy=remedy)
    chosen = models.get_model_weights(name).DEFAULT
    steps, labels = chosen.transforms(), chosen.meta["categories"]
    module = models.get_model(name, weights=chosen if weights is None else None, weights_backbone=None)
    grey = {key: [round(255 * value, 6) for value in getattr(steps, key)] for key in ("mean", "std")}
    return module, {"task": "semantic", "names": list(labels), "fit": "stretch", "interpolation": "antialias", **grey}


def _of_program(place: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(place), name)()
    except (ImportError, AttributeError, TypeError) as error:
        remedy = "name a function without arguments, as PACKAGE.MODULE:FUNCTION, that can be imported from here"
        raise UsageError(f"{place}:{name} gives no network: {error}", remedy=remedy) from error


def _of_file(torch: Any, path: Path) -> Any:
    if not path.is_file():
        message = f"there is no file {path}"
        raise UsageError(message, remedy="pass torchvision:NAME, PACKAGE.MODULE:FUNCTION or a TorchScript file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but the files are there
            return torch.jit.load(str(path), map_location="cpu").eval()
    except RuntimeError:
        read_card(path)  # says what the file is, and how it is exported
        raise ModelError(f"{path} is not TorchScript", remedy="pass a file that torch.jit.save has written") from None


def _one_output(module: Any, given: Any, found: Any) -> Any:
    """A hook that leaves only the entry `out` of the outputs of a network."""
    import torch

    found = found.get("out") if isinstance(found, dict) else found
    if not isinstance(found, torch.Tensor):
        raise TypeError("it does not return one tensor")
    return found
