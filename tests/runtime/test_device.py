"""Where a run happens when nobody says: with and without a GPU, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_gpu
from framefuse.cli.app import main
from framefuse.config import settings_from
from framefuse.engines import Package
from framefuse.engines.backend import Doubt
from framefuse.engines.null import CudaNullEngine
from framefuse.errors import CapabilityError, GpuMemoryError
from framefuse.models.card import Card, read_card
from framefuse.pipeline import Pipeline
from framefuse.runtime import choices
from framefuse.runtime.choices import choose_batch, choose_device, cuda_missing
from training.squares import write_squares
from training.squares_clip import squares_clip


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    return read_card(write_squares(tmp_path_factory.mktemp("device") / "squares.onnx"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything."""
    monkeypatch.setattr(choices, "check_cuda", lambda gpu=None: None)
    monkeypatch.setattr(Package, "found", lambda self: True)


def chosen(refused: str | None = None, **options: Any) -> tuple[str, str]:
    settings, reason = choose_device(settings_from(options), lambda backend: refused)
    return settings.device, reason


def test_a_gpu_with_everything_is_taken(gpu: None) -> None:
    assert chosen() == ("cuda", "device cuda: an NVIDIA GPU, NVDEC and engine cudnn are here")
    assert chosen(engine="cudnn", precision="fp16")[0] == "cuda"
    settings, reason = choose_device(
        settings_from({"precision": "fp32"}), lambda backend: Doubt("slow") if backend.name == "cudnn" else None
    )
    assert (settings.device, reason) == ("cuda", "device cuda: an NVIDIA GPU, NVDEC and engine tensorrt are here")
    assert chosen(precision="tf32") == ("cuda", "device cuda: no engine supports tf32 on cpu")
    assert chosen(engine="torch") == ("cuda", "device cuda: an NVIDIA GPU, NVDEC and engine torch are here")


def test_what_is_asked_for_stays(gpu: None) -> None:
    assert chosen(device="cpu") == ("cpu", "device cpu: as asked")
    assert chosen(device="cuda") == ("cuda", "device cuda: as asked")
    assert chosen(device="cuda:1") == ("cuda:1", "device cuda:1: as asked")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"engine": "openvino"}, "engine openvino does not run on CUDA"),
        ({"engine": "openvino", "precision": "fp8"}, "engine openvino does not run on CUDA"),
        ({"refused": "it has an operator that is not known"}, "engine cudnn: it has an operator that is not known"),
    ],
)
def test_why_a_gpu_is_not_taken(gpu: None, options: dict[str, Any], reason: str) -> None:
    device, said = chosen(**options)
    assert device == "cpu" and reason in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"engine": "tensorrt"}, "engine tensorrt runs on NVIDIA GPUs only"),
        ({"precision": "fp8"}, "no engine supports fp8 on cpu"),
        ({"calib": "clip.mp4"}, "no engine supports calibration on cpu"),
    ],
)
def test_what_only_a_gpu_can_do_is_for_the_gpu(options: dict[str, Any], reason: str) -> None:
    """Also where there is none, which is then the error."""
    assert chosen(**options) == ("cuda", f"device cuda: {reason}")


@pytest.mark.parametrize("missing", ["nvidia-cudnn-frontend", "PyNvVideoCodec"])
def test_a_package_that_is_missing_is_passed_over(gpu: None, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(Package, "found", lambda self: self.name != missing)
    device, reason = chosen()
    if missing == "PyNvVideoCodec":
        assert device == "cpu" and "not installed" in reason and "framefuse[cuda13]" in reason
    else:
        assert (device, reason) == ("cuda", "device cuda: an NVIDIA GPU, NVDEC and engine tensorrt are here")
    monkeypatch.setattr(Package, "found", lambda self: self.name == "PyNvVideoCodec")
    device, reason = chosen()
    assert device == "cpu" and "engine cudnn: package nvidia-cudnn-frontend is not installed" in reason


def test_without_a_driver_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CapabilityError("there is no NVIDIA driver on this machine (libcuda.so.1 is missing)")

    monkeypatch.setattr(choices, "check_cuda", missing)
    assert cuda_missing() == "there is no NVIDIA driver on this machine (libcuda.so.1 is missing)"
    assert chosen()[0] == "cpu"


def test_a_gpu_without_memory_to_start_on(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    gpu = fake_gpu.install(monkeypatch)
    gpu.lost = fake_gpu.CudaError(2, "cudaErrorMemoryAllocation: out of memory")
    with pytest.raises(GpuMemoryError, match=r"no room to start CUDA on cuda:0.*out of memory") as error:
        Pipeline([np.zeros((64, 64, 3), np.uint8)], card.path, device="cuda", engine="null")
    assert "close what else uses the GPU" in str(error.value.remedy)


def test_the_batch_grows_only_where_nobody_asked(card: Card) -> None:
    def batch(readers: int, **options: Any) -> int:
        return choose_batch(card, settings_from(options), readers)[0]

    assert batch(4, device="cuda") == 8
    assert batch(1, device="cuda") == 1
    assert batch(4, device="cpu") == 1
    assert batch(4, device="cuda", batch=2) == 2
    assert batch(4, device="cuda", batch=1) == 1


def test_a_run_says_what_was_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Card) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=6, size=(320, 192))
    fake_gpu.install(monkeypatch)
    engine: Any = CudaNullEngine(lambda batch, height, width: [])
    pipeline = Pipeline(tmp_path / "clip.mp4", card.path, device="auto", engine=engine)
    assert pipeline.settings.device == "cuda"
    assert "device cuda: that of the given engine" in pipeline.report.choices
    pipeline.close()


@pytest.mark.parametrize("device", ["cuda:1", "cuda:0"])
def test_all_of_a_run_happens_on_the_gpu_of_that_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Card, device: str
) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=6, size=(320, 192))
    gpu = fake_gpu.install(monkeypatch, count=2)
    engine: Any = CudaNullEngine(lambda batch, height, width: [np.zeros((batch, 7, 84), np.float32)])
    pipeline = Pipeline([tmp_path / "clip.mp4"] * 2, card.path, device=device, engine=engine)
    assert len(list(pipeline)) == 12
    number = int(device[-1])
    assert {where for _, where in gpu.worked} == {number}
    assert len({thread for thread, _ in gpu.worked}) > 1
    assert gpu.current_device() == 0  # the caller's thread is as it was


def test_a_gpu_that_is_not_there_is_said_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Card
) -> None:
    fake_gpu.install(monkeypatch, count=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    expected = r"device cuda:2 was asked for, but CUDA sees cuda:0 \(a fake GPU\), cuda:1 .* is '3,5'"
    with pytest.raises(CapabilityError, match=expected) as error:
        Pipeline([tmp_path / "clip.mp4"], card.path, device="cuda:2")
    assert error.value.exit_code == 3


def test_a_run_on_a_gpu_says_what_encodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Card) -> None:
    """No fake GPU encodes, so here it is x264, with the reason."""
    squares_clip(tmp_path / "clip.mp4", frames=6, size=(320, 192))
    fake_gpu.install(monkeypatch)
    engine: Any = CudaNullEngine(lambda batch, height, width: [np.zeros((batch, 7, 84), np.float32)])
    pipeline = Pipeline(
        tmp_path / "clip.mp4", card.path, device="cuda", engine=engine, save=True, project=tmp_path / "runs"
    )
    report = pipeline.run()
    (said,) = (text for text in report.choices if text.startswith("encoder "))
    assert re.fullmatch(r"encoder (h264_nvenc: supported by the GPU|libx264: on the CPU, because .*NVENC.*)", said)
    assert any(path.endswith(".mp4") for path in report.outputs)


def test_a_fleet_is_told_so_too_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpu.install(monkeypatch, count=2)
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "clip.mp4", str(card.path), "--gpus", "0,2"]) == 3
    assert "--gpus 0,2: device cuda:2 was asked for, but CUDA sees cuda:0" in " ".join(capsys.readouterr().err.split())
    assert main(["predict", "clip.mp4", str(card.path), "--gpus", "0,1", "--device", "cuda:1"]) == 2
    assert "--gpus and --device cuda:1 conflict" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.gpu
def test_the_gpus_of_this_machine_by_number(tmp_path: Path, card: Card) -> None:
    import cupy

    squares_clip(tmp_path / "clip.mp4", frames=6, size=(320, 192))
    count = cupy.cuda.runtime.getDeviceCount()
    for number in range(count):
        pipeline = Pipeline(tmp_path / "clip.mp4", card.path, device=f"cuda:{number}", engine="null")
        assert len(list(pipeline)) == 6
    if "CUDAExecutionProvider" in pytest.importorskip("onnxruntime").get_available_providers():
        pipeline = Pipeline(tmp_path / "clip.mp4", card.path, device="cuda")
        assert pipeline.run().detections and pipeline.engine.name == "onnxruntime"
    with pytest.raises(CapabilityError, match=f"cuda:{count} was asked for, but CUDA sees cuda:0"):
        Pipeline(tmp_path / "clip.mp4", card.path, device=f"cuda:{count}", engine="null")
