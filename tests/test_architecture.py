"""The laws of docs/internals/architecture.md that a machine can hold: who imports whom, and what an import may cost."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import framefuse

PACKAGE = Path(framefuse.__file__).parent

ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "common": {"errors"},
    "frame": {"errors"},
    "prediction": {"errors", "frame", "kernels"},
    "cuda": {"common", "errors"},
    "world": {"common", "errors"},
    "config": {"common", "errors"},
    "kernels": {"cuda", "errors", "frame"},
    "preprocess": {"errors", "frame", "kernels"},
    "models": {"common", "errors", "preprocess"},
    "engines": {"common", "cuda", "errors", "kernels", "models"},
    "tracking": {"common", "errors", "frame", "kernels", "prediction"},
    "adaptive": {"errors", "kernels", "prediction"},
    "batching": {"errors"},
    "postprocess": {"common", "errors", "frame", "kernels", "prediction", "preprocess"},
    "sources": {"common", "cuda", "errors", "frame", "world"},
    "sinks": {"common", "errors", "frame", "kernels", "prediction", "sources"},
    "runtime": {
        *("adaptive", "batching", "common", "config", "cuda", "engines", "errors", "frame", "kernels", "models"),
        *("postprocess", "prediction", "preprocess", "sinks", "sources", "tracking"),
    },
    "report": {"common", "errors", "runtime", "sources", "tracking"},
    "pipeline": {
        *("common", "config", "cuda", "engines", "errors", "frame", "models", "prediction"),
        *("report", "runtime", "sinks", "sources"),
    },
    "fleet": {"common", "config", "cuda", "errors", "models", "pipeline", "report", "runtime", "sinks", "sources"},
    "lab": {
        *(
            "adaptive",
            "batching",
            "common",
            "config",
            "cuda",
            "engines",
            "errors",
            "frame",
            "kernels",
            "models",
            "pipeline",
        ),
        *("postprocess", "prediction", "preprocess", "report", "runtime", "sinks", "sources", "tracking", "world"),
    },
    "cli": {
        *(
            "adaptive",
            "batching",
            "common",
            "config",
            "cuda",
            "engines",
            "errors",
            "fleet",
            "kernels",
            "lab",
            "models",
            "pipeline",
        ),
        *("prediction", "report", "runtime", "sinks", "sources", "world"),
    },
    "__main__": {"cli"},
    "": {
        "common",
        "config",
        "errors",
        "fleet",
        "frame",
        "lab",
        "pipeline",
        "prediction",
        "report",
        "runtime",
        "sinks",
        "sources",
    },
}
"""Room -> rooms that it may import. The room "" is the package itself, which only names what is public."""

ROOT_FILES = 8


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str) -> set[str]:
    """The modules of framefuse that a module imports, in functions and for type checkers too."""
    path, found = FILES[module], set[str]()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in FILES else base for alias in node.names}
    return {name for name in found if name.split(".")[0] == "framefuse" and name != module}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", FILES)
def test_arrows_go_down(module: str) -> None:
    extra = {room_of(name) for name in imports(module)} - ROOMS[room_of(module)] - {room_of(module)}
    assert not extra, f"{module} must not import {sorted(extra)}"


def test_rooms_are_in_order() -> None:
    """The table above has no circle."""
    list(graphlib.TopologicalSorter(ROOMS).static_order())


def test_modules_import_each_other_in_no_circle() -> None:
    list(graphlib.TopologicalSorter({module: imports(module) for module in FILES}).static_order())


def test_every_import_is_of_a_module_that_exists() -> None:
    missing = {(module, name) for module in FILES for name in imports(module) if name not in FILES}
    assert not missing


def test_few_files_at_the_root() -> None:
    names = [path.name for path in PACKAGE.glob("*.py")]
    assert len(names) <= ROOT_FILES, names


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_light() -> None:
    heavy = "{'av', 'openvino', 'onnx', 'onnxruntime', 'torch', 'tvm', 'tvm_ffi', 'matplotlib', 'PIL'}"
    assert run(f"import sys, framefuse; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_import_starts_no_thread_and_configures_no_logging() -> None:
    code = "import threading, logging, framefuse; print(threading.active_count(), len(logging.getLogger().handlers))"
    assert run(code) == "1 0"


def test_public_names_exist_and_are_documented() -> None:
    for name in framefuse.__all__:
        value = getattr(framefuse, name)
        assert isinstance(value, str) or value.__doc__, name


def test_options_of_public_functions_are_keyword_only() -> None:
    import inspect

    for name in ("Pipeline", "open_source"):
        parameters = list(inspect.signature(getattr(framefuse, name)).parameters.values())
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional in (["source", "model"], ["source", "options"]), f"{name}: {positional}"
