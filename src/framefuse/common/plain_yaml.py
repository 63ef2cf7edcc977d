"""YAML as settings and cards need it: one flat mapping of plain values."""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 16
"""Collections inside each other at most."""


def read_mapping(text: bytes) -> dict[str, tuple[Any, int]]:
    """Key -> (value, line) of a YAML mapping; an empty text is an empty mapping.

    Raises:
        ValueError: not YAML, no mapping, a key twice, aliases (a few lines of them can stand for gigabytes), or a value
            that its type does not have, such as 2024-02-30.
    """
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None or root.tag == "tag:yaml.org,2002:null":
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise ValueError("it is no mapping")
        found: dict[str, tuple[Any, int]] = {}
        for key_node, value_node in root.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(f"a key is no text, line {line}")
            if key in found:
                raise ValueError(f"{key} is set twice, in line {found[key][1]} and line {line}")
            found[key] = (loader.construct_object(value_node, deep=True), line)
        return found
    except yaml.YAMLError as error:
        # Not str(error): that quotes the file, in which a password may stand.
        mark = getattr(error, "problem_mark", None)
        words = [getattr(error, part, None) for part in ("context", "problem")]
        problem = ", ".join(filter(None, words)) or "it holds bytes that are no text"
        raise ValueError(problem + (f", line {mark.line + 1}" if mark else "")) from error
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=event.start_mark)  # type: ignore[arg-type]
        if self._depth > DEPTH:
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # PyYAML's constructors raise nearly anything on values that do not suit their type
            raise yaml.MarkedYAMLError(problem=str(error)[:100], problem_mark=node.start_mark) from error
