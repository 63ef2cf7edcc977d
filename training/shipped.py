"""The weights of a shipped ONNX model in a network that can go on learning.

In the file every normalisation is folded into its convolution. It is put back so that the network computes the same:
with m and v, the mean and variance of a convolution's output on some images, the weights stay, and the normalisation
has the running statistics m and v, the scale sqrt(v + eps) and the shift b + m, where b is the bias in the file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from framefuse.errors import ModelError
from framefuse.models.onnx_file import load_onnx
from training.nets import Conv, Detector, Segmenter, fuse


@torch.no_grad()
def restore(net: Detector | Segmenter, name: str, folder: Path, images: Tensor) -> None:
    """Load NAME.onnx of a folder, and NAME-2.onnx for the second head of a segmenter, into a network.

    Args:
        images: (b, 3, h, w) in 0..1, as those that it will learn from.

    Raises:
        ModelError: a file cannot be read, or is of another network.
    """
    found: dict[str, Tensor] = {}
    for file in (name, f"{name}-2") if isinstance(net, Segmenter) else (name,):
        found |= _weights(load_onnx(folder / f"{file}.onnx"))
    folded = fuse(copy.deepcopy(net))
    wanted = folded.state_dict()
    try:
        folded.load_state_dict({key: found[key].to(wanted[key]) for key in wanted})
    except (KeyError, RuntimeError) as error:
        raise ModelError(
            f"the weights in {folder / name}.onnx do not fit {name}: {str(error).splitlines()[0]}",
            remedy="begin without them, or with the file of this version",
        ) from error
    outputs: dict[str, tuple[Tensor, Tensor]] = {}
    for path, module in folded.named_modules():
        if isinstance(module, Conv):
            module.conv.register_forward_hook(_noting(outputs, path))
    folded.features(images)
    units = dict(net.named_modules())
    for path, module in folded.named_modules():
        mine = units[path]
        if isinstance(module, Conv) and isinstance(mine, Conv):
            mean, variance = outputs[path]
            norm, bias = mine.norm, module.conv.bias
            assert isinstance(norm, nn.BatchNorm2d) and bias is not None
            mine.conv.weight.copy_(module.conv.weight)
            norm.weight.copy_((variance + norm.eps).sqrt())
            norm.bias.copy_(mean)
            norm.running_mean, norm.running_var = mean - bias, variance
        elif isinstance(module, nn.Conv2d) and not path.endswith(".conv"):
            mine.load_state_dict(module.state_dict())


def _noting(outputs: dict[str, tuple[Tensor, Tensor]], path: str) -> Callable[[nn.Module, object, Tensor], None]:
    def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs[path] = output.mean((0, 2, 3)), output.var((0, 2, 3), unbiased=False)

    return note


def _weights(model: onnx.ModelProto) -> dict[str, Tensor]:
    """Initializers by the names that PyTorch gives them; constants of other operators, too."""
    return {
        one.name.removeprefix("/").replace("/", "."): torch.from_numpy(numpy_helper.to_array(one).copy())
        for one in model.graph.initializer
    }
