"""Cut the decoding off a YOLOv8 network: post-processing then decodes only the boxes above the threshold.

A YOLOv8 ends in sigmoids and softmaxes for all anchors, of which an image keeps a hundredth; for OpenVINO that is 5 %
of the whole model, with the conversion of its result to float32 planes. The cut is found by the shape of the graph, and
made only if the decoding that is cut off computes on random logits what `kernels.reference.boxes` says of the layout
"yolov8_head".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from framefuse.kernels.boxes.call import HEAD
from framefuse.kernels.boxes.reference import yolov8, yolov8_head

SCORE_TOLERANCE, PIXEL_TOLERANCE = 2e-6, 0.02
"""Tolerance for float32 rounding."""


def find(ov: Any, core: Any, network: Any) -> list[str] | None:
    """Names of the nodes that become outputs: for each level the logits of distances, then of classes.

    None where the network is not a YOLOv8, or what stands between the logits and its output is not their decoding.

    Args:
        network: an `openvino.Model` with a fixed input shape.
    """
    names = _logits(network)
    return names if names and _decodes(ov, core, network, names) else None


def cut(ov: Any, network: Any, names: list[str]) -> Any:
    """The network with these nodes as its outputs."""
    nodes = {node.get_friendly_name(): node for node in network.get_ordered_ops()}
    results = [ov.opset13.result(nodes[name].output(0)) for name in names]
    return ov.Model(results, network.get_parameters(), HEAD)


def _logits(network: Any) -> list[str] | None:
    """The nodes of the logits: distances and classes of each level, finest level first."""
    if len(network.outputs) != 1 or network.outputs[0].get_partial_shape().is_dynamic:
        return None
    shape = tuple(network.outputs[0].get_shape())
    if len(shape) != 3 or shape[1] < 5:
        return None
    classes, anchors = shape[1] - 4, shape[2]
    levels: dict[tuple[int, ...], list[Any]] = {}
    for node in _sources(network.get_results()[0], anchors):
        levels.setdefault(tuple(node.output(0).get_shape())[2:], []).append(node)
    if sum(rows * columns for rows, columns in levels) != anchors:
        return None
    logits: list[Any] = []  # nodes
    for grid in sorted(levels, key=lambda grid: -grid[0] * grid[1]):
        logits += sorted(levels[grid], key=lambda node: node.output(0).get_shape()[1] == classes)
    channels = [node.output(0).get_shape()[1] for node in logits]
    if channels != [channels[0], classes] * len(levels) or channels[0] % 4:
        return None
    return [node.get_friendly_name() for node in logits]


def _sources(node: Any, anchors: int) -> list[Any]:
    """The convolutions, with their bias, whose results lead to a node without another one in between.

    The mean by softmax is a convolution too, over (4, anchors); what feeds it is looked for instead.
    """

    def convolves(node: Any) -> bool:
        return node.get_type_name() == "Convolution" and bool(math.prod(node.output(0).get_shape()[2:]) <= anchors)

    found, seen, waiting = [], set(), [node]
    while waiting:
        node = waiting.pop()
        name = node.get_friendly_name()
        if name in seen or node.get_type_name() == "ShapeOf":  # only its shape is read
            continue
        seen.add(name)
        if convolves(node) or (node.get_type_name() == "Add" and convolves(node.input_value(0).get_node())):
            found.append(node)
        else:
            waiting += [node.input_value(k).get_node() for k in reversed(range(node.get_input_size()))]
    return found


def _decodes(ov: Any, core: Any, network: Any, names: list[str]) -> bool:
    """Whether what follows the logits computes the layout."""
    copy = network.clone()
    nodes = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
    parameters, rng = [], np.random.default_rng(0)
    for name in names:
        output = nodes[name].output(0)
        parameters.append(ov.opset13.parameter(output.get_shape(), np.float32))
        for reader in output.get_target_inputs():
            reader.replace_source_output(parameters[-1].output(0))
    for node in copy.get_ordered_ops():
        if node.get_type_name() == "ShapeOf":  # reads a shape before the logits: a network for all sizes
            kind = node.output(0).get_element_type().to_dtype()
            shape = ov.opset13.constant(np.array(node.input_value(0).get_shape(), kind))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(shape.output(0))
    height, width = copy.inputs[0].get_shape()[2:]
    try:
        head = ov.Model(copy.get_results(), parameters, "decoding")
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = core.compile_model(head, "CPU", config)
    except RuntimeError:  # it reads other parts of the network too
        return False
    values = [rng.normal(0, 2, parameter.get_output_shape(0)).astype(np.float32) for parameter in parameters]
    decoded = compiled(values)[0]
    rows = [value.transpose(0, 2, 3, 1)[0] for value in values]
    expected = yolov8_head(rows, -1.0)
    found = yolov8([decoded[0]], -1.0)
    return bool(
        len(found.scores) == len(expected.scores)
        and np.array_equal(found.classes, expected.classes)
        and np.allclose(found.scores, expected.scores, atol=SCORE_TOLERANCE, rtol=0)
        and np.allclose(found.boxes, expected.boxes * np.array([width, height] * 2), atol=PIXEL_TOLERANCE, rtol=0)
    )
