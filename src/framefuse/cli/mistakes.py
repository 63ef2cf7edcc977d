"""The answer to a command line that cannot be parsed: the option or the command that was probably meant."""

import glob
import os
import shlex
from collections.abc import Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from framefuse.cli.options import flag
from framefuse.common.names import VERBS, WISHES, nearest, wish
from framefuse.common.redact import brief
from framefuse.config import Settings
from framefuse.errors import FramefuseError, ModelError, SourceError


def explain(error: typer.TyperException, words: Sequence[str]) -> tuple[str, str]:
    """Message and remedy of a command line that cannot be parsed."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    verb = words[0] if words and not words[0].startswith("-") else ""
    remedy = f"{context.command_path if context else f'framefuse {verb}'.strip()} --help"
    cause, parameter = error.__cause__, getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        name = str(getattr(error, "option_name", ""))
        return f"no such option: {name}", _instead(name, context) or remedy
    if context and context.parent is None and verb and "=" not in verb:
        near = [f"did you mean {name}? {remedy} lists the commands" for name in nearest(verb, context.command.commands)]
        media = [shlex.join(["framefuse", "predict", *words])] if is_media(verb) else []
        known = [answer for names, answer in VERBS.items() if verb in names.split()]
        return message, [*media, *known, *near, remedy][0]
    if found := _assigned(words) or (_unquoted(words) if parameter is None else None):
        return found
    if parameter is None and (classes := _spaced(words)):
        return message, f"separate the classes by commas: {classes}"
    if context and context.parent and message == "Missing command.":
        known = [f"{context.command_path} {name}" for name in sorted(context.command.commands)]
        return f"{context.command_path} needs a command", " or ".join(known)
    if context and parameter is not None and message.startswith("Missing "):
        option = [name for name in parameter.opts if name[:2] == "--"]
        wanted = " ".join([*option, str(parameter.metavar or parameter.name).upper()])
        shown = "shows an example" if context.command.epilog else "describes it"
        return f"{context.command_path} needs {wanted}", f"add it; {remedy} {shown}"
    if isinstance(cause, ValidationError) and parameter is not None:  # typer omits the value
        why = cause.errors()[0]
        reason = why["msg"].removeprefix("Value error, ").removesuffix(".").replace("Input should", "it should")
        message = f"{max(parameter.opts, key=len)} is {brief(why['input'])}: {reason}"
    return message, remedy


def reconsider(error: FramefuseError, words: Sequence[str]) -> tuple[str, str | None]:
    """The same of an error that may come from taking a word for a file: `conf=0.4`, or the second class of several."""
    lost = isinstance(error, (ModelError, SourceError))
    if lost and (found := _assigned(words)):
        return found
    if lost and (classes := _spaced(words)):
        return error.message, f"if these are classes, write {classes}; if not, {error.remedy or 'check the path'}"
    return error.message, error.remedy


def is_media(word: str) -> bool:
    """Whether this is the name of an image or a video."""
    from framefuse.sources import IMAGE_SUFFIXES, VIDEO_SUFFIXES

    return Path(word).suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES


def _instead(name: str, context: Any) -> str | None:
    """What to use for an option that the command does not have."""
    options = {option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"}
    arguments = {str(parameter.name).rstrip("s") for parameter in context.command.params}

    def spell(field: str, value: str) -> str | None:
        option = f"{flag(field)} {value}".strip()
        return option if flag(field) in options else field.upper() if field in arguments else None

    if answer := wish(name, spell):
        return answer
    verbs = context.find_root().command.commands
    owners = [verb for verb in verbs if any(name in parameter.opts for parameter in verbs[verb].params)]
    if owners and context.info_name not in owners:
        return f"{name} is for {', '.join(owners)}, not for {context.command_path.partition(' ')[2]}"
    near = nearest(name, options)
    return f"did you mean {near[0]}?" if near else None


def _assigned(words: Sequence[str]) -> tuple[str, str] | None:
    """Message and remedy if options are written as conf=0.4."""
    known = {"source", "model", "mode", "task", *Settings.model_fields, *" ".join(WISHES).split()}
    free = [word for before, word in zip(("", *words), words, strict=False) if before[:1] != "-"]
    pairs = [word for word in free if "=" in word and word.split("=")[0] in known and not os.path.exists(word)]
    values = dict(word.split("=", 1) for word in pairs)
    verb, *rest = [word for word in words if word not in pairs] or [values.get("mode", "predict")]
    places = [values.pop(name) for name in ("source", "model") if name in values]
    options = [f"{flag(name)} {shlex.quote(value)}".removesuffix(" True") for name, value in values.items()
               if name not in ("mode", "task") and value != "False"]  # fmt: skip
    command = " ".join(["framefuse", *map(shlex.quote, [verb, *places, *rest]), *options])
    return ("options begin with two dashes here: --name value, not name=value", command) if pairs else None


def _spaced(words: Sequence[str]) -> str | None:
    """The option --classes as it should be, if several words follow it that may be names of classes."""
    following = words[words.index("--classes") + 1 :] if "--classes" in words else ()
    names = takewhile(lambda word: word[:1] != "-" and not (Path(word).suffix or os.path.exists(word)), following)
    classes = [name.strip(",") for name in names]
    return shlex.join(["--classes", ",".join(classes)]) if len(classes) > 1 else None


def _unquoted(words: Sequence[str]) -> tuple[str, str] | None:
    """Message and remedy if the shell has replaced a pattern by the names of files, or several files were typed."""
    runs = [[at for at, _ in run] for media, run in groupby(enumerate(words), lambda item: is_media(item[1])) if media]
    first, last = (lambda run: (run[0], run[-1] + 1))(max(runs, key=len, default=[0]))
    before, files, after = ["framefuse", *words[:first]], words[first:last], words[last:]
    if len(files) < 2:
        return None
    folder = os.path.join(glob.escape(os.path.dirname(files[0])), "")
    ends = {Path(file).suffix for file in files}
    for pattern in (f"{folder}*{''.join(ends)}", f"{folder}*", f"{folder}{files[0][len(folder) :][:1]}*"):
        if sorted(filter(is_media, glob.glob(pattern))) == sorted(files):
            command = shlex.join([*before, pattern, *after])
            return f"the shell has expanded a pattern into {len(files)} files", f"quote it: {command}"
    if words[0] != "predict":
        return None
    options = [part for file in files[:5] for part in ("--source", file)] + ["..."] * (len(files) > 5)
    models = [part for word in after for part in (("--model", word) if word.endswith(".onnx") else (word,))]
    return f"{len(files)} sources are given", f"name each with --source: {shlex.join([*before, *options, *models])}"
