"""Random weights that follow from their shape, so that a network of 160 MB travels as a file of 100 kB.

    python -m benchmarks.seeded_weights pack NETWORK.onnx ... --to FOLDER
    python -m benchmarks.seeded_weights unpack PACKED.onnx ... --to FOLDER

`fill` draws the weights of a network of PyTorch before it is exported. The exporter folds batch normalisation into
them, which scales each output channel, and may transpose matrices. `pack` keeps these scales, `unpack` multiplies.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 2048
"""Weights of a tensor that is worth it."""
SCALES, EVEN = "/scales", "/even"
"""What the name of a packed tensor's scales ends in, and what comes before where its kernels are even."""


def drawn(shape: tuple[int, ...], *, transposed: bool = False, even: bool = False) -> NDArray[np.float32]:
    """Normally distributed, the same for every tensor of a shape, and what every version of NumPy gives. `even`: all
    weights of a kernel are the same, so that a convolution smooths."""
    if even:
        return np.broadcast_to(drawn(shape[:2] + (1,) * (len(shape) - 2)), shape)
    shape = shape[::-1] if transposed else shape
    found = np.random.RandomState(np.prod(shape)).standard_normal(shape).astype(np.float32)
    return found.T if transposed else found


def fill(net: Any, *, even: bool = False) -> None:
    """Replace the large weights of a module; they keep their standard deviations."""
    import torch

    with torch.no_grad():
        for weight in net.parameters():
            if weight.numel() >= LEAST and (size := float(weight.std())):
                weight.copy_(torch.tensor(drawn(tuple(weight.shape), even=even)) * size)


def pack(model: Any) -> None:
    """Replace weights that `fill` drew, and the exporter has scaled, by their scales."""
    from onnx import numpy_helper

    graph = model.graph
    for tensor in list(graph.initializer):
        shape = tuple(tensor.dims)
        if tensor.data_type != tensor.FLOAT or np.prod(shape) < LEAST or len(shape) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        for how in ("", "transposed") if len(shape) == 2 else ("", "even"):
            base = drawn(shape, **{how: True} if how else {})
            axes = 0 if how == "transposed" else tuple(range(1, len(shape)))
            scales = ((values * base).sum(axes, keepdims=True) / (base * base).sum(axes, keepdims=True)).astype(
                np.float32
            )
            if np.allclose(base * scales, values, rtol=1e-4, atol=1e-6 * np.abs(values).max()):
                tensor.ClearField("raw_data")
                tensor.ClearField("float_data")
                graph.initializer.append(numpy_helper.from_array(scales, tensor.name + EVEN * (how == "even") + SCALES))
                break


def unpack(model: Any) -> None:
    """The inverse of `pack`, but for rounding."""
    from onnx import numpy_helper

    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in [name for name in tensors if name.endswith(SCALES)]:
        packed, scales = name.removesuffix(SCALES), numpy_helper.to_array(tensors[name])
        tensor, even = tensors[packed.removesuffix(EVEN)], packed.endswith(EVEN)
        transposed = scales.ndim == 2 and scales.shape[0] == 1
        values = drawn(tuple(tensor.dims), transposed=transposed, even=even) * scales
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
        model.graph.initializer.remove(tensors[name])


def main() -> None:
    import onnx

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("pack", "unpack"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    for path in args.files:
        model = onnx.load(path)
        {"pack": pack, "unpack": unpack}[args.do](model)
        onnx.save(model, args.to / path.name)
        print(path.name, path.stat().st_size, "->", (args.to / path.name).stat().st_size, "bytes", flush=True)


if __name__ == "__main__":
    main()
