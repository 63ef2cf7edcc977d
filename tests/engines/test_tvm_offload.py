"""Convolutions that are left to cuDNN: on the CPU, with NumPy in cuDNN's place."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_nets import Net, images, onnx_runtime

pytest.importorskip("tvm")

SEEN: list[tuple[Any, ...]] = []


def convolve(x: Any, weight: Any, bias: Any, *rest: Any) -> None:
    """What cuDNN computes, NHWC, in float32."""
    *residual, how, out = rest
    given = json.loads(str(how))
    top, left, bottom, right = given["pads"]
    x, weight, bias = (np.from_dlpack(value).astype(np.float32) for value in (x, weight, bias))
    whole = x.shape[3]
    x = x[..., given["first"] : given["first"] + weight.shape[3]]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    y = np.from_dlpack(out)
    rows, columns = weight.shape[1:3]
    total = np.zeros(y.shape, np.float32) + bias
    for row in range(rows):
        for column in range(columns):
            window = x[:, row : row + x.shape[1] - rows + 1, column : column + x.shape[2] - columns + 1]
            window = window[:, :: given["stride"][0], :: given["stride"][1]]
            total += window @ weight[:, row, column].T
    if given["activation"] == "silu":
        total *= 1 / (1 + np.exp(-total))
    elif given["activation"] == "relu":
        total = np.maximum(total, 0)
    for other in residual:
        first = given["residual_first"]
        total += np.from_dlpack(other)[..., first : first + total.shape[3]]
    SEEN.append((f"{x.shape[3]} of {whole}", weight.shape[0], given["activation"], len(residual)))
    np.copyto(y, total.astype(np.float16))


def test_a_network_with_its_convolutions_offloaded(tmp_path: Path) -> None:
    import tvm_ffi

    from framefuse.engines.tvm import compiling, offload, targets
    from framefuse.engines.tvm.compiling import import_model
    from framefuse.engines.tvm.package import tvm

    net = Net()
    x = net.conv("images", 16, stride=2)
    left, right = net.split(x, [8, 8])
    added = net.node("Add", right, net.conv(net.conv(right, 8), 8), channels=8)
    x = net.node("Concat", left, right, added, channels=24, axis=1)
    x = net.node("Concat", right, net.conv(x, 8, kernel=1, act="relu"), left, channels=24, axis=1)
    boxes, classes = net.conv(x, 8), net.conv(x, 16)
    outputs = net.conv(classes, 8, kernel=1, act=""), net.node("Add", boxes, boxes), net.conv(x, 3, kernel=1)
    limits = [net.constant(np.array(value, np.float32)) for value in (0, 2)]
    path = net.save(tmp_path / "net.onnx", *outputs, net.node("Clip", classes, *limits))

    tvm_ffi.register_global_func(offload.FUNCTION, convolve, override=True)
    target = targets.this_cpu(1)
    lowered = compiling.lower(import_model(path, (2, 3, 18, 22)), target, "fp16", cudnn=True)
    compiling.compile_to(tmp_path / "net.so", lowered, target, own_memory=True)
    machine = tvm().relax.VirtualMachine(tvm().runtime.load_module(str(tmp_path / "net.so")), tvm().cpu())
    first, second = machine["memory"](), machine["memory"]()
    batch = images(2, 18, 22)
    SEEN.clear()
    results = [np.from_dlpack(value) for value in machine["main"](tvm().runtime.tensor(batch), *first)]
    seen = list(SEEN)
    machine["main"](tvm().runtime.tensor(0 * batch), *second)  # in memory of its own: the results above stay
    assert seen == [
        ("8 of 8", 16, "silu", 0),
        ("8 of 16", 8, "silu", 0),  # what is split off is read where it is, as the residual of the next one is
        ("8 of 8", 8, "silu", 1),
        ("24 of 24", 8, "relu", 0),
        ("24 of 24", 24, "silu", 0),  # two of one input; the third has 3 channels, which tensor cores do not take
        ("16 of 24", 8, "", 0),
    ]
    joined = re.findall(r"cls\.concatenate\w*, \(([^)]*)\)", lowered.script())
    assert [len(names.split(",")) for names in joined] == [2], "both halves of a split, in order, are joined as one"
    for result, expected in zip(results, onnx_runtime(path, batch), strict=True):
        assert result.shape == expected.shape and result.dtype == np.float32
        assert np.abs(result - expected).max() < 5e-3 * np.abs(expected).max()


def test_what_cannot_be_laid_out_channels_last_keeps_its_convolutions(tmp_path: Path) -> None:
    from framefuse.engines.tvm import compiling, offload, targets
    from framefuse.engines.tvm.compiling import import_model

    net = Net()
    x = net.conv("images", 16, stride=2)
    path = net.save(tmp_path / "net.onnx", net.node("Max", net.conv(x, 16), x, channels=16))  # TVM stacks them
    lowered = compiling.lower(import_model(path, (1, 3, 16, 16)), targets.this_cpu(1), "fp16", cudnn=True)
    text = lowered.script()
    assert offload.FUNCTION not in text and "float16" in text and "conv2d" in text


def test_a_convolution_without_activation_asks_for_the_kernels_of_engine_cudnn() -> None:
    from framefuse.engines.tvm.cuda import _layer

    how = {"stride": [1, 1], "pads": [0] * 4, "dilation": [1, 1], "activation": ""}
    layer = _layer((1, 20, 30, 64), (16, 1, 1, 64), (1, 20, 30, 16), None, how)
    assert layer.activation == "identity"
    assert (layer.x, layer.weight, layer.y) == ((1, 64, 20, 30), (16, 64, 1, 1), (1, 16, 20, 30))
    assert layer.x_strides == (20 * 30 * 64, 1, 30 * 64, 64)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_is_captured_only_launches(tmp_path: Path) -> None:
    net = Net()
    x = net.conv(net.conv("images", 16, stride=2), 16)
    model = net.save(tmp_path / "net.onnx", net.node("Softmax", net.conv(x, 8, kernel=1, act=""), axis=1), net.pool(x))
    program = Path(__file__).parents[1] / "fakes" / "tvm_on_fake_cuda.py"
    done = subprocess.run([sys.executable, program, model, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["target"] == "cuda-sm_90"
    for name, convolutions in (("cudnn", 3), ("alone", 0)):
        assert found[name] == {
            "asked": ["launch"],
            "streams": [True],
            "convolutions": convolutions,
            "on the stream": True,
            "own memory": True,
        }
