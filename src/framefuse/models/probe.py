"""What a model outputs for one image of noise, where the shapes of its outputs do not tell."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import ModelError
from framefuse.models.onnx_file import plain_words
from framefuse.models.openvino_file import channels_first


def run_once(path: Path, shape: tuple[int, ...], dtype: str = "float32") -> dict[str, NDArray[Any]]:
    """The outputs by name, from OpenVINO in FP32.

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
        raise ModelError(
            f"{path.name} does not run: {plain_words(error)}", remedy="state layout in its card"
        ) from error
    return {port.get_any_name(): np.array(values) for port, values in found.items()}


def is_decoded(rows: NDArray[Any]) -> bool:
    """Whether anchors (n, 5 + nc) have boxes in pixels: then no side is negative, and most exceed any logarithm."""
    sides = rows[:, 2:4]
    return bool((sides >= 0).all() and np.median(sides) > 4)


def describe(outputs: dict[str, NDArray[Any]]) -> list[tuple[str, str, str, str, str]]:
    """Name, shape, dtype, least and greatest value of each output."""
    rows = []
    for name, values in outputs.items():
        ends = (f"{values.min():.4g}", f"{values.max():.4g}") if values.size else ("", "")
        rows.append((name, "x".join(map(str, values.shape)), values.dtype.name, *ends))
    return rows
