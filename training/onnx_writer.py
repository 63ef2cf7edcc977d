"""Writes a trained network as ONNX, operator by operator, with the few operators that every engine has and fuses.

PyTorch's own exporter adds shape arithmetic for dynamic sizes. This graph has only the network, and the decoding of a
detector in the form of YOLOv8 exports, which engines and `framefuse build` recognise.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import fx, nn
from torch.nn import functional

from training.nets import BINS, EXTRA, KEYPOINTS, PROTOTYPES, STRIDES, Detector, Segmenter, fuse

OPSET, IR_VERSION = 17, 9


class Writer:
    """Collects nodes and constants; `add` returns the name of an operator's output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """Add an initializer; the same name must always have the same value."""
        self.constants[name] = numpy_helper.from_array(np.array(value, dtype, order="C"), name)
        return name

    def add(self, kind: str, name: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node."""
        names = [name] if outputs == 1 else [f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return name if outputs == 1 else names

    def conv(self, name: str, module: nn.Conv2d, x: str) -> str:
        weights = [self.constant(f"{name}.weight", module.weight.detach().numpy())]
        if module.bias is not None:
            weights.append(self.constant(f"{name}.bias", module.bias.detach().numpy()))
        kernel, stride, pad = list(module.kernel_size), list(module.stride), [int(p) for p in module.padding] * 2
        return str(self.add("Conv", f"{name}/Conv", x, *weights, kernel_shape=kernel, strides=stride, pads=pad))

    def network(self, net: nn.Module, x: str) -> list[str]:
        """Add every operator of `net.features`; returns the names of its results."""
        graph = _Tracer().trace(_Features(net))
        modules = dict(net.named_modules())
        made: dict[fx.Node, str] = {}

        def names(value: Any) -> Any:
            return made[value] if isinstance(value, fx.Node) else [names(item) for item in value]

        for node in graph.nodes:
            if node.op == "placeholder":
                made[node] = x
            elif node.op == "output":
                return list(names(node.args[0]))
            elif node.op == "call_module":
                target = str(node.target).removeprefix("net.")
                source = made[node.args[0]]
                made[node] = self._module(target.replace("_modules.", ""), modules[target], source)
            else:
                made[node] = self._function(f"/{node.name}", node, names)
        raise AssertionError("the traced graph has no output")

    def _module(self, name: str, module: nn.Module, x: str) -> str:
        path = "/" + name.replace(".", "/")
        if isinstance(module, nn.Conv2d):
            return self.conv(path, module, x)
        if isinstance(module, nn.SiLU):  # as two nodes, because ONNX has Swish only from opset 24
            return str(self.add("Mul", f"{path}/Mul", x, self.add("Sigmoid", f"{path}/Sigmoid", x)))
        if isinstance(module, nn.Identity):
            return x
        raise TypeError(f"{name}: {type(module).__name__} is not an operator of these networks")

    def _function(self, name: str, node: fx.Node, names: Callable[[Any], Any]) -> str:
        if node.target is torch.cat:
            return str(self.add("Concat", name, *names(node.args[0]), axis=node.args[1]))
        if node.target is operator.add:
            return str(self.add("Add", name, *names(node.args)))
        if node.target is functional.max_pool2d:
            size, stride, pad = (int(value) for value in (node.args[1], node.kwargs["stride"], node.kwargs["padding"]))
            geometry = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
            return str(self.add("MaxPool", name, names(node.args[0]), **geometry))
        if node.target is functional.interpolate:
            scales = self.constant("twice", [1, 1, 2, 2])
            how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            return str(self.add("Resize", name, names(node.args[0]), "", scales, **how))
        raise TypeError(f"{node.target} is not an operator of these networks")

    def decode(self, raw: list[str], classes: int, task: str) -> str:
        """Decode the head's maps to the YOLOv8 layout, as in `Detector.forward`."""
        extra = EXTRA.get(task, 0)
        flat = self.constant("flat", [0, 4 * BINS + classes + extra, -1], np.int64)
        rows, centres, strides = [], [], []
        for number, (value, stride) in enumerate(zip(raw, STRIDES, strict=True)):
            rows.append(self.add("Reshape", f"/decode/rows.{number}", value, flat))
            cells = self._cells(f"/decode/cells.{number}", value)
            half = self.constant("half", 0.5)
            centres.append(self.add("Add", f"/decode/centres.{number}", cells, half))
            # 0 * x + stride gives the stride of every cell in a tensor whose length follows the image.
            row = self.add("Gather", f"/decode/x.{number}", cells, self.constant("first", [0], np.int64), axis=1)
            nothing = self.add("Mul", f"/decode/zeros.{number}", row, self.constant("zero", 0.0))
            value = self.constant(f"stride.{number}", float(stride))
            strides.append(self.add("Add", f"/decode/strides.{number}", nothing, value))
        everything = self.add("Concat", "/decode/rows", *rows, axis=2)
        centre = self.add("Concat", "/decode/centres", *centres, axis=2)
        scale = self.add("Concat", "/decode/strides", *strides, axis=2)
        lengths = [4 * BINS, classes, extra][: 3 if extra else 2]
        parts = self.constant("parts", lengths, np.int64)
        sides, logits, *others = self.add("Split", "/decode/parts", everything, parts, outputs=len(lengths), axis=1)

        by_side = self.add("Reshape", "/decode/sides", sides, self.constant("sides", [0, 4, BINS, -1], np.int64))
        by_bin = self.add("Transpose", "/decode/bins", by_side, perm=[0, 2, 1, 3])
        share = self.add("Softmax", "/decode/share", by_bin, axis=1)
        bins = self.constant("bins", np.arange(BINS).reshape(1, BINS, 1, 1))
        mean = self.add("Conv", "/decode/mean", share, bins)
        distance = self.add("Reshape", "/decode/distance", mean, self.constant("four", [0, 4, -1], np.int64))
        two = self.constant("two", [2, 2], np.int64)
        near, far = self.add("Split", "/decode/corners", distance, two, outputs=2, axis=1)
        start = self.add("Sub", "/decode/start", centre, near)
        end = self.add("Add", "/decode/end", centre, far)
        total = self.add("Add", "/decode/sum", start, end)
        middle = self.add("Div", "/decode/middle", total, self.constant("2", 2.0))
        extent = self.add("Sub", "/decode/extent", end, start)
        boxes = self.add("Concat", "/decode/xywh", middle, extent, axis=1)
        pixels = self.add("Mul", "/decode/boxes", boxes, scale)
        scores = self.add("Sigmoid", "/decode/scores", logits)
        if task == "pose":
            others = [self._keypoints(others[0], centre, scale)]
        return str(self.add("Concat", "output0", pixels, scores, *others, axis=1))

    def _keypoints(self, raw: str, centres: str, strides: str) -> str:
        """`nets.to_keypoints`, flat."""
        by_point = self.constant("points", [0, KEYPOINTS, 3, -1], np.int64)
        points = self.add("Reshape", "/decode/points", raw, by_point)
        pair = self.constant("pair", [2, 1], np.int64)
        places, seen = self.add("Split", "/decode/places", points, pair, outputs=2, axis=2)
        corner = self.add("Sub", "/decode/corner", centres, self.constant("half", 0.5))
        twice = self.add("Mul", "/decode/twice", places, self.constant("2", 2.0))
        moved = self.add("Mul", "/decode/moved", self.add("Add", "/decode/offset", twice, corner), strides)
        both = self.add("Concat", "/decode/keypoints", moved, self.add("Sigmoid", "/decode/seen", seen), axis=2)
        flat = self.constant("flat.keypoints", [0, 3 * KEYPOINTS, -1], np.int64)
        return str(self.add("Reshape", "/decode/keypoints.flat", both, flat))

    def _cells(self, name: str, feature: str) -> str:
        """Column and row of every cell, float32 (1, 2, h * w), x first."""
        size = self.add("Shape", f"{name}/size", feature, start=2, end=4)
        zero, one = self.constant("0", 0, np.int64), self.constant("1", 1, np.int64)
        planes = []
        for axis, shape in ((1, [1, 1, -1]), (0, [1, -1, 1])):
            label = f"{name}/{'yx'[axis]}"
            length = self.add("Gather", f"{label}/length", size, (zero, one)[axis])
            numbers = self.add("Cast", f"{label}/float", self.add("Range", f"{label}/range", zero, length, one), to=1)
            line = self.add("Reshape", f"{label}/line", numbers, self.constant(f"line.{axis}", shape, np.int64))
            planes.append(self.add("Expand", f"{label}/plane", line, size))
        grid = self.add("Concat", f"{name}/grid", *planes, axis=0)
        return str(self.add("Reshape", f"{name}/flat", grid, self.constant("cells", [1, 2, -1], np.int64)))


class _Features(nn.Module):
    """`net.features` as a module for tracing."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        return self.net.features(x)  # type: ignore[operator]


class _Tracer(fx.Tracer):
    """Traces through modules down to those of PyTorch."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return isinstance(module, nn.Conv2d | nn.SiLU | nn.Identity)


def write_onnx(net: Detector | Segmenter, path: Path, metadata: Mapping[str, str], *, binary: bool = False) -> Path:
    """Write a trained network on the CPU; its normalisations are folded in place.

    Input `images` (batch, 3, height, width) float32, RGB, 0..1; output `output0`, and `output1` with the prototypes of
    `segment`. Batch, height and width are dynamic; height and width are multiples of 32.

    Args:
        binary: for a segmenter, use the head for background and body.
    """
    fuse(net)
    writer = Writer()
    raw = writer.network(net, "images")
    outputs: dict[str, list[Any]]
    if isinstance(net, Detector):
        values = 4 + net.class_count + EXTRA.get(net.task, 0)
        outputs = {writer.decode(raw[: len(STRIDES)], net.class_count, net.task): ["batch", values, "anchors"]}
        if net.prototypes is not None:
            outputs[writer.add("Identity", "output1", raw[-1])] = ["batch", PROTOTYPES, "rows", "columns"]
    else:
        classes = (net.body if binary else net.classes).out_channels
        outputs = {writer.add("Identity", "output0", raw[binary]): ["batch", classes, "rows", "columns"]}
    _drop_unused(writer, set(outputs))
    graph = helper.make_graph(
        writer.nodes,
        path.stem,
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        list(writer.constants.values()),
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="framefuse training")
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(model.SerializeToString())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _drop_unused(writer: Writer, needed: set[str]) -> None:
    """Drop nodes that do not lead to the outputs: the other head of a segmenter."""
    kept = []
    for node in reversed(writer.nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.append(node)
    writer.nodes = kept[::-1]
    writer.constants = {name: value for name, value in writer.constants.items() if name in needed}
