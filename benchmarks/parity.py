"""Parity certificates of every engine here, for layouts YOLOv5, YOLOv8/11 and end-to-end.

    python -m benchmarks.parity [--peer-python PYTHON] [--frames 4]

The three layouts are of the detector `squares`, whose answers are known: weights at random would make other boxes of
any difference. Beside it the trained models that come with framefuse. Written to benchmarks/results/parity.json.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.protocol import save
from framefuse.models import find_model
from framefuse.parity import certify

QUERIES = 300
NEAR = 15
"""Anchors."""
TRAINED = ("scout-n", "scout-n-int8", "scout-s")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--frames", type=int, default=4)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        clip = Path(folder, "clip.mp4")
        from framefuse.models.clip import squares_clip

        squares_clip(clip, frames=args.frames, seed=1)
        models = {"squares": ("squares", clip)}
        for layout in ("yolov5", "end2end"):
            models[f"squares-{layout}"] = (str(relayout(layout, Path(folder, f"squares-{layout}.onnx"))), clip)
        models |= {name: (name, None) for name in TRAINED}
        for name, (model, video) in models.items():
            certificate = certify(
                model, video, precisions=("auto", "fp32"), frames=args.frames, peer_python=args.peer_python, say=print
            )
            print("\n".join(certificate.summary()))
            found[name] = json.loads(certificate.to_json()) | {"video": "squares" if video else "street"}
    save("parity", {"certificates": found})


if __name__ == "__main__":
    main()
