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
from training import checkpoint, export, losses, nets, scores, train  # noqa: E402
from training.augment import Augmentation, draw, fitted, look  # noqa: E402
from training.checkpoint import TrainingStopped  # noqa: E402
from training.data import Frames, Supply  # noqa: E402
from training.losses import Objects, detection_loss, segmentation_loss  # noqa: E402
from training.recipe import RECIPES, Recipe  # noqa: E402
from training.rendering import IGNORED, NONE, Render, render  # noqa: E402
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
    assert {trained.supply.pick(k / 9, largest=True).pictures.shape[2] for k in range(10)} == {320}
    assert {trained.supply.pick(k / 9).pictures.shape[2] for k in range(10)} == {160, 320}
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
    with pytest.raises(ModelError, match="nothing that this version"):
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
        (lambda s: s["net"].pop(_first(s["net"])), r"does not fit scout-n .* Missing key\(s\)"),
        (lambda s: s["net"].update({_first(s["net"]): torch.zeros(3)}), "does not fit scout-n .* size mismatch"),
        (lambda s: s["optimizer"]["param_groups"].pop(), "does not fit scout-n .* parameter groups"),
        (lambda s: s["average"][_first(s["average"])].fill_(float("nan")), "holds NaN or infinity, in backbone"),
        (lambda s: s["net"][_first(s["net"])].fill_(float("inf")), "holds NaN or infinity, in backbone"),
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
    for broken in ("pictures", "boxes"):
        folder = tmp_path / broken / STREET.name
        shutil.copytree(cache / STREET.name, folder)
        if broken == "boxes":
            (folder / "boxes.npy").unlink()
        else:
            os.truncate(folder / "pictures.npy", 1000)
        with pytest.raises(SourceError, match="is damaged") as caught:
            Supply((STREET,), tmp_path / broken, "cpu")
        assert "render it again" in str(caught.value.remedy)


COMMANDS = [
    ("train", ("scout-n", "--steps", "0"), 2, "error: steps is 0\n  -> --steps takes a whole number from 1"),
    ("train", ("scout-n", "--device", "tpu"), 2, "error: device is 'tpu'"),
    ("train", ("scout-n", "--device", "cpu", "--out", "/proc/x"), 1, "nothing can be written into /proc/x/scout-n"),
    ("train", ("scout-n", "--device", "cpu", "--processes", "0"), 2, "'0' is no whole number from 1"),
    ("train", ("scout-n", "--device", "cpu", "--patience", "-1"), 2, "'-1' is no number of seconds"),
    ("train", ("scout-n", "--device", "cpu", "--patience", "0.1"), 1, "is not complete after 0 s"),
    ("rendering", ("scout-n", "--cache", "/proc/x"), 1, "4000 frames cannot be rendered into /proc/x"),
    ("rendering", ("scout-n", "--processes", "-1"), 2, "'-1' is no whole number from 1"),
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
    with pytest.raises(UsageError, match=r"last\.pt is there, of an earlier training") as caught:
        train.main()
    assert "--resume goes on with it" in str(caught.value.remedy)
    assert (tmp_path / "scout-n" / "last.pt").read_bytes() == before


def test_a_full_disk_keeps_the_checkpoint_of_before(cache: Path, full_disk: Path) -> None:
    trained = trainer(cache, full_disk)
    trained.run(until=2)
    before = (full_disk / "last.pt").read_bytes()
    (full_disk / "others").write_bytes(bytes(3_000_000))
    with pytest.raises(SinkError, match=r"last\.pt cannot be written: .*; .*last\.pt of before is kept"):
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
        (lambda s: s["average"][_first(s["average"])].fill_(float("nan")), "holds NaN or infinity"),
        (lambda s: s["average"].pop(_first(s["average"])), "does not fit the networks"),
        (lambda s: s.update(name="scout-xl"), "does not fit the networks"),
        (lambda s: s.update(scores={}), "does not fit the networks"),
        (lambda s: s.pop("scores"), "nothing that this version"),
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
    pictures = [torch.rand(2, 3, 96, 160), torch.rand(1, 3, 160, 64)]
    with torch.no_grad():
        expected = [net(picture).numpy() for picture in pictures]
    path = export.export(net, record, tmp_path, binary=binary)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for picture, wanted in zip(pictures, expected, strict=True):
        np.testing.assert_allclose(session.run(None, {"images": picture.numpy()})[0], wanted, rtol=1e-3, atol=1e-3)
    card = read_card(path)
    assert card.dynamic_size and card.dynamic_batch and card.class_count == (2 if binary else 8)
    assert card.task == nets.TASKS[name]


def test_average_precision_is_that_of_coco() -> None:
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(0)
    found, truth, images, rows, results = [], [], [], [], []

    def xywh(box: Any) -> list[float]:
        return [float(value) for value in (box[0], box[1], box[2] - box[0], box[3] - box[1])]

    for image in range(1, 13):
        classes, corner = rng.integers(0, 2, 9), rng.uniform(0, 200, (9, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(8, 120, (9, 2))], 1).astype(np.float32)
        moved = boxes + rng.normal(0, 4, boxes.shape).astype(np.float32)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        guessed, confidence = np.where(rng.random(9) < 0.8, classes, 1), rng.random(9)
        order = np.argsort(-confidence)
        found.append(scores.Found(moved[order], confidence[order], guessed[order]))
        truth.append(scores.Truth(boxes, classes))
        images.append({"id": image, "width": 320, "height": 320})
        for row in range(9):
            shared = {"image_id": image, "area": 1.0, "iscrowd": 0, "id": len(rows) + 1}
            rows.append({**shared, "category_id": int(classes[row]) + 1, "bbox": xywh(boxes[row])})
            mine = {"image_id": image, "category_id": int(guessed[row]) + 1, "bbox": xywh(moved[row])}
            results.append({**mine, "score": float(confidence[row])})
    data = coco.COCO()
    data.dataset = {"images": images, "annotations": rows, "categories": [{"id": 1}, {"id": 2}], "info": {}}
    data.createIndex()
    judge = evaluation.COCOeval(data, data.loadRes(results), "bbox")
    judge.evaluate()
    judge.accumulate()
    ours = scores.average_precision(found, truth, 2)
    np.testing.assert_allclose(ours, judge.eval["precision"][:, :, :, 0, 2].mean(1).T, atol=1e-9)

    # One more object in every picture, ignored, and a detection of it that is surer than all: nothing changes.
    extra = np.array([[250, 250, 300, 300]], np.float32)
    for image in range(12):
        f, t = found[image], truth[image]
        truth[image] = scores.Truth(np.concatenate([t.boxes, extra]), np.append(t.classes, IGNORED))
        found[image] = scores.Found(
            np.concatenate([extra, f.boxes]), np.append(2.0, f.scores), np.append(image % 2, f.classes)
        )
    np.testing.assert_allclose(scores.average_precision(found, truth, 2), ours, atol=1e-9)


def test_suppression_is_greedy() -> None:
    generator = torch.Generator().manual_seed(1)
    corner = torch.rand(3, 60, 2, generator=generator) * 60
    boxes = torch.cat([corner, corner + 10 + 40 * torch.rand(3, 60, 2, generator=generator)], -1)
    values = torch.rand(3, 60, generator=generator).sort(1, descending=True).values
    classes = torch.randint(0, 2, (3, 60), generator=generator)
    kept = scores.suppress(boxes, values, classes)
    for picture in range(3):
        chosen: list[int] = []
        for row in range(60):
            rivals = [r for r in chosen if classes[picture, r] == classes[picture, row]]
            if all(losses.iou(boxes[picture, row], boxes[picture, r]) <= scores.OVERLAP for r in rivals):
                chosen.append(row)
        assert kept[picture].nonzero().flatten().tolist() == chosen


def test_boxes_and_masks_follow_the_view() -> None:
    """A white box on black: where the picture is white in the view, there are box and mask."""
    pictures = torch.zeros(1, 60, 100, 3, dtype=torch.uint8)
    pictures[0, 20:40, 30:70] = 255
    masks = torch.zeros(1, 60, 100, dtype=torch.uint8)
    masks[0, 20:40, 30:70] = 3
    frames = Frames(
        pictures, torch.tensor([[[30.0, 20, 70, 40], [0, 0, 0, 0]]]), torch.tensor([[1, NONE]]), torch.zeros(1), masks,
        {0: "a", 1: "b"}, 1,
    )  # fmt: skip
    for scale, offset in (([1.0, 1.0], [0.0, 0.0]), ([-0.8, 1.2], [90.0, -5.0]), ([2.0, 2.0], [-60.0, -40.0])):
        seen = look(frames, torch.tensor([0]), torch.tensor([scale]), torch.tensor([offset]), (64, 96))
        white = seen.pictures[0].mean(0) > 0.5
        rows, columns = white.any(1).nonzero(), white.any(0).nonzero()
        found = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        torch.testing.assert_close(seen.objects.boxes[0, 0], found.float(), atol=1.0, rtol=0)
        assert seen.objects.classes[0].tolist() == [1, NONE]
        assert seen.masks is not None and ((seen.masks[0] == 3) == white).float().mean() > 0.98
    beside = look(frames, torch.tensor([0]), torch.ones(1, 2), torch.tensor([[-60.0, 0.0]]), (64, 96))
    assert beside.objects.classes[0].tolist() == [IGNORED, NONE]  # a quarter of it is left
    centred = fitted(frames, torch.tensor([0]), (64, 96))
    assert centred.pictures.shape == (1, 3, 64, 96)


def test_a_batch_follows_from_its_seed(cache: Path) -> None:
    frames = Frames.load(cache / STREET.name, "cpu")
    for mosaic in (False, True):
        first, second, other = (
            draw(frames, Augmentation(), 2, SIZE, torch.Generator().manual_seed(seed), mosaic=mosaic)
            for seed in (4, 4, 5)
        )
        assert torch.equal(first.pictures, second.pictures) and torch.equal(first.objects.boxes, second.objects.boxes)
        assert not torch.equal(first.pictures, other.pictures)
        assert first.pictures.shape == (2, 3, *SIZE) and 0 <= first.pictures.min() <= first.pictures.max() <= 1


def test_cells_answer_for_the_object_they_lie_in() -> None:
    centres, strides = nets.grid([(8, 8), (4, 4), (2, 2)], torch.device("cpu"))
    points = (centres * strides).T
    truth = Objects(torch.tensor([[[8.0, 8, 40, 40], [50, 50, 53, 53], [0, 0, 0, 0]]]), torch.tensor([[1, 0, NONE]]))
    boxes = torch.cat([points - 12, points + 12], 1)[None]
    number, target, free = losses.assign(torch.full((1, len(points), 2), 0.5), boxes, points, truth)
    chosen = target[0] > 0
    assert not free.any() and set(number[0, chosen].tolist()) == {0, 1}  # the tiny one has cells too
    for point, row in zip(points[chosen], number[0, chosen], strict=True):
        if row == 0:
            assert (point > 8).all() and (point < 40).all()
    ignored = replace(truth, classes=torch.tensor([[IGNORED, 0, NONE]]))
    _, _, free = losses.assign(torch.full((1, len(points), 2), 0.5), boxes, points, ignored)
    assert free.any() and ((points[free[0]] > 8) & (points[free[0]] < 40)).all()


def test_a_picture_without_objects_has_a_finite_loss() -> None:
    raw = [torch.zeros(1, 4 * nets.BINS + 2, side, side, requires_grad=True) for side in (8, 4, 2)]
    parts = detection_loss(raw, Objects(torch.zeros(1, 3, 4), torch.full((1, 3), NONE)))
    parts["loss"].backward()
    assert all(torch.isfinite(value) for value in parts.values()) and torch.isfinite(raw[0].grad).all()
    masks = segmentation_loss([torch.zeros(1, c, 8, 8) for c in (8, 2)], torch.zeros(1, 8, 8, dtype=torch.long))
    assert torch.isfinite(masks["loss"])
