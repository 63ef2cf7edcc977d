"""The automatic decisions of a run: pure functions of card and settings that return a value and its reason."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from framefuse.config import Settings
from framefuse.errors import CapabilityError, UsageError
from framefuse.models.card import Card
from framefuse.preprocess import Preprocess

CUDA_ENGINES = ("cudnn", "tensorrt", "onnxruntime", "onnxruntime-tensorrt", "onnxruntime-nvrtx", "torch", "tvm", "null")
"""Engines that read frames in GPU memory."""
CUDA_BATCH = 8
"""Default batch on CUDA when several videos are read: a GPU needs twice the time of one frame for eight."""


def choose_device(
    settings: Settings, card: Card, unreadable: Callable[[], str | None], engine: object = None
) -> tuple[Settings, str]:
    """Settings whose device is cuda or cpu, and why.

    Args:
        unreadable: why engine cudnn cannot run this model, None where it can; asked last, since it reads the model.
        engine: one that is open already.
    """
    if settings.device != "auto":
        return settings, f"device {settings.device}: as asked"
    if engine is not None:
        on_gpu = hasattr(engine, "execution") and getattr(engine, "capturable", True)  # torch and tvm run on both
        device = "cuda" if on_gpu else "cpu"
        return settings.model_copy(update={"device": device}), f"device {device}: that of the engine given"
    why = _against_cuda(settings) or cuda_missing() or unreadable()
    if why:
        return settings.model_copy(update={"device": "cpu"}), f"device cpu: {why}"
    return settings.model_copy(update={"device": "cuda"}), "device cuda: an NVIDIA GPU, NVDEC and engine cudnn are here"


def _against_cuda(settings: Settings) -> str | None:
    """What was asked for that keeps a run on the CPU."""
    if settings.engine not in ("auto", "cudnn"):
        return f"engine {settings.engine} was asked for, and no device"
    if settings.precision not in ("auto", "fp16"):
        return f"precision {settings.precision} was asked for, and engine cudnn has fp16"
    return None


def cuda_missing() -> str | None:
    """What keeps device auto from choosing cuda on this machine; None: nothing."""
    try:
        check_cuda()
    except CapabilityError as error:
        return error.message
    for module, package in (("cudnn", "nvidia-cudnn-frontend"), ("PyNvVideoCodec", "PyNvVideoCodec")):
        if importlib.util.find_spec(module) is None:
            return f"there is a GPU, but {package} is not installed (pip install 'framefuse[cuda13]')"
    return None


def choose_engine(settings: Settings, unreadable: Callable[[], str | None]) -> tuple[str, str]:
    """Name of the engine, and why.

    Args:
        unreadable: why engine cudnn cannot run this model, None where it can; asked where that matters.

    Raises:
        CapabilityError: a device was asked for that is not here.
    """
    if settings.on_gpu:
        check_cuda(settings.gpu)
        if settings.engine not in ("auto", *CUDA_ENGINES):
            raise CapabilityError(
                f"engine {settings.engine} was asked for on device cuda, but it leaves nothing on the GPU",
                remedy=f"use one of {', '.join(CUDA_ENGINES)} with --device cuda, or --device cpu",
            )
        if settings.engine == "auto":
            cudnn_alone = settings.precision == "fp8" or settings.calib is not None
            if not cudnn_alone and (why := unreadable()):
                return "onnxruntime", f"engine onnxruntime: {why}"
            return "cudnn", "engine cudnn: pictures and results stay on the GPU"
    if settings.engine != "auto":
        return settings.engine, f"engine {settings.engine}: as asked"
    return "openvino", "engine openvino: the fastest one on CPUs"


def check_cuda(gpu: int | None = None) -> None:
    """Raise CapabilityError if there is no usable GPU, or none with this number."""
    from framefuse.cuda import device

    check_driver()
    runtime = device.cupy().cuda.runtime
    if gpu is None or gpu < (count := runtime.getDeviceCount()):
        return
    found = ", ".join(f"cuda:{number} ({_name(runtime, number)})" for number in range(count))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise CapabilityError(
        f"device cuda:{gpu} was asked for, but CUDA sees {found}"
        + ("" if visible is None else f" only, because CUDA_VISIBLE_DEVICES is {visible!r}"),
        remedy="use one of these, or --device cuda for the first one",
    )


def check_driver() -> None:
    """Raise CapabilityError if there is no NVIDIA driver."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CapabilityError(
            "there is no NVIDIA driver on this machine (libcuda.so.1 is missing)",
            remedy="use --device cpu, or --device auto to use whatever is available",
        ) from error


def _name(runtime: Any, number: int) -> str:
    return str(runtime.getDeviceProperties(number)["name"].decode())


def choose_preprocess(card: Card, settings: Settings, *, mixed: bool = False) -> tuple[Preprocess, str]:
    """The card's preprocessing at the input size of this run, and why. `mixed`: frame sizes may differ.

    Raises:
        UsageError: the model's size is fixed, or the requested size is not a multiple of its stride.
    """
    spec = card.preprocess
    height, width = spec.height, spec.width
    if settings.imgsz is not None:
        height, width = settings.imgsz[0], settings.imgsz[-1]
    if not card.dynamic_size:
        if (height, width) != (spec.height, spec.width):
            raise UsageError(
                f"imgsz {width}x{height} was asked for, but {card.path.name} only takes {spec.width}x{spec.height}",
                remedy="export the model with dynamic height and width, or leave imgsz out",
            )
        return replace(spec, rectangular=False), f"input {width}x{height}: fixed in the model"
    check_size(card, height, width)
    rectangular = settings.rect and spec.fit == "letterbox"
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
        raise UsageError(
            f"imgsz {height}x{width} is not a multiple of the model's stride {card.preprocess.stride}",
            remedy=f"use --imgsz {near[0]} {near[1]}",
        )


def choose_batch(card: Card, settings: Settings, readers: int = 1) -> tuple[int, str | None]:
    """Frames in a batch if `readers` sources are read at once, and why if the default is not kept.

    Raises:
        UsageError: the model has a different fixed batch.
    """
    if not card.dynamic_batch and settings.batch not in (1, card.batch):
        raise UsageError(
            f"batch {settings.batch} was asked for, but {card.path.name} has a fixed batch of {card.batch}",
            remedy="export the model with a dynamic batch, or leave batch out",
        )
    if not card.dynamic_batch:
        return card.batch, None
    if settings.on_gpu and readers > 1 and "batch" not in settings.model_fields_set:
        return CUDA_BATCH, f"batch {CUDA_BATCH}: several videos are read side by side"
    return settings.batch, None


def check_task(card: Card, settings: Settings) -> None:
    """Raise UsageError if boxes are requested from a model that only segments."""
    if card.task != "semantic":
        return
    for field in ("save_txt", "save_csv", "classes"):
        if getattr(settings, field):
            raise UsageError(
                f"{field} was asked for, but {card.path.name} assigns a class to each pixel and finds no boxes",
                remedy="leave it out; --save, --save-json and --save-jsonl also work with masks",
            )


def check_classes(card: Card, settings: Settings) -> None:
    """Raise UsageError if the model does not have a requested class."""
    unknown = [number for number in settings.classes or () if card.names and number not in card.names]
    if unknown:
        known = ", ".join(f"{number} {name}" for number, name in list(card.names.items())[:12])
        raise UsageError(
            f"class {unknown[0]} was asked for, but {card.path.name} has {len(card.names)} classes",
            remedy=f"its classes are {known}{', ...' if len(card.names) > 12 else ''}",
        )
