"""What newer and older detectors need of engine cudnn: attention, channels' own filters, heads with anchors. No GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_reference as reference
from cuda_fibres import Fibres
from cudnn_nets import ANCHORS, Net, anchored, any_order, images, onnx_runtime, relative, with_attention
from cudnn_on_cpu import NumpyPlans, complete, on_pretended_gpu, ran
from framefuse.engines.cudnn import execution
from framefuse.engines.cudnn.compiled import compile_network
from framefuse.engines.cudnn.convolutions import BIAS, OWN, WEIGHT
from framefuse.engines.cudnn.execution import Weights
from framefuse.engines.cudnn.network import AnchorHead, Attention, Conv, General, decode_anchors


def test_attention_is_recognised(tmp_path: Path) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", with_attention(net, 24, 40)), images(1, 24, 40)
    compiled = compile_network(path, 1, 24, 40)
    (step,) = (step for step in compiled.placement.steps if isinstance(step, Attention))
    assert (step.heads, step.keys, step.values) == (2, 8, 16)
    (expected,) = onnx_runtime(path, x)
    for order in (None, any_order(compiled, 1)):
        assert relative(reference.run(compiled, x, order=order)[0], expected) < 1e-5
    assert relative(reference.run(compiled, x, dtype=np.float16)[0], expected) < 3e-3


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_transposed_convolution_whose_filters_do_not_overlap(tmp_path: Path, batch: int, with_bias: bool) -> None:
    net = Net()
    weights = [net.rng.normal(size=(16, 24, 2, 2)), net.rng.normal(size=24)][: 1 + with_bias]
    constants = [net.constant(value.astype(np.float32)) for value in weights]
    y = net.node("ConvTranspose", net.conv("images", 16), *constants, strides=[2, 2], channels=24)
    path, x = net.save(tmp_path / "net.onnx", net.conv(y, 8)), images(batch, 6, 10)
    compiled = compile_network(path, batch, 6, 10)
    kinds = [type(step) for step in compiled.placement.steps]
    assert kinds == [Conv, Conv, General, Conv]
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5


def test_attention_is_recognised_in_a_batch_beside_other_operators(tmp_path: Path) -> None:
    net = Net()
    y = net.conv(net.attention(net.conv("images", 24), 2, 8, 16, 6, 10, batch=2), 8, 1)
    path, x = net.save(tmp_path / "net.onnx", net.node("ReduceMean", y, axes=[2, 3])), images(2, 6, 10)
    compiled = compile_network(path, 2, 6, 10)
    assert any(isinstance(step, Attention) for step in compiled.placement.steps)
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5


@pytest.mark.parametrize(
    ("heads", "keys", "values", "batch", "size"),
    [(1, 32, 64, 1, (6, 10)), (3, 8, 16, 2, (6, 10)), (2, 16, 8, 1, (6, 10)), (1, 64, 128, 1, (2, 150))],
)
def test_attention_on_the_pretended_gpu(
    fibres: Fibres, tmp_path: Path, heads: int, keys: int, values: int, batch: int, size: tuple[int, int]
) -> None:
    net = Net()
    x = net.conv("images", 24)
    path = net.save(tmp_path / "net.onnx", net.conv(net.attention(x, heads, keys, values, *size), 8, 1))
    compiled, x = compile_network(path, batch, *size), images(batch, *size)
    compare(compiled, x)


def compare(compiled: Any, x: Any) -> None:
    """Each step that has a kernel of ours, as generated CUDA source, against NumPy, on the same arena."""
    arena = np.full(compiled.memory.size, np.nan, np.float16)
    reference.fill(compiled, arena, x)
    checked = 0
    for index, step in enumerate(compiled.placement.steps):
        if isinstance(step, Attention) or (isinstance(step, Conv) and (step.depthwise or step.groups == 1)):
            other = arena.copy()
            reference.step(compiled, other, index)
            if isinstance(step, Attention):
                execution.launch_other(compiled, step, arena.ctypes.data, 0)
            else:
                order = (2, 3, 1, 0) if step.depthwise else (0, 2, 3, 1)
                weight = np.ascontiguousarray(step.weight.transpose(order), np.float16)
                bias = step.bias.astype(np.float16)
                weights = {WEIGHT: weight.ctypes.data, BIAS: bias.ctypes.data}
                execution.launch_filter(compiled, step, weights, arena.ctypes.data, 0)
            np.testing.assert_allclose(arena, other, rtol=2e-3, atol=2e-3)
            checked += 1
        else:
            reference.step(compiled, arena, index)
    assert checked


@pytest.mark.parametrize(("stride", "kernel", "act"), [(1, 3, "silu"), (2, 3, "relu"), (1, 5, "none"), (2, 5, "silu")])
def test_filters_for_each_channel(fibres: Fibres, tmp_path: Path, stride: int, kernel: int, act: str) -> None:
    net = Net()
    x = net.conv("images", 24)
    y = net.conv(x, 24, kernel, stride, act, groups=24)
    if stride == 1:
        y = net.node("Add", x, y)
    path, x = net.save(tmp_path / "net.onnx", net.conv(y, 8, 1)), images(2, 10, 14)
    compiled = compile_network(path, 2, 10, 14)
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5
    compare(compiled, x)


@pytest.mark.parametrize(("stride", "kernel", "act"), [(1, 3, "silu"), (2, 3, "relu"), (1, 1, "none"), (2, 5, "silu")])
@pytest.mark.parametrize(("channels", "made", "size"), [(24, 80, (10, 14)), (40, 16, (9, 7)), (8, 72, (1, 1))])
def test_filters_of_all_channels(
    fibres: Fibres, tmp_path: Path, stride: int, kernel: int, act: str, channels: int, made: int, size: tuple[int, int]
) -> None:
    """Tiles that are not full, channels that do not fill a step, and an activation after a sum."""
    net = Net()
    x = net.conv("images", channels)
    beside = net.conv(x, made, 1, stride)
    y = net.conv(net.conv(x, made, kernel, stride, act), made, 3, act="none")
    y = net.node("Relu", net.node("Add", beside, y))
    path, images_ = net.save(tmp_path / "net.onnx", net.conv(y, 8, 1, act="none")), images(2, *size)
    compiled = compile_network(path, 2, *size)
    steps = [step for step in compiled.placement.steps if isinstance(step, Conv)]
    assert "relu" in {step.last for step in steps}
    compare(compiled, images_)


@pytest.mark.parametrize("wrong", ["scale", "order", "twice"])
def test_what_is_nearly_attention_is_not_taken(tmp_path: Path, wrong: str) -> None:
    net = Net()
    y = with_attention(net, 16, 16)
    if wrong == "scale":
        scale = next(node for node in net.nodes if node.op_type == "Mul" and "matmul" in node.input[0])
        scale.input[1] = net.constant(np.array(0.5, np.float32))
    elif wrong == "order":
        next(node for node in net.nodes if node.op_type == "Softmax").attribute[0].i = 2
    else:
        reshaped = next(node for node in net.nodes if node.op_type == "Reshape")
        y = net.concat(y, net.conv(reshaped.input[0], 24, 1))
    path, x = net.save(tmp_path / "net.onnx", y), images(1, 16, 16)
    compiled = compile_network(path, 1, 16, 16)
    assert not any(isinstance(step, Attention) for step in compiled.placement.steps)
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5


@pytest.mark.parametrize("classes", [1, 80, 11])
def test_heads_with_anchors(fibres: Fibres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, classes: int) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", anchored(net, classes, 24, 40)), images(1, 24, 40)
    compiled = compile_network(path, 1, 24, 40)
    head = compiled.network.head
    assert isinstance(head, AnchorHead) and head.classes == classes and head.levels == ((12, 20), (6, 10))
    np.testing.assert_allclose(head.sizes, ANCHORS)
    (expected,) = onnx_runtime(path, x)
    found = decode_anchors(reference.run(compiled, x), head, 24, 40)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    (found,) = on_pretended_gpu(monkeypatch, compiled, x)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.15)


def test_a_batch_with_attention_on_the_pretended_gpu(
    fibres: Fibres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", with_attention(net, 16, 24)), images(2, 16, 24)
    compiled = compile_network(path, 2, 16, 24)
    (found,) = on_pretended_gpu(monkeypatch, compiled, x)
    for image, one in zip(x, found, strict=True):
        (expected,) = onnx_runtime(path, image[None])
        np.testing.assert_allclose(one[None], expected, rtol=0.02, atol=0.02)


def test_a_head_that_decodes_sizes_otherwise(tmp_path: Path) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", anchored(net, 3, 24, 40, square=False)), images(1, 24, 40)
    compiled = compile_network(path, 1, 24, 40)
    assert compiled.network.head is None
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yolo11n", "yolov5s"])
def test_whole_detectors(tmp_path: Path, name: str) -> None:
    """Exports with the layers of the published models, at a size that is not theirs."""
    from benchmarks.model_graph import cost
    from benchmarks.models import yolov5s
    from benchmarks.models_yolo11 import yolo11n

    write, parameters = {"yolo11n": (yolo11n, 2_616_248), "yolov5s": (yolov5s, 7_225_885)}[name]
    path = write(tmp_path / "model.onnx")
    assert cost(path).parameters == parameters
    compiled, x = compile_network(path, 1, 96, 160), images(1, 96, 160)
    head, values = compiled.network.head, reference.run(compiled, x)
    assert head is not None and head.anchors == sum(12 * 20 // 4**k for k in range(3)) * (3 if name == "yolov5s" else 1)
    found = (
        decode_anchors(values, head, 96, 160)
        if isinstance(head, AnchorHead)
        else reference.decode_levels(values, head, 96, 160)
    )
    assert relative(found, onnx_runtime(path, x)[0]) < 1e-4


def test_our_kernels_first_and_others_later(fibres: Fibres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = Net()
    path, x = (
        net.save(tmp_path / "net.onnx", net.conv(net.conv("images", 16), 24, stride=2, act="none")),
        images(2, 8, 8),
    )
    compiled = compile_network(path, 2, 8, 8)
    complete(monkeypatch)
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    plans = NumpyPlans(lambda layer: 1.0)
    run = execution.Execution(compiled, plans.builder, weights, lambda layer: OWN)
    found = []
    for _ in range(2):
        found += ran(run, x)
        run.replace_kernels(plans)
        run.replace_kernels(plans)
    assert run.version == 1, "the same kernels again are no others"
    (expected,) = reference.run(compiled, x, dtype=np.float16)
    assert max(relative(one, expected) for one in found) < 3e-3 and len(plans.asked) == 8
