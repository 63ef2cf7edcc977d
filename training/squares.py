"""squares: a detector of saturated red, green and blue squares, written as an ONNX graph without trained weights.

    saturation   m = clip((channel - max of the two others - LOW) / (HIGH - LOW)), one map per class, 0..1
    run length   R(x) = m(x) + m(x) m(x+1) + m(x) m(x+1) m(x+2) + ...: how far the colour extends to the right, with the
                 fraction of the last, antialiased pixel; L, U and D to the left, up and down
    box          x - L + 1, y - U + 1, x + R, y + D: the same from every pixel of a square
    score        near 1 if width and height agree, highest at the centre

Runs of n pixels take log2(n) steps: with P(w, x) the product of w factors m from x on,
R(2w, x) = R(w, x) + P(w, x) R(w, x + w). Anchors are 8 pixels apart, so runs are computed along every 8th row and
column only. `training.squares_clip` makes matching videos.

    python -m training.squares        writes the model that the package ships
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np

from framefuse.models import DATA

NAMES = {0: "red", 1: "green", 2: "blue"}
STRIDE = 8
"""Model pixels between anchors, which lie on pixels 8 i + 4."""
LOW, HIGH = 0.22, 0.38
"""Saturation (0..1) at which a pixel counts as 0 and as 1."""
CELLS = 32
"""Maximum run length in anchors: 256 pixels."""
SMALLEST, LARGEST = 8.0, 250.0
"""Sides of a square, in model pixels, at which the score is 0."""

DTYPES = {"float32": np.float32, "float16": np.float16, "uint8": np.uint8}


class _Graph:
    """Builds a graph; every operator call adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def __call__(self, operator: str, *inputs: str | float, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = output or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def slice(self, value: str, axis: int, start: int, end: int | None = None, step: int = 1) -> str:
        """value[start:end:step] along one axis."""
        last = (np.iinfo(np.int64).max if step > 0 else np.iinfo(np.int64).min) if end is None else end
        return self("Slice", value, *(self.constant([number], np.int64) for number in (start, last, axis, step)))

    def pad(self, value: str, axis: int, count: int) -> str:
        """Append zeros along one axis."""
        pads = np.zeros(8, np.int64)
        pads[4 + axis] = count
        return self("Pad", value, self.constant(pads, np.int64))

    def run(self, mask: str, axis: int, direction: int) -> str:
        """Run lengths at the anchors of `axis` (2: rows, 3: columns), including the anchor's pixel.

        Args:
            direction: 1 towards higher indices, -1 towards lower ones.
        """
        anchor = STRIDE // 2
        if direction < 0:
            mask, anchor = self.slice(mask, axis, -1, None, -1), STRIDE - 1 - anchor
        product = total = self.pad(self.slice(mask, axis, anchor), axis, anchor)
        for _ in range(3):  # runs of 2, 4 and 8 pixels, up to the next anchor
            first, last = (self.slice(product, axis, start, None, 2) for start in (0, 1))
            near, far = (first, last) if product is total else (self.slice(total, axis, s, None, 2) for s in (0, 1))
            product, total = self("Mul", first, last), self("Add", near, self("Mul", first, far))
        product, total = (self.pad(value, axis, CELLS - 1) for value in (product, total))
        width = 1
        while width < CELLS:
            first, last = self.slice(product, axis, 0, -width), self.slice(product, axis, width)
            near, far = self.slice(total, axis, 0, -width), self.slice(total, axis, width)
            product, total = self("Mul", first, last), self("Add", near, self("Mul", first, far))
            width *= 2
        if direction < 0:
            total = self.slice(total, axis, -1, None, -1)
        return self("ReduceMax", total, axes=[1], keepdims=1)  # a pixel has one colour, so the other runs are 0


def write_squares(
    path: Path,
    *,
    dynamic: bool = True,
    size: tuple[int, int] = (640, 640),
    dtype: Literal["float32", "float16", "uint8"] = "float32",
) -> Path:
    """Write the detector as ONNX: input (b, 3, h, w), RGB, 0..1 (uint8: 0..255); output (b, 4 + 3, h / 8 * w / 8).

    Args:
        dynamic: leave batch, height and width free (multiples of 8); else batch 1 and `size`.
        size: (height, width).
    """
    from onnx import TensorProto, checker, helper

    g = _Graph()
    pixels = g("Cast", "images", to=TensorProto.FLOAT) if dtype != "float32" else "images"

    # A 1x1 convolution returns each channel with the two others, in the order of the comparison.
    order = [0, 1, 2, 1, 2, 0, 2, 0, 1]
    kernel = np.eye(3, dtype=np.float32)[order].reshape(9, 3, 1, 1) / (255 if dtype == "uint8" else 1)
    weights = g.constant(kernel)

    def mask(part: str) -> str:
        channels = g("Conv", part, weights)
        own, second, third = (g.slice(channels, 1, start, start + 3) for start in (0, 3, 6))
        saturation = g("Sub", own, g("Max", second, third))
        return g("Clip", g("Mul", g("Sub", saturation, LOW), 1 / (HIGH - LOW)), 0.0, 1.0)

    rows = mask(g.slice(pixels, 2, STRIDE // 2, None, STRIDE))
    columns = mask(g.slice(pixels, 3, STRIDE // 2, None, STRIDE))
    left, right = g.run(rows, 3, -1), g.run(rows, 3, 1)
    up, down = g.run(columns, 2, -1), g.run(columns, 2, 1)
    width = g("Sub", g("Add", left, right), 1.0)
    height = g("Sub", g("Add", up, down), 1.0)

    # Positions of the anchors, from the shape of the image: the cumulative sum of 8, 8, 8, ...
    eights = g("Add", g("Mul", left, 0.0), float(STRIDE))
    across, along = (g("Sub", g("CumSum", eights, g.constant(axis, np.int64)), (STRIDE - 1) / 2) for axis in (3, 2))
    centre_x = g("Add", across, g("Mul", g("Sub", right, left), 0.5))
    centre_y = g("Add", along, g("Mul", g("Sub", down, up), 0.5))

    # Squareness is 0 from sides 5 : 3; the centre scores up to twice the edge; too small and too large score 0.
    sides = g("Max", g("Add", width, height), g.constant(1.0))
    square = g("Sub", 1.0, g("Mul", g("Div", g("Abs", g("Sub", width, height)), sides), 4.0))
    skew = g("Add", g("Abs", g("Sub", right, left)), g("Abs", g("Sub", down, up)))
    centred = g("Sub", 1.0, g("Mul", g("Div", skew, sides), 0.5))
    enough = g("Mul", g("Sub", g("Min", width, height), SMALLEST), 0.25)
    fits = g("Mul", g("Sub", g.constant(LARGEST), g("Max", width, height)), 0.25)
    gate = g("Clip", g("Min", square, enough, fits), 0.0, 1.0)
    # An anchor on an antialiased edge does not see the whole square, so only pixels of full colour count.
    full = g("Clip", g("Mul", g("Sub", g.slice(rows, 3, STRIDE // 2, None, STRIDE), 0.9), 10.0), 0.0, 1.0)
    score = g("Mul", g("Mul", gate, centred), full)

    everything = g("Concat", centre_x, centre_y, width, height, score, axis=1)
    g("Reshape", everything, g.constant([0, 4 + len(NAMES), -1], np.int64), output="output0")

    image_shape: list[str | int | None] = ["batch", 3, "height", "width"] if dynamic else [1, 3, *size]
    anchors: str | int = "anchors" if dynamic else (size[0] // STRIDE) * (size[1] // STRIDE)
    input_type = helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype]))
    graph = helper.make_graph(
        g.nodes,
        "squares",
        [helper.make_tensor_value_info("images", input_type, image_shape)],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [image_shape[0], 4 + len(NAMES), anchors])],
        g.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model.producer_name = "framefuse"
    helper.set_model_props(
        model, {"names": repr(NAMES), "imgsz": repr(list(size)), "stride": "32", "task": "detect", "batch": "1"}
    )
    checker.check_model(model)
    path = Path(path)
    # Replaced atomically, so that readers never see a partial file.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        partial.write_bytes(model.SerializeToString())
        return partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    write_squares(DATA / "squares.onnx")
