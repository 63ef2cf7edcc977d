"""The front half of engine cudnn: ONNX -> fused steps over planned memory, against ONNX Runtime. No GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import cudnn_reference as reference
from cuda_fibres import Fibres
from cuda_on_cpu import HostArray
from cudnn_nets import Net, any_order, backbone, detector, images, mixed, onnx_runtime, random_net, relative
from cudnn_on_cpu import convolve_by_reference, on_pretended_gpu, ran
from framefuse.engines import selftest
from framefuse.engines.backend import Doubt
from framefuse.engines.cudnn import execution
from framefuse.engines.cudnn.compiled import compile_network, why_not
from framefuse.engines.cudnn.convolutions import Layer, Plan, TensorPlan
from framefuse.engines.cudnn.network import Conv, Upsample, cells
from framefuse.errors import ModelError
from framefuse.kernels.network import call as kernels_network
from framefuse.kernels.network.call import TILES
from framefuse.models import find_model
from framefuse.runtime.cuda.program import MATTE_KERNELS, USUAL_KERNELS


@pytest.fixture(scope="module")
def models() -> dict[str, Path]:
    from benchmarks.models import model

    return {"yolov8n": model("yolov8n"), "yolov8n_static": model("yolov8n", dynamic=False)}


SIZES = [(64, 96, 2), (32, 32, 1), (160, 64, 3)]


@pytest.mark.parametrize(("height", "width", "batch"), SIZES)
@pytest.mark.parametrize("streams", [1, 4])
def test_equals_onnx_runtime(tmp_path: Path, height: int, width: int, batch: int, streams: int) -> None:
    net = Net()
    up, down = backbone(net, "images")
    path = net.save(tmp_path / "net.onnx", net.conv(up, 5, 1, act="none"), net.conv(down, 16, act="none"))
    x = images(batch, height, width)
    compiled = compile_network(path, batch, height, width, streams=streams)
    for order in (None, any_order(compiled, 1), any_order(compiled, 2)):
        for found, expected in zip(reference.run(compiled, x, order=order), onnx_runtime(path, x), strict=True):
            assert relative(found, expected) < 1e-5


@pytest.mark.slow
def test_yolov8n(models: dict[str, Path]) -> None:
    """The whole benchmark model, with every free axis: boxes and scores as ONNX Runtime's."""
    path, x = models["yolov8n"], images(2, 96, 128)
    (expected,) = onnx_runtime(path, x)
    compiled = compile_network(path, 2, 96, 128)
    head = compiled.network.head
    assert head is not None and (head.bins, head.classes) == (16, 80)
    assert len(compiled.placement.steps) == 63  # nothing is copied
    found = reference.decode_levels(reference.run(compiled, x), head, 96, 128)
    assert np.abs(found - expected)[:, :4].max() < 0.02  # pixels
    assert np.abs(found - expected)[:, 4:].max() < 1e-3


@pytest.mark.parametrize("name", ["scout-n", "scout-s", "body-n"])
def test_shipped_models(name: str) -> None:
    path, x = find_model(name), images(1, 64, 96)
    compiled = compile_network(path, 1, 64, 96)
    found = reference.run(compiled, x)
    if compiled.network.head is not None:
        found = [reference.decode_levels(found, compiled.network.head, 64, 96)]
    assert (compiled.network.head is not None) == name.startswith("scout")
    channels = compiled.view(compiled.network.input).shape[0]  # of what is compiled while the model is loaded
    assert f"preprocess_semiplanar_u8_nhwc{channels}" in {*USUAL_KERNELS} & {*MATTE_KERNELS}
    (expected,) = onnx_runtime(path, x)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=2e-3)


def test_qdq_nodes_are_removed() -> None:
    """Its 8 bit weights are multiplied out, and the ranges of its values known; so it is a little more exact."""
    path, x = find_model("scout-n-int8"), images(1, 64, 96)
    compiled = compile_network(path, 1, 64, 96)
    assert len(compiled.network.ranges) == 51 and all(peak > 0 for peak in compiled.network.ranges.values())
    assert compiled.network.head is not None
    found = reference.decode_levels(reference.run(compiled, x), compiled.network.head, 64, 96)
    (expected,) = onnx_runtime(path, x)
    assert relative(found, expected) < 0.02


@pytest.mark.parametrize("lowest", [-128, 0])
def test_ranges_of_qdq_nodes(tmp_path: Path, lowest: int) -> None:
    net = Net()
    kind = np.int8 if lowest else np.uint8
    x = net.conv("images", 8)
    scale, zero = net.constant(np.array(0.05, np.float32)), net.constant(np.array(lowest + 100, kind))
    values = net.node("DequantizeLinear", net.node("QuantizeLinear", x, scale, zero), scale, zero)
    weight = net.constant(np.arange(8 * 8, dtype=np.int8).reshape(8, 8, 1, 1) - 32)
    scales = net.constant(np.linspace(0.01, 0.1, 8, dtype=np.float32))
    wide = net.node("DequantizeLinear", weight, scales, net.constant(np.zeros(8, np.int8)), axis=0)
    path = net.save(tmp_path / "net.onnx", net.node("Conv", values, wide, kernel_shape=[1, 1], channels=8))
    compiled, image = compile_network(path, 1, 16, 24), images(1, 16, 24)
    assert compiled.network.ranges == {x: pytest.approx((255 - 100) * 0.05)}
    (expected,) = onnx_runtime(path, image)
    assert relative(reference.run(compiled, image)[0], expected) < 0.05  # steps of that


@pytest.mark.slow
def test_fixed_shapes(models: dict[str, Path]) -> None:
    compiled = compile_network(models["yolov8n_static"], 1, 640, 640)
    assert compiled.network.head is not None and compiled.network.head.anchors == 8400
    with pytest.raises(ModelError, match="takes 640x640 images only, not 320x320"):
        compile_network(models["yolov8n_static"], 1, 320, 320)


def test_memory_is_shared() -> None:
    compiled = compile_network(find_model("scout-n"), 1, 640, 640)
    assert compiled.memory.size < 0.4 * sum(compiled.placement.sizes)
    alone = compile_network(find_model("scout-n"), 1, 640, 640, streams=1)
    assert alone.memory.size <= compiled.memory.size


def test_nothing_overwrites_the_input() -> None:
    compiled = compile_network(find_model("scout-n"), 1, 320, 320)
    memory, sizes = compiled.memory, compiled.placement.sizes
    own = compiled.view(compiled.network.input).buffer
    begin, end = memory.offsets[own], memory.offsets[own] + sizes[own]
    others = [other for other in range(len(sizes)) if other != own]
    assert all(memory.offsets[other] >= end or memory.offsets[other] + sizes[other] <= begin for other in others)


def test_values_that_two_want_are_copied_once(tmp_path: Path) -> None:
    net = Net()
    a, b = net.conv("images", 16), net.conv("images", 8)
    one = net.conv(net.concat(a, b), 8)
    two = net.conv(net.concat(b, a), 8)
    path = net.save(tmp_path / "net.onnx", net.node("Add", one, two))
    compiled = compile_network(path, 1, 32, 40)
    assert sum(isinstance(step, Upsample) for step in compiled.placement.steps) == 2
    x = images(1, 32, 40)
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5


def test_a_value_that_is_joined_with_itself(tmp_path: Path) -> None:
    net = Net()
    a = net.conv("images", 8)
    path = net.save(tmp_path / "net.onnx", net.conv(net.concat(a, a, net.conv(a, 8), a), 8))
    compiled, x = compile_network(path, 1, 16, 24), images(1, 16, 24)
    for order in (None, any_order(compiled, 3)):
        assert relative(reference.run(compiled, x, order=order)[0], onnx_runtime(path, x)[0]) < 1e-5


def summed(net: Net, what: str) -> str:
    """Two convolutions, or three, and their sum, with an activation."""
    x = net.conv("images", 13, 3, 2)
    deep = net.conv(net.conv(x, 10, 1), 11, 3, 2)
    if what == "of what is pooled":
        x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    ends = {
        "of one input": lambda: [net.conv(x, 24, act="none"), net.conv(x, 24, 1, act="none")],
        "of one input, the other way round": lambda: [net.conv(x, 24, 1, act="none"), net.conv(x, 24, 5, act="none")],
        "of one input, every second": lambda: [net.conv(x, 24, n, 2, act="none") for n in (3, 1)],
        "of three": lambda: [net.conv(x, 24, n, act="none") for n in (1, 3, 5)],
        "of two inputs": lambda: [net.conv(net.conv(x, 11), 24, 1, act="none"), net.conv(x, 24, 1, act="none")],
        "that begins a stage": lambda: [net.conv(deep, 24, 1, act="none"), net.conv(x, 24, 1, 2, act="none")],
        "of what is pooled": lambda: [net.conv(net.conv(x, 11), 24, 1, act="none"), net.conv(x, 24, 1, act="none")],
        "of what two join": lambda: [net.conv(net.concat(x, x), 24, 1, act="none"), net.conv(x, 24, 1, act="none")],
        "of few": lambda: [net.conv(deep, 8, 1, act="none"), net.conv(x, 8, 1, 2, act="none")],
        "of what has its place": lambda: [
            net.conv(net.conv(net.concat(x, net.conv(x, 11)), 11), 8, 1, act="none"), net.conv(x, 8, 1, act="none")
        ],
        "of two windows": lambda: [net.conv(deep, 24, 3, act="none"), net.conv(x, 24, 1, 2, act="none")],
        "of an activation": lambda: [net.conv(x, 24, 3, act="none"), net.conv(x, 24, 1, act="relu")],
        "of groups": lambda: [net.conv(net.conv(x, 24), 24, n, act="none", groups=24) for n in (3, 1)],
    }[what]()  # fmt: skip
    total = ends[0]
    for end in ends[1:]:
        total = net.node("Add", total, end)
    return net.node("Relu", total)


SUMS = {
    "of one input": ["3x3"],
    "of one input, the other way round": ["5x5"],
    "of one input, every second": ["3x3"],
    "of three": ["5x5"],
    "of two inputs": ["1x1"],
    "that begins a stage": ["1x1"],
    "of what is pooled": ["1x1"],
    "of what two join": ["1x1"],
    "of few": ["1x1", "1x1"],
    "of what has its place": ["1x1", "1x1"],
    "of two windows": ["3x3", "1x1"],
    "of an activation": ["3x3", "1x1"],
    "of groups": ["3x3", "1x1"],
}


@pytest.mark.parametrize("what", SUMS)
@pytest.mark.parametrize(("height", "width"), [(32, 48), (34, 22)])
def test_sums_of_convolutions(tmp_path: Path, what: str, height: int, width: int) -> None:
    net = Net()
    x = summed(net, what)
    path, given = net.save(tmp_path / "net.onnx", net.conv(x, 8), x), images(2, height, width)
    compiled = compile_network(path, 2, height, width)
    made = [op for op in compiled.placement.steps if isinstance(op, Conv) and len(op.weight) in (8, 24)]
    ends = [op for op in made[:-1] if op.activation != "silu"]
    assert sorted("x".join(map(str, op.weight.shape[2:])) for op in ends) == sorted(SUMS[what])
    for order in (None, any_order(compiled, 1), any_order(compiled, 2)):
        for found, expected in zip(reference.run(compiled, given, order=order), onnx_runtime(path, given), strict=True):
            assert relative(found, expected) < 1e-5


def test_the_longest_chain_keeps_its_stream(tmp_path: Path) -> None:
    """What waits for a copy and for convolutions follows these, so that it may begin as soon as they let it."""
    net = Net()
    path = net.save(tmp_path / "net.onnx", summed(net, "that begins a stage"))
    compiled = compile_network(path, 1, 32, 48)
    streams = dict(zip(map(type, compiled.placement.steps), compiled.schedule.streams, strict=True))
    assert streams[Conv] == compiled.schedule.streams[0] != streams[Upsample]


def test_a_sum_of_what_is_read_twice_stays(tmp_path: Path) -> None:
    net = Net()
    x = net.conv("images", 16)
    one = net.conv(x, 16, 1, act="none")
    path = net.save(tmp_path / "net.onnx", net.node("Add", one, net.conv(x, 16, act="none")), net.conv(one, 8))
    compiled, given = compile_network(path, 1, 16, 24), images(1, 16, 24)
    assert sum(isinstance(op, Conv) for op in compiled.placement.steps) == 4
    for found, expected in zip(reference.run(compiled, given), onnx_runtime(path, given), strict=True):
        assert relative(found, expected) < 1e-5


def test_odd_channels_are_padded(tmp_path: Path) -> None:
    net = Net()
    x = net.conv("images", 13)
    x = net.conv(net.concat(x, net.conv(x, 7), net.conv(x, 3, 1)), 10)
    path = net.save(tmp_path / "net.onnx", net.conv(net.node("Add", x, net.conv(x, 10)), 1, act="none"))
    compiled, x = compile_network(path, 2, 24, 24), images(2, 24, 24)
    assert all(size % 8 == 0 for size, _, _ in compiled.network.shapes.values())
    (found,) = reference.run(compiled, x)
    assert relative(found, onnx_runtime(path, x)[0]) < 1e-5


def test_the_doctors_network(tmp_path: Path) -> None:
    path, x = selftest.write(tmp_path / "two.onnx"), images(1, 32, 32)
    compiled = compile_network(path, 1, 32, 32)
    (expected,) = onnx_runtime(path, x)
    assert relative(reference.run(compiled, x)[0], expected) < 1e-5
    assert np.abs(reference.run(compiled, x, dtype=np.float16)[0] - expected).max() < 0.01


@pytest.mark.parametrize(("height", "width", "batch"), [(24, 40, 2), (17, 33, 1)])
def test_nodes_without_kernels(tmp_path: Path, height: int, width: int, batch: int) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", *mixed(net, height, width)), images(batch, height, width)
    compiled = compile_network(path, batch, height, width)
    kinds = [type(step).__name__ for step in compiled.placement.steps]
    assert kinds == ["Conv", "General", "Conv", "General", "Conv"]  # normalisation and the sum are fused
    *found, places = reference.run(compiled, x)
    *expected, best = onnx_runtime(path, x)
    assert all(relative(ours, theirs) < 1e-5 for ours, theirs in zip(found, expected, strict=True))
    assert np.array_equal(places, best)
    doubt = why_not(path, "fp16", height, width)
    assert isinstance(doubt, Doubt) and "MatMul x2" in doubt


def test_groups_and_dilation(tmp_path: Path) -> None:
    net = Net()
    x = net.conv(net.conv("images", 32), 32, groups=32)
    x = net.node("Conv", x, net.constant(net.rng.normal(0, 0.1, (16, 8, 3, 3)).astype(np.float32)), channels=16,
                 dilations=[2, 2], pads=[2, 2, 2, 2], group=4)  # fmt: skip
    path = net.save(tmp_path / "net.onnx", x)
    x = images(1, 24, 24)
    assert relative(reference.run(compile_network(path, 1, 24, 24), x)[0], onnx_runtime(path, x)[0]) < 1e-5


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "width", "paired"),
    [
        (7, 2, (3, 3, 3, 3), 46, True),
        (3, 2, (1, 1, 1, 1), 32, True),
        (6, 2, (2, 2, 2, 2), 48, True),
        (2, 2, (0, 0, 0, 0), 34, True),
        (4, 4, (0, 0, 0, 0), 48, True),
        (4, 4, (0, 0, 0, 0), 46, False),  # nor are the last columns
        (3, 2, (0, 1, 2, 0), 30, True),
        (3, 2, (1, 1, 1, 1), 33, False),
        (3, 1, (1, 1, 1, 1), 32, False),
        (1, 4, (0, 0, 0, 0), 32, False),
    ],
)
def test_images_are_read_in_pairs_of_pixels(
    tmp_path: Path, kernel: int, stride: int, pads: tuple[int, ...], width: int, paired: bool
) -> None:
    net = Net()
    weight = net.constant(net.rng.normal(0, 0.2, (16, 3, kernel, kernel)).astype(np.float32))
    y = net.node("Conv", "images", weight, channels=16, strides=[stride] * 2, pads=list(pads))
    path, x = net.save(tmp_path / "net.onnx", net.conv(net.node("Relu", y), 8)), images(2, 24, width)
    compiled = compile_network(path, 2, 24, width)
    (first, *_) = Layer.all_of(compiled).values()
    assert (first.x[3] == width // 2) == paired and compiled.view(compiled.network.input).shape[0] == (
        4 if paired else 8
    )
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5


def test_an_image_that_two_read_is_not_read_in_pairs(tmp_path: Path) -> None:
    net = Net()
    both = net.concat(net.conv("images", 8, 3, 2), net.conv("images", 8, 5, 2))
    path, x = net.save(tmp_path / "net.onnx", net.conv(both, 8)), images(1, 32, 32)
    compiled = compile_network(path, 1, 32, 32)
    assert compiled.view(compiled.network.input).shape[0] == 8
    assert relative(reference.run(compiled, x)[0], onnx_runtime(path, x)[0]) < 1e-5


@pytest.mark.parametrize("first", [True, False])
def test_outputs_without_a_name_lead_nowhere(tmp_path: Path, first: bool) -> None:
    """An input that is left out has an empty name, too, as has an output that nobody wants."""
    net = Net()
    x = net.conv("images", 8, act="none")
    unknown = helper.make_node("Unknown", [x], ["", "unwanted"], name="unknown")
    y = net.node("Clip", x, "", net.constant(np.array(1, np.float32)))
    net.nodes.insert(len(net.nodes) - first, unknown)
    tail = compile_network(net.save(tmp_path / "net.onnx", y), 1, 32, 32).network.tail
    assert tail is not None and [call.kind for call in tail.program.calls] == ["Clip"]


@pytest.mark.parametrize("batch", [1, 2])
def test_what_depends_on_the_batch_is_folded_for_each(tmp_path: Path, batch: int) -> None:
    net = Net()
    x = net.conv("images", 8)
    images_and_rows = net.node("Concat", net.node("Gather", net.node("Shape", x), net.constant(np.array([0]))),
                               net.constant(np.array([-1])), axis=0)  # fmt: skip
    y = net.node("Softmax", net.node("Reshape", x, images_and_rows), axis=1)
    path, given = net.save(tmp_path / "net.onnx", y), images(batch, 16, 16)
    (found,) = reference.run(compile_network(path, batch, 16, 16), given)
    assert found.shape == (batch, 8 * 16 * 16) and relative(found, onnx_runtime(path, given)[0]) < 1e-4


def test_a_damaged_constant_that_nobody_reads(tmp_path: Path) -> None:
    net = Net()
    y = net.node("Softmax", net.conv("images", 8), axis=1)
    damaged = TensorProto(data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(7))
    net.nodes.append(helper.make_node("Constant", [], ["unread"], value=damaged))
    assert compile_network(net.save(tmp_path / "net.onnx", y), 1, 32, 32).network.tail is not None


def test_what_is_not_known_is_listed(tmp_path: Path) -> None:
    net = Net()
    x = net.conv("images", 8)
    y = net.node("Softmax", net.node("LRN", x, size=3), axis=1)
    path = net.save(tmp_path / "net.onnx", y)
    with pytest.raises(ModelError, match=r"does not know the operators LRN x1 \(first: LRN lrn_.* \(size=3\)\)"):
        compile_network(path, 1, 32, 32)
    with pytest.raises(ModelError, match="cannot be read as ONNX"):
        compile_network(tmp_path, 1, 32, 32)


def test_kernels_between_convolutions(fibres: Fibres, tmp_path: Path) -> None:
    """The steps that are no convolutions, as generated CUDA source, in planned memory beside NumPy's convolutions."""
    net = Net()
    up, down = backbone(net, "images")
    path = net.save(tmp_path / "net.onnx", net.conv(up, 8, 1, act="none"), down)
    height, width, batch = 96, 136, 2
    compiled, x = compile_network(path, batch, height, width), images(batch, height, width)
    expected = reference.run(compiled, x, dtype=np.float16)
    arena = np.full(compiled.memory.size, np.nan, np.float16)
    y = execution.block(compiled, compiled.network.input, arena.ctypes.data)
    kernels_network.pack(x.ctypes.data, 3, "f32", y, stream=0)
    steps = compiled.placement.steps
    for index, step in enumerate(steps):
        if isinstance(step, Conv):
            reference.step(compiled, arena, index)
        else:
            execution.launch_other(compiled, step, arena.ctypes.data, 0)
    for name, value in zip(compiled.network.outputs, expected, strict=True):
        found = np.full(value.shape, np.nan, np.float32)
        execution.unpack(compiled, name, output=found.ctypes.data, arena=arena.ctypes.data, stream=0)
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize("style", ["joined", "apart"])
@pytest.mark.parametrize("classes", [80, 3, 300])
def test_heads(fibres: Fibres, tmp_path: Path, classes: int, style: str) -> None:
    """Recognised in both ways in which exporters join the levels, and decoded by the kernel."""
    net = Net()
    path = net.save(tmp_path / "net.onnx", detector(net, classes, style, 24, 40))
    compiled, x = compile_network(path, 2, 24, 40), images(2, 24, 40)
    head = compiled.network.head
    assert head is not None and head.levels == ((12, 20), (6, 10)) and head.classes == classes
    assert not any(isinstance(step, Upsample) for step in compiled.placement.steps)
    arena = np.full(compiled.memory.size, np.nan, np.float16)
    reference.fill(compiled, arena, x)
    for index in range(len(compiled.placement.steps)):
        reference.step(compiled, arena, index)
    expected = reference.decode_levels(reference.outputs(compiled, arena), head, 24, 40)
    np.testing.assert_allclose(onnx_runtime(path, x[:1])[0], expected[:1], rtol=0.01, atol=0.1)
    found = np.full(expected.shape, np.nan, np.float32)
    table = np.ascontiguousarray(cells(head.levels, 24, 40), np.float32)
    logits = execution.head_of(compiled, arena.ctypes.data)
    levels = logits.table
    kernels_network.decode(
        logits, levels=levels.ctypes.data, cells=table.ctypes.data, output=found.ctypes.data, stream=0
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("what", ["detector", "images"])
def test_execution_on_the_pretended_gpu(
    fibres: Fibres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fold: bool
) -> None:
    """Everything that runs on a GPU but cuDNN itself: tables, addresses, order, results."""
    plans = convolve_by_reference(monkeypatch)
    net = Net()
    if what == "detector":
        outputs = [detector(net, 5, "joined", 24, 40)]
    else:
        x = net.conv("images", 8)
        outputs = [net.conv(net.concat(net.pool(x), net.upsample(net.conv(x, 16, stride=2))), 5, act="none")]
    path = net.save(tmp_path / "net.onnx", *outputs)
    compiled, x = compile_network(path, 2, 24, 40), images(2, 24, 40)
    runs = execution.Execution(compiled, None, None, plans, fold=fold)  # type: ignore[arg-type]
    for _ in range(2):
        found = ran(runs, x)
    if runs.layout is not None:
        assert fold and runs.layout == "yolov8_head"
        head = compiled.network.head
        assert head is not None and [value.shape for value in found] == [
            (2, 12, 20, 64), (2, 12, 20, 5), (2, 6, 10, 64), (2, 6, 10, 5)
        ]  # fmt: skip
        found = [reference.decode_levels([value.transpose(0, 3, 1, 2) for value in found], head, 24, 40)]
    (expected,) = onnx_runtime(path, x[:1])
    np.testing.assert_allclose(found[0][:1], expected, rtol=0.02, atol=0.15 if what == "detector" else 0.01)


def test_nodes_between_convolutions_on_the_pretended_gpu(
    fibres: Fibres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", *mixed(net, 18, 14)), images(2, 18, 14)
    *found, places = on_pretended_gpu(monkeypatch, compile_network(path, 2, 18, 14), x)
    *expected, best = onnx_runtime(path, x)
    assert all(relative(ours, theirs) < 0.01 for ours, theirs in zip(found, expected, strict=True))
    assert np.array_equal(places, best)


@pytest.mark.parametrize("what", ["of one input", "that begins a stage", "of what is pooled"])
def test_sums_on_the_pretended_gpu(fibres: Fibres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    net = Net()
    path, x = net.save(tmp_path / "net.onnx", net.conv(summed(net, what), 8)), images(2, 34, 22)
    (found,) = on_pretended_gpu(monkeypatch, compile_network(path, 2, 34, 22), x)
    assert relative(found, onnx_runtime(path, x)[0]) < 0.01


@pytest.mark.parametrize("ours", [True, False])
def test_what_reads_a_residual_begins_when_it_is_written(
    fibres: Fibres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """cuDNN's kernels do not wait for the end of the kernel that writes it, which ours lets them overtake."""
    plan, net, started = convolve_by_reference(monkeypatch), Net(), list[str]()
    x = net.conv("images", 16)
    inner = net.conv(net.conv(x, 16, act="relu"), 16, act="none")
    last = net.node("Relu", net.node("Add", inner, net.conv(x, 16, 1, act="none")))
    path, given = net.save(tmp_path / "net.onnx", last), images(2, 18, 14)
    convolve = execution.Execution.convolve

    def convolved(self: execution.Execution, plan: Plan, index: int, step: Conv, *where: Any) -> None:
        started.append("x".join(map(str, step.weight.shape[2:])))
        convolve(self, plan, index, step, *where)

    def data(self: HostArray) -> SimpleNamespace:
        return SimpleNamespace(ptr=self.ctypes.data, memset_async=lambda *given: started.append("memset"))

    monkeypatch.setattr(execution.Execution, "convolve", convolved)
    monkeypatch.setattr(HostArray, "data", property(data))

    def plan_of(layer: Layer) -> Any:
        return TensorPlan(layer, TILES[0]) if ours and layer.weight[2] == 3 else plan(layer)

    compiled = compile_network(path, 2, 18, 14)
    (found,) = ran(execution.Execution(compiled, None, None, plan_of), given)  # type: ignore[arg-type]
    assert relative(found, onnx_runtime(path, given)[0]) < 0.01
    assert started == ["3x3", "3x3", "3x3", *["memset"] * ours, "1x1"]


def test_a_head_that_decodes_otherwise(tmp_path: Path) -> None:
    """Anchors of another size: it looks like the head, and is not, so its nodes run as they are."""
    net = Net()
    path = net.save(tmp_path / "net.onnx", detector(net, 4, "joined", 24, 48))
    compiled = compile_network(path, 1, 24, 40)
    assert compiled.network.head is None and compiled.network.tail is not None
    with pytest.raises(ModelError, match=r"engine cudnn cannot run Sub \(sub_\d+\): operands could not be broadcast"):
        reference.run(compiled, images(1, 24, 40))


def test_a_list_of_anchors_as_output(tmp_path: Path) -> None:
    net = Net()
    flat = net.node("Reshape", net.conv("images", 8), net.constant(np.array([0, 8, -1])))
    path, x = net.save(tmp_path / "net.onnx", flat), images(3, 24, 40)
    (found,) = reference.run(compile_network(path, 3, 24, 40), x)
    assert found.shape == (3, 8, 960) and relative(found, onnx_runtime(path, x)[0]) < 1e-5


@pytest.mark.parametrize("seed", range(24))
def test_random_networks(tmp_path: Path, seed: int) -> None:
    net, outputs = random_net(seed)
    path, x = net.save(tmp_path / "net.onnx", *outputs), images(2, 16, 24)
    expected = onnx_runtime(path, x)
    for streams in (1, 3, 6):
        try:
            compiled = compile_network(path, 2, 16, 24, streams=streams)
        except ModelError as error:
            assert "padd" in error.message or "not a multiple of 8" in error.message
            return
        for order in (None, any_order(compiled, seed)):
            for found, wanted in zip(reference.run(compiled, x, order=order), expected, strict=True):
                assert relative(found, wanted) < 1e-5
