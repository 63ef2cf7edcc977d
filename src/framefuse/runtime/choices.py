"""The automatic decisions of a run: pure functions of card and settings that return a value and its reason."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from framefuse.adaptive.ladder import Rung, choose, read_ladder
from framefuse.common.machine import cpu_model
from framefuse.common.names import nearest
from framefuse.common.redact import brief
from framefuse.common.text import listed
from framefuse.config import Settings, settings_from
from framefuse.cuda import device as gpus
from framefuse.engines import PREFERENCE, Backend, Engine, Package, check_capabilities, find_backend, who_can
from framefuse.engines.backend import Doubt
from framefuse.errors import CapabilityError, ConfigError, UsageError
from framefuse.models.card import Card
from framefuse.models.layouts import WHOLE
from framefuse.preprocess import Preprocess
from framefuse.sources import SourceInfo
from framefuse.sources.stereo import find

Refuses = Callable[[Backend], str | None]
"""Why an engine cannot run the model, or None; called last, since it reads the model."""
WHY = {"cuda": "frames and results stay on the GPU", "cpu": "the fastest one on CPUs"}
"""Device -> why its first engine is preferred."""
Below = tuple[str | Path, Mapping[str, object]]
"""A rung: its model, and the settings that it was measured with."""
NVDEC = Package("PyNvVideoCodec", ("PyNvVideoCodec",))
CUDA_BATCH = 8
"""Default batch on CUDA when several videos are read: eight frames take a GPU only twice as long as one."""


class RungChoice(NamedTuple):
    """The model to run, with the settings that it was measured with, and why."""

    model: str | Path | None
    settings: Settings
    notes: list[str]
    below: list[Below] | None
    """The cheaper rungs of the ladder, the best one first; None: there is no ladder."""


def choose_rung(model: str | Path | None, settings: Settings) -> RungChoice:
    """A rung, if `model` is a ladder.json; else the model as it is.

    Raises:
        ConfigError: the ladder cannot be used, or is that of another machine.
        UsageError: the settings say what the ladder decides.
    """
    if model is None or not str(model).endswith(".json"):
        return RungChoice(model, settings, [], None)
    ladder = read_ladder(Path(model))
    for field in ("imgsz", "engine", "precision", "device"):
        if (given := getattr(settings, field)) not in (Settings.model_fields[field].default, ladder.device):
            raise UsageError(f"{field} is {brief(given)} beside a ladder, which has its own", remedy="leave it out")
    rung, why = choose(ladder, settings.target_fps, adaptive=settings.adaptive)
    kept = ladder.kept
    below: list[Below] = [(one.model, _measured(one)) for one in reversed(kept[: kept.index(rung)])]
    update = _measured(rung)
    if not (settings.adaptive or settings.tiles == "auto"):  # nothing else takes a rate
        update["target_fps"] = None
    if ladder.machine != (here := processor(ladder.device)):
        message = f"{model} was measured on {ladder.machine}, and this is {here}, where other times hold"
        remedy = f"measure again: framefuse profile {' '.join(dict.fromkeys(one.model for one in ladder.rungs))}"
        raise ConfigError(message, remedy=remedy)
    return RungChoice(rung.model, settings.model_copy(update={"device": ladder.device, **update}), [why], below)


def processor(device: str) -> str:
    """Name of the GPU, or of the CPU; CapabilityError: there is no GPU."""
    if device == "cpu":
        return cpu_model()
    runtime = gpus.cupy().cuda.runtime
    return str(runtime.getDeviceProperties(runtime.getDevice())["name"], "utf-8")


def _measured(rung: Rung) -> dict[str, object]:
    """The settings that a rung was measured with."""
    return {"imgsz": [rung.size], "engine": rung.engine, "precision": rung.precision}


def choose_device(settings: Settings, refuses: Refuses, engine: Engine | None = None) -> tuple[Settings, str]:
    """Settings whose device is cuda or cpu, and why.

    Args:
        engine: one that is open already.
    """
    if settings.device != "auto":
        return settings, f"device {settings.device}: as asked"
    device, reason = _device(settings, refuses) if engine is None else (engine.device, "that of the given engine")
    return settings.model_copy(update={"device": device}), f"device {device}: {reason}"


def _device(settings: Settings, refuses: Refuses) -> tuple[str, str]:
    precision, calibrate = settings.precision, settings.calib is not None
    names = {device: PREFERENCE[device] if settings.engine == "auto" else (settings.engine,) for device in PREFERENCE}
    capable = {
        device: [name for name in names[device] if not find_backend(name).lacks(device, precision, calibrate=calibrate)]
        for device in PREFERENCE
    }
    asked = [precision] * (precision != "auto") + ["calibration"] * calibrate
    for device, other in (("cpu", "cuda"), ("cuda", "cpu")):
        if not capable[other]:  # if neither is able, choose_engine raises
            if settings.engine != "auto":
                return device, str(find_backend(settings.engine).lacks(other, precision, calibrate=calibrate))
            return device, f"no engine supports {' and '.join(asked)} on {other}"
    if why := cuda_missing():
        return "cpu", why
    try:
        backend, _ = select("cuda", precision, names=names["cuda"], calibrate=calibrate, refuses=refuses)
    except CapabilityError as error:
        return "cpu", error.message
    return "cuda", f"an NVIDIA GPU, NVDEC and engine {backend.name} are here"


def cuda_missing() -> str | None:
    """What keeps device auto from choosing cuda on this machine, apart from an engine; None: nothing."""
    try:
        check_cuda()
    except CapabilityError as error:
        return error.message
    if not NVDEC.found():
        return f"there is a GPU, but {NVDEC.name} is not installed (pip install 'framefuse[cuda13]')"
    return None


def choose_engine(settings: Settings, refuses: Refuses, engine: Engine | None = None) -> tuple[str, str]:
    """Name of the engine, and why.

    Args:
        engine: one that is open already.

    Raises:
        UsageError: no engine has the name asked for, or it has no use for `calib`.
        CapabilityError: the device asked for is not here, or the engine asked for, or every one, cannot do what is
            asked; the remedy names those that can.
    """
    device, calibrate = "cuda" if settings.on_gpu else "cpu", settings.calib is not None
    if engine is not None and engine.device != device:
        message = f"device {settings.device} was asked for, but the engine given was opened for {engine.device}"
        raise CapabilityError(message, remedy=f"open it with device {device}, or leave the device out")
    if engine is None and settings.engine != "auto":
        check_capabilities(find_backend(settings.engine), device, settings.precision, calibrate=calibrate)
    if settings.on_gpu:
        check_cuda(settings.gpu)
    if engine is not None:
        return engine.name, f"engine {engine.name}: as given"
    if settings.engine != "auto":
        return settings.engine, f"engine {settings.engine}: as asked"
    backend, reason = select(device, settings.precision, calibrate=calibrate, refuses=refuses)
    return backend.name, reason


def select(
    device: str,
    precision: str = "auto",
    *,
    names: Sequence[str] = (),
    calibrate: bool = False,
    refuses: Refuses = lambda backend: None,
) -> tuple[Backend, str]:
    """The first engine that is installed and can do what is asked, and why those before it were passed over.

    Args:
        names: engines in order; default: those that are chosen automatically on this device.

    Raises:
        CapabilityError: none can.
    """
    passed, refused = list[str](), list[str]()
    doubted: Backend | None = None
    for name in names or PREFERENCE[device]:
        backend = find_backend(name)
        if why := backend.lacks(device, precision, calibrate=calibrate):
            passed.append(why)
        elif why := backend.missing(device, precision):
            passed.append(f"engine {name}: {why}")
        elif why := refuses(backend):
            if not isinstance(why, Doubt):
                refused.append(name)
            elif doubted is None:
                doubted = backend
            passed.append(f"engine {name}: {why.removeprefix(f'engine {name} ')}")
        else:
            return backend, f"engine {name}: " + "; ".join(["the next best", *passed] if passed else [WHY[device]])
    if doubted is not None:
        return doubted, f"engine {doubted.name}: " + "; ".join(["there is no other", *passed])
    what = " ".join(["the model", *[f"in {precision}"] * (precision != "auto"), *["with calibration"] * calibrate])
    remedy = who_can(device, precision, calibrate=calibrate, but=refused)
    raise CapabilityError(f"no engine here runs {what} on {device}: {'; '.join(passed)}", remedy=remedy)


def check_cuda(gpu: int | None = None) -> None:
    """Raise CapabilityError if there is no usable GPU, or none with that number."""
    check_driver()
    runtime = gpus.cupy().cuda.runtime
    if gpu is None or gpu < (count := runtime.getDeviceCount()):
        return
    names = [runtime.getDeviceProperties(number)["name"].decode() for number in range(count)]
    found = ", ".join(f"cuda:{number} ({name})" for number, name in enumerate(names))
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found += f" only, because CUDA_VISIBLE_DEVICES is {visible!r}"
    message = f"device cuda:{gpu} was asked for, but CUDA sees {found}"
    raise CapabilityError(message, remedy="use one of these, or --device cuda for the first one")


def check_driver() -> None:
    """Raise CapabilityError if there is no NVIDIA driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        message = "there is no NVIDIA driver on this machine (libcuda.so.1 is missing)"
        remedy = "use --device cpu, or --device auto to use whatever is available"
        raise CapabilityError(message, remedy=remedy) from error


def choose_preprocess(card: Card, settings: Settings, *, mixed: bool = False) -> tuple[Preprocess, str]:
    """The card's preprocessing at the input size of this run, and why. `mixed`: frame sizes may differ.

    Raises:
        UsageError: the model's size is fixed, or the requested size is not a multiple of its stride.
    """
    spec = card.preprocess
    height, width = (spec.height, spec.width) if settings.imgsz is None else (settings.imgsz[0], settings.imgsz[-1])
    if not card.dynamic_size:
        if (height, width) != (spec.height, spec.width):
            only = f"{card.path.name} only takes {spec.width}x{spec.height}"
            remedy = "export the model with dynamic height and width, or leave imgsz out"
            raise UsageError(f"imgsz {width}x{height} was asked for, but {only}", remedy=remedy)
        return replace(spec, rectangular=False), f"input {width}x{height}: fixed in the model"
    check_size(card, height, width)
    rectangular = settings.rect and spec.fit in ("letterbox", "corner")
    shared = rectangular and mixed and settings.on_gpu and "rect" not in settings.model_fields_set
    spec = replace(spec, height=height, width=width, rectangular=rectangular and not shared)
    if shared:
        return spec, f"input {width}x{height}: frames of all sizes share one CUDA graph, unless --rect is given"
    if rectangular:
        return spec, f"input up to {width}x{height}: the padded axis shrinks to a multiple of {spec.stride}"
    return spec, f"input {width}x{height}: as asked"


def check_size(card: Card, height: int, width: int) -> None:
    """Raise UsageError if a model with a dynamic input size cannot take this one."""
    if card.dynamic_size and (near := card.nearest_size(height, width)) != (height, width):
        message = f"imgsz {height}x{width} is not a multiple of the model's stride {card.preprocess.stride}"
        raise UsageError(message, remedy=f"use --imgsz {near[0]} {near[1]}")


def choose_batch(card: Card, settings: Settings, readers: int = 1) -> tuple[int, str | None]:
    """Frames in a batch if `readers` sources are read at once, and why if the default is not kept.

    Raises:
        UsageError: the model has a different fixed batch.
    """
    if card.states:
        if settings.batch > 1 or card.batch > 1:
            message = f"{card.path.name} is a recurrent model: each frame waits for the one before"
            raise UsageError(message, remedy="leave batch out, and export the model with a batch of 1")
        return 1, "batch 1: the model is recurrent"
    if not card.dynamic_batch:
        if settings.batch in (1, card.batch):
            return card.batch, None
        message = f"batch {settings.batch} was asked for, but {card.path.name} has a fixed batch of {card.batch}"
        raise UsageError(message, remedy="export the model with a dynamic batch, or leave batch out")
    if settings.on_gpu and readers > 1 and "batch" not in settings.model_fields_set:
        return CUDA_BATCH, f"batch {CUDA_BATCH}: several videos are read side by side"
    return settings.batch, None


NOT_OF = {
    "semantic": ("save_txt", "save_csv", "save_parquet"),
    "classify": ("save_json", "tiles", "roi", "stereo"),
}
"""Task -> settings that do nothing for it, besides those of boxes."""
EVENTS = "events zones save_events"
NEEDS = {
    "trail line_width hide_labels hide_conf show_views": "save show",
    "track_high track_low track_new track_buffer track_match track_confirm track_agnostic": f"track {EVENTS}",
    "stationary recheck": EVENTS,
    "thumbnails": "save_events",
    "tiles_whole": "tiles",
    "min_agreement max_latency max_power": "adaptive",
    "encoder crf encode_preset encode_threads": "save save_matte",
    "matte_view matte_steady matte_eyes matte_holes matte_feather": "save_matte",
    "project name exist_ok": " ".join(name for name in Settings.model_fields if name.startswith("save")),
}
"""Settings that do nothing by themselves -> what gives them something to do, each alone."""


def without_effect(settings: Settings) -> list[str]:
    """A warning for each group of settings that were changed and do nothing, with what they need."""
    warnings = []
    for names, needs in NEEDS.items():
        given = settings.changed(*names.split())
        one_of = needs.split()
        if given and not any(getattr(settings, need) for need in one_of):
            needed = listed(one_of, "or") if len(one_of) <= 4 else f"an output, such as {one_of[0]}"
            warnings.append(f"{listed(given, 'and')} without effect: add {needed}")
    return warnings


def check_task(card: Card, settings: Settings) -> None:
    """Raise UsageError if boxes are requested from a model that only segments, or tracks where nothing is tracked."""
    for field in ("save_mot", "trail"):
        if getattr(settings, field) and not (settings.track or settings.needs_tracks):
            raise UsageError(f"{field} was asked for, but nothing is tracked", remedy="add --track, track: bytetrack")
    if settings.adaptive and card.task != "detect":
        what = f"adaptive compute interpolates boxes, and {card.path.name} has the task {card.task}"
        raise CapabilityError(what, remedy="leave it out")
    if settings.save_matte and card.task not in ("semantic", "segment"):
        message = f"save_matte was asked for, and {card.path.name} has the task {card.task}, which gives no masks"
        raise UsageError(message, remedy="use a segmenter, such as body-n or scout-n-seg")
    if settings.save_matte and card.task == "semantic":
        _check_matte(card, settings)
    elif card.task == "semantic" and card.class_count == 1:
        message = f"{card.path.name} has one class, so its output is a matte, of which no class masks are made"
        raise UsageError(message, remedy="run framefuse matte, or set save_matte")
    if card.task not in WHOLE:
        return
    fields = ["save_mot", "save_cvat", "save_label_studio", "save_crop", "classes", "track", "zones", "events"]
    fields += ["save_events", *NOT_OF[card.task]]
    for field in fields:
        if getattr(settings, field) and not (field == "classes" and settings.save_matte):
            what = "a class to each pixel" if card.task == "semantic" else "classes to whole frames"
            message = f"{field} was asked for, but {card.path.name} assigns {what} and finds no boxes"
            raise UsageError(message, remedy="leave it out; --save and --save-jsonl also work without boxes")


def _check_matte(card: Card, settings: Settings) -> None:
    """Raise UsageError if a semantic segmenter is asked for what it gives instead of mattes."""
    for field in ("save", "save_json", "save_jsonl"):
        if getattr(settings, field):
            message = f"save_matte and {field} were asked for: {card.path.name} gives either a matte or class masks"
            remedy = "add --no-save-jsonl" if field == "save_jsonl" else "leave one of them out"
            raise UsageError(message, remedy=remedy)


def choose_stereo(settings: Settings, info: SourceInfo) -> tuple[Settings, str | None]:
    """The settings with the arrangement of the eyes, where that is left open, and what says it."""
    if settings.stereo != "auto":
        return settings, None
    if info.path is None and not info.uri.startswith("synthetic:"):
        why = "stereo off: auto goes by one video; say --stereo sbs or tb for these"
        return settings.model_copy(update={"stereo": None}), why
    found = find(info)
    if found.arrangement in (None, "mono"):
        why = f"stereo off: {found.source} says so" if found.arrangement else "stereo off: nothing says it is stereo"
        return settings.model_copy(update={"stereo": None}), why
    return settings.model_copy(update={"stereo": found.arrangement}), f"stereo {found.arrangement}: {found.source}"


def choose_classes(card: Card, settings: Settings) -> Settings:
    """The settings with the numbers of the requested classes.

    Raises:
        UsageError: the model does not have a class.
    """
    if settings.classes is None:
        return settings
    return settings_from({"classes": [class_number(card, item) for item in settings.classes]}, base=settings)


def class_number(card: Card, item: int | str) -> int:
    """The number of a class; a name is found whatever its case.

    Raises:
        UsageError: the model does not have it.
    """
    numbers = {name.casefold(): number for number, name in sorted(card.names.items(), reverse=True)}
    found = numbers.get(item.casefold()) if isinstance(item, str) else item
    if found is not None and (not card.names or found in card.names):
        return found
    if not card.names:
        remedy = "pass class numbers, or state the names in its card"
        raise UsageError(f"class {brief(item)} was asked for, but {card.path.name} names no classes", remedy=remedy)
    names = {name.casefold(): f"{number} {name}" for number, name in card.names.items()}
    close = nearest(str(item), names, 3)
    known = [names[name] for name in close] or list(names.values())[:12]
    remedy = f"its classes are {', '.join(known)}{', ...' if len(known) < len(names) else ''}"
    raise UsageError(f"class {brief(item)} was asked for, but {card.path.name} has {len(names)} classes", remedy=remedy)


def choose_tracker(settings: Settings) -> tuple[Settings, str | None]:
    """Settings with a tracker if something else needs one, and why."""
    if settings.track or not (wanted := settings.needs_tracks):
        return settings, None
    return settings_from({"track": "bytetrack"}, base=settings), f"track bytetrack: needed for {wanted}"
