"""How the shipped models are made, at smoke size on the CPU. Needs PyTorch (extra `train`): see training/README.md."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra train")

from framefuse.errors import CapabilityError, ModelError, SinkError, SourceError, UsageError  # noqa: E402
from framefuse.models.card import read_card  # noqa: E402
from training import checkpoint, export, nets, train  # noqa: E402
from training.augment import Augmentation, draw  # noqa: E402
from training.checkpoint import TrainingStopped  # noqa: E402
from training.data import Frames, Supply  # noqa: E402
from training.recipe import RECIPES, Recipe  # noqa: E402
from training.rendering import Render, render  # noqa: E402
from training.train import Trainer  # noqa: E402

pytestmark = pytest.mark.slow

SIZE = (96, 160)
STREET = Render("street", 3, 4, size=(160, 96), seed=5, busy=True)
BODIES = Render("bodies", 2, 4, size=(160, 96), seed=5, stereo="sbs")
DISK_KB = 6000


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    for what in (STREET, BODIES):
        render(what, folder, processes=1)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Networks of a few thousand weights, a look at the loss every second step, one thread."""
    for name in nets.WIDTHS:
        monkeypatch.setitem(nets.WIDTHS, name, nets.Width((8, 16, 16, 16, 16), (1, 1, 1, 1), head=16))
    monkeypatch.setattr(train, "LOOK", 2)
    monkeypatch.setattr(train, "KEEP", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe(name: str = "scout-n", **changes: Any) -> Recipe:
    what = BODIES if name == "body-n" else STREET
    settings: dict[str, Any] = {
        "renders": (what,), "validate_on": what, "test_on": what, "steps": 8, "batch": 4, "size": SIZE, "warmup": 2,
        "checks": 1, "bfloat16": False, "half": 0.0,
    }  # fmt: skip
    return replace(RECIPES[name], **settings | changes)


def trainer(cache: Path, folder: Path, name: str = "scout-n", **changes: Any) -> Trainer:
    made = recipe(name, **changes)
    return Trainer(made, Supply(made.renders, cache, "cpu"), "cpu", folder)


def losses_of(trained: Trainer) -> list[float]:
    return [row["loss"] for row in trained.curve if "loss" in row]


@pytest.mark.parametrize("name", ["scout-n", "body-n"])
def test_it_learns(cache: Path, tmp_path: Path, name: str) -> None:
    trained = trainer(cache, tmp_path, name, steps=160, augmentation=Augmentation(plain=1.0, mosaic=0.0))
    trained.run(validate=Frames.load(cache / trained.recipe.validate_on.name, "cpu"))
    found = losses_of(trained)
    assert np.mean(found[-10:]) < 0.75 * np.mean(found[:10])
    assert any("map50_95" in row or "miou" in row for row in trained.curve)


def test_a_part_of_the_batches_is_at_half_the_size_and_made_of_the_largest_frames(tmp_path: Path) -> None:
    large = replace(STREET, size=(320, 192))
    for what in (STREET, large):
        render(what, tmp_path, processes=1)
    trained = trainer(tmp_path, tmp_path, renders=(STREET, large), size=(64, 128), half=0.5)
    assert {trained.supply.pick(k / 9, largest=True).images.shape[2] for k in range(10)} == {320}
    assert {trained.supply.pick(k / 9).images.shape[2] for k in range(10)} == {160, 320}
    trained.run()
    assert set(trained.warm) == {torch.Size((4, 3, 64, 128)), torch.Size((8, 3, 32, 64))}


def test_calm_frames_are_scored_at_both_sizes_on_the_way(tmp_path: Path) -> None:
    calm = Render("street", 2, 3, "val", size=(320, 192), seed=9, complexity=0.0)
    large = Render("street", 2, 3, size=(320, 192), seed=8, busy=True)
    for what in (calm, large):
        render(what, tmp_path, processes=1)
    frames = Frames.load(tmp_path / calm.name, "cpu")
    assert float(frames.complexity.max()) == 0
    trained = trainer(tmp_path, tmp_path, renders=(large,), size=(192, 320), steps=2, batch=2)
    assert trained.half_size == (96, 160)
    trained.run(validate=frames, calm=frames)
    (row,) = [row for row in trained.curve if "calm" in row]
    assert row["calm"] == [row["map50_95"], trained.score(frames, (96, 160))["map50_95"]]


def test_a_resumed_training_gives_the_curve_of_an_uninterrupted_one(cache: Path, tmp_path: Path) -> None:
    whole = trainer(cache, tmp_path / "whole")
    whole.run()
    first = trainer(cache, tmp_path / "parts")
    first.run(until=4)
    second = trainer(cache, tmp_path / "parts")
    second.resume()
    assert second.step == 4
    second.run()
    np.testing.assert_allclose(losses_of(second), losses_of(whole), rtol=1e-3)
    for mine, theirs in zip(second.average.parameters(), whole.average.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.99])
def test_a_truncated_checkpoint_is_a_clear_error(cache: Path, tmp_path: Path, kept: float) -> None:
    trained = trainer(cache, tmp_path)
    trained.run(until=2)
    path = tmp_path / "last.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept > 1 else kept * len(whole))])
    with pytest.raises(ModelError, match=r"last\.pt is truncated or damaged .* bytes") as caught:
        trainer(cache, tmp_path).resume()
    assert caught.value.remedy


def test_other_files_are_no_checkpoints(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no checkpoint"):
        trainer(cache, tmp_path).resume()
    torch.save({"weights": torch.zeros(3)}, tmp_path / "last.pt")
    with pytest.raises(ModelError, match="was not written by this version"):
        trainer(cache, tmp_path).resume()


def test_bytes_that_have_changed_are_noticed(cache: Path, tmp_path: Path) -> None:
    trainer(cache, tmp_path).run(until=2)
    path = tmp_path / "last.pt"
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 2000):  # in the middle of the weights
        content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"last\.pt is truncated or damaged"):
        trainer(cache, tmp_path).resume()


def _first(weights: dict[str, Any]) -> str:
    return next(iter(weights))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(recipe=None), "its recipe is None"),
        (lambda s: s.update(facts=3), "its facts is 3"),
        (lambda s: s.update(curve=None), "its curve is None"),
        (lambda s: s.update(step="four"), "its step is four"),
        (lambda s: s.update(step=-3), "its step is -3"),
        (lambda s: s.update(seconds=float("nan")), "its seconds is nan"),
        (lambda s: s.update(optimizer="x"), "its optimizer is x"),
        (lambda s: s.update(net="x"), "its net is x"),
        (lambda s: s["net"].update({_first(s["net"]): 3}), "its net is OrderedDict"),
        (lambda s: s["net"].pop(_first(s["net"])), r"does not fit scout-n: .* Missing key\(s\)"),
        (lambda s: s["net"].update({_first(s["net"]): torch.zeros(3)}), "does not fit scout-n: .* size mismatch"),
        (lambda s: s["optimizer"]["param_groups"].pop(), "does not fit scout-n: .* parameter groups"),
        (lambda s: s["average"][_first(s["average"])].fill_(float("nan")), "has NaN or infinity in backbone"),
        (lambda s: s["net"][_first(s["net"])].fill_(float("inf")), "has NaN or infinity in backbone"),
        (lambda s: s.update(names={0: "cat"}), "trained with another names: names {0: 'cat'}"),
        (lambda s: s["facts"].update(world=1), "trained with another world: world 1, now"),
        (lambda s: s["recipe"].update(name="scout-s"), "trained with another name: name 'scout-s', now 'scout-n'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_a_clear_error(
    cache: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    trainer(cache, tmp_path).run(until=2)
    path = tmp_path / "last.pt"
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    fresh = trainer(cache, tmp_path)
    with pytest.raises((ModelError, UsageError), match=message) as caught:
        fresh.resume()
    assert caught.value.remedy and fresh.step == 0


def test_weights_that_are_not_finite_are_not_kept(cache: Path, tmp_path: Path) -> None:
    trained = trainer(cache, tmp_path)
    trained.run(until=2)
    kept = (tmp_path / "last.pt").read_bytes()
    next(trained.net.parameters()).data.fill_(float("nan"))
    with pytest.raises(TrainingStopped, match="of scout-n is not finite at step 2"):
        trained.save()
    assert (tmp_path / "last.pt").read_bytes() == kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"), ({"steps": -4}, "steps is -4"), ({"seconds": 0.0}, "seconds is 0"),
        ({"seconds": float("nan")}, "seconds is nan"), ({"rate": 0.0}, "rate is 0"),
        ({"rate": float("nan")}, "rate is nan"), ({"rate": float("inf")}, "rate is inf"), ({"batch": 0}, "batch is 0"),
    ],
)  # fmt: skip
def test_numbers_of_a_recipe_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        recipe(**options)
    assert f"--{next(iter(options))} takes" in str(caught.value.remedy)


def test_what_nothing_trains_on() -> None:
    for name in ("tpu", "meta", ""):
        with pytest.raises(UsageError, match=f"device is '{name}'"):
            train.device_of(name)
    with pytest.raises(CapabilityError, match="PyTorch finds"):
        train.device_of("cuda:99")


def test_a_damaged_rendering_is_a_clear_error(cache: Path, tmp_path: Path) -> None:
    for broken in ("images", "boxes"):
        folder = tmp_path / broken / STREET.name
        shutil.copytree(cache / STREET.name, folder)
        if broken == "boxes":
            (folder / "boxes.npy").unlink()
        else:
            os.truncate(folder / "images.npy", 1000)
        with pytest.raises(SourceError, match="is damaged") as caught:
            Supply((STREET,), tmp_path / broken, "cpu")
        assert "render it again" in str(caught.value.remedy)


COMMANDS = [
    ("train", ("scout-n", "--steps", "0"), 2, "error: steps is 0\n  -> --steps takes a whole number from 1"),
    ("train", ("scout-n", "--device", "tpu"), 2, "error: device is 'tpu'"),
    ("train", ("scout-n", "--device", "cpu", "--out", "/proc/x"), 1, "cannot write into /proc/x/scout-n"),
    ("train", ("scout-n", "--device", "cpu", "--processes", "0"), 2, "'0' is not a whole number from 1"),
    ("train", ("scout-n", "--device", "cpu", "--patience", "-1"), 2, "'-1' is not a number of seconds"),
    ("train", ("scout-n", "--device", "cpu", "--patience", "0.1"), 1, "is not complete after 0 s"),
    ("rendering", ("scout-n", "--cache", "/proc/x"), 1, "4000 frames cannot be rendered into /proc/x"),
    ("rendering", ("scout-n", "--processes", "-1"), 2, "'-1' is not a whole number from 1"),
    ("export", ("none.pt",), 1, "there is no checkpoint none.pt"),
    ("export", ("text.pt",), 1, "checkpoint text.pt is truncated or damaged"),
]


@pytest.mark.parametrize(("command", "words", "code", "message"), COMMANDS)
def test_commands_say_what_is_wrong_without_a_traceback(
    tmp_path: Path, command: str, words: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    paths = os.pathsep.join([str(Path(train.__file__).parent.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", f"training.{command}", *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == code


def test_a_training_writes_over_no_other(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(cache, tmp_path / "scout-n").run(until=2)
    before = (tmp_path / "scout-n" / "last.pt").read_bytes()
    monkeypatch.setattr(sys, "argv", ["train", "scout-n", "--device", "cpu", "--out", str(tmp_path)])
    with pytest.raises(UsageError, match=r"last\.pt of an earlier training exists") as caught:
        train.main()
    assert "continue it with --resume" in str(caught.value.remedy)
    assert (tmp_path / "scout-n" / "last.pt").read_bytes() == before


def test_a_full_disk_keeps_the_checkpoint_of_before(cache: Path, full_disk: Path) -> None:
    trained = trainer(cache, full_disk)
    trained.run(until=2)
    before = (full_disk / "last.pt").read_bytes()
    (full_disk / "others").write_bytes(bytes(3_000_000))
    with pytest.raises(SinkError, match=r"last\.pt cannot be written: .*; the previous .*last\.pt is kept"):
        trained.run(until=4)
    assert sorted(os.listdir(full_disk)) == ["last.pt", "others"] and (full_disk / "last.pt").read_bytes() == before


def test_frames_that_do_not_fit_are_said_before_they_are_rendered(full_disk: Path) -> None:
    with pytest.raises(SinkError, match=r"720 frames cannot be rendered into .*: No space left on device") as caught:
        render(replace(STREET, worlds=180), full_disk, processes=1)
    assert "--cache" in str(caught.value.remedy) and os.listdir(full_disk) == []


def test_what_is_shipped_is_finite_and_of_our_networks(cache: Path, tmp_path: Path) -> None:
    trained = trainer(cache, tmp_path, steps=2)
    trained.run()
    path = trained.release({"test": {"map50_95": 0.5, "by_class": {}}})
    state = torch.load(path, weights_only=True)
    for change, message in (
        (lambda s: s["average"][_first(s["average"])].fill_(float("nan")), "has NaN or infinity"),
        (lambda s: s["average"].pop(_first(s["average"])), "does not fit the current networks"),
        (lambda s: s.update(name="scout-xl"), "does not fit the current networks"),
        (lambda s: s.update(scores={}), "does not fit the current networks"),
        (lambda s: s.pop("scores"), "was not written by this version"),
    ):
        changed = copy.deepcopy(state)
        change(changed)
        torch.save(changed, tmp_path / "bad.pt")
        with pytest.raises(ModelError, match=message) as caught:
            export.load(tmp_path / "bad.pt")
        assert caught.value.remedy


def test_a_checkpoint_of_another_recipe_is_refused(cache: Path, tmp_path: Path) -> None:
    trainer(cache, tmp_path).run(until=2)
    with pytest.raises(UsageError, match=r"another batch, seed: batch 4, now 2"):
        trainer(cache, tmp_path, batch=2, seed=9).resume()


def test_nan_stops_with_the_last_good_checkpoint_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = trainer(cache, tmp_path)
    good.run(until=4)
    bad = trainer(cache, tmp_path)
    bad.resume()
    honest = train.detection_loss
    monkeypatch.setattr(
        train, "detection_loss", lambda *given: {k: v * float("nan") for k, v in honest(*given).items()}
    )
    with pytest.raises(TrainingStopped, match="not finite between step 4 and 6") as caught:
        bad.run()
    assert "last.pt" in str(caught.value.remedy)
    kept = checkpoint.load(tmp_path / "last.pt")
    assert kept["step"] == 4
    assert all(torch.isfinite(value).all() for value in kept["net"].values())


def test_seed_and_recipe_are_recorded(cache: Path, tmp_path: Path) -> None:
    trained = trainer(cache, tmp_path, steps=2, seed=77)
    trained.run()
    trained.release({"test": {"map50_95": 0.5, "by_class": {}}})
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["recipe"]["seed"] == 77 and record["world"] >= 1 and record["step"] == 2
    _, known = export.load(tmp_path / "weights.pt")
    export.keep_record(known, tmp_path / "results")
    kept = json.loads((tmp_path / "results" / "scout-n.json").read_text())
    assert kept["recipe"]["seed"] == 77 and kept["curve"][-1]["step"] == 2
    assert (tmp_path / "results" / "scout-n.png").stat().st_size < 100_000


def test_frames_that_are_not_rendered_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not complete after 0 s"):
        Supply((STREET,), tmp_path, "cpu")


@pytest.mark.parametrize(("name", "binary"), [("scout-n", False), ("body-n", False), ("body-n", True)])
def test_the_onnx_computes_what_the_network_computes(tmp_path: Path, name: str, binary: bool) -> None:
    import onnxruntime

    torch.manual_seed(0)
    net = nets.build(name, 8)
    net.train()
    for _ in range(3):  # running statistics that are not those of the start
        net.features(torch.rand(2, 3, 96, 160))
    net.eval()
    record = {
        "name": name,
        "names": {i: f"c{i}" for i in range(8)},
        "recipe": {"seed": 1},
        "world": 1,
        "parameters": nets.parameters(net),
        "scores": {"test": {"map50_95": 0.5, "miou": 0.5, "miou_body": 0.6, "by_class": {}}},
    }
    if binary:
        net.binary = True
    images = [torch.rand(2, 3, 96, 160), torch.rand(1, 3, 160, 64)]
    with torch.no_grad():
        expected = [net(image).numpy() for image in images]
    path = export.export(net, record, tmp_path, binary=binary)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for image, wanted in zip(images, expected, strict=True):
        np.testing.assert_allclose(session.run(None, {"images": image.numpy()})[0], wanted, rtol=1e-3, atol=1e-3)
    card = read_card(path)
    assert card.dynamic_size and card.dynamic_batch and card.class_count == (2 if binary else 8)
    assert card.task == nets.TASKS[name]


def test_a_batch_follows_from_its_seed(cache: Path) -> None:
    frames = Frames.load(cache / STREET.name, "cpu")
    for mosaic in (False, True):
        first, second, other = (
            draw(frames, Augmentation(), 2, SIZE, torch.Generator().manual_seed(seed), mosaic=mosaic)
            for seed in (4, 4, 5)
        )
        assert torch.equal(first.images, second.images) and torch.equal(first.objects.boxes, second.objects.boxes)
        assert not torch.equal(first.images, other.images)
        assert first.images.shape == (2, 3, *SIZE) and 0 <= first.images.min() <= first.images.max() <= 1
