"""The answer to a command line that cannot be parsed: the option or the command that was probably meant."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from framefuse.cli.options import flag
from framefuse.common.names import nearest, wish
from framefuse.common.redact import brief


def explain(error: typer.TyperException, words: Sequence[str]) -> tuple[str, str]:
    """Message and remedy of a command line that cannot be parsed."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    verb = [word for word in words[:1] if not word.startswith("-")]
    remedy = f"{context.command_path if context else ' '.join(['framefuse', *verb])} --help"
    cause, parameter = error.__cause__, getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        name = str(getattr(error, "option_name", ""))
        return f"no such option: {name}", _instead(name, context) or remedy
    if parameter is None and (found := _unquoted(words)):
        return found
    if isinstance(cause, ValidationError) and parameter is not None:  # typer omits the value
        why = cause.errors()[0]
        reason = why["msg"].removeprefix("Value error, ").removesuffix(".").replace("Input should", "it should")
        message = f"{max(parameter.opts, key=len)} is {brief(why['input'])}: {reason}"
    return message, remedy


def is_media(word: str) -> bool:
    """Whether this is the name of an image or a video."""
    from framefuse.sources.paths import IMAGE_SUFFIXES, VIDEO_SUFFIXES

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
        return f"{name} is for {', '.join(owners)}, not for {context.info_name}"
    near = nearest(name, options)
    return f"did you mean {near[0]}?" if near else None


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
