"""kernels.preprocess and its numpy reference against OpenCV, Pillow and swscale, and colours that a standard gives."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from framefuse import kernels
from framefuse.frame import PIXEL_FORMATS, Frame
from preprocess_frames import GREY, INTERPOLATIONS, MATRICES


def reference_rgb(frame: Frame, width: int, height: int, interpolation: str = "linear") -> np.ndarray[Any, Any]:
    out = np.empty((3, height, width), np.float32)
    kernels.reference.preprocess(
        frame,
        out,
        content=(0, 0, width, height),
        interpolation=interpolation,  # type: ignore[arg-type]
        pad_value=0.0,
        channel_order="rgb",
        **GREY,
    )
    return out.transpose(1, 2, 0)


NAMED = {"linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST_EXACT, "area": cv2.INTER_AREA}
SHRINKING = [(33, 20), (97, 61), (40, 60), (48, 30)]


def onnx_resize(image: np.ndarray[Any, Any], size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """By ONNX Runtime, whose operator knows the coordinate transformation."""
    ort, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    sizes = onnx.helper.make_tensor("s", onnx.TensorProto.INT64, [4], [1, 3, *size[::-1]])
    modes = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "y")]
    node = onnx.helper.make_node("Resize", ["x", "", "", "s"], ["y"], **modes)
    graph = onnx.helper.make_graph([node], "resize", values[:1], values[1:], [sizes])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": image.transpose(2, 0, 1)[None].astype(np.float32)})
    return np.rint(found[0]).astype(np.uint8).transpose(1, 2, 0)


def named_resize(image: np.ndarray[Any, Any], size: tuple[int, int], interpolation: str) -> np.ndarray[Any, Any]:
    if interpolation == "antialias":
        return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
    if interpolation == "asymmetric":
        return onnx_resize(image, size)
    return cv2.resize(image, size, interpolation=NAMED[interpolation])


@pytest.mark.parametrize("size", [*SHRINKING, (640, 360), (33, 77), (300, 200)])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_reference_resizes_as_the_named_library(interpolation: str, size: tuple[int, int]) -> None:
    """OpenCV and Pillow round to whole levels, with weights of 8 to 22 bits: within 1 level of the exact result.

    OpenCV's area is another thing where one axis grows.
    """
    image = np.random.default_rng(1).integers(0, 256, (61, 97, 3), dtype=np.uint8)
    found = reference_rgb(Frame.from_array(image, channels="rgb"), *size, interpolation=interpolation)
    wanted = named_resize(image, size, interpolation)
    if interpolation != "area" or size in SHRINKING:
        assert np.abs(found - wanted).max() <= (0 if interpolation == "nearest" else 1)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_kernel_resizes_1080p_as_the_named_library(interpolation: str) -> None:
    """896 of 1920: no output's centre is exactly between two pixels, where OpenCV's 16 bits take either."""
    image = np.random.default_rng(1).integers(0, 256, (1080, 1920, 3), dtype=np.uint8)
    out = np.empty((608, 896, 3), np.uint8)
    kernels.preprocess(
        Frame.from_array(image, channels="rgb"),
        out,
        content=(0, 0, 896, 608),
        interpolation=interpolation,  # type: ignore[arg-type]
        pad_value=0.0,
        channel_order="rgb",
        memory_format="nhwc",
        **GREY,
    )
    wanted = named_resize(image, (896, 608), interpolation)
    difference = np.abs(out.astype(int) - wanted.astype(int))
    assert difference.max() <= (0 if interpolation == "nearest" else 1)


def swscale_rgb(frame: Frame, name: str) -> np.ndarray[Any, Any]:
    """The frame at its own size as (h, w, 3) RGB by swscale at its most accurate, chroma centred."""
    av = pytest.importorskip("av")
    image = av.VideoFrame(frame.width, frame.height, name)
    for plane, samples in zip(image.planes, frame.planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        flat = np.ascontiguousarray(samples).reshape(plane.height, -1).view(np.uint8)
        rows[:, : flat.shape[1]] = flat
        plane.update(rows.tobytes())
    graph = pytest.importorskip("av.filter").Graph()
    nodes = [
        graph.add_buffer(width=frame.width, height=frame.height, format=name, time_base=Fraction(1, 25)),
        graph.add(
            "scale",
            f"flags=bilinear+accurate_rnd+full_chroma_int+full_chroma_inp:in_color_matrix={frame.matrix}"
            f":in_range={'full' if frame.full_range else 'limited'}:out_range=full:in_h_chr_pos=128:in_v_chr_pos=128",
        ),
        graph.add("format", "rgb24"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    graph.push(image)
    return graph.pull().to_ndarray()


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("name", ["yuv444p", "yuv420p", "nv12", "yuv422p10le"])
def test_reference_converts_colour_as_swscale(name: str, matrix: Any, full_range: bool) -> None:
    """On a smooth image: within swscale's own rounding (0.5 levels without, 2 with chroma to be resized)."""
    width, height = 64, 48
    form = PIXEL_FORMATS[name.removesuffix("le")]
    waves = ((60, 2, 1), (100, 1, 0), (150, 0, -1))  # value at the top left, slope in x and in y per pixel
    planes = []
    for shape in form.plane_shapes(width, height):
        y, x = np.mgrid[0 : height : height // shape[0], 0 : width : width // shape[1]]
        own = waves[len(planes) :][: shape[2] if len(shape) == 3 else 1]
        values = [(start + right * x + down * y) * (1 << (form.bits - 8)) for start, right, down in own]
        planes.append(np.stack(values, axis=2).astype(form.dtype).reshape(shape))
    frame = Frame(tuple(planes), form, matrix=matrix, full_range=full_range)
    difference = np.abs(reference_rgb(frame, width, height) - swscale_rgb(frame, name))
    assert difference.max() <= 2.0 and difference.mean() <= 0.75


def test_reference_of_known_colours() -> None:
    """Black, white and the primaries of BT.709 limited range, as the standard gives them."""
    codes = {(16, 128, 128): (0, 0, 0), (235, 128, 128): (255, 255, 255), (63, 102, 240): (255, 0, 0)}
    codes |= {(173, 42, 26): (0, 255, 0), (32, 240, 118): (0, 0, 255)}
    for ycc, rgb in codes.items():
        planes = tuple(np.full((1, 1), value, np.uint8) for value in ycc)
        found = reference_rgb(Frame(planes, PIXEL_FORMATS["yuv444p"], matrix="bt709"), 1, 1)
        assert np.abs(found[0, 0] - rgb).max() <= 1.5, (ycc, found)
