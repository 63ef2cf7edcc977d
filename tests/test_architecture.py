"""The laws of docs/architecture.md that a machine can hold: who imports whom, and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import framefuse

PACKAGE = Path(framefuse.__file__).parent

# Room -> rooms it may import. Every room may import errors.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "machine": set(),
    "gpus": {"kernels"},
    "redact": set(),
    "plain_yaml": set(),
    "ort": set(),
    "frame": set(),
    "prediction": {"frame"},
    "kernels": {"frame"},
    "preprocess": {"frame", "kernels"},
    "models": {"frame", "ort", "plain_yaml", "preprocess", "redact"},
    "postprocess": {"prediction", "preprocess", "kernels", "models"},
    "engines": {"gpus", "kernels", "machine", "models", "ort"},
    "synthetic": {"frame"},
    "sources": {"frame", "kernels", "redact", "synthetic"},
    "sinks": {"frame", "prediction", "redact", "sources", "kernels"},
    "batching": set(),
    "bench_report": set(),
    "config": {"machine", "plain_yaml", "redact"},
    "threads": set(),
    "profiling": {"machine", "threads"},
    "report": {"machine", "profiling", "redact", "report_html", "sources", "verdict"},
    "verdict": {"profiling"},
    "report_html": {"report", "profiling"},
    "channel": {"threads"},
    "choices": {"config", "kernels", "models", "preprocess"},
    "ledger": set(),
    "memory": {"frame", "kernels", "ledger"},
    "outlets_cuda": {"kernels", "memory", "models", "postprocess", "prediction", "preprocess", "program"},
    "readers": {"config", "sources"},
    "stages": {"batching", "channel", "frame", "prediction", "profiling", "program", "sinks", "sources"},
    "outputs": {"config", "redact", "sinks", "sources"},
    "lowering": {"engines", "evaluation", "frame", "models", "pipeline", "plain_yaml", "prediction", "sources"},
    "building": {"engines", "kernels", "lowering", "models"},
    "program": {
        "engines",
        "frame",
        "ledger",
        "models",
        "postprocess",
        "prediction",
        "preprocess",
        "profiling",
        "threads",
    },
    "lane_cuda": {"frame", "kernels", "ledger", "memory", "models", "outlets_cuda", "preprocess", "program"},
    "program_cuda": {
        "frame",
        "kernels",
        "lane_cuda",
        "ledger",
        "memory",
        "models",
        "preprocess",
        "profiling",
        "program",
    },
    "parity": {
        "choices",
        "config",
        "engines",
        "frame",
        "gpus",
        "kernels",
        "models",
        "pipeline",
        "postprocess",
        "preprocess",
        "sources",
        "synthetic",
    },
    "evaluation": {"config", "engines", "frame", "models", "pipeline", "prediction", "redact", "sources", "synthetic"},
}
FREE = {"__init__", "__main__", "entry", "pipeline", "fleet", "fleet_worker", "doctor", "bench", "cli"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "framefuse":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("framefuse.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    if room in FREE:
        return
    extra = imported_rooms(path) - ALLOWED[room] - {room, "errors"}
    assert not extra, f"{room} must not import {sorted(extra)}"


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
