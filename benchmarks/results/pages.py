"""How records get into pages: everything between markers is generated.

    <!-- results: NAME -->            a table of tables.py, with a line below that says of which records it is
    <!-- end -->

    <!-- value: RECORD.KEY.KEY -->110.9<!-- end -->
    <!-- value: RECORD.rows[batch=8,path=gpu].fps:,.0f / RECORD.rows[batch=1].fps -->9.1<!-- end -->

A value is a number or text of a record; `[key=value,...]` picks the first such item of a list, `:FORMAT` is Python's,
and ` / ` divides two of them. A page with values says which of their records are stale by `<!-- results: values -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import protocol, source_groups

MARKER = re.compile(r"<!-- (results|value): (.+?) -->(.*?)<!-- end -->", re.DOTALL)
SELECTOR = re.compile(r"\[([^]]*)\]|([^.\[\]]+)")
Json = dict[str, Any]


class Missing(LookupError):
    """A record that was not measured yet."""


@cache
def load(name: str) -> Json:
    """A record by name."""
    path = protocol.RECORDS / f"{name}.json"
    if not path.exists():
        raise Missing(f"there is no record {name}")
    record: Json = json.loads(path.read_text(encoding="utf-8"))
    return record


LONG = 40
"""Lines of a table whose records are named above it, so that a stale one is not overlooked."""


class Records:
    """The records, and which of them were read."""

    def __init__(self) -> None:
        self.used: dict[str, None] = {}

    def __call__(self, name: str) -> Json:
        self.used[name] = None
        return load(name)


Table = Callable[[Records], list[str]]
"""Lines of Markdown, made from records."""


def stale(record: Json) -> str:
    """Why a record may not be true of these sources; empty where nothing has changed."""
    if not record["sources"]:
        return "sources not recorded, treat as stale"
    if not (groups := source_groups.changed(record["sources"])):
        return ""
    return f"the {listed(groups)} sources have changed since"


def listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def about(name: str) -> str:
    """The record, the machine, the date, the commit, and whether it is stale.

    The record is named, not linked: records are outside `docs/`, so no relative link works in the site.
    """
    record = load(name)
    machine = record["machine"] or {}
    where = ", ".join(filter(None, ((machine.get("gpu") or [None])[0] or machine.get("cpu"), machine_size(machine))))
    commit = f"commit `{record['commit'][:7]}`" if record["commit"] else "unknown commit"
    dirty = " with uncommitted changes" if record["dirty"] else ""
    facts = ", ".join(filter(None, (where or "unknown machine", (record["date"] or "")[:10], commit + dirty)))
    return f"Record `{name}`: {'; '.join(filter(None, (facts, stale(record))))}."


def machine_size(machine: Json) -> str:
    if machine.get("gpu"):
        return f"driver {machine['driver']}" if machine.get("driver") else ""
    load_average = (machine.get("load_average") or [None])[0]
    cores = f"{machine['cores']} cores" if machine.get("cores") else ""
    return cores + (f", load {load_average:.1f}" if load_average is not None else "")


def table(name: str, made: Table) -> str:
    """A table and, below it, its records."""
    records = Records()
    try:
        lines = made(records)
    except Missing as missing:
        return f"*Not measured yet: {missing}.*"
    said = footer(list(records.used))
    return "\n".join([*said, "", *lines] if len(lines) > LONG else [*lines, "", *said])


def footer(names: list[str]) -> list[str]:
    return [f"<sub>{' <br>'.join(map(about, names))}</sub>"]


def value(expression: str, records: Records) -> str:
    """The text of a `value` marker."""
    paths = expression.split(" / ")
    spec = ""
    numbers = []
    for path in paths:
        path, _, found = path.strip().partition(":")
        spec = spec or found
        numbers.append(look_up(path, records))
    result = numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]
    return format(result, spec)


def look_up(path: str, records: Records) -> Any:
    """What a record has at a path.

    Raises:
        LookupError: there is no such record or key.
    """
    name, _, rest = path.partition(".")
    found: Any = records(name)
    for pick, key in SELECTOR.findall(rest):
        try:
            if not pick:
                found = found[int(key)] if isinstance(found, list) else found[key]
            elif isinstance(found, dict):
                found = found[pick]
            else:
                wanted = dict(part.split("=") for part in pick.split(","))
                found = next(item for item in found if all(str(item.get(k)) == v for k, v in wanted.items()))
        except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
            raise LookupError(f"{path}: there is no {pick or key}") from error
    return found


def render(text: str, page: Path, tables: dict[str, Table]) -> str:
    """A page with what is between its markers made anew.

    Raises:
        LookupError: a marker names a table, a record or a key that is not there.
    """
    values = Records()

    def fill(match: re.Match[str]) -> str:
        kind, name, _ = match.groups()
        if kind == "value":
            made = value(name, values)
        elif name == "values":
            return match.group()
        elif name not in tables:
            raise LookupError(f"{page.name}: there is no table {name}; tables are {', '.join(sorted(tables))}")
        else:
            made = f"\n{table(name, tables[name])}\n"
        return f"<!-- {kind}: {name} -->{made}<!-- end -->"

    text = MARKER.sub(fill, text)
    if values.used:
        said = "\n".join(["Numbers in the text are of these records:", "", *footer(list(values.used))])
        text, count = re.subn(
            r"<!-- results: values -->.*?<!-- end -->",
            lambda _: f"<!-- results: values -->\n{said}\n<!-- end -->",
            text,
            flags=re.DOTALL,
        )
        if not count:
            raise LookupError(f"{page.name} has values, but no <!-- results: values --><!-- end --> that dates them")
    return text
