"""framefuse models: which models there are by name, and what framefuse knows about one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from framefuse.cli.console import print_table
from framefuse.cli.options import PrintJson

if TYPE_CHECKING:
    from framefuse.models.card import Card

COLUMNS = ("task", "layout", "imgsz", "names")


def models(
    model: Annotated[
        str | None, typer.Argument(help="name or ONNX file: show what is known about it", show_default=False)
    ] = None,
    print_json: PrintJson = False,
) -> int:
    """List the models that come with framefuse, or show what one takes and gives, and how that is known."""
    from framefuse.models import MODELS, find_model
    from framefuse.models.card import read_card

    if model is not None:
        card = read_card(find_model(model))
        known = facts(card)
        if print_json:
            stated = {key: {"value": value, "from": card.origin.get(key, "")} for key, value in known.items()}
            typer.echo(json.dumps({"path": str(card.path), **stated}, indent=2))
        else:
            rows = [[key, value, card.origin.get(key, "")] for key, value in known.items()]
            print_table(("fact", "value", "from"), rows)
        return 0

    known_by_name = {name: facts(read_card(find_model(name))) for name in MODELS}
    if print_json:
        typer.echo(json.dumps(known_by_name, indent=2))
    else:
        rows = [[name, *(known[column] for column in COLUMNS)] for name, known in known_by_name.items()]
        print_table(("model", *COLUMNS), rows)
    return 0


def facts(card: Card) -> dict[str, str]:
    """A card in words, by the keys that a YAML card has."""
    spec = card.preprocess
    names = ", ".join(card.names.values())
    return {
        "task": card.task,
        "layout": card.layout,
        "imgsz": f"{spec.height} {spec.width}" + (", free" if card.dynamic_size else ""),
        "batch": "free" if card.dynamic_batch else str(card.batch),
        "input": f"{card.input_name} {card.input_dtype}",
        "outputs": ", ".join(card.outputs),
        "names": f"{card.class_count}: " + (names if len(names) <= 60 else names[:57] + "..."),
        "fit": spec.fit,
        "rect": "on" if spec.rectangular else "off",
        "stride": str(spec.stride),
        "interpolation": spec.interpolation,
        "pad_value": f"{spec.pad_value:g}",
        "mean": " ".join(f"{value:g}" for value in spec.mean),
        "std": " ".join(f"{value:g}" for value in spec.std),
        "channel_order": spec.channel_order,
    }
