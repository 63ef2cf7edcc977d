"""Ships trained weights: ONNX and card go into the package, the training record into training/results.

    python -m training.export runs/train/scout-n/weights.pt [...]

writes src/framefuse/models/weights/NAME.onnx and .yaml, training/results/NAME.json and .png, and prints the hash for
src/framefuse/models/__init__.py. body-n gives two models: body-n with all body parts, body-n-2 with body and
background.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framefuse.errors import ModelError, SinkError
from training import checkpoint, nets
from training.command import run
from training.nets import Detector, Segmenter
from training.onnx_writer import write_onnx

ROOT = Path(__file__).parent.parent
DATA, RESULTS = ROOT / "src" / "framefuse" / "models" / "weights", ROOT / "training" / "results"
LICENCE = "Apache-2.0"
KINDS = {
    "detect": "detector for its synthetic world",
    "semantic": "segmenter of people, trained on synthetic ones",
    "segment": "detector with masks for its synthetic world",
    "pose": "detector of people with keypoints for its synthetic world",
}
PEOPLE = {
    "trained_on": "bodies of the synthetic world and painted portraits (training/portraits.py), cut out and placed "
    "before procedural textures, in other clothes, light, blur, noise and compression; no photograph",
    "limits": "of real footage it finds people who are near and from the front best, with holes and false finds; a "
    "network that is trained on photographs finds more",
}
"""What the card of a segmenter says about its data."""
RECORD = ROOT / "benchmarks" / "records" / "selfie.json"
KEYS = {"name", "average", "names", "scores", "recipe", "world", "curve"}


def load(weights: Path) -> tuple[Detector | Segmenter, dict[str, Any]]:
    """The network of a weights.pt, and its training record.

    Raises:
        ModelError: the file is missing or damaged, does not fit the network, or has NaN or infinity.
    """
    remedy = "pass the weights.pt that python -m training.train writes at its end"
    state = checkpoint.load(weights, "cpu", KEYS, remedy=remedy)
    try:
        net = restored(state)
        state["scores"]["test"], state["recipe"]["seed"]
    except (RuntimeError, TypeError, KeyError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ModelError(
            f"{weights} does not fit the current networks: {' '.join(lines[:2])[:300]}", remedy=remedy
        ) from error
    if broken := checkpoint.first_not_finite(state.pop("average").items()):
        raise ModelError(f"{weights} has NaN or infinity in {broken}", remedy="train again with a lower --rate")
    state.pop("version", None)
    return net, {**state, "parameters": nets.parameters(net)}


def restored(state: Mapping[str, Any]) -> Detector | Segmenter:
    """The network of what is in a weights.pt."""
    net = nets.build(state["name"], len(state["names"]))
    if "trunk" in state:  # its weights were folded before the branches were trained
        nets.fuse(net)
    net.load_state_dict(state["average"])
    return net


def export(net: Detector | Segmenter, record: dict[str, Any], folder: Path, *, binary: bool = False) -> Path:
    """Write one model and its card into `folder`; returns the path of the model."""
    name = record["name"] + ("-2" if binary else "")
    task = nets.TASKS[record["name"]]
    names = {0: "background", 1: "person"} if binary else record["names"]
    tested = record["scores"]["test"]
    scores = {key: value for key, value in tested.items() if not isinstance(value, dict)}
    if task == "semantic":
        scores = {"miou": tested["miou_body" if binary else "miou"]}
    facts = metadata(name, task, names)
    description = facts["description"]
    path = write_onnx(net, folder / f"{name}.onnx", facts, binary=binary)
    data = f"held-out worlds (version {record['world']}, split=test)"
    judge = "framefuse val" if "trunk" in record else "training/scores.py"
    about = {
        "description": description,
        "licence": LICENCE,
        "seeds": [record["recipe"]["seed"]],
        "world": record["world"],
        "parameters": record["parameters"],
        "scores": {"on": f"{data} of 1280x720, by {judge}, at 640", **scores},
    }
    if task == "semantic":
        about |= PEOPLE | real_footage(path, RECORD)
    text = card(task, about)
    if name == "body-n":  # frames of video are wider than high
        text = text.replace("\n", "\nimgsz: [384, 640]\n", 1)
    path.with_suffix(".yaml").write_text(text)
    return path


def real_footage(path: Path, record: Path) -> dict[str, Any]:
    """What the record of benchmarks/selfie.py says about exactly this model, for its card; empty if nothing."""
    if not record.exists():
        return {}
    facts, digest = json.loads(record.read_text()), hashlib.sha256(path.read_bytes()).hexdigest()
    rows = [row for row in facts.get("shipped", []) if row["sha256"] == digest]
    found = {row["of"]: round(row["iou"]["mean"], 3) for row in rows}
    return (
        {"real": {"on": f"mean IoU with the masks of {facts['peer']}, by benchmarks/selfie.py", **found}}
        if found
        else {}
    )


def metadata(name: str, task: str, names: Mapping[int, str]) -> dict[str, str]:
    """The ONNX metadata of a model."""
    facts = {
        "description": f"{name}: framefuse's own {KINDS[task]}",
        "author": "framefuse",
        "license": LICENCE,
        "names": repr(names),
        "imgsz": repr([640, 640]),
        "stride": "32",
        "task": task,
        "batch": "1",
    }
    return facts | ({"kpt_shape": repr([nets.KEYPOINTS, 3])} if task == "pose" else {})


def card(task: str, about: dict[str, Any]) -> str:
    """The text of a card, without what the ONNX metadata contain."""
    lines = [f"task: {task}", "about:"]
    for key, value in about.items():
        if isinstance(value, dict):
            lines += [f"  {key}:", *(f"    {inner}: {json.dumps(item)}" for inner, item in value.items())]
        else:
            lines.append(f"  {key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def keep_record(record: dict[str, Any], folder: Path) -> None:
    """Write NAME.json (recipe, seed, curve and scores) and NAME.png (the curve)."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = json.loads(json.dumps(record), parse_float=lambda text: float(f"{float(text):.5g}"))
    curve = rounded.pop("curve")
    rows = ",\n".join(json.dumps(row) for row in curve)
    head = json.dumps(rounded, indent=1)
    (folder / f"{record['name']}.json").write_text(f'{head[:-2]},\n "curve": [\n{rows}\n]\n}}\n')
    plot(record["name"], curve, folder / f"{record['name']}.png")


def plot(name: str, curve: list[dict[str, Any]], path: Path) -> None:
    """Plot loss and validation score over the steps."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, left = pyplot.subplots(figsize=(7, 3.5), dpi=90)
    right = left.twinx()
    losses = [(row["step"], row["loss"]) for row in curve if "loss" in row]
    checks = [(row["step"], row.get("map50_95", row.get("miou"))) for row in curve if "loss" not in row]
    checks = [(step, score) for step, score in checks if score is not None]
    left.plot(*zip(*losses, strict=True), color="tab:blue", linewidth=1)
    if checks:
        right.plot(*zip(*checks, strict=True), color="tab:orange", marker="o")
    left.set(xlabel="step", ylabel="training loss (blue)", yscale="log", title=name)
    right.set(
        ylabel=f"{'mean IoU' if nets.TASKS[name] == 'semantic' else 'mAP50-95'}, validation (orange)", ylim=(0, 1)
    )
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for weights, (net, record) in [(weights, load(weights)) for weights in options.weights]:
        heads = (False, True) if isinstance(net, Segmenter) else (False,)
        try:
            keep_record(record, options.results)
            made = [export(net, record, options.data, binary=binary) for binary in heads]
        except OSError as error:
            raise SinkError(
                f"{weights} cannot be shipped: {error.filename or options.data}: {error.strerror}",
                remedy="free some space, or choose other folders with --data and --results",
            ) from error
        for path in made:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            print(f'"{path.stem}": "{digest}",  # {path.stat().st_size:,} bytes')


if __name__ == "__main__":
    run(main)
