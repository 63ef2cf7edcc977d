"""Harder pictures of people for body-n, and weights that are taken from a shipped file. Needs PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra train")

from framefuse.common.files import file_hash  # noqa: E402
from framefuse.errors import ModelError, UsageError  # noqa: E402
from training import compose, export, nets, shipped, train  # noqa: E402
from training.augment import Augmentation  # noqa: E402
from training.data import Frames, Supply  # noqa: E402
from training.portraits import Portraits  # noqa: E402
from training.recipe import RECIPES  # noqa: E402
from training.rendering import NONE, Render, render  # noqa: E402

pytestmark = pytest.mark.slow

SIZE = (96, 160)
BODIES = Render("bodies", 2, 4, size=(160, 96), seed=5)
PORTRAITS = Render("portraits", 2, 4, size=(160, 96), seed=5)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in nets.WIDTHS:
        monkeypatch.setitem(nets.WIDTHS, name, nets.Width((8, 16, 16, 16, 16), (1, 1, 1, 1), head=16))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def square(count: int = 4) -> Frames:
    """A white torso in the middle of black frames."""
    images, masks = torch.zeros(count, 64, 96, 3, dtype=torch.uint8), torch.zeros(count, 64, 96, dtype=torch.uint8)
    images[:, 16:48, 32:64], masks[:, 16:48, 32:64] = 255, compose.TORSO
    boxes, classes = torch.zeros(count, 2, 4), torch.full((count, 2), NONE)
    return Frames(images, boxes, classes, torch.zeros(count), masks, {0: "background"}, 1)


def test_portraits_follow_from_their_seed_and_have_parts() -> None:
    world = Portraits(7, (160, 96), "train")
    first, again, other = world[3], Portraits(7, (160, 96), "train")[3], Portraits(7, (160, 96), "val")[3]
    np.testing.assert_array_equal(first.image, again.image)
    assert not np.array_equal(first.image, other.image)
    assert first.image.shape == (96, 160, 3) and first.truth.class_mask.shape == (96, 160)
    found = np.bincount(np.concatenate([world[k].truth.class_mask.ravel() for k in range(8)]), minlength=8)
    assert (found[:5] > 0).all() and not found[5:].any(), "heads, torsos and arms before a background"
    assert world.names == BODIES.world(0).names


def test_rendered_portraits_are_masked_frames_with_a_version_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = render(PORTRAITS, tmp_path, processes=1)
    frames = Frames.load(folder, "cpu")
    assert frames.masks is not None and frames.masks.any() and len(frames) == PORTRAITS.count
    before = (folder / "facts.json").stat().st_mtime_ns
    monkeypatch.setattr(Portraits, "version", Portraits.version + 1)
    render(PORTRAITS, tmp_path, processes=1)
    assert (folder / "facts.json").stat().st_mtime_ns > before, "pictures of another version are rendered again"


def test_people_are_cut_out_by_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With black cloth, no light and no camera, what is white is the person."""
    monkeypatch.setattr(compose, "degraded", lambda images, *_: images)
    monkeypatch.setattr(compose, "textures", lambda count, size, chance: torch.zeros(count, 3, *size))
    monkeypatch.setattr(compose, "_dressed", lambda own, *_: own)
    made = compose.compose(square(), Augmentation(), 16, SIZE, torch.Generator().manual_seed(1))
    assert made.masks is not None and set(made.masks.unique().tolist()) == {0, compose.TORSO}
    inside = made.masks > 0
    assert 0.02 < inside.float().mean() < 0.98
    # Padding is grey, shade dims the person, and edges are soft.
    assert ((made.images.amax(1) > 0.46) == inside).float().mean() > 0.93
    assert (made.objects.classes == NONE).all()


def test_composed_pictures_follow_from_their_seed() -> None:
    first, again, other = (
        compose.compose(square(), Augmentation(), 3, SIZE, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5)
    )
    assert torch.equal(first.images, again.images) and not torch.equal(first.images, other.images)
    assert first.images.shape == (3, 3, *SIZE) and 0 <= first.images.min() <= first.images.max() <= 1
    assert first.masks is not None and first.masks.shape == (3, *SIZE) and first.masks.dtype == torch.int64


def test_compression_keeps_what_its_steps_keep() -> None:
    images = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    fine = compose.compressed(images, torch.full((2, 1, 1, 1), 1e-4))
    torch.testing.assert_close(fine, images, atol=2e-3, rtol=0)
    coarse = compose.compressed(images, torch.full((2, 1, 1, 1), 3.0))
    blocks = coarse.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4).flatten(4)
    assert float(blocks.std(-1).max()) < 1e-5, "only the mean of a block is left"


def test_motion_moves_nothing_on_a_plain_image() -> None:
    images = torch.full((2, 3, 16, 24), 0.3)
    moved = compose._moved(images, lambda *shape: torch.rand(*shape))
    torch.testing.assert_close(moved, images)


def trained(folder: Path, **changes: Any) -> train.Trainer:
    for what in (BODIES, PORTRAITS):
        render(what, folder, processes=1)
    settings: dict[str, Any] = {
        "renders": (BODIES, PORTRAITS), "validate_on": BODIES, "test_on": BODIES, "steps": 3, "batch": 5, "size": SIZE,
        "warmup": 1, "checks": 1, "bfloat16": False,
    }  # fmt: skip
    recipe = replace(RECIPES["body-n"], **settings | changes)
    return train.Trainer(recipe, Supply(recipe.renders, folder, "cpu"), "cpu", folder / "out")


def test_a_training_begins_with_the_shipped_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "DATA", tmp_path)
    first = trained(tmp_path)
    assert first.batch().images.shape == (5, 3, *SIZE) and 0 < first.recipe.augmentation.composed < 1
    assert {first.supply.pick(k / 9).painted for k in range(10)} == {False}
    assert {first.supply.pick(k / 9, painted=True).painted for k in range(10)} == {False, True}
    first.run()
    scores = {"miou": 0.5, "miou_body": 0.6}
    net, record = export.load(first.release({"test": scores}))
    net.eval()
    images = torch.rand(2, 3, *SIZE)
    with torch.no_grad():
        wanted = net.features(images)  # export folds the normalisation, in place
    for binary in (False, True):
        export.export(net, record, tmp_path, binary=binary)

    second = trained(tmp_path, shipped=True, seed=9)
    second.net.eval()
    with torch.no_grad():
        for head, expected in zip(second.net.features(images), wanted, strict=True):
            torch.testing.assert_close(head, expected, rtol=1e-3, atol=1e-3)
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in second.net.modules())
    second.run()
    assert second.recipe.record()["shipped"] is True


def test_weights_of_another_network_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path)
    net, record = export.load(first.release({"test": {"miou": 0.5, "miou_body": 0.6}}))
    for binary in (False, True):
        export.export(net, record, tmp_path, binary=binary)
    monkeypatch.setitem(nets.WIDTHS, "body-n", nets.Width((8, 16, 24, 16, 16), (1, 1, 1, 1), head=16))
    with pytest.raises(ModelError, match="do not fit body-n") as caught:
        shipped.restore(nets.build("body-n", 8), "body-n", tmp_path, torch.rand(1, 3, *SIZE))
    assert caught.value.remedy


@pytest.mark.parametrize("size", [(100, 160), (0, 64), (64, -32)])
def test_a_canvas_that_no_network_takes_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="size is"):
        replace(RECIPES["body-n"], size=size)


def test_the_card_has_the_figures_of_real_footage_of_exactly_this_model(tmp_path: Path) -> None:
    model, record = tmp_path / "body-n.onnx", tmp_path / "selfie.json"
    model.write_bytes(b"weights")
    assert export.real_footage(model, record) == {}
    rows = [
        {"of": "carphone", "sha256": file_hash(model), "iou": {"mean": 0.71234}},
        {"of": "astronaut", "sha256": "another's", "iou": {"mean": 0.9}},
    ]
    record.write_text(json.dumps({"peer": "mediapipe 1", "shipped": rows}))
    found = export.real_footage(model, record)["real"]
    assert found == {"on": "mean IoU with the masks of mediapipe 1, by benchmarks/selfie.py", "carphone": 0.712}
    model.write_bytes(b"others")
    assert export.real_footage(model, record) == {}
