"""kernels.preprocess: the compiled kernel against its numpy reference, and the reference against OpenCV and swscale."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.filter
import cv2
import numpy as np
import pytest

from framefuse import kernels
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels import cpu
from framefuse.kernels.build import build
from framefuse.preprocess import Preprocess

GREY = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
"""Output in grey levels."""
TOLERANCE = 0.02
"""Grey levels by which the compiled kernel may differ from the reference."""
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}

MATRICES = ("bt601", "bt709", "bt2020")
ROTATIONS = (0, 90, 180, 270)
INTERPOLATIONS = ("linear", "nearest")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The kernels of this checkout are built and current."""
    build()


def random_frame(name: str, width: int, height: int, *, pitch: int = 0, seed: int = 0, **facts: Any) -> Frame:
    """A frame of noise over the whole range of its samples; `pitch` is the number of unused samples after each row."""
    form = PIXEL_FORMATS[name]
    rng = np.random.default_rng(seed)
    planes = []
    for shape in form.plane_shapes(width, height):
        wide = (shape[0], (shape[1] + pitch) * (shape[2] if len(shape) == 3 else 1))
        samples = rng.integers(0, 1 << form.bits, wide, dtype=form.dtype) << form.shift
        planes.append(samples.reshape(shape[0], -1, *shape[2:])[:, : shape[1]])
    return Frame(tuple(planes), form, **facts)


def compare(frame: Frame, size: tuple[int, int], content: tuple[int, int, int, int], **options: Any) -> float:
    """Largest difference of kernel and reference in grey levels. Both begin with NaN, so unwritten values show."""
    arguments = {"interpolation": "linear", "pad_value": 114.0, "channel_order": "rgb", **GREY, **options}
    found, wanted = (np.full((3, size[1], size[0]), np.nan, np.float32) for _ in range(2))
    kernels.preprocess(frame, found, content=content, **arguments)
    kernels.reference.preprocess(frame, wanted, content=content, **arguments)
    return float(np.abs((found - wanted) * np.abs(np.array(arguments["std"]))[:, None, None]).max())


def letterbox(frame: Frame, side: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    placement = Preprocess(width=side, height=side).place(frame.width, frame.height)
    return placement.size, placement.content


@pytest.mark.parametrize("name", PIXEL_FORMATS)
def test_every_pixel_format_and_awkward_size(name: str) -> None:
    """Each format meets each size and each placement; matrix, range, rotation and interpolation go round with them."""
    sizes = ((1, 1), (2, 2), (1, 7), (3, 1), (5, 5), (37, 23), (64, 48))
    placements = (
        ((20, 14), (0, 0, 20, 14)),  # stretch
        ((20, 14), (4, 0, 13, 14)),  # letterbox
        ((20, 14), (-7, -3, 41, 22)),  # crop
        ((64, 48), (0, 0, 64, 48)),  # the frame's own size
        ((1, 1), (0, 0, 1, 1)),
        ((6, 5), (9, 1, 4, 2)),  # wholly outside: padding alone
    )
    round_trip = itertools.cycle(
        itertools.product(INTERPOLATIONS, ROTATIONS, (False, True), MATRICES, ({**GREY}, IMAGENET), ("rgb", "bgr"))
    )
    step = sum(map(ord, name)) % 7 + 1  # formats begin at different places of the round
    for seed, ((width, height), (size, content)) in enumerate(itertools.product(sizes, placements)):
        interpolation, rotation, full_range, matrix, normalise, order = next(itertools.islice(round_trip, step, None))
        frame = random_frame(
            name, width, height, pitch=seed % 3, seed=seed, rotation=rotation, full_range=full_range, matrix=matrix
        )
        difference = compare(frame, size, content, interpolation=interpolation, channel_order=order, **normalise)
        assert difference <= TOLERANCE, (width, height, size, content, interpolation, rotation, full_range, matrix)


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010", "bgr24", "bgra", "gray"])
def test_rotation(name: str, interpolation: str, rotation: Any) -> None:
    """Odd sizes, where chroma reaches beyond the edge, so that a rotation of the wrong kind cannot hide."""
    frame = random_frame(name, 37, 23, rotation=rotation)
    for size, content in (((30, 40), (3, 5, 22, 31)), ((16, 12), (-4, -6, 30, 25))):
        assert compare(frame, size, content, interpolation=interpolation) <= TOLERANCE


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("name", ["yuv420p", "nv21", "yuv444p10", "p010", "gray"])
def test_colour(name: str, full_range: bool, matrix: Any) -> None:
    frame = random_frame(name, 40, 30, matrix=matrix, full_range=full_range)
    assert compare(frame, (25, 21), (0, 0, 25, 21)) <= TOLERANCE
    assert compare(frame, (40, 30), (0, 0, 40, 30), interpolation="nearest") <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "width", "height", "side"),
    [
        ("yuv420p", 1366, 768, 640),
        ("nv12", 1440, 1080, 640),
        ("bgr24", 1918, 1078, 640),
        ("yuv420p", 1920, 1080, 640),
        ("yuv420p", 1920, 1080, 608),
        ("yuv420p10", 4097, 3, 640),
        ("rgb24", 4097, 5, 1000),
        ("yuv422p", 3, 4097, 640),
    ],
)
def test_real_sizes_letterboxed(name: str, width: int, height: int, side: int) -> None:
    frame = random_frame(name, width, height, pitch=64)
    assert compare(frame, *letterbox(frame, side)) <= TOLERANCE


def test_1080p_stretched_to_a_square() -> None:
    frame = random_frame("nv12", 1920, 1080)
    assert compare(frame, (640, 640), (0, 0, 640, 640)) <= TOLERANCE


def test_positions_are_exact_where_float32_positions_are_not() -> None:
    """A ramp over 16,384 pixels, at whose end a float32 position is wrong by a thousandth of a pixel."""
    ramp = np.linspace(0, 65535, 16384).astype(np.uint16)[None].repeat(2, axis=0)
    frame = Frame((ramp,), PIXEL_FORMATS["gray16"], full_range=True)
    assert compare(frame, (4095, 2), (0, 0, 4095, 2)) < 0.0005


def test_nearest_picks_whole_samples() -> None:
    """Every output of `nearest` is exactly one of the frame's pixels: the one that holds the output's centre."""
    frame = random_frame("rgb24", 31, 17)
    out = np.empty((3, 40, 50), np.float32)
    kernels.preprocess(
        frame, out, content=(0, 0, 50, 40), interpolation="nearest", pad_value=0.0, channel_order="rgb", **GREY
    )
    rows = [(2 * i + 1) * 17 // 80 for i in range(40)]
    columns = [(2 * i + 1) * 31 // 100 for i in range(50)]
    picked = frame.planes[0][rows][:, columns].transpose(2, 0, 1)
    np.testing.assert_array_equal(out, picked.astype(np.float32))


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_row_ranges_compose_and_leave_the_rest_alone(rotation: Any) -> None:
    frame = random_frame("yuv420p", 61, 45, rotation=rotation)
    options = {
        "content": (2, 9, 40, 33),
        "interpolation": "linear",
        "pad_value": 7.0,
        "channel_order": "rgb",
        **IMAGENET,
    }
    whole, parts = np.full((3, 50, 44), np.nan, np.float32), np.full((3, 50, 44), np.nan, np.float32)
    kernels.preprocess(frame, whole, **options)
    kernels.preprocess(frame, parts, rows=(0, 13), **options)
    assert np.isfinite(parts[:, :13]).all() and np.isnan(parts[:, 13:]).all()
    with ThreadPoolExecutor(2) as pool:
        for job in [
            pool.submit(kernels.preprocess, frame, parts, rows=rows, **options) for rows in ((13, 14), (14, 50))
        ]:
            job.result()
    np.testing.assert_array_equal(parts, whole)


def test_random_cases_in_threads() -> None:
    """Whatever was painted before in a thread, and whichever case comes first in it, scratch never shows."""

    def job(seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        differences = []
        for case in range(12):
            name = str(rng.choice(list(PIXEL_FORMATS)))
            width, height = map(int, rng.integers(1, 120, 2))
            frame = random_frame(name, width, height, seed=seed + case, rotation=int(rng.choice(ROTATIONS)))
            left, top = map(int, rng.integers(-50, 60, 2)) if case else (500, 0)
            content = (left, top, *map(int, rng.integers(1, 150, 2)))
            size = (int(rng.integers(1, 99)), int(rng.integers(1, 99)))
            differences.append(compare(frame, size, content, interpolation=str(rng.choice(INTERPOLATIONS))))
        return differences

    with ThreadPoolExecutor(4) as pool:
        for differences in pool.map(job, range(0, 1200, 100)):
            assert max(differences) <= TOLERANCE


def test_output_is_a_slot_of_a_batch_and_nothing_else_is_touched() -> None:
    batch = np.full((3, 3, 16, 20), -1.0, np.float32)
    Preprocess(width=20, height=16)(random_frame("nv12", 64, 48), batch[1])
    assert (batch[1] >= 0).all() and (batch[[0, 2]] == -1).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 0.1), (np.uint8, 0.0)])
@pytest.mark.parametrize("name", ["yuv420p", "p010", "nv12", "rgb24", "bgra", "gray"])
@pytest.mark.parametrize("rotation", [0, 90])
def test_other_output_types(name: str, dtype: Any, tolerance: float, rotation: Any) -> None:
    """float16 within 0.1 grey levels; uint8 equal but for values that lie on the edge between two levels."""
    frame = random_frame(name, 61, 45, rotation=rotation)
    found, wanted = np.full((3, 33, 40), 99, dtype), np.zeros((3, 33, 40), np.float32 if tolerance else dtype)
    options = {
        "content": (3, -2, 31, 40),
        "interpolation": "linear",
        "pad_value": 114.4,
        "channel_order": "bgr",
        **GREY,
    }
    kernels.preprocess(frame, found, **options)
    kernels.reference.preprocess(frame, wanted, **options)
    difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    if tolerance:
        assert difference.max() <= tolerance
    else:
        assert difference.max() <= 1 and (difference > 0).mean() <= 0.001


def test_uint8_output_saturates() -> None:
    frame = Frame.from_array(np.array([[[0, 128, 255]]], np.uint8), channels="rgb")
    out = np.empty((3, 1, 2), np.uint8)
    kernels.preprocess(
        frame,
        out,
        content=(0, 0, 1, 1),
        interpolation="linear",
        pad_value=200.0,
        mean=(10.0, 0.0, -10.0),
        std=(1.0, 0.5, 1.0),
        channel_order="rgb",
    )
    assert out[:, 0].tolist() == [[0, 190], [255, 255], [255, 210]]


def test_read_only_reversed_and_padded_planes_are_read_in_place() -> None:
    frame = random_frame("yuv420p", 33, 21, pitch=31)
    upside_down = tuple(np.ascontiguousarray(plane[::-1])[::-1] for plane in frame.planes)
    for plane in upside_down:
        plane.flags.writeable = False
    outs = [np.empty((3, 16, 16), np.float32) for _ in range(2)]
    for planes, out in zip((frame.planes, upside_down), outs, strict=True):
        Preprocess(width=16, height=16)(Frame(planes, frame.format), out)
    np.testing.assert_array_equal(*outs)


def test_planes_of_a_decoder_are_read_in_place() -> None:
    """PyAV's planes: one buffer a plane, rows padded to the decoder's alignment."""
    picture = av.VideoFrame(50, 38, "yuv420p")
    rng = np.random.default_rng(5)
    for plane in picture.planes:
        plane.update(rng.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    planes = tuple(np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width] for p in picture.planes)
    frame = Frame(planes, PIXEL_FORMATS["yuv420p"], owner=picture)
    assert compare(frame, (32, 32), (0, 4, 32, 24)) <= TOLERANCE


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


@pytest.mark.parametrize("size", [(640, 360), (33, 77), (300, 200), (97, 61)])
def test_reference_resizes_as_opencv(size: tuple[int, int]) -> None:
    """cv2.resize works with weights of 11 bits and rounds to whole levels: within 1 level of the exact result."""
    image = np.random.default_rng(1).integers(0, 256, (61, 97, 3), dtype=np.uint8)
    found = reference_rgb(Frame.from_array(image, channels="bgr"), *size)
    wanted = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)[:, :, ::-1]
    assert np.abs(found - wanted).max() <= 1.0


def swscale_rgb(frame: Frame, name: str) -> np.ndarray[Any, Any]:
    """The frame at its own size as (h, w, 3) RGB by swscale at its most accurate, chroma centred."""
    picture = av.VideoFrame(frame.width, frame.height, name)
    for plane, samples in zip(picture.planes, frame.planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        flat = np.ascontiguousarray(samples).reshape(plane.height, -1).view(np.uint8)
        rows[:, : flat.shape[1]] = flat
        plane.update(rows.tobytes())
    graph = av.filter.Graph()
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
    graph.push(picture)
    return graph.pull().to_ndarray()


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("name", ["yuv444p", "yuv420p", "nv12", "yuv422p10le"])
def test_reference_converts_colour_as_swscale(name: str, matrix: Any, full_range: bool) -> None:
    """On a smooth picture: within swscale's own rounding (0.5 levels without, 2 with chroma to be resized)."""
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


def bad_calls() -> dict[str, tuple[dict[str, Any], str]]:
    out = np.empty((3, 8, 8), np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    return {
        "out channels": ({"out": np.empty((4, 8, 8), np.float32)}, r"\(4, 8, 8\)"),
        "out dtype": ({"out": np.empty((3, 8, 8), np.float64)}, "float64"),
        "out strides": ({"out": np.empty((3, 8, 16), np.float32)[:, :, ::2]}, "strides"),
        "out read-only": ({"out": frozen}, "writeable False"),
        "content": ({"content": (0, 0, 0, 8)}, r"\(0, 0, 0, 8\)"),
        "rows": ({"rows": (4, 9)}, r"\(4, 9\)"),
        "interpolation": ({"interpolation": "cubic"}, "cubic"),
        "channel order": ({"channel_order": "gbr"}, "gbr"),
        "std": ({"std": (1.0, 0.0, 1.0)}, "zero"),
    }


@pytest.mark.parametrize("case", bad_calls())
@pytest.mark.parametrize("implementation", [kernels.preprocess, kernels.reference.preprocess])
def test_bad_arguments_name_the_value(implementation: Any, case: str) -> None:
    change, message = bad_calls()[case]
    arguments = {
        "out": np.empty((3, 8, 8), np.float32),
        "content": (0, 0, 8, 8),
        "interpolation": "linear",
        "pad_value": 0.0,
        "channel_order": "rgb",
        **GREY,
        **change,
    }
    with pytest.raises(UsageError, match=message):
        implementation(random_frame("gray", 8, 8), arguments.pop("out"), **arguments)


def test_samples_that_are_not_adjacent_are_refused() -> None:
    every_second = np.zeros((4, 8), np.uint8)[:, ::2]
    with pytest.raises(UsageError, match="ascontiguousarray"):
        compare(Frame((every_second,), PIXEL_FORMATS["gray"]), (4, 4), (0, 0, 4, 4))


def test_level_is_chosen_by_the_features_of_the_cpu() -> None:
    assert cpu.select("x86_64", cpu.V3_FLAGS)[0] == "x86-64-v3"
    level, reason = cpu.select("x86_64", cpu.V3_FLAGS - {"avx2"})
    assert level == "x86-64-v2" and "avx2" in reason
    assert cpu.select("aarch64", frozenset())[0] == "armv8-a"
    with pytest.raises(CapabilityError, match="riscv64"):
        cpu.select("riscv64", frozenset())
    assert kernels.describe().path.is_file()


RUN_ONE = """
import sys
import numpy as np
from framefuse import kernels
from framefuse.frame import Frame
from framefuse.kernels import cpu
{setup}
out = np.full((3, 4, 4), np.nan, np.float32)
kernels.preprocess(Frame.from_array(np.full((8, 8, 3), 7, np.uint8)), out, content=(0, 0, 4, 4), interpolation="linear",
    pad_value=0.0, mean=(0.0,) * 3, std=(1.0,) * 3, channel_order="rgb")
assert (out == 7).all()
assert "tvm" not in sys.modules
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, where nothing has been imported or loaded."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )


@pytest.mark.parametrize("setup", ["", "cpu._flags = lambda path: frozenset()"], ids=["best", "x86-64-v2"])
def test_each_level_runs_without_importing_tvm(setup: str) -> None:
    done = run_python(RUN_ONE.format(setup=setup))
    assert done.returncode == 0, done.stderr


def test_a_current_build_is_kept_and_an_unknown_machine_is_refused() -> None:
    before = [path.stat().st_mtime_ns for path in build()]
    assert [path.stat().st_mtime_ns for path in build()] == before
    with pytest.raises(ValueError, match="riscv64"):
        build("riscv64")


@pytest.mark.slow
def test_libraries_of_another_machine_are_built_here(tmp_path: Path) -> None:
    (library,) = build("aarch64", directory=tmp_path)
    elf_machine = int.from_bytes(library.read_bytes()[18:20], "little")
    assert elf_machine == 183  # EM_AARCH64


def test_a_missing_library_names_the_command_that_builds_it() -> None:
    done = run_python(RUN_ONE.format(setup="cpu.LIBRARIES /= 'absent'"))
    assert "CapabilityError" in done.stderr and "python -m framefuse.kernels.build" in done.stderr
