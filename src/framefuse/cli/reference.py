"""The option reference as Markdown, made from Settings. `framefuse config reference > docs/reference/options.md` renews it."""

from __future__ import annotations

from framefuse.cli.options import flag, text
from framefuse.config import PRESET_ALIASES, PRESETS, Settings, group_of, takes

_HEAD = """\
# Options

<!-- Made by `framefuse config reference > docs/reference/options.md`. Change src/framefuse/config.py instead. -->

Every option has one name, in three places: a keyword of `framefuse.Pipeline(...)`, a line of a YAML file
(`framefuse predict --config run.yaml`; `framefuse config init` writes one to start from), and an option of
`framefuse predict`. Dashes and underscores are the same on the command line; on/off options also have a `--no-` form.
A YAML file may also hold `source`, `model` and `preset`.

The later wins: default, preset, YAML file, command line. `framefuse config show` takes the same options as `predict`,
and prints the values in force and where each came from. `predict` turns `save_jsonl` on unless told otherwise.
"""


def markdown() -> str:
    """The whole page."""
    lines = [_HEAD, "## Presets", "", "| preset | what it is for |", "|---|---|"]
    for name, purpose in PRESETS.items():
        aliases = "".join(f" (or `{alias}`)" for alias, target in PRESET_ALIASES.items() if target == name)
        lines.append(f"| `{name}`{aliases} | {purpose} |")
    group = ""
    for field, info in Settings.model_fields.items():
        if group_of(field) != group:
            group = group_of(field)
            lines += ["", f"## {group}", "", "| option | takes | default | meaning |", "|---|---|---|---|"]
        lines.append(f"| `{flag(field)}` | {takes(field)} | {text(info.default)} | {info.description} |")
    return "\n".join(lines) + "\n"
