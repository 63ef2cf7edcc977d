"""Trains scout-n-seg and scout-n-pose: branches for masks or keypoints on the shipped scout-n.

    python -m training.branches scout-n-seg
    python -m training.branches scout-n-pose --device cuda

Where the trunk stays frozen, the boxes are those of scout-n. What the branches read is computed once for a pool of
augmented views, from which they learn several times: minutes on a CPU. Where it does not, every step trains the whole
network on new views, on boxes and branches together (scout-n-pose finds people only): minutes on a GPU.

    masks       binary cross-entropy of random pixels in the box (Bolya et al. 2019; Kirillov et al. 2020)
    keypoints   1 - OKS, COCO's similarity, of each keypoint, plus the distance over the size of the object for those
                that are far away, plus cross-entropy of whether it can be seen
"""

from __future__ import annotations

import ast
import math
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from framefuse.lab.evaluation import validate
from framefuse.models import DATA
from training import checkpoint, nets
from training.augment import Augmentation, Batch, draw
from training.command import arguments, run, seconds
from training.data import Supply
from training.export import metadata, restored
from training.losses import Objects, assign, detection_loss
from training.nets import BINS, Detector, expected, grid, to_boxes, to_keypoints
from training.onnx_writer import write_onnx
from training.recipe import LARGE, WIDE, plain
from training.rendering import IGNORED, NONE, Render, render
from training.train import device_name, device_of

TRUNK = "scout-n"
SIGMAS = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)
"""How exactly people place COCO's keypoints, in thousandths of the size of the person (cocodataset.org, evaluation)."""
FAR, SEEN = 0.2, 0.3
"""Weights of distance and visibility in the loss of keypoints."""
BRANCH = 10.0
"""Weight of the branches beside the boxes, where both are trained."""
AROUND = 5
"""Cells across that the result of a cell depends on: two convolutions of 3 x 3."""
FEWEST = 8
"""Cells of a batch to learn from."""
FOUND = 0.05
"""Least target score (its IoU with the object) of a cell that learns."""


@dataclass(frozen=True)
class Recipe:
    """All numbers that decide the outcome."""

    name: str
    renders: tuple[Render, ...] = (
        Render("street", 240, 8, size=WIDE, seed=50_000, busy=True, shapes=True),
        Render("street", 60, 8, size=LARGE, seed=52_000, busy=True, shapes=True),
    )
    pools: int = 3
    """Sets of augmented views, one after the other."""
    batches: int = 80
    """Of a pool; one in three has twice as many views at half the size."""
    rounds: int = 3
    """How often the branches see a pool."""
    batch: int = 8
    size: tuple[int, int] = (384, 640)
    part: tuple[int, int] | None = None
    """Of most views, which show a person each, of a trunk that learns; one batch in four has a quarter as many whole
    views."""
    cells: int = 256
    """Cells of a batch that learn, chosen at random."""
    points: int = 256
    """Pixels of each from which masks are learnt."""
    frozen: bool = True
    """Whether the trunk keeps its weights; if not, every view is seen once."""
    clip: float = 10.0
    """Largest norm of the gradient."""
    rate: float = 2e-3
    """Peak learning rate (AdamW); linear warm-up, then half a cosine."""
    warmup: int = 100
    decay: float = 0.01
    seed: int = 4
    augmentation: Augmentation = field(default_factory=lambda: Augmentation(mosaic=0.0))

    @property
    def steps(self) -> int:
        return self.pools * self.rounds * self.batches


RECIPES = {
    "scout-n-seg": Recipe("scout-n-seg", pools=4, rounds=6, rate=3e-3),
    "scout-n-pose": Recipe(
        "scout-n-pose",
        renders=(
            Render("street", 720, 8, size=WIDE, seed=50_000, busy=True, shapes=True),
            Render("street", 180, 8, size=LARGE, seed=52_000, busy=True, shapes=True),
        ),
        pools=70,
        batches=100,
        rounds=1,
        batch=192,
        part=(160, 160),
        frozen=False,
        rate=1.5e-3,
        augmentation=Augmentation(zoom=(0.5, 1.8), plain=0.0, mosaic=0.0),
    ),
}


@dataclass(frozen=True)
class Cells:
    """The cells that learn, n of a batch, sorted by level, and their goals."""

    image: Tensor
    """(n,)"""
    cell: Tensor
    """(n,) number through all levels."""
    centres: Tensor
    """(2, n) in strides."""
    strides: Tensor
    """(1, n)"""
    boxes: Tensor
    """(n, 4) x1 y1 x2 y2 in pixels, of the object."""
    number: Tensor
    """(n,) row of the object."""
    keypoints: Tensor
    """(n, 17, 3)"""
    masks: Tensor
    """(b, 4, h / 4, w / 4) uint8 object rows + 1, four samples of each pixel of the prototypes; none for keypoints."""

    def take(self, rows: Tensor) -> Cells:
        """Some of them."""
        columns = self.centres[:, rows], self.strides[:, rows]
        values = self.boxes[rows], self.number[rows], self.keypoints[rows]
        return Cells(self.image[rows], self.cell[rows], *columns, *values, self.masks)


@dataclass(frozen=True)
class View:
    """What the branches read of a batch, if the trunk is frozen."""

    around: list[Tensor]
    """Of each level (n, channels, AROUND, AROUND) float16: the features that the results of a cell depend on."""
    fine: list[Tensor]
    """Features at strides 4 and 8, float16; nothing for keypoints."""
    cells: Cells


def on_trunk(name: str) -> Detector:
    """The untrained network `name` on the weights of TRUNK, folded but for its new branches."""
    task = nets.TASKS[name]
    names = {0: "person"} if task == "pose" else _names()
    whole = Detector(nets.WIDTHS[name], len(names), task)
    net = nets.fuse(Detector(nets.WIDTHS[name], len(names)))
    net.load_state_dict({key: _chosen(key, value, len(names)) for key, value in _trunk().items()})
    whole.backbone, whole.neck = net.backbone, net.neck
    whole.head.boxes, whole.head.classes = net.head.boxes, net.head.classes
    return whole


def _names() -> dict[int, str]:
    """Class names of TRUNK."""
    model = onnx.load(DATA / f"{TRUNK}.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    names: dict[int, str] = ast.literal_eval(metadata["names"])
    return names


def _trunk() -> dict[str, Tensor]:
    """The weights of TRUNK by their names in the network."""
    model = onnx.load(DATA / f"{TRUNK}.onnx")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {name: value for name, value in arrays.items() if name.endswith((".weight", ".bias"))}
    return {name[1:].replace("/", "."): torch.from_numpy(np.array(value)) for name, value in weights.items()}


def _chosen(key: str, value: Tensor, classes: int) -> Tensor:
    """The first `classes` rows of the layers that score classes."""
    last = key.startswith("head.classes.") and key.count(".") == 4
    return value[:classes] if last else value


def views(net: Detector, supply: Supply, recipe: Recipe, number: int, generator: torch.Generator) -> Batch:
    """A batch of augmented views with the objects that the network knows."""
    chance = float(torch.rand((), generator=generator, device=generator.device))
    how = recipe.augmentation
    if net.task != "pose":
        half = number % 3 == 2
        size = (recipe.size[0] // 2, recipe.size[1] // 2) if half else recipe.size
        return draw(supply.pick(chance, largest=half), how, recipe.batch * (1 + half), size, generator, mosaic=False)
    frames, whole = replace(supply.pick(chance), masks=None), number % 4 == 3
    if whole:
        seen = draw(frames, replace(how, plain=0.5), recipe.batch // 4, recipe.size, generator, mosaic=False)
    else:
        how = replace(how, toward=0)
        seen = draw(frames, how, recipe.batch, recipe.size, generator, mosaic=False, part=recipe.part)
    classes = seen.objects.classes
    known = (classes == 0) | (classes == IGNORED)
    return replace(seen, objects=Objects(seen.objects.boxes, torch.where(known, classes, NONE)))


@torch.no_grad()
def goals(net: Detector, raw: list[Tensor], seen: Batch) -> Cells:
    """The cells of a batch that learn, by what the head finds: raw maps (b, 4 BINS + classes, h, w)."""
    assert seen.keypoints is not None
    centres, strides = grid([(x.shape[2], x.shape[3]) for x in raw], seen.images.device)
    sides, logits = torch.cat([r.flatten(2) for r in raw], 2).float().split([4 * BINS, net.class_count], 1)
    middle, extent = to_boxes(expected(sides), centres, strides).transpose(1, 2).split(2, -1)
    found = torch.cat([middle - extent / 2, middle + extent / 2], -1)
    row, target, _ = assign(logits.sigmoid().transpose(1, 2), found, (centres * strides).T, seen.objects)
    cell, image = torch.nonzero(target.T > FOUND, as_tuple=True)
    own = row[image, cell]
    # The corners of each square of 4 x 4 pixels, so that its middle is the middle of the prototypes' pixel.
    drawn = seen.objects.classes.new_zeros(1, 4, 4) if seen.masks is None else seen.masks
    samples = [drawn[:, y::4, x::4] for y in (0, 3) for x in (0, 3)]
    about = seen.objects.boxes[image, own], own, seen.keypoints[image, own]
    return Cells(image, cell, centres[:, cell], strides[:, cell], *about, torch.stack(samples, 1).to(torch.uint8))


@torch.no_grad()
def look_at(net: Detector, seen: Batch) -> View:
    """Features and goals of one batch."""
    fine = net.backbone(seen.images)
    levels = net.neck(fine)
    raw = [torch.cat([boxes(x), classes(x)], 1)
           for x, boxes, classes in zip(levels, net.head.boxes, net.head.classes, strict=True)]  # fmt: skip
    cells = goals(net, raw, seen)
    whole = [] if net.task == "pose" else [fine[1].half(), levels[0].half()]
    return View(neighbourhoods(levels, cells.image, cells.cell), whole, cells)


def neighbourhoods(levels: list[Tensor], image: Tensor, cell: Tensor) -> list[Tensor]:
    """`View.around` of cells (n,), numbered through all levels and sorted, of images (n,)."""
    found, first = [], 0
    steps = torch.arange(AROUND, device=cell.device)
    for x in levels:
        height, width = x.shape[2:]
        own = (cell >= first) & (cell < first + height * width)
        row, column = (cell[own] - first) // width, (cell[own] - first) % width
        padded = functional.pad(x, [AROUND // 2] * 4).permute(0, 2, 3, 1)
        places = image[own, None, None], row[:, None, None] + steps[:, None], column[:, None, None] + steps
        found.append(padded[places].permute(0, 3, 1, 2).half())
        first += height * width
    return found


def of_cells(branch: Any, around: Tensor) -> Tensor:
    """(n, values): the results of a branch for the cells in the middle of their neighbourhoods."""
    x = around.float()
    for layer in branch[:-1]:
        x = layer.act(layer.norm(functional.conv2d(x, layer.conv.weight)))
    found: Tensor = branch[-1](x)[:, :, 0, 0]
    return found


def frozen_loss(net: Detector, view: View, recipe: Recipe, generator: torch.Generator) -> dict[str, Tensor]:
    """Terms of the loss of some cells of a view; `loss` is their sum."""
    device = generator.device
    chosen = torch.randperm(len(view.cells.image), generator=generator, device=device)[: recipe.cells].sort().values
    found, first = [], 0
    for branch, around in zip(net.head.extra, view.around, strict=True):
        part = chosen[(chosen >= first) & (chosen < first + len(around))] - first
        first += len(around)
        if len(part) > 1:  # a mean over a batch needs several
            found.append(of_cells(branch, around[part]))
        elif len(part):
            chosen = chosen[chosen != part + first - len(around)]
    masks = None if net.prototypes is None else net.prototypes(*(x.float() for x in view.fine))
    return branch_loss(torch.cat(found), masks, view.cells.take(chosen), recipe, generator)


def whole_loss(net: Detector, seen: Batch, recipe: Recipe, generator: torch.Generator) -> dict[str, Tensor]:
    """Terms of the loss of boxes and branches of a batch; `loss` is their sum."""
    fine = net.backbone(seen.images)
    levels = net.neck(fine)
    plain_channels = 4 * BINS + net.class_count
    raw = net.head(levels)
    boxes = [x[:, :plain_channels] for x in raw]
    cells = goals(net, boxes, seen)
    parts = detection_loss(boxes, seen.objects)
    if len(cells.image):
        cells = cells.take(
            torch.randperm(len(cells.image), generator=generator, device=generator.device)[: recipe.cells]
        )
        own = torch.cat([x[:, plain_channels:].flatten(2) for x in raw], 2)[cells.image, :, cells.cell]
        masks = None if net.prototypes is None else net.prototypes(fine[1], levels[0])
        found = branch_loss(own, masks, cells, recipe, generator)
        parts |= found | {"loss": parts["loss"] + BRANCH * found["loss"]}
    return parts


def branch_loss(
    own: Tensor, prototypes: Tensor | None, cells: Cells, recipe: Recipe, generator: torch.Generator
) -> dict[str, Tensor]:
    """Terms of the loss of what the branch says of cells (n, values), and of the prototypes (b, PROTOTYPES, h, w)."""
    if prototypes is not None:
        masks = prototypes.permute(0, 2, 3, 1)
        shares = torch.rand(2, len(own), recipe.points, generator=generator, device=own.device)
        low, high = cells.boxes[:, :2].T[..., None] / 4, cells.boxes[:, 2:].T[..., None] / 4
        x, y = (low + shares * (high - low)).long()
        x, y, at = x.clamp(max=masks.shape[2] - 1), y.clamp(max=masks.shape[1] - 1), cells.image[:, None]
        logits = torch.einsum("nk,npk->np", own, masks[at, y, x])
        goal = (cells.masks[at, :, y, x] == (cells.number + 1)[:, None, None]).float().mean(-1)
        return {"loss": functional.binary_cross_entropy_with_logits(logits, goal)}
    points = to_keypoints(own.T[None], cells.centres, cells.strides)[0].permute(2, 0, 1)
    seen = (cells.keypoints[..., 2] > 0).float()
    area = (cells.boxes[:, 2:] - cells.boxes[:, :2]).prod(-1).clamp(min=16)[:, None]
    away = (points[..., :2] - cells.keypoints[..., :2]).square().sum(-1) / area
    sigmas = 2 * torch.tensor(SIGMAS, device=own.device) / 1000
    similar = torch.exp(-away / (2 * sigmas.square()))
    near = ((1 - similar) * seen).sum() / seen.sum().clamp(min=1)
    far = ((away + 1e-6).sqrt() * seen).sum() / seen.sum().clamp(min=1)
    shown = functional.binary_cross_entropy(points[..., 2].clamp(1e-6, 1 - 1e-6), seen)
    return {"loss": near + FAR * far + SEEN * shown, "oks": 1 - near.detach()}


def train(recipe: Recipe, cache: Path, device: str, limit: float = math.inf) -> tuple[Detector, dict[str, Any]]:
    """Train the branches, for at most `limit` seconds; returns the folded network and its record, without scores."""
    torch.manual_seed(recipe.seed)
    supply = Supply(recipe.renders, cache, device)
    begin = time.monotonic()
    net = on_trunk(recipe.name).to(device)
    branches = nn.ModuleList([net.head.extra, *([net.prototypes] if net.prototypes is not None else [])])
    learns: nn.Module = branches if recipe.frozen else net

    def done(step: int) -> float:
        """Share of the training, so that the learning rate ends at 0 in time."""
        return min(1.0, max(step / recipe.steps, (time.monotonic() - begin) / limit))

    optimizer = torch.optim.AdamW(learns.parameters(), recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / recipe.warmup, 0.5 + 0.5 * math.cos(math.pi * done(step))),
    )
    generator = torch.Generator(device).manual_seed(recipe.seed)
    curve: list[dict[str, Any]] = []
    for pool in range(recipe.pools):
        if done(0) == 1:
            break
        net.eval()
        batches = (views(net, supply, recipe, number, generator) for number in range(recipe.batches))
        pooled = [look_at(net, seen) for seen in batches] if recipe.frozen else []
        branches.train()
        for turn in range(recipe.rounds):
            sums: list[dict[str, Tensor]] = []
            order = torch.randperm(recipe.batches, generator=generator, device=device).tolist()
            for view in (pooled[number] for number in order) if recipe.frozen else batches:
                if isinstance(view, View):
                    if len(view.cells.image) < FEWEST:
                        continue
                    parts = frozen_loss(net, view, recipe, generator)
                else:
                    parts = whole_loss(net, view, recipe, generator)
                optimizer.zero_grad()
                parts["loss"].backward()
                nn.utils.clip_grad_norm_(learns.parameters(), recipe.clip)
                optimizer.step()
                schedule.step()
                sums.append({name: value.detach() for name, value in parts.items()})
            means = {name: float(torch.stack([row[name] for row in sums if name in row]).mean()) for name in sums[-1]}
            step = (pool * recipe.rounds + turn + 1) * recipe.batches
            curve.append({"step": step, "seconds": round(time.monotonic() - begin, 1), **means})
            print(f"{recipe.name} " + " ".join(f"{key} {value:.4g}" for key, value in curve[-1].items()), flush=True)
    names = {0: "person"} if net.task == "pose" else _names()
    record = {
        "torch": str(torch.__version__),
        "device": device_name(torch.device(device)),
        "world": supply.frames[0].world,
        "step": curve[-1]["step"],
    }
    record |= {"seconds": round(time.monotonic() - begin, 1), "recipe": plain(asdict(recipe)), "curve": curve}
    return nets.fuse(net.cpu()), {**record, "trunk": TRUNK, "names": names, "name": recipe.name}


def score(weights: Path) -> dict[str, float | None]:
    """Write the network of a weights.pt as ONNX beside it, and its scores on held-out worlds into it."""
    state = checkpoint.load(weights, "cpu", {"name", "average", "names"})
    state.pop("version", None)
    name = state["name"]
    net = restored(state)
    path = write_onnx(net, weights.with_name(f"{name}.onnx"), metadata(name, nets.TASKS[name], state["names"]))
    found = validate(path, [f"synthetic://street?split=test&seed={seed}&frames=900" for seed in range(6)], limit=300)
    assert found.boxes is not None
    about = found.shape
    scores = {"map50_95": found.boxes.map50_95, "map50": found.boxes.map50}
    scores |= {f"{about}_map50_95": found.boxes.shape_map50_95, f"{about}_map50": found.boxes.shape_map50}
    checkpoint.save(weights, {**state, "scores": {"test": scores}})
    return scores


def main() -> None:
    """The command line."""
    parser = arguments(__doc__, RECIPES, "cpu")
    parser.add_argument("--score", action="store_true", help="only score what was trained, perhaps elsewhere")
    parser.add_argument("--seconds", type=seconds, default=math.inf, help="most of the training, without rendering")
    options = parser.parse_args()
    recipe = RECIPES[options.name]
    weights = options.out / recipe.name / "weights.pt"
    if not options.score:
        device_of(options.device)
        checkpoint.check_folder(weights.parent)
        for what in recipe.renders:
            render(what, options.cache, processes=options.processes)
        net, record = train(recipe, options.cache, options.device, options.seconds)
        checkpoint.save(weights, {"average": net.state_dict(), "scores": {}, **record})
    print(score(weights))


if __name__ == "__main__":
    run(main)
