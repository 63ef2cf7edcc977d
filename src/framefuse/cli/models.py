"""framefuse models: list the models known by name, or show the card of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from framefuse.cli.console import print_table
from framefuse.cli.options import PrintJson

if TYPE_CHECKING:
    from framefuse.models.card import Card


def models(
    model: Annotated[
        str | None, typer.Argument(help="name or ONNX file whose card to show", show_default=False)
    ] = None,
    print_json: PrintJson = False,
) -> int:
    """List the models known by name, or show the card of one."""
    from framefuse.models import find_model, list_models
    from framefuse.models.card import read_card

    if model is None:
        known = list_models()
        if print_json:
            typer.echo(json.dumps(known, indent=2))
        else:
            print_table(("model", "what it does"), list(known.items()))
        return 0
    card = read_card(find_model(model))
    rows = [(key, value, card.origin.get(key, "")) for key, value in facts(card).items()]
    if print_json:
        typer.echo(json.dumps({key: {"value": value, "from": origin} for key, value, origin in rows}, indent=2))
    else:
        print_table(("fact", "value", "from"), rows)
    return 0


def facts(card: Card) -> dict[str, str]:
    """A card as text, with the keys of a YAML card."""
    spec = card.preprocess
    names = ", ".join(card.names.values())
    return {
        "path": str(card.path),
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
