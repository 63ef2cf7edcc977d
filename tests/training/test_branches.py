"""Branches for masks and keypoints that are trained on the frozen scout-n."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra train")

from framefuse.common.keypoints import MIRRORED  # noqa: E402
from framefuse.models import find_model  # noqa: E402
from framefuse.models.card import read_card  # noqa: E402
from training import branches, nets  # noqa: E402
from training.augment import look  # noqa: E402
from training.data import Frames, Supply  # noqa: E402
from training.export import metadata  # noqa: E402
from training.onnx_writer import write_onnx  # noqa: E402
from training.rendering import Render, render  # noqa: E402

pytestmark = pytest.mark.slow

RENDER = Render("street", 2, 4, size=(320, 180), seed=50_001, busy=True, shapes=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    render(RENDER, folder, processes=1)
    return folder


def recipe(name: str, **changes: Any) -> branches.Recipe:
    small = {"renders": (RENDER,), "pools": 1, "batches": 3, "rounds": 4, "batch": 2, "size": (192, 320)}
    return replace(branches.RECIPES[name], **{**small, **changes})


@pytest.mark.parametrize("name", ["scout-n-seg", "scout-n-pose"])
def test_branches_learn_and_the_trunk_stays(cache: Path, tmp_path: Path, name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net, record = branches.train(recipe(name, frozen=True), cache, "cpu")
    losses = [row["loss"] for row in record["curve"]]
    assert losses[-1] < losses[0]
    path = write_onnx(net, tmp_path / f"{name}.onnx", metadata(name, net.task, record["names"]))
    image = torch.rand(1, 3, 192, 320)
    found, shipped = (
        onnxruntime.InferenceSession(str(file)).run(None, {"images": image.numpy()})[0]
        for file in (path, find_model("scout-n"))
    )
    rows = 4 + len(record["names"])
    np.testing.assert_array_equal(found[:, :rows], shipped[:, :rows])
    with torch.no_grad():
        np.testing.assert_allclose(found, net(image).numpy(), atol=1e-3)
    card = read_card(path)
    assert (card.task, card.extra) == (net.task, nets.EXTRA[net.task])


@pytest.mark.parametrize("name", ["scout-n-seg", "scout-n-pose"])
def test_the_whole_network_learns(cache: Path, name: str) -> None:
    net, record = branches.train(recipe(name, frozen=False, pools=2, rounds=1), cache, "cpu")
    assert all(np.isfinite(value) for row in record["curve"] for value in row.values())
    shipped = branches.on_trunk(name).backbone.stem.conv.weight
    assert not torch.equal(net.backbone.stem.conv.weight, shipped)


def test_cells_learn_what_the_whole_map_gives() -> None:
    net = branches.on_trunk("scout-n-pose").eval()
    levels = [torch.rand(2, c, 12 // n, 20 // n) for c, n in ((64, 1), (64, 2), (96, 4))]
    image, cell = torch.tensor([0, 1, 1, 0]), torch.tensor([45, 190, 240 + 33, 240 + 60 + 7])
    around = branches.neighbourhoods(levels, image, cell)
    found = torch.cat([branches.of_cells(*pair) for pair in zip(net.head.extra, around, strict=True)])
    whole = torch.cat([branch(x).flatten(2) for branch, x in zip(net.head.extra, levels, strict=True)], 2)
    torch.testing.assert_close(found, whole[image, :, cell], atol=5e-3, rtol=1e-2)


def test_keypoints_follow_a_view_that_mirrors(cache: Path) -> None:
    frames = Frames.load(cache / RENDER.name, "cpu")
    rows, size = torch.arange(len(frames)), (180, 320)
    plain = look(frames, rows, torch.ones(len(frames), 2), torch.zeros(len(frames), 2), size).keypoints
    scale, offset = torch.tensor([[-1.0, 1.0]] * len(frames)), torch.tensor([[320.0, 0.0]] * len(frames))
    mirrored = look(frames, rows, scale, offset, size).keypoints
    assert plain is not None and mirrored is not None and (plain[..., 2] > 0).any()
    back = mirrored[:, :, MIRRORED]
    seen = back[..., 2] > 0
    torch.testing.assert_close(320 - back[seen][:, 0], plain[seen][:, 0], atol=1e-3, rtol=0)
    torch.testing.assert_close(back[seen][:, 1], plain[seen][:, 1], atol=1e-3, rtol=0)


def test_the_number_of_an_object_is_its_row(cache: Path) -> None:
    supply = Supply([RENDER], cache, "cpu")
    (frames,) = supply.frames
    assert frames.masks is not None
    for index in range(len(frames)):
        for number in frames.masks[index].unique().tolist():
            if number:
                y, x = torch.nonzero(frames.masks[index] == number, as_tuple=True)
                x1, y1, x2, y2 = frames.boxes[index, number - 1].tolist()
                assert (x.min(), y.min(), x.max() + 1, y.max() + 1) == (x1, y1, x2, y2)
