"""What goes wrong with a GPU, and what the user is told: without one by the driver's return codes, on one for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from fake_gpu import CudaError, OutOfMemory
from framefuse.common.machine import python_path
from framefuse.config import settings_from
from framefuse.cuda import device
from framefuse.cuda.device import translate_cuda_error
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.cudnn.plans import PlanCache
from framefuse.errors import CapabilityError, EngineError, FramefuseError, GpuLostError, GpuMemoryError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.runtime.choices import choose_engine
from framefuse.sources.nvdec import refusal as _refusal
from training.squares import write_squares
from training.squares_clip import squares_clip


class Runtime(SimpleNamespace):
    """CuPy's runtime over a driver that answers `code` to whoever asks for GPUs."""

    CUDARuntimeError = CudaError

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code=code, text=text)

    def getDeviceCount(self) -> int:
        if self.code:
            raise CudaError(self.code, self.text)
        return 0

    def driverGetVersion(self) -> int:
        return 12040

    def runtimeGetVersion(self) -> int:
        return 13000


@pytest.fixture
def no_cache() -> Iterator[None]:
    device.cupy.cache_clear()
    yield
    device.cupy.cache_clear()


DRIVER = (35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")
NOTHING = (100, "cudaErrorNoDevice: no CUDA-capable device is detected")


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(
    ("answer", "visible", "message", "remedy"),
    [
        (
            DRIVER,
            None,
            r"supports CUDA 12\.4, but the installed CuPy needs CUDA 13\.0",
            "driver to one for CUDA 13",
        ),
        (NOTHING, "", "CUDA_VISIBLE_DEVICES is ''", "unset it"),
        (NOTHING, "7", "CUDA_VISIBLE_DEVICES is '7'", "nvidia-smi -L"),
        (NOTHING, None, "no usable GPU: cudaErrorNoDevice", "nvidia-smi"),
        ((0, ""), "7", "CUDA_VISIBLE_DEVICES is '7'", "nvidia-smi -L"),
        ((802, "cudaErrorSystemNotReady: system not yet initialized"), "0", "cudaErrorSystemNotReady", "nvidia-smi"),
    ],
)
def test_a_driver_without_gpus(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str], visible: str | None, message: str, remedy: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=Runtime(*answer))))
    with pytest.raises(CapabilityError, match=message) as error:
        device.cupy()
    assert remedy in str(error.value.remedy)
    assert error.value.exit_code == 3


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *_: object) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(
        CapabilityError, match=r"no NVIDIA driver on this machine \(libcuda\.so\.1 is missing\)"
    ) as error:
        choose_engine(settings_from({"device": "cuda"}), lambda: None)
    assert "--device cpu" in str(error.value.remedy)


@pytest.mark.parametrize("found", [None, SimpleNamespace(backend_version=lambda: 80907)])
def test_cudnn_is_missing_or_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Any) -> None:
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cudnn", found)
    with pytest.raises(CapabilityError, match=r"cuDNN") as error:
        open_engine("cudnn", write_squares(tmp_path / "squares.onnx"), EngineOptions("cuda"))
    assert "cuda13" in str(error.value.remedy) or "nvidia-cudnn-cu13>=9.19" in str(error.value.remedy)


@pytest.mark.parametrize("device", ["cuda:x", "cuda:", "gpu", "1"])
def test_a_device_that_is_not_one(device: str) -> None:
    with pytest.raises(FramefuseError, match="device is") as error:
        settings_from({"device": device})
    assert "auto, cpu, cuda" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (CudaError(2, "cudaErrorMemoryAllocation: out of memory"), GpuMemoryError, "no room to load it"),
        (OutOfMemory("Out of memory allocating 1,024 bytes"), GpuMemoryError, "allocating 1,024 bytes"),
        (CudaError(700, "cudaErrorIllegalAddress: x"), GpuLostError, "memory that is not its own"),
        (CudaError(719, "cudaErrorLaunchFailure: x"), GpuLostError, "a kernel failed"),
        (CudaError(46, "cudaErrorDevicesUnavailable: x"), GpuLostError, "busy or gone"),
        (CudaError(214, "cudaErrorECCUncorrectable: x"), GpuLostError, "cannot be corrected"),
        (CudaError(1, "cudaErrorInvalidValue: invalid argument\nmore"), EngineError, "cudaErrorInvalidValue"),
    ],
)
def test_return_codes_in_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[EngineError], message: str
) -> None:
    runtime = SimpleNamespace(memGetInfo=lambda: (5 * 10**6, 10**9))
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    found = translate_cuda_error(error, "load it")
    assert type(found) is kind
    assert message in found.message and "\n" not in found.message
    if kind is GpuMemoryError:
        assert "5 of 1,000 MB are free" in found.message
    assert found.exit_code == 1


def test_plans_of_another_gpu_are_never_used(tmp_path: Path) -> None:
    here = {"gpu": "NVIDIA H200", "capability": "9.0", "driver": "13000"}
    other = {**here, "gpu": "NVIDIA L4", "capability": "8.9"}
    PlanCache(other, tmp_path).update({"layer": {"engine": 3, "knobs": {}, "us": 1.0}})
    assert PlanCache(other, tmp_path).get("layer") is not None
    cache = PlanCache(here, tmp_path)
    assert cache.get("layer") is None
    assert "gpu was 'NVIDIA L4', is 'NVIDIA H200'" in cache.note
    PlanCache(other, tmp_path).path.rename(cache.path)  # a folder copied from another machine, and renamed
    moved = PlanCache(here, tmp_path)
    assert moved.get("layer") is None
    assert "it has another format" in moved.note


def test_a_surface_that_nvdec_does_not_give() -> None:
    module = SimpleNamespace()
    shapes = PIXEL_FORMATS["yuv444p"].plane_shapes(64, 48)
    frame = Frame(tuple(np.zeros(shape, np.uint8) for shape in shapes), PIXEL_FORMATS["yuv444p"])
    assert _refusal(module, "H264", frame) == "NVDEC has no surface for yuv444p"


def test_nvdec_is_not_asked_where_it_would_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a decoder without memory for its context ends the process with SIGSEGV."""
    runtime = SimpleNamespace(memGetInfo=lambda: (80 << 20, 10**10), getDevice=lambda: 0)
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), get_default_memory_pool=lambda: pool)
    monkeypatch.setattr(device, "cupy", lambda: cupy)
    shapes = PIXEL_FORMATS["yuv420p"].plane_shapes(64, 48)
    frame = Frame(tuple(np.zeros(shape, np.uint8) for shape in shapes), PIXEL_FORMATS["yuv420p"])
    module = SimpleNamespace(cudaVideoCodec=SimpleNamespace(H264=4))
    assert _refusal(module, "H264", frame) == "NVDEC needs 600 MB of GPU memory, and 84 MB are free"


# On a GPU. Each fault is made in a process of its own: most of them end it.

SCRIPT = """
import sys
from pathlib import Path
from framefuse.pipeline import Pipeline
from framefuse.errors import FramefuseError
from framefuse.cuda import kernel
clip, model, folder = sys.argv[1:4]
options = dict(device="cuda", engine="null", save_jsonl=True, project=folder, name="run", exist_ok=True)
try:
{body}
except FramefuseError as error:
    print(type(error).__name__, error.message)
    sys.exit(error.exit_code)
"""


def script(body: str) -> str:
    return SCRIPT.format(body=textwrap.indent(textwrap.dedent(body), "    "))


def surroundings() -> dict[str, str]:
    """In which another Python imports what this one does."""
    return {**os.environ, "PYTHONPATH": python_path()}


def run(body: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-u",
            "-c",
            script(body),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**surroundings(), **environment},
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "clip.mp4"
    squares_clip(path, frames=60, size=(640, 360))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squares(tmp_path_factory.mktemp("faults") / "squares.onnx")


def lines(folder: Path) -> list[dict[str, Any]]:
    """Every line of the run's JSONL, each of them whole."""
    (path,) = folder.rglob("*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.gpu
@pytest.mark.parametrize("visible", ["", "7"])
def test_no_gpu_is_visible(visible: str, clip: Path, model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "framefuse", "predict", str(clip), str(model), "--device", "cuda"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert f"CUDA_VISIBLE_DEVICES is {visible!r}" in " ".join(done.stderr.split())


@pytest.mark.gpu
@pytest.mark.parametrize("save", [False, True])
def test_a_kernel_that_kills_the_context(clip: Path, model: Path, tmp_path: Path, save: bool) -> None:
    """An illegal address while batches are in flight: what was finished is on disk, and the process says what broke,
    also where it is met when frames are brought to the host to be drawn on."""
    done = run(
        f"""
        pipeline = Pipeline(clip, model, save={save}, **options)
        for number, result in enumerate(pipeline):
            if number == 20:
                kernel.launch("mask_argmax_f32", scores_address=64, score_item=0, class_pitch=0, target_address=64,
                            target_item=0, n=1, classes=1, pixels=1024, foreground=-1)
        """,
        clip, model, tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("GpuLostError CUDA could not"), done.stdout + done.stderr
    assert 10 < len(lines(tmp_path)) < 60
    for video in tmp_path.rglob("*.mp4"):
        with av.open(str(video)) as container:
            assert sum(1 for _ in container.decode(video=0)) == len(lines(tmp_path))
    loud = [line for line in done.stderr.splitlines() if line.startswith("Exception in")]  # CuPy may grumble, ignored
    assert not loud, done.stderr


@pytest.mark.gpu
def test_no_memory_to_start(clip: Path, model: Path, tmp_path: Path) -> None:
    from benchmarks.gpu.faults import neighbour

    with neighbour(300, "", tmp_path, surroundings()):
        done = run("Pipeline(clip, model, **options)", clip, model, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("GpuMemoryError the GPU has no room to start CUDA on cuda:0"), done.stdout


@pytest.mark.gpu
def test_no_memory_to_load(clip: Path, model: Path, tmp_path: Path) -> None:
    done = run(
        """
        from benchmarks.gpu.faults import take
        take(80 << 20)
        list(Pipeline(clip, model, batch=64, imgsz=[1920], **options))
        """,
        clip, model, tmp_path,
    )  # fmt: skip
    assert done.returncode == CapabilityError.exit_code, done.stdout + done.stderr
    assert done.stdout.startswith("CapabilityError the run needs"), done.stdout + done.stderr
    assert "of what is free" in done.stdout


@pytest.mark.gpu
def test_memory_that_runs_out_between_two_sizes(clip: Path, model: Path, tmp_path: Path) -> None:
    """The second picture needs another graph, for which nothing is left; the first one's boxes stay."""
    done = run(
        """
        import numpy as np
        from benchmarks.gpu.faults import take
        def pictures():
            for _ in range(5):
                yield np.zeros((360, 640, 3), np.uint8)
            take(2 << 20)
            yield np.zeros((4000, 200, 3), np.uint8)
        options["save_jsonl"] = False
        found = []
        try:
            for result in Pipeline(pictures(), model, imgsz=[2048], **options):
                found.append(result.frame.index)
        except FramefuseError as error:
            print(found, type(error).__name__, error.message)
            sys.exit(error.exit_code)
        print(found, "all")
        """,
        clip, model, tmp_path,
    )  # fmt: skip
    text = done.stdout + done.stderr
    if done.returncode == 0:  # forgetting the first size made room enough
        assert "[0, 1, 2, 3, 4, 5] all" in done.stdout, text
    else:
        assert "[0, 1, 2, 3, 4] GpuMemoryError the GPU has no room to" in done.stdout, text


@pytest.mark.gpu
def test_two_processes_on_one_gpu(clip: Path, model: Path, tmp_path: Path) -> None:
    command = script("Pipeline(clip, model, **options).run()")
    started = [
        subprocess.Popen([sys.executable, "-c", command, str(clip), str(model), str(tmp_path / name)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name in ("one", "two")
    ]  # fmt: skip
    for process in started:
        text, _ = process.communicate(timeout=90)
        assert process.returncode == 0, text
    first, second = (lines(tmp_path / name) for name in ("one", "two"))
    assert len(first) == 60
    keys = ("frame", "detections") if "frame" in first[0] else tuple(first[0])
    assert [[row.get(key) for key in keys] for row in first] == [[row.get(key) for key in keys] for row in second]
