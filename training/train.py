"""Trains a network according to its recipe.

    python -m training.train scout-n --out runs/train [--resume] [--device cuda] [--seconds 480] [--cache CACHE]

writes into OUT/scout-n/: last.pt, a checkpoint to resume from; and at the end weights.pt, which
`python -m training.export` ships, and record.json with the recipe, the curve and the scores.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from framefuse.errors import CapabilityError, ModelError, SinkError, UsageError
from training import checkpoint, nets, scores
from training.augment import Batch, draw
from training.checkpoint import TrainingStopped
from training.command import arguments, run, seconds
from training.compose import compose, joined
from training.data import Frames, Supply, wait_for
from training.export import DATA
from training.losses import Objects, detection_loss, segmentation_loss
from training.recipe import RECIPES, Recipe
from training.rendering import Render, render
from training.shipped import restore

FINAL = 0.02
"""Learning rate at the end, as a fraction of the peak."""
LOOK = 50
"""Steps between two reads of the loss, each of which waits for the GPU."""
KEEP = 60.0
"""Seconds between two checkpoints."""
EAGER = 12
"""Steps of a shape before capture, in which cuDNN chooses algorithms and the optimizer creates its state."""


class Trainer:
    """A network, its optimizer and its averaged weights; `run` trains from the current state."""

    def __init__(self, recipe: Recipe, supply: Supply, device: str, folder: Path, *, capture: bool = True) -> None:
        self.recipe, self.supply, self.folder = recipe, supply, folder
        self.device = device_of(device)
        self.names = supply.frames[0].names
        self.semantic = nets.TASKS[recipe.name] == "semantic"
        torch.manual_seed(recipe.seed)
        self.net = nets.build(recipe.name, len(self.names)).to(self.device, memory_format=torch.channels_last)
        self.step, self.seconds = 0, 0.0
        if recipe.shipped:
            restore(self.net, recipe.name, DATA, self.batch().images)
        self.average = nets.build(recipe.name, len(self.names)).to(self.device, memory_format=torch.channels_last)
        self.average.load_state_dict(self.net.state_dict())
        self.average.requires_grad_(False).eval()
        # These views stay valid, because load_state_dict copies in place.
        pairs = zip(self.average.state_dict().values(), self.net.state_dict().values(), strict=True)
        self.followers, self.leaders = zip(*((a, b) for a, b in pairs if a.is_floating_point()), strict=True)
        flat = [p for p in self.net.parameters() if p.ndim == 1]
        weights = [p for p in self.net.parameters() if p.ndim > 1]
        groups = [{"params": weights, "weight_decay": recipe.decay}, {"params": flat, "weight_decay": 0.0}]
        # On the GPU a tensor, because a captured step reads the rate from memory.
        cuda = self.device.type == "cuda"
        self.lr = torch.tensor(recipe.rate, device=self.device) if cuda else recipe.rate
        self.optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=(0.9, 0.99), fused=True, capturable=cuda)
        self.capture = cuda and capture
        self.captured: dict[torch.Size, Captured] = {}
        self.warm: Counter[torch.Size] = Counter()
        """Number of uncaptured steps by shape of their images."""
        self.curve: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {
            "torch": str(torch.__version__),
            "device": device_name(self.device),
            "world": supply.frames[0].world,
        }

    @property
    def progress(self) -> float:
        """Completed fraction of the schedule, 0..1."""
        done = self.step / self.recipe.steps
        return min(1.0, done if self.recipe.seconds is None else max(done, self.seconds / self.recipe.seconds))

    @property
    def half_size(self) -> tuple[int, int]:
        """Height and width of the half-size canvas, rounded up to multiples of 32, as the networks need."""
        height, width = (-(-side // 64) * 32 for side in self.recipe.size)
        return height, width

    def rate(self) -> float:
        """The learning rate of this step."""
        cosine = FINAL + (1 - FINAL) * (1 + math.cos(math.pi * self.progress)) / 2
        return self.recipe.rate * cosine * min(1.0, (self.step + 1) / max(1, self.recipe.warmup))

    def batch(self) -> Batch:
        """The batch of this step, a function of seed and step alone, so that a resumed run sees the same."""
        seed = self.recipe.seed * 1_000_003 + self.step
        which, kind, scale = torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()
        how, count, (height, width) = self.recipe.augmentation, self.recipe.batch, self.recipe.size
        generator = torch.Generator(self.device).manual_seed(seed)
        if scale < self.recipe.half:
            frames = self.supply.pick(which, largest=True)
            return draw(frames, how, 2 * count, (height // 2, width // 2), generator, mosaic=False)
        mosaic = kind < how.mosaic and self.progress < 1 - self.recipe.settle
        made = round(how.composed * count)
        drawn = draw(self.supply.pick(which), how, count - made, (height, width), generator, mosaic=mosaic)
        if not made:
            return drawn
        # In one batch, so that the normalisation sees both kinds at once; `kind` chooses, as there are no mosaics.
        return joined(drawn, compose(self.supply.pick(kind, painted=True), how, made, (height, width), generator))

    def learn(self) -> dict[str, Tensor]:
        """Run one step; returns the terms of its loss, still on the device.

        On a GPU the step is captured into a graph after a few steps, because the kernels of a small network take less
        time than their launches from Python.
        """
        batch = self.batch()
        self._set_rate()
        shape = batch.images.shape
        if self.capture and self.warm[shape] >= EAGER:
            if shape not in self.captured:
                self.captured[shape] = Captured(self, batch)
            parts = self.captured[shape].replay(batch)
        else:
            parts = self.update(batch)
            self.warm[shape] += 1
        self.step += 1
        self._follow()
        return parts

    def _set_rate(self) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(self.rate())
            return
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Forward pass, backward pass and weight update."""
        self.optimizer.zero_grad(set_to_none=True)
        self.net.train()
        enabled = self.recipe.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False):
            raw = self.net.features(batch.images.contiguous(memory_format=torch.channels_last))
        if self.semantic:
            assert batch.masks is not None
            full = [nn.functional.interpolate(r.float(), scale_factor=2.0, mode="bilinear") for r in raw]
            parts = segmentation_loss(full, batch.masks)
        else:
            parts = detection_loss(raw, batch.objects)
        parts["loss"].backward()
        parts["norm"] = nn.utils.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
        self.optimizer.step()
        return {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def _follow(self) -> None:
        """Update the averaged weights, quickly at first, so that the random start is forgotten."""
        keep = min(self.recipe.average, (1 + self.step) / (20 + self.step))
        torch._foreach_lerp_(self.followers, self.leaders, 1 - keep)

    def run(self, *, until: int | None = None, validate: Frames | None = None, calm: Frames | None = None) -> None:
        """Train to the end of the schedule, or to step `until`, with validations on `validate` and `calm` frames.

        Raises:
            TrainingStopped: the loss is NaN or infinite; the last good checkpoint is kept.
        """
        if self.device.type == "cuda":
            # Not on the default stream, where work cannot be captured.
            with torch.cuda.stream(torch.cuda.Stream()):
                self._run(until, validate, calm)
        else:
            self._run(until, validate, calm)

    def _run(self, until: int | None, validate: Frames | None, calm: Frames | None) -> None:
        begin, before = time.monotonic(), self.seconds
        saved = time.monotonic()
        sums: list[dict[str, Tensor]] = []
        checks = self.recipe.checks
        while self.progress < 1 and self.step < (until or self.recipe.steps):
            check = int(self.progress * checks)
            sums.append(self.learn())
            self.seconds = before + time.monotonic() - begin
            if len(sums) == LOOK or self.step == (until or self.recipe.steps) or self.progress >= 1:
                self._note(sums)
                sums = []
                if joined := self.supply.refresh():
                    self.curve.append({"step": self.step, "joined": joined})
                if time.monotonic() - saved > KEEP:
                    self.save()
                    saved = time.monotonic()
            if validate is not None and int(self.progress * checks) > check:
                self._check(validate, calm)
        if sums:
            self._note(sums)
        self.save()

    def _note(self, sums: list[dict[str, Tensor]]) -> None:
        """Add a row to the curve: means since the last row."""
        means = {name: torch.stack([row[name] for row in sums]).mean().item() for name in sums[0]}
        if not all(math.isfinite(value) for value in means.values()):
            raise self._stopped(
                f"the loss of {self.recipe.name} is not finite between step {self.step - len(sums)} and {self.step}: "
                + ", ".join(f"{name} {value:.4g}" for name, value in means.items())
            )
        row = {"step": self.step, "seconds": round(self.seconds, 1), "rate": self.rate(), **means}
        self.curve.append(row)
        print(f"{self.recipe.name} " + " ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)

    def _stopped(self, why: str) -> TrainingStopped:
        kept = self.folder / "last.pt"
        first = f"{kept} has the last good state; resume it" if kept.exists() else "no checkpoint yet; train"
        return TrainingStopped(why, remedy=f"{first} with a lower learning rate (--rate)")

    def _check(self, frames: Frames, calm: Frames | None) -> None:
        row = {"step": self.step, "seconds": round(self.seconds, 1), **self.score(frames)}
        if calm is not None:
            row["calm"] = [self.score(calm, size)["map50_95"] for size in (self.recipe.size, self.half_size)]
        self.curve.append(row)
        print(f"{self.recipe.name} check " + json.dumps(row), flush=True)

    def score(self, frames: Frames, size: tuple[int, int] | None = None) -> dict[str, Any]:
        """Scores of the averaged weights."""
        how = scores.segmenter_scores if self.semantic else scores.detector_scores
        return how(self.average, frames, size or self.recipe.size)

    def save(self) -> None:
        """Write last.pt.

        Raises:
            TrainingStopped: a weight is NaN or infinite; the previous checkpoint is kept.
            SinkError: it cannot be written; the previous checkpoint is kept.
        """
        if broken := checkpoint.first_not_finite(self.net.state_dict().items()):
            raise self._stopped(f"{broken} of {self.recipe.name} is not finite at step {self.step}")
        state = {
            "name": self.recipe.name,
            "names": self.names,
            "net": self.net.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "recipe": self.recipe.record(),
            "curve": self.curve,
            "facts": self.facts,
        }
        checkpoint.save(self.folder / "last.pt", state)

    def release(self, results: dict[str, Any]) -> Path:
        """Write the input of `training.export`: weights.pt with the averaged weights and their record, and record.json.

        Raises:
            SinkError: they cannot be written.
        """
        record = {**self.facts, "step": self.step, "seconds": round(self.seconds, 1), "scores": results}
        record |= {"recipe": self.recipe.record(), "curve": self.curve, "names": self.names, "name": self.recipe.name}
        path = self.folder / "weights.pt"
        checkpoint.save(path, {"average": self.average.state_dict(), **record})
        try:
            (self.folder / "record.json").write_text(json.dumps(record, indent=1))
        except OSError as error:
            raise SinkError(
                f"{self.folder / 'record.json'} cannot be written: {error.strerror}; {path} is complete",
                remedy="free some space",
            ) from error
        return path

    def resume(self) -> None:
        """Continue from last.pt.

        Raises:
            ModelError: it is missing or damaged.
            UsageError: it is from another network, recipe or world.
        """
        path = self.folder / "last.pt"
        state = checkpoint.load(path, self.device)
        self._check_state(path, state)
        mine = {**self.recipe.record(), "names": self.names, "world": self.facts["world"]}
        theirs = {**state["recipe"], "names": state["names"], "world": state["facts"].get("world")}
        changed = [key for key in mine if key not in FREE and theirs.get(key) != mine[key]]
        if changed:
            raise UsageError(
                f"{path} was trained with another {', '.join(changed)}: "
                + ", ".join(f"{key} {theirs.get(key)!r}, now {mine[key]!r}" for key in changed[:3]),
                remedy="resume with the same recipe, or start over with another --out",
            )
        try:
            self.net.load_state_dict(state["net"])
            self.average.load_state_dict(state["average"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            lines = [line.strip() for line in str(error).splitlines()]
            raise ModelError(
                f"{path} does not fit {self.recipe.name}: {' '.join(lines[:2])[:300]}",
                remedy=checkpoint.START_OVER,
            ) from error
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]

    def _check_state(self, path: Path, state: dict[str, Any]) -> None:
        """
        Raises:
            ModelError: a value is not a valid training state.
        """
        step, seconds = state["step"], state["seconds"]
        for what, right in (
            ("recipe", isinstance(state["recipe"], dict)),
            ("facts", isinstance(state["facts"], dict)),
            ("curve", isinstance(state["curve"], list)),
            ("step", isinstance(step, int) and step >= 0),
            ("seconds", isinstance(seconds, float | int) and 0 <= seconds < math.inf),
            ("optimizer", isinstance(state["optimizer"], dict)),
            *((part, _are_weights(state[part])) for part in ("net", "average")),
        ):
            if not right:
                raise ModelError(
                    f"checkpoint {path} is damaged: its {what} is {str(state[what])[:80]}",
                    remedy=checkpoint.START_OVER,
                )
        weights = [(name, value) for part in ("net", "average") for name, value in state[part].items()]
        if broken := checkpoint.first_not_finite(weights):
            raise ModelError(
                f"checkpoint {path} has NaN or infinity in {broken}",
                remedy="remove it and start over with a lower --rate",
            )


class Captured:
    """A training step as one CUDA graph on a batch in fixed memory."""

    def __init__(self, trainer: Trainer, batch: Batch) -> None:
        self.batch = Batch(
            batch.images.clone(),
            Objects(batch.objects.boxes.clone(), batch.objects.classes.clone()),
            None if batch.masks is None else batch.masks.clone(),
        )
        trainer.optimizer.zero_grad(set_to_none=True)  # so that the graph allocates the gradients in its own memory
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.parts = trainer.update(self.batch)

    def replay(self, batch: Batch) -> dict[str, Tensor]:
        """Run the step on another batch of the same shape."""
        for mine, theirs in zip(_tensors(self.batch), _tensors(batch), strict=True):
            mine.copy_(theirs)
        self.graph.replay()
        return {name: value.clone() for name, value in self.parts.items()}


def _tensors(batch: Batch) -> list[Tensor]:
    masks = [] if batch.masks is None else [batch.masks]
    return [batch.images, batch.objects.boxes, batch.objects.classes, *masks]


FREE = {"rate", "seconds", "steps", "checks", "test_on", "validate_on"}
"""Fields that a resumed run may change: how long and how fast it trains, not what it trains."""
CHANGES = ("steps", "seconds", "rate", "batch", "size", "shipped")
"""Fields that options of the command change."""


def _are_weights(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(weight, Tensor) for weight in value.values())


def device_of(name: str) -> torch.device:
    """The device to train on.

    Raises:
        UsageError: training does not support this kind of device.
        CapabilityError: PyTorch does not find the device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {name!r}", remedy="--device takes cpu, cuda or cuda:1")
    found = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= found:
        raise CapabilityError(f"cannot train on {name}: PyTorch finds {found or 'no'} GPU", remedy="use --device cpu")
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def main() -> None:
    """The command line."""
    parser = arguments(__doc__, RECIPES, "cuda")
    parser.add_argument(
        "--patience",
        type=seconds,
        default=0.0,
        help="seconds to wait for training.rendering to finish, instead of rendering here",
    )
    parser.add_argument("--eager", action="store_true", help="do not capture the step into a CUDA graph")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="of the canvas")
    parser.add_argument("--shipped", action="store_true", default=None, help="begin with the shipped weights")
    options = parser.parse_args()
    given = {key: value for key in CHANGES if (value := getattr(options, key)) is not None}
    if options.size:
        given["size"] = tuple(options.size)
    usual = RECIPES[options.name]
    recipe = replace(usual, **given)
    device_of(options.device)
    folder = options.out / recipe.name
    checkpoint.check_folder(folder)
    if not options.resume and (folder / "last.pt").exists():
        raise UsageError(
            f"{folder / 'last.pt'} of an earlier training exists",
            remedy="continue it with --resume, choose another --out, or remove it",
        )
    if not options.patience:
        for what in recipe.everything:
            render(what, options.cache, processes=options.processes)
    supply = Supply(recipe.renders, options.cache, options.device, patience=options.patience)

    def load(what: Render) -> Frames:
        return Frames.load(wait_for(what, options.cache, options.patience), options.device)

    torch.backends.cudnn.benchmark = True
    trainer = Trainer(recipe, supply, options.device, folder, capture=not options.eager)
    if options.resume:
        trainer.resume()
    trainer.run(validate=load(recipe.validate_on), calm=load(recipe.calm[0]) if recipe.calm else None)
    test = load(recipe.test_on)
    results = {"test": trainer.score(test, usual.size)}
    if not trainer.semantic:
        results["test_half_size"] = trainer.score(test, trainer.half_size)
    if recipe.calm:
        test = load(recipe.calm[1])
        results |= {"calm": trainer.score(test), "calm_half_size": trainer.score(test, trainer.half_size)}
    trainer.release(results)
    print(json.dumps(results))


if __name__ == "__main__":
    run(main)
