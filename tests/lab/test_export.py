"""Export of networks of PyTorch; torchvision's in a process of its own, because its build may not match PyTorch's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from framefuse import Model
from framefuse.cli.app import main
from framefuse.errors import CapabilityError, ModelError, UsageError
from framefuse.lab.building import export_model
from framefuse.models.card import Card

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")

PROGRAM = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 3, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(3)[:, :, None, None])
            self.layer.bias.zero_()

    def forward(self, images):
        return {"out": self.layer(images), "aux": images}

class Boxes(torch.nn.Module):
    def forward(self, images):
        return [{"boxes": images[0, 0, :2, :4]}]

def plain():
    return Net().eval()

def strange():
    return Boxes()

def script():
    return torch.jit.script(Net().layer)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_net.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("own_net", None)
    return "own_net"


def test_a_function_and_its_pixels(program: str, tmp_path: Path) -> None:
    """The brightest colour of each pixel is its class."""
    path, card = export_model(f"{program}:plain", imgsz=(32, 64), names=["red", "green", "blue"])
    assert isinstance(card, ModelError), "four axes may be anything: the card has to say so"
    (path.with_suffix(".yaml")).write_text(path.with_suffix(".yaml").read_text() + "task: semantic\nfit: stretch\n")
    image = np.zeros((32, 64, 3), np.uint8)
    image[:, :32, 2] = 255  # BGR: red
    image[:, 32:, 0] = 255
    with Model(path, engine="onnxruntime") as model:
        masks = model(image).masks
    assert masks is not None
    assert (masks.class_id[:, 2:30] == 0).all() and (masks.class_id[:, 34:] == 2).all()


def test_torch_script(program: str, tmp_path: Path) -> None:
    import own_net  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own_net.script().save("net.pt")
    path, _ = export_model("net.pt", out=Path("other.onnx"))
    assert path.read_bytes()


def test_weights_are_used(program: str, tmp_path: Path) -> None:
    import own_net

    state = {name: torch.full_like(value, 7.0) for name, value in own_net.plain().state_dict().items()}
    torch.save(state, "weights.pth")
    path, _ = export_model(f"{program}:plain", weights="weights.pth")
    import onnx
    from onnx.numpy_helper import to_array

    assert {float(to_array(one).max()) for one in onnx.load(path).graph.initializer} == {7.0}


def test_what_can_be_wrong(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for network, error, says in (
        ("own_net:absent", UsageError, "gives no network"),
        ("no_such_module:net", UsageError, "gives no network"),
        ("absent.pt", UsageError, "no file"),
        (f"{program}:strange", ModelError, "cannot be exported"),
    ):
        with pytest.raises(error, match=says):
            export_model(network)
    torch.save({"a": 1}, "state.pt")
    with pytest.raises(ModelError, match="as PyTorch writes"):
        export_model("state.pt")
    for sizes in ("0", "6,4,5", "wide"):
        assert main(["export", f"{program}:plain", "--imgsz", sizes]) == 2
        assert "imgsz takes one or two whole numbers above 0" in capsys.readouterr().err
    assert main(["export", f"{program}:plain", "--imgsz", "32"]) == 0
    assert "cannot be used yet" in capsys.readouterr().err
    assert main(["export", f"{program}:plain"]) == 2
    assert "exists" in capsys.readouterr().err
    assert {path.name for path in tmp_path.glob("*.onnx")} == {"plain.onnx"}, "nothing is left of those that failed"


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_a_segmenter_of_torchvision(tmp_path: Path) -> None:
    script = """
import importlib.util, pathlib, torch
folder = pathlib.Path(importlib.util.find_spec("torchvision").origin).parent
try:
    torch.ops.load_library(next(folder.glob("_C*.so")))
except OSError:  # a build for CUDA cannot load its own beside a CPU build of PyTorch
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from framefuse.lab.building import export_model
path, card = export_model("torchvision:lraspp_mobilenet_v3_large", weights="none", imgsz=(96, 128))
print(card.task, card.class_count, card.preprocess.mean[0], card.names[15])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "TORCH_HOME": str(tmp_path)})  # fmt: skip
    assert done.stdout.split() == ["semantic", "21", "123.675", "person"], done.stderr
    with Model(tmp_path / "lraspp_mobilenet_v3_large.onnx") as model:
        assert model(np.zeros((50, 70, 3), np.uint8)).masks is not None


def test_without_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(CapabilityError, match="torchvision"):
        export_model("torchvision:fcn_resnet50", out=tmp_path / "x.onnx")
    assert Card
