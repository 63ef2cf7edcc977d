"""Settings as command line options, one per field, generated from its type, limits and description."""

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import typer
import typer.core

from framefuse.config import PRESET_ALIASES, PRESETS, Settings, group_of, schema_of, settings_from


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option of a verb: what stands for its value in the help, and what it does. Its name is that of the parameter,
    unless there are other names, as for `typer.Option`, which takes `more` too."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


_PRESETS = [*PRESETS, *PRESET_ALIASES]
ConfigFile = Annotated[Path | None, option("FILE", "YAML file with these options", "--config", "-c")]
Preset = Annotated[
    str | None, option("|".join(_PRESETS), "set of defaults to start from", autocompletion=lambda: _PRESETS)
]
PrintJson = Annotated[bool, typer.Option("--json", help="print JSON on stdout")]
PrintReport = Annotated[bool, typer.Option("--json", help="print the report as JSON on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print only errors")]

Verb = TypeVar("Verb", bound=Callable[..., Any])
_NUMBER = re.compile(r"\d+([x,]\d+)*")


def flag(field: str) -> str:
    """Name of a setting on the command line: max_det -> --max-det."""
    return "--" + field.replace("_", "-")


def normalise(words: Sequence[str]) -> list[str]:
    """The command line in the form that the parser accepts.

    --max_det 5 becomes --max-det 5; the numbers after --imgsz and --classes become one word, as in --imgsz 384,640;
    --track alone becomes --track bytetrack, and --ray alone --ray local.
    """
    done: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--":
            return [*done, word, *words]
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            word = name.replace("_", "-") + equals + value
        done.append(word)
        if word == "--track" and not set("".join(words[:1]).split(",")) <= {*schema_of("track")["enum"], "none"}:
            done.append("bytetrack")
        if word == "--ray" and not (words[:1] and re.fullmatch(r"local|auto|(ray://)?[\w.-]+:\d+", words[0])):
            done.append("local")
        if word in ("--imgsz", "--classes"):
            numbers = []
            while words and _NUMBER.fullmatch(words[0]):
                numbers.append(words.pop(0))
            done += [",".join(numbers)] if numbers else []
    return done


def size(imgsz: str) -> tuple[int, int]:
    """Height and width of an --imgsz; UsageError as that of a setting."""
    sides = settings_from({"imgsz": imgsz}).imgsz or [0]
    return sides[0], sides[-1]


class Command(typer.core.TyperCommand):
    """A command whose help lists the options by group, shows --no-option only where the default is on, and no types of
    Python."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"\{(.*\.\.\..*)\}\.\.\.|[{}]", r"\1", piece).upper() for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                on_by_default = getattr(Settings.model_fields.get(str(parameter.name)), "default", None) is True
                names = record[0] if on_by_default else record[0].partition(" / ")[0]
                known, _, type_name = names.partition(" <")
                if not known.startswith("-"):  # an argument
                    names = known.upper()
                else:
                    names = f"{known} {type_name[:-1].upper()}" if type_name else known
                title = getattr(parameter, "rich_help_panel", None) or parameter.param_type_name.capitalize() + "s"
                sections[title].append((names, record[1]))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class App(typer.Typer):
    """A group of commands, each a `Command`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Verb], Verb]:
        return super().command(name, **{"cls": Command} | options)


def text(value: Any) -> str:
    """A setting's value as text: on, off, 384 640, or - for none."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def with_fields(
    command: Callable[..., int],
    fields: Sequence[str] = tuple(Settings.model_fields),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., int]:
    """Give `command(..., **given)` an option for each of these settings; `given` holds those that were set, as text and
    flags. `load_settings` validates them, as it does the values of a YAML file. The help shows `defaults` where they
    differ from those of Settings."""
    signature = inspect.signature(command, eval_str=True)
    own = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    own = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    parameters = own + [_parameter(name, defaults.get(name, Settings.model_fields[name].default)) for name in fields]

    @functools.wraps(command)
    def run(**values: Any) -> int:
        given = {field: values.pop(field) for field in fields}
        return command(**values, **{field: value for field, value in given.items() if value is not None})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run


_METAVARS = {"integer": "N", "number": "X", "string": "TEXT", "path": "PATH", "array": "N,..."}


def _parameter(field: str, default: Any) -> inspect.Parameter:
    info = Settings.model_fields[field]
    schema = schema_of(field)
    choices: list[str] = schema.get("enum", [])
    truth = schema["type"] == "boolean"
    option = typer.Option(
        flag(field) + (f"/--no-{field.replace('_', '-')}" if truth else ""),
        help=f"{info.description}" + ("" if default in (None, False) else f" (default: {text(default)})"),
        rich_help_panel=group_of(field),
        metavar=None if truth else "|".join(choices) or _METAVARS[schema.get("format", schema["type"])],
        autocompletion=(lambda: choices) if choices else None,
        show_default=False,
    )
    kind: Any = bool | None if truth else str | None
    return inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
