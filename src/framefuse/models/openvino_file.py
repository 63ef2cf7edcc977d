"""Models that OpenVINO reads besides ONNX, its own .xml with a .bin beside it and TensorFlow Lite's .tflite; and what a
model outputs for one image of noise, where the shapes of its outputs do not tell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.files import os_errors_as
from framefuse.common.plain_yaml import read_mapping
from framefuse.common.text import lines_of
from framefuse.errors import CardError, ModelError
from framefuse.models.onnx_file import OnnxFacts, TensorFacts, plain_words

SUFFIXES = ".xml", ".tflite"
METADATA_FILE = "metadata.yaml"
"""What exporters of YOLO put beside such a model, with the keys of the metadata of their ONNX files."""


def read_openvino(path: Path) -> OnnxFacts:
    """Inputs, outputs and metadata of such a file; images with the channels last are described as `channels_first`
    makes them.

    Raises:
        ModelError: the file is missing or OpenVINO cannot read it.
        CardError: METADATA_FILE is not YAML.
    """
    import openvino

    try:
        network = channels_first(openvino.Core().read_model(path))
    except RuntimeError as error:
        remedy = "pass the .xml with its .bin beside it, or a .tflite without operators of its own"
        raise ModelError(f"OpenVINO cannot read {path}: {lines_of(error)[-1]}", remedy=remedy) from error
    beside, metadata = path.with_name(METADATA_FILE), dict[str, str]()
    if beside.is_file():
        with os_errors_as(CardError, f"{beside} cannot be read", "correct or remove it", (OSError, ValueError)):
            for key, (value, _) in read_mapping(beside.read_bytes()).items():
                metadata[key] = value if isinstance(value, str) else json.dumps(value, default=str)
    return OnnxFacts(path, tuple(map(_facts, network.inputs)), tuple(map(_facts, network.outputs)), metadata)


def channels_first(network: Any) -> Any:
    """An `openvino.Model` that takes images as (batch, 3, height, width), if it took (batch, height, width, 3)."""
    import openvino

    shape = network.inputs[0].get_partial_shape()
    if shape.rank.is_dynamic or len(shape) != 4 or str(shape[3]) != "3" or str(shape[1]) == "3":
        return network
    changes = openvino.preprocess.PrePostProcessor(network)
    changes.input(0).model().set_layout(openvino.Layout("NHWC"))
    changes.input(0).tensor().set_layout(openvino.Layout("NCHW"))
    return changes.build()


def run_once(path: Path, shape: tuple[int, ...], dtype: str = "float32") -> dict[str, NDArray[Any]]:
    """The outputs by name for one image of noise, from OpenVINO in FP32.

    Args:
        shape: batch, 3, height and width of the input.
        dtype: of the input. Its values are 0..255, as nothing is known about its normalisation.

    Raises:
        ModelError: the model does not run.
    """
    import openvino

    image = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    try:
        core = openvino.Core()
        network = channels_first(core.read_model(path))
        network.reshape(list(shape))
        compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled([image])
    except RuntimeError as error:
        why = f"{path.name} does not run: {plain_words(error)}"
        raise ModelError(why, remedy="state layout in its card") from error
    return {port.get_any_name(): np.array(values) for port, values in found.items()}


def _facts(port: Any) -> TensorFacts:
    shape = port.get_partial_shape()
    sides = () if shape.rank.is_dynamic else (None if side.is_dynamic else side.get_length() for side in shape)
    return TensorFacts(port.get_any_name(), port.get_element_type().to_dtype().name, tuple(sides))
