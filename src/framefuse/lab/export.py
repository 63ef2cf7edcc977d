"""Export: writes the network of a PyTorch program as an ONNX file, with its card.

    export_model("torchvision:lraspp_mobilenet_v3_large") -> lraspp_mobilenet_v3_large.onnx and .yaml

Only networks that end in a tensor or in a dictionary with the entry `out`, as torchvision's segmenters do, can be
exported; detectors that give lists of boxes have exporters of their own.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from framefuse.errors import CapabilityError, CardError, ModelError, UsageError
from framefuse.models.card import Card, read_card

OPSET = 17


def export_model(
    network: str,
    *,
    weights: str | None = None,
    imgsz: tuple[int, int] = (640, 640),
    names: Sequence[str] | None = None,
    out: Path | None = None,
) -> tuple[Path, Card | CardError]:
    """Write a network as ONNX with a free batch size, and its card beside it.

    Args:
        network: torchvision:NAME; PACKAGE.MODULE:FUNCTION, a function without arguments that returns a torch.nn.Module;
            or a TorchScript file.
        weights: file of a state dictionary; "none": as initialised; default: those that the network comes with, which
            torchvision downloads.
        imgsz: height and width of the input, in pixels.
        names: class names; default: those of torchvision's weights.
        out: default: NAME.onnx in the current folder.

    Returns:
        The file, and its card, or why it needs more in the card before it can be used.

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
    example = torch.zeros(1, 3, *imgsz)
    try:
        if not isinstance(module, torch.jit.ScriptModule):
            module = _one_output(torch, module).eval()
        with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            warnings.simplefilter("ignore")  # of the exporter, about itself
            written = Path(scratch, path.name)
            axes = {"images": {0: "batch"}, "output": {0: "batch"}}
            torch.onnx.export(
                module, (example,), str(written), input_names=["images"], output_names=["output"], dynamic_axes=axes,
                opset_version=OPSET, dynamo=False,
            )  # fmt: skip
            written.replace(path)
    except Exception as error:  # almost any: the network's own code runs
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = "a network takes images (batch, 3, height, width) and returns a tensor, or a dictionary with `out`"
        raise ModelError(f"{network} cannot be exported: {reason}", remedy=remedy) from error
    if names:
        facts["names"] = list(names)
    path.with_suffix(".yaml").write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    try:
        return path, read_card(path)
    except CardError as error:
        return path, error


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


def _one_output(torch: Any, module: Any) -> Any:
    """The network with the entry `out` of its outputs alone."""

    class OneOutput(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, images: Any) -> Any:
            found = self.network(images)
            found = found.get("out") if isinstance(found, dict) else found
            if not isinstance(found, torch.Tensor):
                raise TypeError("it does not return one tensor")
            return found

    return OneOutput()
