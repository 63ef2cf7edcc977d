"""YAML for settings and cards: one flat mapping of plain values."""

from typing import Any

import yaml

DEPTH = 16
"""Maximum nesting depth of collections."""


def read_mapping(text: bytes) -> dict[str, tuple[Any, int]]:
    """Key -> (value, line) of a YAML mapping; empty text is an empty mapping.

    Raises:
        ValueError: invalid YAML, not a mapping, a duplicate key, an alias (a few lines of aliases can expand to
            gigabytes), or an impossible value such as 2024-02-30.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None or root.tag == "tag:yaml.org,2002:null":
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise ValueError("it is not a mapping")
        found: dict[str, tuple[Any, int]] = {}
        for key_node, value_node in root.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(f"a key is not text, line {line}")
            if key in found:
                raise ValueError(f"{key} is set twice, on line {found[key][1]} and line {line}")
            found[key] = (loader.construct_object(value_node, deep=True), line)
        return found
    except yaml.YAMLError as error:
        # Not str(error), which quotes the file: it may contain a password.
        mark = getattr(error, "problem_mark", None)
        words = [getattr(error, part, None) for part in ("context", "problem")]
        problem = ", ".join(filter(None, words)) or "it contains bytes that are not text"
        raise ValueError(problem + (f", line {mark.line + 1}" if mark else "")) from error


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

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [str(key.value) for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if str(key.value) in keys[:number]:
                problem = f"{str(key.value)[:100]} is set twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # PyYAML's constructors raise almost anything on invalid values
            raise yaml.MarkedYAMLError(problem=str(error)[:100], problem_mark=node.start_mark) from error
