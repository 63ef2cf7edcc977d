"""CUDA kernels without a GPU: the description beside the source, NVRTC for every architecture, preprocess in loops."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cuda_fibres import Fibres
from cuda_on_cpu import CACHE, install, on_device
from framefuse import kernels
from framefuse.cuda import cubins, device, kernel, nvrtc
from framefuse.cuda.nvrtc import Nvrtc
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import PIXEL_FORMATS
from framefuse.kernels.preprocess import frame_row
from framefuse.kernels.preprocess.cuda import TILE_PIXELS, TILE_WEIGHTS, TILES, PreprocessTable
from preprocess_cases import TOLERANCE, blank, cases, difference, filter_cases, moved
from preprocess_frames import GREY, random_frame

COMPILERS = {
    "nvidia-cuda-nvrtc==13.*": (75, 87, 90, 120),
    "nvidia-cuda-nvrtc-cu12==12.9.*": (72,),
}
"""The sources branch at 8.0 and 9.0: the oldest and the newest of each side. CUDA 13 has forgotten sm_72 (Xavier)."""

RESIZE = Path(frame_row.__file__).with_name("resize.cu")

requires_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ stands in for the GPU")


def nvrtc_of(requirement: str) -> Nvrtc:
    """The compiler of a wheel, which is installed apart from this environment, once."""
    target = CACHE / requirement.replace("=", "").replace("*", "x")
    if not target.exists():
        scratch = target.with_name(f"{target.name}.{os.getpid()}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(scratch),
            requirement,
        ]
        subprocess.run(command, check=True, capture_output=True)
        scratch.rename(target)
    (library,) = (path for path in target.rglob("libnvrtc.so.*") if "alt" not in path.name)
    return Nvrtc(library)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("requirement", "capability"),
    [(requirement, capability) for requirement, all_ in COMPILERS.items() for capability in all_],
)
def test_every_kernel_compiles_for_old_and_new_architectures(requirement: str, capability: int) -> None:
    """A kernel that compiled before is not compiled again before its source, its options or the compiler change."""
    compiler = nvrtc_of(requirement)
    assert cubins.descriptions()
    known = CACHE / "compiles"
    known.mkdir(exist_ok=True)
    flags = Path(nvrtc.__file__).read_text(encoding="utf-8")
    for symbol, description in cubins.descriptions().items():
        given = (compiler.version, capability, flags, description.options, description.entry, description.source)
        seen = known / hashlib.sha256(repr(given).encode()).hexdigest()
        if not seen.exists():
            code = compiler.compile(description.source, symbol, capability, description.options)
            assert code.startswith(b"\x7fELF") and description.entry.encode() in code
            seen.touch()


def test_every_kernel_is_described() -> None:
    for symbol, description in cubins.descriptions().items():
        assert description.waits == ("  wait_for_previous();\n" in description.source), symbol
        assert f"{description.entry}(" in description.source, symbol
        assert 0 < np.prod(description.block) <= 1024
        assert len(description.parameters) <= 128
        kernel.Packing(description)


def test_arguments_are_checked_by_name_and_type() -> None:
    packing = kernel.Packing(cubins.describe("preprocess_gray_u8_nchw"))
    good = {"table": 0, "frames": 2, "width": 9, "height": 7, "channel_pitch": 63, "vectors": 0, "store": 0}
    buffer = bytearray(8 * packing.slots)
    assert packing(good, buffer) == (1, 2, 2)
    for wrong in ({"width": 2**31}, {"width": 1.5}, {"extra": 1}, {"frames": 65536}):
        with pytest.raises(UsageError, match="preprocess_gray_u8_nchw"):
            packing({**good, **wrong}, buffer)
    del good["store"]
    with pytest.raises(UsageError, match="store"):
        packing(good, buffer)
    with pytest.raises(UsageError, match="no CUDA kernel"):
        cubins.describe("nonsense")


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.cupy.cache_clear()
    with pytest.raises(CapabilityError, match="cuda13"):
        kernel.prepare(["preprocess_gray_u8_nchw"])


@requires_compiler
@pytest.mark.parametrize(
    "formats",
    [
        ("yuv420p", "yuv422p", "yuv444p", "gbrp", "yuv411p"),
        ("nv12", "nv21"),
        ("bgr24", "rgba", "rgb0"),
        *(
            pytest.param(formats, marks=pytest.mark.slow)
            for formats in (("yuv420p10", "yuv444p16", "gbrp12"), ("p010",), ("rgb48",), ("gray",), ("gray12",))
        ),
    ],
    ids=lambda formats: formats[0],
)
def test_generated_preprocess_in_loops(
    formats: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    dtypes = itertools.cycle(TOLERANCE)
    for case in cases(formats, 40):
        dtype = next(dtypes)
        found = blank(case.size, dtype, None)
        kernels.preprocess(moved(case.frame, on_device), on_device(found), content=case.content, **case.options)
        assert difference(found, case, dtype, None) <= TOLERANCE[dtype], case


@requires_compiler
@pytest.mark.parametrize("channels", [3, 4, 8])
def test_generated_preprocess_in_loops_nhwc(channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    dtypes = itertools.cycle(TOLERANCE)
    for case in cases(("nv12",), 30, seed=channels):
        dtype = next(dtypes)
        found = blank(case.size, dtype, channels)
        kernels.preprocess(
            moved(case.frame, on_device),
            on_device(found),
            content=case.content,
            **case.options,
            memory_format="nhwc",
        )
        assert difference(found, case, dtype, channels) <= TOLERANCE[dtype], case


@requires_compiler
def test_batch_table_and_row_ranges_in_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of many sizes and two kinds in one tensor; the slots after them and the rows not asked for stay."""
    install(monkeypatch)
    frames = [random_frame(name, 30 + 7 * i, 20 + 5 * i, seed=i) for i, name in enumerate(["nv12", "yuv420p"] * 3)]
    contents = [(i, 2, 40, 30) for i in range(6)]
    options = {"interpolation": "linear", "pad_value": 9.0, "channel_order": "bgr", **GREY}
    wanted = np.zeros((6, 3, 36, 44), np.float32)
    for frame, slot, content in zip(frames, wanted, contents, strict=True):
        kernels.reference.preprocess(frame, slot, content=content, **options)
    found = np.full((7, 3, 36, 44), np.nan, np.float32)
    moved_frames = [moved(frame, on_device) for frame in frames]
    for rows in ((0, 5), (5, 36)):
        kernels.preprocess_batch(moved_frames, on_device(found), contents=contents, rows=rows, **options)
        assert np.isnan(found[:6, :, rows[1] :]).all() and not np.isnan(found[:6, :, : rows[1]]).any()
    assert np.isnan(found[6]).all()
    np.testing.assert_allclose(found[:6], wanted, atol=0.02)

    found[:] = np.nan
    table = PreprocessTable(PIXEL_FORMATS["nv12"], on_device(found))
    for slot in (0, 2, 4):
        table.set(slot, moved_frames[slot], content=contents[slot], **options)
    table.upload()
    table.launch()
    np.testing.assert_allclose(found[[0, 2, 4]], wanted[[0, 2, 4]], atol=0.02)
    assert not found[[1, 3, 5, 6]].any()
    with pytest.raises(UsageError, match="yuv420p"):
        table.set(1, moved_frames[1], content=contents[1], **options)


def test_the_resizing_kernel_knows_the_rows_of_the_table() -> None:
    found = {
        name: int(value)
        for line in RESIZE.read_text(encoding="utf-8").splitlines()
        if line.startswith("constexpr int ")
        for name, value in re.findall(r"(\w+) = (\d+)", line)
    }
    extents = ("along_begin", "along_end", "across_begin", "across_end")
    facts = ("along_pitch", "along_filter", "across_pitch", "across_filter")
    assert found == {
        "ROW_WORDS": frame_row.BYTES // 4,
        "ALONG_TABLE": frame_row.ADDRESS["along0"],
        "ACROSS_TABLE": frame_row.ADDRESS["across0"],
        "SCRATCH": frame_row.ADDRESS["scratch"],
        "COLUMNS": frame_row.COLUMNS,
        "MODE": frame_row.WORD["along_mode0"],
        "RESIZED": frame_row.MODES["resized"],
        **{name.upper(): frame_row.WORD[name] for name in extents},
        **{name.upper(): frame_row.WORD[f"{name}0"] for name in facts},
        "FACTS": len(frame_row.AXIS),
        "TILE": TILES[0],
        "LINES": 8,
        "WEIGHTS": TILE_WEIGHTS,
        "SAMPLES": max(8 * components * TILE_PIXELS[components] for components in (1, 2, 3)),
    }
    assert frame_row.ADDRESS["along1"] == frame_row.ADDRESS["along0"] + 1
    assert frame_row.ADDRESS["across1"] == frame_row.ADDRESS["across0"] + 1
    pixels = "COUNT == 1 ? {} : COUNT == 2 ? {} : {};".format(*map(TILE_PIXELS.get, (1, 2, 3)))
    assert pixels in RESIZE.read_text(encoding="utf-8")
    assert frame_row.COLUMNS < 2 * frame_row.ADDRESS["scratch"] < frame_row.BYTES // 4


@requires_compiler
@pytest.mark.parametrize("channels", [None, 8])
@pytest.mark.parametrize(
    "formats",
    [("nv12", "nv16"), ("yuv420p", "yuv411p", "gbrp"), ("bgr24", "rgba"), ("yuv420p10",), ("p010",), ("rgb48",)],
    ids=lambda formats: formats[0],
)
def test_filters_of_a_table_in_loops(
    formats: tuple[str, ...], channels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second slot is never set."""
    install(monkeypatch, Fibres)
    dtypes, modes = itertools.cycle(TOLERANCE), set()
    memory = {} if channels is None else {"memory_format": "nhwc"}
    for case in filter_cases(formats, 60, seed=channels or 0):
        dtype = next(dtypes)
        found = np.stack([blank(case.size, dtype, channels)] * 2)
        table = PreprocessTable(case.frame.format, on_device(found), filters=True, **memory)
        frame = moved(case.frame, on_device)
        table.set(0, frame, content=case.content, **case.options)
        modes.add(table._rows[0].view(np.int32)[frame_row.WORD["along_mode0"]])
        table.upload()
        table.launch()
        assert difference(found[0], case, dtype, channels) <= TOLERANCE[dtype], case
        assert not found[1].any()
    assert modes == {frame_row.MODES["filtered"], frame_row.MODES["resized"]}


@requires_compiler
@pytest.mark.parametrize(("name", "columns"), [("nv12", 32), ("rgb24", 16), ("rgba", 16), ("rgb48", 16)])
def test_tiles_of_fewer_columns_in_loops(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Fibres)
    options = {"interpolation": "antialias", "pad_value": 9.0, "channel_order": "bgr", **GREY}
    frame = random_frame(name, 603, 40, pitch=1)
    wanted = np.zeros((3, 20, 74), np.float32)
    kernels.reference.preprocess(frame, wanted, content=(3, 1, 69, 17), **options)
    found = np.full((1, 3, 20, 74), np.nan, np.float32)
    table = PreprocessTable(frame.format, on_device(found), filters=True)
    there = moved(frame, on_device)
    table.set(0, there, content=(3, 1, 69, 17), **options)
    assert table._rows[0].view(np.int32)[frame_row.COLUMNS] == columns
    table.upload()
    table.launch()
    np.testing.assert_allclose(found[0], wanted, atol=0.02)


@requires_compiler
def test_what_a_gpu_cannot_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    options = {"content": (0, 0, 8, 8), "interpolation": "linear", "pad_value": 0.0, "channel_order": "rgb", **GREY}
    frame = moved(random_frame("nv12", 16, 16), on_device)
    with pytest.raises(UsageError, match="5 channels"):
        kernels.preprocess(frame, on_device(np.zeros((8, 8, 5), np.float32)), memory_format="nhwc", **options)
    with pytest.raises(UsageError, match="strides"):
        kernels.preprocess(frame, on_device(np.zeros((3, 8, 16), np.float32)[:, :, ::2]), **options)
    with pytest.raises(UsageError, match="32 bits"):
        kernels.preprocess(
            moved(random_frame("gray", 40000, 1), on_device),
            on_device(np.zeros((3, 1, 8), np.float32)),
            **{**options, "content": (-30000, 0, 40000, 1)},
        )
    with pytest.raises(UsageError, match="not an array on a GPU"):
        kernels.preprocess(frame, np.zeros((3, 8, 8), np.float32), **options)


def reset_warning() -> None:
    cubins._warn_once.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cache_of_machine_code_survives_what_disks_and_neighbours_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = nvrtc_of("nvidia-cuda-nvrtc==13.*")
    compiled = []
    compile_ = compiler.compile
    monkeypatch.setattr(compiler, "compile", lambda *given: compiled.append(given[1]) or compile_(*given))
    monkeypatch.setattr(nvrtc, "find", lambda: compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    description = cubins.describe("preprocess_gray_u8_nchw")

    def count_of_compilations() -> int:
        before = len(compiled)
        assert cubins.machine_code(description, 75) == code
        return len(compiled) - before

    code = cubins.machine_code(description, 75)
    assert code.startswith(b"\x7fELF") and count_of_compilations() == 0
    (kept,) = cubins.cache_directory().iterdir()
    for damage in (b"", b"\x7fELF", kept.read_bytes()[:-1], kept.read_bytes()[:100] + b"x" + kept.read_bytes()[101:]):
        kept.write_bytes(damage)
        assert count_of_compilations() == 1  # and it is whole again
        assert count_of_compilations() == 0
    assert cubins.machine_code(description, 90) != code  # another GPU, another file
    assert len(list(cubins.cache_directory().iterdir())) == 2

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    reset_warning()
    kept.unlink()
    with monkeypatch.context() as patch, caplog.at_level("WARNING"):
        patch.setattr(cubins, "write_atomically", full)
        assert count_of_compilations() == 1
        assert count_of_compilations() == 1
    assert [record.message for record in caplog.records] == [
        f"compiled kernels are kept in memory only: {kept.parent}: No space left on device"
    ]
    # A file where the folder should be.
    caplog.clear()
    reset_warning()
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.parent / next(kept.parent.iterdir()).name))
    assert count_of_compilations() == 1
    assert "kept in memory only" in caplog.text

    with pytest.raises(CapabilityError, match="sm_72"):
        cubins.machine_code(description, 72)
    newer = cubins.machine_code(description, 999)
    assert b".target" in newer  # PTX, from which the driver of that GPU makes code


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    library = nvrtc_of("nvidia-cuda-nvrtc==13.*").path
    code = (
        "from framefuse.cuda import cubins, nvrtc\n"
        f"compiler = nvrtc.Nvrtc({str(library)!r}); nvrtc.find = lambda: compiler\n"
        "for symbol in list(cubins.descriptions())[:6]: cubins.machine_code(cubins.describe(symbol), 80)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    files = list((tmp_path / "framefuse" / "kernels").iterdir())
    assert len(files) == 6 and all(path.suffix == ".cubin" for path in files)
