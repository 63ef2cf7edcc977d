"""Drawing: the right pixels in the right planes, nothing outside the frame, labels that can be read."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange

from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Matrix, PixelFormat, View
from framefuse.prediction import Detections
from framefuse.sinks import Style
from framefuse.sinks.draw import TILES_KEPT, Annotator, class_colour, components, encode_colour, text_colour
from framefuse.sinks.images import planes_of
from framefuse.sources.ffmpeg import SWS_MATRIX

EIGHT_BITS = sorted(name for name, pixels in PIXEL_FORMATS.items() if pixels.bits == 8)
NAMES = {0: "person", 1: "bicycle", 2: "car"}


def detections(*rows: tuple[float, ...], **more: Any) -> Detections:
    """Rows of x1, y1, x2, y2, confidence, class_id."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), NAMES, **more)


def blank(pixels: PixelFormat, width: int, height: int, value: int = 77) -> list[np.ndarray[Any, Any]]:
    return [np.full(shape, value, np.uint8) for shape in pixels.plane_shapes(width, height)]


def drawn(width: int, height: int, found: Detections, name: str = "rgb24") -> np.ndarray[Any, Any]:
    planes = blank(PIXEL_FORMATS[name], width, height)
    Annotator(width, height, PIXEL_FORMATS[name]).draw(planes, found)
    return planes[0]


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_a_box_in_every_pixel_format(name: str) -> None:
    pixels = PIXEL_FORMATS[name]
    planes = blank(pixels, 320, 240)
    annotator = Annotator(320, 240, pixels, matrix="bt709")
    annotator.draw(planes, detections((100, 80, 220, 200, 0.9, 2)))
    values = encode_colour(class_colour(2), "bt709", False)
    line = annotator.line_width
    for role, samples, sx, sy in components(planes, pixels):
        left, top, right, bottom = 100 // sx, 80 // sy, 220 // sx, 200 // sy
        inner = samples[top + line // sy : bottom - line // sy, left + line // sx : right - line // sx]
        assert (inner == 77).all(), role
        assert (samples[bottom - line // sy : bottom, left:right] == values[role]).all(), role
        assert (samples[top:bottom, left : left + line // sx] == values[role]).all(), role
        assert (samples[top:bottom, right - line // sx : right] == values[role]).all(), role
        assert (samples[bottom:] == 77).all() and (samples[:, right:] == 77).all(), role
        assert (samples[: 40 // sy] == 77).all() and (samples[:, :left] == 77).all(), role
    if name in ("rgba", "bgra"):
        assert (planes[0][..., 3] == 77).all(), "opacity is left alone"


@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
@pytest.mark.parametrize("full_range", [False, True])
def test_colours_are_those_of_ffmpeg(matrix: Matrix, full_range: bool) -> None:
    for class_id in range(24):
        colour = class_colour(class_id)
        values = encode_colour(colour, matrix, full_range)
        source = av.VideoFrame.from_ndarray(np.full((16, 16, 3), colour, np.uint8), format="rgb24")
        converted = source.reformat(
            format="yuv444p",
            dst_colorspace=SWS_MATRIX[matrix],
            dst_color_range=ColorRange.JPEG if full_range else ColorRange.MPEG,
        )
        expected = [int(plane[8, 8]) for plane in planes_of(converted)]
        assert np.abs(np.array([values[role] for role in "yuv"]) - expected).max() <= 2


def test_classes_have_different_colours() -> None:
    colours = np.array([class_colour(number) for number in range(80)], float)
    assert len({tuple(colour) for colour in colours}) == 80
    neighbours = np.abs(np.diff(colours, axis=0)).sum(axis=1)
    assert neighbours.min() > 100
    assert (text_colour((255, 255, 0)), text_colour((0, 0, 160))) == ((0, 0, 0), (255, 255, 255))


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "yuv411p", "yuv410p", "gray", "bgr24", "gbrp"])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 5), (33, 17), (641, 361)])
def test_no_box_breaks_the_drawing(name: str, size: tuple[int, int]) -> None:
    width, height = size
    rng = np.random.default_rng(7)
    corners = np.sort(rng.uniform(-0.1, 1.1, (60, 2, 2)), axis=1).reshape(60, 4).clip(0, 1) * (size * 2)
    edges = [(0, 0, width, height), (0, 0, 0, 0), (width, height, width, height), (width - 0.4, 0, width, height)]
    rows = [(*box, 0.5, i % 3) for i, box in enumerate([*corners.tolist(), *edges])]
    planes = blank(PIXEL_FORMATS[name], width, height)
    Annotator(width, height, PIXEL_FORMATS[name]).draw(planes, detections(*rows))
    assert (planes[0] != 77).any()


def test_nothing_found_leaves_the_frame_alone() -> None:
    planes = blank(PIXEL_FORMATS["yuv420p"], 64, 48)
    for plane in planes:
        plane.flags.writeable = False
    Annotator(64, 48, PIXEL_FORMATS["yuv420p"]).draw(planes, detections())


def test_boxes_are_seen_at_the_edge_of_the_frame() -> None:
    image = drawn(320, 240, detections((0, 0, 320, 240, 0.5, 1)))
    colour = class_colour(1)
    for edge in (image[239], image[30:, 0], image[:, 319], image[0, 200:]):
        assert (edge == colour).all()


def label_area(image: np.ndarray[Any, Any], class_id: int) -> tuple[int, int, int, int]:
    """left, top, right, bottom of what is drawn in the colour of a class."""
    rows, columns = np.nonzero((image == class_colour(class_id)).all(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def test_label_lies_above_the_box_and_can_be_read() -> None:
    image = drawn(640, 480, detections((100, 100, 400, 300, 0.875, 0)))
    left, top, right, bottom = label_area(image, 0)
    assert (left, right, bottom) == (100, 400, 300)
    height = 100 - top
    assert 10 < height < 40
    label = image[top:100, 100:300]
    ink = np.array(text_colour(class_colour(0)))
    covered = (np.abs(label.astype(int) - ink).sum(axis=2) < 60).sum()
    assert covered > 60, "the strokes of the text reach full contrast"
    assert (label[:2] == class_colour(0)).all(axis=2).sum() > 80, "filled, with a margin"


def test_label_moves_inside_at_the_top_and_left_at_the_right_edge() -> None:
    inside = drawn(640, 480, detections((100, 3, 400, 300, 0.875, 0)))
    assert label_area(inside, 0) == (100, 3, 400, 300)
    assert (inside[3:12, 110:150] != class_colour(0)).any(), "text below the line at the top"
    moved = drawn(640, 480, detections((620, 100, 640, 300, 0.875, 0)))
    left, _, right, _ = label_area(moved, 0)
    assert left < 600 and right == 640


def test_labels_do_not_hide_each_other() -> None:
    rows = [(100, 80, 220, 200, 0.9, 0), (104, 82, 222, 150, 0.8, 1), (108, 82, 224, 202, 0.7, 2)]
    image = drawn(320, 240, detections(*rows))
    high = 80 - label_area(image, 0)[1]
    for row, top in zip(rows, (80 - high, 82, 202), strict=True):  # above, inside, below
        area = image[top : top + high, int(row[0]) : int(row[0]) + 20]
        assert (area == class_colour(int(row[5]))).all(axis=2).mean() > 0.5, row


@pytest.mark.parametrize("top", [2, 10, 19])
def test_a_label_goes_beside_the_one_in_its_way(top: int) -> None:
    rows = [(100, 310, 220, 390, 0.95, 2), (100, 80, 220, 300, 0.9, 0), (104, 80 - top, 222, 300, 0.8, 1)]
    image = drawn(320, 400, detections(*rows))
    own = (image == class_colour(1)).all(axis=2)[:, 110:160].sum(axis=1)
    assert (own > 15).sum() >= 10, "rows of its label, which all are to be seen"


def test_label_says_class_confidence_and_track() -> None:
    one = drawn(640, 480, detections((100, 100, 400, 300, 0.87, 0)))
    same = drawn(640, 480, detections((100, 100, 400, 300, 0.8749, 0)))
    other = drawn(640, 480, detections((100, 100, 400, 300, 0.88, 0)))
    tracked = drawn(640, 480, detections((100, 100, 400, 300, 0.87, 0), tracker_id=np.array([5])))
    assert (one == same).all()
    assert (one != other).any()
    assert (one != tracked).any()


@pytest.mark.parametrize("format", ["rgb24", "yuv420p"])
@pytest.mark.parametrize("side", [320, 700, 1280, 1340, 2160])
def test_a_name_in_another_script_at_any_size(side: int, format: str) -> None:
    found = detections((100, 100, 200, 200, 0.5, 0))
    found.names = {0: "человек"}
    assert (drawn(side, side, found, format)[90] != 77).any()


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 300, "猫 \U0001f408"])
def test_any_class_name_can_be_drawn(name: str) -> None:
    found = detections((100, 100, 200, 200, 0.5, 0))
    found.names = {0: name}
    assert (drawn(320, 240, found)[90] != 77).any()


def test_the_surest_detection_is_on_top() -> None:
    image = drawn(320, 240, detections((50, 50, 200, 200, 0.9, 1), (50, 50, 200, 200, 0.3, 2)))
    assert (image[199, 60:190] == class_colour(1)).all()


WHITE, BOX = [255, 255, 255], (40, 32, 200, 160)


@pytest.mark.parametrize("name", ["yuv420p", "yuv410p", "nv12", "gray", "rgb24", "gbrp"])
def test_views_are_dashed_in_every_pixel_format(name: str) -> None:
    pixels = PIXEL_FORMATS[name]
    planes = blank(pixels, 320, 240)
    annotator = Annotator(320, 240, pixels)
    annotator.draw(planes, detections(), views=[View(), View(BOX, "tile 1")])
    values = encode_colour((255, 255, 255), "bt601", False)
    for role, samples, sx, sy in components(planes, pixels):
        x, y, right, bottom = BOX[0] // sx, BOX[1] // sy, (BOX[0] + BOX[2]) // sx, (BOX[1] + BOX[3]) // sy
        edges = samples[bottom - 2 // sy - 1 : bottom, x:right], samples[y + 20 // sy : bottom, right - 1 : right]
        for edge in edges:
            drawn = (edge == values[role]).any(axis=int(edge.shape[1] == 1))
            assert 0.3 < drawn.mean() < 0.7, role
        assert (samples[:y] == 77).all() and (samples[:, :x] == 77).all(), role
        assert (samples[bottom + 1 :] == 77).all() and (samples[:, right + 1 :] == 77).all(), role
    tag = planes[0][BOX[1] : BOX[1] + 12, BOX[0] : BOX[0] + 30]
    assert (tag != 77).mean() > 0.7


def test_a_polygon_is_dashed_with_the_rectangle_around_it() -> None:
    corners = ((40.0, 190.0), (240.0, 190.0), (140.0, 32.0))
    annotator, rectangle = Annotator(320, 240, PIXEL_FORMATS["rgb24"]), View(BOX, "roi", outline=corners)
    (planes,) = [blank(PIXEL_FORMATS["rgb24"], 320, 240)]
    annotator.draw(planes, detections(), views=[rectangle])
    for part in (planes[0][60:150, 238:240], planes[0][100:112, 80:120]):
        assert 0.01 < (part == WHITE).all(axis=2).mean() < 0.7
    assert (planes[0][60:100, 44:70] == 77).all() and (planes[0][:, 240:] == 77).all()


def test_zones_and_lines_are_dashed_with_their_names() -> None:
    """Their coordinates are shares of the frame where none is above 1."""
    zone, line = ((0.5, 0.5), (1.0, 0.5), (1.0, 1.0)), ((20.0, 20.0), (20.0, 200.0))
    style = Style(places=[("zone", zone), ("line", line), ("beyond", ((-9.0, -9.0), (-5.0, -9.0), (-9.0, -5.0)))])
    planes = blank(PIXEL_FORMATS["rgb24"], 320, 240)
    Annotator(320, 240, PIXEL_FORMATS["rgb24"], style=style).draw(planes, detections())
    white = (planes[0] == WHITE).all(axis=2)
    assert 0.2 < white[40:200, 20:22].mean() < 0.8 and 0.2 < white[120:122, 220:320].mean() < 0.8
    assert white[20:28, 20:40].mean() > 0.4 and white[120:128, 160:180].mean() > 0.4, "names"
    assert (planes[0][:16] == 77).all() and (planes[0][:, 60:150] == 77).all()


def test_places_at_the_right_and_lower_edges_are_seen() -> None:
    places = [
        ("half", ((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0))),
        ("floor", ((0.0, 1.0), (0.4, 1.0))),
        ("corner", ((1.0, 0.5), (0.9, 0.9), (0.8, 0.9))),
    ]
    planes = blank(PIXEL_FORMATS["rgb24"], 320, 240)
    Annotator(320, 240, PIXEL_FORMATS["rgb24"], style=Style(places=places)).draw(planes, detections())
    white = (planes[0] == WHITE).all(axis=2)
    assert white[20:110, 318:].mean() > 0.2 and white[238:, 10:120].mean() > 0.2
    assert white[118:130, 290:].mean() > 0.4, "the name of the corner lies inside"


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (641, 361)])
def test_no_view_breaks_the_drawing(size: tuple[int, int]) -> None:
    far = ((-900.0, -3.0), (2000.0, 7.0), (3.0, 90000.0), (3.0, 90000.0))
    views = [View((0, 0, 1, 1), "one"), View((0, 0, *size), ""), View(None, "x" * 99, far), View((0, 0, 1, 1), "", far)]
    for name in ("yuv420p", "gray"):
        planes = blank(PIXEL_FORMATS[name], *size)
        style = Style(places=[("far", far), ("line", far[1:3])])
        Annotator(*size, PIXEL_FORMATS[name], style=style).draw(planes, detections((0, 0, 1, 1, 0.5, 1)), views=views)
        assert (planes[0] != 77).any()


def test_size_follows_the_frame() -> None:
    sizes = [(320, 240), (640, 480), (1920, 1080), (3840, 2160)]
    annotators = [Annotator(*size, PIXEL_FORMATS["yuv420p"]) for size in sizes]
    assert [annotator.line_width for annotator in annotators] == [2, 2, 4, 8]
    assert sorted(annotator.text_size for annotator in annotators) == [annotator.text_size for annotator in annotators]


def test_labels_kept_are_bounded() -> None:
    annotator = Annotator(320, 240, PIXEL_FORMATS["gray"])
    planes = blank(PIXEL_FORMATS["gray"], 320, 240)
    for number in range(TILES_KEPT + 100):
        annotator.draw(planes, detections((10, 10, 50, 50, 0.5, 0), tracker_id=np.array([number])))
    assert annotator._letters.tile.cache_info().currsize == TILES_KEPT


def test_more_than_8_bits_is_refused() -> None:
    with pytest.raises(UsageError, match="yuv420p10: 10 bits"):
        Annotator(64, 48, PIXEL_FORMATS["yuv420p10"])
