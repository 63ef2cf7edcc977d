"""Small ONNX files in the way of exporters, and what runs them, for the tests of engine cudnn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.network import cells

Array = NDArray[Any]


class Net:
    """Writes small ONNX files of convolutions in the way of exporters."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.channels = {"images": 3}
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}_{self.count}"

    def constant(self, value: Array) -> str:
        name = self.name("constant")
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, channels: int = 0, **attributes: Any) -> str:
        names = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        self.channels |= dict.fromkeys(names, channels or self.channels.get(inputs[0], 0))
        return names[0]

    def conv(self, x: str, channels: int, kernel: int = 3, stride: int = 1, act: str = "silu", groups: int = 1) -> str:
        width = self.channels[x] // groups
        weight = self.rng.normal(0, (2 / width) ** 0.5 / kernel, (channels, width, kernel, kernel)).astype(np.float32)
        bias = self.rng.normal(0, 0.1, channels).astype(np.float32)
        y = self.node("Conv", x, self.constant(weight), self.constant(bias), channels=channels,
                      kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
                      group=groups)  # fmt: skip
        if act == "silu":
            return self.node("Mul", y, self.node("Sigmoid", y))
        return self.node("Relu", y) if act == "relu" else y

    def split(self, x: str, sizes: list[int]) -> list[str]:
        names = [self.name("part") for _ in sizes]
        self.nodes.append(helper.make_node("Split", [x, self.constant(np.array(sizes))], names, axis=1))
        self.channels |= dict(zip(names, sizes, strict=True))
        return names

    def concat(self, *xs: str, axis: int = 1) -> str:
        channels = sum(self.channels[x] for x in xs) if axis == 1 else self.channels[xs[0]]
        return self.node("Concat", *xs, channels=channels, axis=axis)

    def upsample(self, x: str, scale: int = 2) -> str:
        scales = self.constant(np.array([1, 1, scale, scale], np.float32))
        return self.node("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                         coordinate_transformation_mode="asymmetric")  # fmt: skip

    def constant_shape(self, *sizes: int) -> str:
        return self.constant(np.array(sizes, np.int64))

    def attention(self, x: str, heads: int, keys: int, values: int, height: int, width: int, batch: int = 1) -> str:
        """As YOLO11 has it: what is attended to, and a depthwise convolution of the values beside it."""
        qkv = self.conv(x, heads * (2 * keys + values), 1, act="none")
        parts = self.node("Reshape", qkv, self.constant_shape(batch, heads, 2 * keys + values, height * width))
        names = [self.name("part") for _ in range(3)]
        sizes = self.constant_shape(keys, keys, values)
        self.nodes.append(helper.make_node("Split", [parts, sizes], names, axis=2))
        query = self.node("Transpose", names[0], perm=[0, 1, 3, 2])
        scaled = self.node("Mul", self.node("MatMul", query, names[1]), self.constant(np.array(keys**-0.5, np.float32)))
        share = self.node("Transpose", self.node("Softmax", scaled, axis=-1), perm=[0, 1, 3, 2])
        back = self.constant_shape(batch, heads * values, height, width)
        found = self.node("Reshape", self.node("MatMul", names[2], share), back, channels=heads * values)
        plain = self.node("Reshape", names[2], back, channels=heads * values)
        beside = self.conv(plain, heads * values, 3, act="none", groups=heads * values)
        return self.conv(self.node("Add", found, beside), heads * values, 1, act="none")

    def pool(self, x: str, kernel: int = 5) -> str:
        return self.node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[1, 1], pads=[kernel // 2] * 4)

    def save(self, path: Path, *outputs: str, dtype: int = TensorProto.FLOAT) -> Path:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("images", dtype, ["batch", 3, "height", "width"])],
            [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
            self.weights,
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        return path


def mixed(net: Net, height: int, width: int) -> list[str]:
    """What lies between and after convolutions in classifiers, segmenters and transformers; four outputs."""

    def per_channel(count: int) -> str:
        return net.constant(net.rng.uniform(0.5, 1.5, (1, count, 1, 1)).astype(np.float32))

    x = net.conv("images", 12, act="none")
    x = net.node("Relu", net.node("Add", net.node("Mul", x, per_channel(12)), per_channel(12)))  # normalisation
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.node("Relu", net.node("Add", net.conv(x, 12, act="none"), x))
    rows, columns = -(-height // 2), -(-width // 2)
    tokens = net.node("Transpose", net.node("Reshape", x, net.constant(np.array([0, 12, -1]))), perm=[0, 2, 1])
    scores = net.node("Mul", net.node("MatMul", tokens, net.node("Transpose", tokens, perm=[0, 2, 1])),
                      net.constant(np.array(0.1, np.float32)))  # fmt: skip
    seen = net.node("Add", tokens, net.node("MatMul", net.node("Softmax", scores, axis=-1), tokens))
    seen = net.node("LayerNormalization", seen, net.constant(np.ones(12, np.float32)), axis=-1)
    back = net.node("Reshape", net.node("Transpose", seen, perm=[0, 2, 1]),
                    net.constant(np.array([0, 12, rows, columns])), channels=12)  # fmt: skip
    x = net.conv(net.concat(x, back), 16)
    whole = net.node("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    flat = net.node("Flatten", net.node("GlobalAveragePool", x))
    weight = net.rng.normal(0, 1, (16, 40)).astype(np.float32)
    classes = net.node("Gemm", flat, net.constant(weight), net.constant(np.zeros(40, np.float32)))
    best = net.node("TopK", classes, net.constant(np.array([5])), outputs=2)
    return [whole, classes, best, net.node("Cast", net.nodes[-1].output[1], to=TensorProto.FLOAT)]


def onnx_runtime(path: Path, images: Array) -> list[Array]:
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, {"images": images})]


def images(batch: int, height: int, width: int) -> Array:
    return np.random.default_rng(1).random((batch, 3, height, width), np.float32)


def relative(found: Array, expected: Array) -> float:
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def any_order(compiled: Compiled, seed: int) -> list[int]:
    """A random order that streams and waits allow."""
    rng, before, order = random.Random(seed), compiled.schedule.before, list[int]()
    left = set(range(len(before)))
    while left:
        done = sum(1 << step for step in order)
        ready = [step for step in left if before[step] & ~done == 0]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


def backbone(net: Net, x: str) -> list[str]:
    """Every construction of YOLOv5 and v8 once."""
    x = net.conv(x, 16, stride=2)
    x = net.conv(x, 32, stride=2)
    parts = net.split(net.conv(x, 32, 1), [16, 16])
    inner = net.node("Add", parts[1], net.conv(net.conv(parts[1], 16), 16))
    second = net.conv(net.conv(inner, 16), 16)
    p2 = net.conv(net.concat(*parts, inner, second), 32, 1)
    p3 = net.conv(p2, 40, stride=2, act="relu")
    y = net.conv(p3, 24, 1)
    pools = [y]
    for _ in range(4):
        pools.append(net.pool(pools[-1], 5))
    p3 = net.conv(net.concat(*pools), 48, 1)
    up = net.conv(net.concat(net.upsample(p3), p2), 32, 1)
    down = net.conv(net.concat(net.conv(up, 32, stride=2), p3), 64, 1)
    return [up, down]


def detector(net: Net, classes: int, style: str, height: int, width: int) -> str:
    """A YOLOv8 head over two levels, joined as one list or as two, decoded in ONNX; gives the output's name."""
    boxes, scores, levels = [], [], []
    flat = np.array([0, 64 + classes if style == "joined" else -1, -1])
    for stride in (2, 4):
        x = net.conv("images", 8, stride=stride)
        pair = net.conv(x, 64, 1, act="none"), net.conv(x, classes, 1, act="none")
        levels.append((height // stride, width // stride))
        if style == "joined":
            boxes.append(net.node("Reshape", net.concat(*pair), net.constant(flat)))
        else:
            for value, found, count in zip(pair, (boxes, scores), (64, classes), strict=True):
                found.append(net.node("Reshape", value, net.constant(np.array([0, count, -1]))))
    if style == "joined":
        sides, logits = net.split(net.concat(*boxes, axis=2), [64, classes])
    else:
        sides, logits = net.concat(*boxes, axis=2), net.concat(*scores, axis=2)
    x, y, step_x, step_y = cells(levels, height, width).astype(np.float32)
    bins = net.node("Reshape", sides, net.constant(np.array([0, 4, 16, -1])))
    share = net.node("Softmax", net.node("Transpose", bins, perm=[0, 2, 1, 3]), axis=1)
    weights = net.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    far = net.node("Reshape", net.node("Conv", share, weights), net.constant(np.array([0, 4, -1])))
    first, second = net.split(far, [2, 2])
    centre = net.constant(np.stack([x, y])[None])
    start, end = net.node("Sub", centre, first), net.node("Add", centre, second)
    middle = net.node("Mul", net.node("Add", start, end), net.constant(np.array(0.5, np.float32)))
    both = net.node("Concat", middle, net.node("Sub", end, start), axis=1)
    scaled = net.node("Mul", both, net.constant(np.stack([step_x, step_y, step_x, step_y])[None]))
    return net.node("Concat", scaled, net.node("Sigmoid", logits), axis=1)


def random_net(seed: int) -> tuple[Net, list[str]]:
    """Convolutions, splits, joins, residuals, pools and upsampling in any order that shapes allow."""
    net, rng = Net(seed), random.Random(seed)
    values: dict[int, list[str]] = {1: [net.conv("images", rng.choice([8, 12, 16]))], 2: [], 4: []}
    values[2].append(net.conv(values[1][0], rng.choice([8, 16, 24]), stride=2))
    for _ in range(rng.randint(4, 14)):
        scale = rng.choice([scale for scale, found in values.items() if found])
        x = rng.choice(values[scale])
        what = rng.choice(["conv", "conv", "conv", "join", "join", "split", "add", "pool", "up", "down"])
        if what == "conv":
            values[scale].append(
                net.conv(x, rng.choice([5, 8, 16, 24]), rng.choice([1, 3]), act=rng.choice(["silu", "relu", "none"]))
            )
        elif what == "join":
            values[scale].append(net.concat(*(rng.choice(values[scale]) for _ in range(rng.randint(2, 4)))))
        elif what == "split" and net.channels[x] % 16 == 0:
            half = net.channels[x] // 2
            source = net.conv(x, 2 * half, 1)
            values[scale] += net.split(source, [half, half])
        elif what == "add":
            values[scale].append(net.node("Add", x, net.conv(x, net.channels[x])))
        elif what == "pool":
            values[scale].append(net.pool(x, rng.choice([3, 5])))
        elif what == "up" and scale > 1:
            values[scale // 2].append(net.upsample(x))
        elif what == "down" and scale < 4:
            values[scale * 2].append(net.conv(x, rng.choice([8, 16]), stride=2))
    outputs = [net.conv(net.concat(*dict.fromkeys(found)), 8, 1, act="none") for found in values.values() if found]
    return net, outputs


def with_attention(net: Net, height: int, width: int) -> str:
    """A block of YOLO11's kind: half of the channels go around attention and two convolutions, each with a residual."""
    x = net.conv(net.conv("images", 32, stride=2), 64, 1)
    rest, inner = net.split(x, [32, 32])
    inner = net.node("Add", inner, net.attention(inner, 2, 8, 16, height // 2, width // 2))
    inner = net.node("Add", inner, net.conv(net.conv(inner, 64, 1), 32, 1, act="none"))
    return net.conv(net.concat(rest, inner), 24, 1)


ANCHORS = ((10, 13), (16, 30), (33, 23)), ((30, 61), (62, 45), (59, 119))


def anchored(net: Net, classes: int, height: int, width: int, square: bool = True) -> str:
    """A YOLOv5 head over two levels, decoded in ONNX as its exporter does; gives the output's name."""
    fields, lists = 5 + classes, []
    two = net.constant(np.array(2, np.float32))
    for stride, anchors in zip((2, 4), ANCHORS, strict=True):
        raw = net.conv(net.conv("images", 8, stride=stride), 3 * fields, 1, act="none")
        rows, columns = height // stride, width // stride
        table = net.node("Reshape", raw, net.constant_shape(1, 3, fields, rows, columns))
        share = net.node("Sigmoid", net.node("Transpose", table, perm=[0, 1, 3, 4, 2]))
        names = [net.name("part") for _ in range(3)]
        sizes = net.constant_shape(2, 2, 1 + classes)
        net.nodes.append(helper.make_node("Split", [share, sizes], names, axis=4))
        y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
        corner = net.constant((np.stack([x, y], -1) - 0.5)[None, None])
        moved = net.node("Add", net.node("Mul", names[0], two), corner)
        centre = net.node("Mul", moved, net.constant(np.array(stride, np.float32)))
        doubled = net.node("Mul", names[1], two)
        extent = net.node("Mul", net.node("Mul", doubled, doubled) if square else doubled,
                          net.constant(np.array(anchors, np.float32).reshape(1, 3, 1, 1, 2)))  # fmt: skip
        joined = net.node("Concat", centre, extent, names[2], axis=4)
        lists.append(net.node("Reshape", joined, net.constant_shape(1, -1, fields)))
    return net.node("Concat", *lists, axis=1)
