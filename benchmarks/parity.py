"""Parity certificates of every engine here, for layouts YOLOv5, YOLOv8/11 and end-to-end, from a video to boxes.

    python -m benchmarks.parity [--peer-python PYTHON]        benchmarks/records/parity.json
    python -m benchmarks.parity --device cuda                 benchmarks/records/parity_gpu.json, decoded by NVDEC

The three layouts are of the detector `squares`, whose answers are known: weights at random would make other boxes of
any difference. Beside it the trained models that come with framefuse, and `shallow`, YOLOv5's head on eight layers with
weights at random, for engines that take networks of convolutions only: so few layers do not magnify rounding.
"""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.detection_heads import anchor_based
from benchmarks.model_graph import Graph, Tensor
from benchmarks.models import BLOCKS, Layer, down, metadata, shift_for
from benchmarks.protocol import save
from framefuse.lab.parity import certify, default_clip
from framefuse.models import find_model
from framefuse.preprocess import Preprocess
from framefuse.sources import open_source
from training.squares_clip import squares_clip

QUERIES = 300
NEAR = 15
"""Anchors."""
TRAINED = {"cpu": ("scout-n", "scout-n-int8", "scout-s"), "cuda": ("scout-n", "scout-s")}
SHALLOW = (
    Layer("conv", 16, kernel=6, stride=2, pad=2), down(16), Layer("c3", 16), down(32), Layer("c3", 32), down(32),
    Layer("sppf", 32), down(32),
)  # fmt: skip
TAPS = (4, 6, 7)
"""Its layers at strides 8, 16 and 32."""
CANDIDATES = (24, 12, 6)
"""Boxes a frame above confidence 0.25 at each of them, over all anchors."""
FIELDS = 85
"""Of an anchor: centre, size, objectness, classes."""


BOTH = ("program", "pipeline", "engine onnxruntime", "engine torch", "engine tvm", "parity", "model")
GROUPS = {
    "cpu": ("CPU kernel", "engine openvino", *BOTH),
    "cuda": ("CUDA kernel", "CUDA program", "engine cudnn", *BOTH),
}
"""Sources that decide, by device."""


def relayout(layout: str, path: Path) -> Path:
    """Write squares, whose layout is yolov8, with its output as yolov5 (b, n, 5 + 3) or end2end (b, 300, 6).

    End-to-end models choose one anchor an object: here the one that no anchor near it outdoes.
    """
    model = onnx.load(find_model("squares"))
    graph = model.graph
    (output,) = graph.output
    constants = {
        "zero": [0], "two": [2], "four": [4], "seven": [7], "axis": [2], "queries": [QUERIES],
    }  # fmt: skip
    tensors = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    tensors += [numpy_helper.from_array(np.array(0.5, np.float32), "half")]

    def node(operator: str, inputs: list[str], outputs: list[str] | str, **attributes: Any) -> None:
        names = outputs if isinstance(outputs, list) else [outputs]
        graph.node.append(helper.make_node(operator, inputs, names, **attributes))

    old = f"{output.name}_rows"
    for item in graph.node:
        item.output[:] = [old if name == output.name else name for name in item.output]
    node("Transpose", [old], "rows", perm=[0, 2, 1])
    node("Slice", ["rows", "zero", "two", "axis"], "centre")
    node("Slice", ["rows", "two", "four", "axis"], "sides")
    node("Slice", ["rows", "four", "seven", "axis"], "scores")
    if layout == "yolov5":
        node("Slice", ["scores", "zero", "one", "axis"], "any")
        tensors.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
        node("Sub", ["any", "any"], "nothing")
        node("Exp", ["nothing"], "objectness")  # 1
        node("Concat", ["centre", "sides", "objectness", "scores"], output.name, axis=2)
        shape: list[Any] = ["batch", "anchors", 8]
    else:
        (reshape,) = (item for item in graph.node if old in item.output)
        (grid,) = (item for item in graph.node if reshape.input[0] in item.output)
        node("MaxPool", [grid.input[-1]], "near", kernel_shape=[NEAR, NEAR], pads=[NEAR // 2] * 4)
        node("Less", [grid.input[-1], "near"], "outdone")
        node("Where", ["outdone", "none", grid.input[-1]], "peaks")
        tensors.append(numpy_helper.from_array(np.array(0, np.float32), "none"))
        grid.input[-1] = "peaks"
        made = list(graph.node)[-3:]
        del graph.node[-3:]
        place = list(graph.node).index(grid)
        for item in reversed(made):
            graph.node.insert(place, item)
        node("Mul", ["sides", "half"], "reach")
        node("Sub", ["centre", "reach"], "low")
        node("Add", ["centre", "reach"], "high")
        node("ReduceMax", ["scores"], "best", axes=[2], keepdims=1)
        node("ArgMax", ["scores"], "class", axis=2, keepdims=1)
        node("Cast", ["class"], "label", to=TensorProto.FLOAT)
        node("Concat", ["low", "high", "best", "label"], "all", axis=2)
        node("Squeeze", ["best", "axis"], "line")
        node("TopK", ["line", "queries"], ["top", "index"], axis=1)
        node("Unsqueeze", ["index", "axis"], "column")
        tensors.append(numpy_helper.from_array(np.array([1, 1, 6], np.int64), "six"))
        node("Tile", ["column", "six"], "places")
        node("GatherElements", ["all", "places"], output.name, axis=1)
        shape = ["batch", QUERIES, 6]
    graph.initializer.extend(tensors)
    output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, shape))
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def shallow(path: Path, frames: np.ndarray[Any, Any]) -> Path:
    """Write YOLOv5's head on eight layers, normalised on `frames`, (n, 3, height, width) in 0..1."""
    graph = Graph("shallow", frames, dynamic=True, seed=0)
    made: list[Tensor] = []
    x = graph.images
    for index, layer in enumerate(SHALLOW):
        x = BLOCKS[layer.kind](graph, f"/model.{index}", x, layer, made)
        made.append(x)
    head = anchor_based(graph, [made[tap] for tap in TAPS], f"/model.{len(SHALLOW)}", std=0.7)
    for number, (level, wanted) in enumerate(zip(head.levels, CANDIDATES, strict=True)):
        graph.shift(level.bias, shift_for(level.score_at, wanted), level.rows)
        # One anchor, one class a level, boxes that do not overlap: else rounding would choose among ties.
        graph.shift(level.bias, -20, [FIELDS + 4, 2 * FIELDS + 4])
        graph.shift(level.bias, -1, slice(2, 4))
        graph.shift(level.bias, 6, [5 + number])
    graph.save(path, head.output, axes=head.axes, metadata=metadata("shallow", dynamic=True))
    network = onnx.load(path)
    for tensor in network.graph.initializer:
        if tensor.name in {level.bias.replace("bias", "weight") for level in head.levels}:
            weight = numpy_helper.to_array(tensor).copy()
            weight[2:4] *= 0.2  # nor are any as thin as a line
            tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
    onnx.save(network, path)
    return path


def street(path: Path, frames: int) -> np.ndarray[Any, Any]:
    """Write the clip that certificates of trained models use; its frames at half their size, (n, 3, h, w) in 0..1."""
    default_clip(path.parent, frames).rename(path)
    spec = Preprocess(320, 192)
    images = np.empty((frames, 3, 192, 320), np.float32)
    with closing(open_source(path)) as source:
        for frame, image in zip(source, images, strict=True):
            spec(frame, image)
    return images


def certificate(args: argparse.Namespace, model: str, video: Path) -> dict[str, Any]:
    def say(line: str) -> None:
        print(f"{Path(model).stem}: {line}", flush=True)

    made = certify(
        model, video, engines=args.engines, precisions=("auto", "fp32"), frames=args.frames,
        peer_python=args.peer_python, device=args.device, say=say,
    )  # fmt: skip
    print("\n".join(made.summary()), flush=True)
    return json.loads(made.to_json()) | {"video": video.stem}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--engines", nargs="+", help="default: every one")
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1, help="models at a time: nothing is timed here")
    args = parser.parse_args()
    name = "parity" if args.device == "cpu" else "parity_gpu"
    with TemporaryDirectory() as folder:
        squares, streets = Path(folder, "squares.mp4"), Path(folder, "street.mp4")
        squares_clip(squares, frames=args.frames, seed=1)
        images = street(streets, args.frames)
        models = {"squares": ("squares", squares)}
        for layout in ("yolov5", "end2end"):
            models[f"squares-{layout}"] = (str(relayout(layout, Path(folder, f"squares-{layout}.onnx"))), squares)
        models["shallow"] = (str(shallow(Path(folder, "shallow.onnx"), images)), streets)
        models |= {name: (name, streets) for name in TRAINED[args.device]}
        found = dict[str, Any]()
        with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
            made = pool.map(partial(certificate, args), *zip(*models.values(), strict=True))
            for model, page in zip(models, made, strict=True):
                found[model] = page
                save(
                    name, {"certificates": found}, *GROUPS[args.device]
                )  # what is here stays, whatever happens to the next
    wrong = [model for model, page in found.items() if page["verdict"] != "CERTIFIED"]
    if wrong:
        raise SystemExit(f"not certified: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
