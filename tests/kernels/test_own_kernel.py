"""docs/guide/own-kernel.md: a user's kernel is built and run, and `framefuse kernels` shows what runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cuda_on_cpu import install, on_device
from framefuse.cli.app import main
from framefuse.cuda import cubins, kernel
from framefuse.errors import UsageError
from framefuse.kernels import cpu
from framefuse.kernels.build import build_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"
IMAGE = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    build_file(EXAMPLE, directory)
    return directory


def wanted(gain: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    bright = np.minimum(IMAGE @ np.array([0.299, 0.587, 0.114]) * gain, 255)
    return np.stack([bright * 0.3, bright, bright * 0.3], axis=2)


def test_own_kernel_on_the_cpu(built: Path) -> None:
    import tvm_ffi

    library = built / f"own_kernel-{cpu.describe().level}.so"
    out = np.zeros_like(IMAGE)
    tvm_ffi.load_module(str(library))["night"](IMAGE.ctypes.data, out.ctypes.data, 37 * 53, 2.0)
    assert np.abs(out - wanted(2.0)).max() <= 0.501


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ stands in for the GPU")
def test_own_kernel_for_cuda(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(cubins.descriptions())
    monkeypatch.setattr(cubins, "descriptions", lambda: known)
    kernel.add(built / "cuda")
    assert cubins.describe("night").arguments == ("gain", "pixels", "source", "target")
    install(monkeypatch)
    out = np.zeros_like(IMAGE)
    kernel.launch("night", source=on_device(IMAGE), target=on_device(out), pixels=37 * 53, gain=0.7)
    assert np.abs(out - wanted(0.7)).max() <= 0.501
    (built / "other").mkdir()
    for path in (built / "cuda").iterdir():
        shutil.copy(path, built / "other")
    with pytest.raises(UsageError, match="already"):
        kernel.add(built / "other")


NIGHT = """
// launch: grid ((pixels + 255) / 256), block 256, waits
extern "C" __global__ void night(const uint8_t* source, uint8_t* target, int pixels, float gain) {
  wait_for_previous();
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= pixels) return;
  const float luma = source[3 * i] * 0.299f + source[3 * i + 1] * 0.587f + source[3 * i + 2] * 0.114f;
  const float bright = min(luma * gain, 255.0f);
  target[3 * i] = target[3 * i + 2] = bright * 0.3f + 0.5f;
  target[3 * i + 1] = bright + 0.5f;
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ stands in for the GPU")
def test_own_kernel_in_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(cubins.descriptions())
    monkeypatch.setattr(cubins, "descriptions", lambda: known)
    (tmp_path / "night.cu").write_text(NIGHT)
    kernel.add(tmp_path)
    install(monkeypatch)
    out = np.zeros_like(IMAGE)
    kernel.launch("night", source=on_device(IMAGE), target=on_device(out), pixels=37 * 53, gain=0.7)
    assert np.abs(out - wanted(0.7)).max() <= 0.501
    for end in ("}", "}  // night", "}\n\n__device__ float half(float x) {\n  return x / 2;\n}\n"):
        (tmp_path / "night.cu").write_text(NIGHT.removesuffix("}\n") + end)
        assert cubins.describe("night").source.endswith(end)
    (tmp_path / "night.cu").write_text(NIGHT.replace("// launch", "//"))
    with pytest.raises(UsageError, match=r"night\.cu has kernels"):
        kernel.add(tmp_path)


def test_kernels_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", "--json"]) == 0
    rows = {(row["kernel"], row["device"]): row["family"] for row in json.loads(capsys.readouterr().out)}
    assert rows["preprocess_semiplanar_u8_nchw", "cuda"] == "preprocess"
    assert rows["preprocess_semiplanar_u8", "cpu"] == "preprocess"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["warp_tile"], "T.prim_func"),
        (["preprocess_gray_u16_nhwc3"], "def preprocess_gray_u16_nhwc3("),
        (["preprocess_semiplanar_u8_nchw_one"], "def preprocess_semiplanar_u8_nchw_one("),
        (["preprocess_gray_u8_nchw", "--emit", "cuda"], 'extern "C" __global__'),
        (["draw_overlay", "--emit", "asm"], ".globl"),
        (["suppress_rotated", "--device", "cuda"], 'using B = RotatedBox;\nextern "C" __global__'),
    ],
)
def test_kernels_are_shown(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", *words]) == 0
    assert expected in capsys.readouterr().out


def test_what_cannot_be_shown_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", "preprocess_gray_u8", "--emit", "ptx"]) == 2
    assert "only one for cpu" in capsys.readouterr().err
    assert main(["kernels", "show", "nonsense"]) == 2
    assert main(["kernels", "show", "suppress", "--device", "cuda", "--emit", "tir"]) == 2
    assert "written in CUDA C++" in capsys.readouterr().err
    code = "import sys; sys.modules['tvm'] = None; from framefuse.cli.app import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "kernels", "show", "preprocess_gray_u8_nchw"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "framefuse[tvm]" in done.stderr
