"""Ahead-of-time build of the kernels: TensorIR -> LLVM objects -> one shared library per instruction-set level.

    python -m framefuse.kernels.build [--machine x86_64|aarch64] [--force]

Needs `apache-tvm` and `ziglang` (whose linker is used, so no compiler has to be on the machine); neither is needed at
run time. The wheel build runs this file too, by its path, so it imports nothing of framefuse.
The build is skipped when the sources, TVM's version and the machine are those of the libraries that exist.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY_DIRECTORY = HERE / "_lib"

# x86-64-v4 is left out on purpose: it measured no faster than v3 on the rows of these kernels.
TARGETS: dict[str, dict[str, dict[str, Any]]] = {
    "x86_64": {
        "x86-64-v2": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2"},
        "x86-64-v3": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"},
    },
    "aarch64": {"armv8-a": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}},
}


def build(machine: str | None = None, *, force: bool = False, directory: Path = LIBRARY_DIRECTORY) -> list[Path]:
    """Build the libraries for `machine` (as `platform.machine()` names it; default: this one) unless they are current.

    Returns:
        The libraries, one for each level of the machine.

    Raises:
        ValueError: kernels cannot be built for that machine.
        subprocess.CalledProcessError: the linker failed.
    """
    machine = machine or platform.machine()
    if machine not in TARGETS:
        raise ValueError(f"no kernels for machine {machine!r}; known: {', '.join(TARGETS)}")
    libraries = {level: directory / f"framefuse-{level}.so" for level in TARGETS[machine]}
    stamp, key = directory / f"{machine}.json", _key(machine)
    if not force and all(path.exists() for path in libraries.values()) and _read_key(stamp) == key:
        return list(libraries.values())
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        for level, path in libraries.items():
            linked = Path(scratch) / path.name
            _compile(TARGETS[machine][level], linked)
            os.replace(linked, path)
        written = Path(scratch) / stamp.name
        written.write_text(json.dumps({"key": key}), encoding="utf-8")
        os.replace(written, stamp)
    return list(libraries.values())


def _sources() -> list[Path]:
    return sorted((HERE / "tir").glob("[!_]*.py"))


def _key(machine: str) -> str:
    digest = hashlib.sha256(f"{machine} tvm {importlib.metadata.version('apache-tvm')}".encode())
    for source in [*_sources(), Path(__file__)]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _read_key(stamp: Path) -> str | None:
    try:
        return str(json.loads(stamp.read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError):
        return None


def _load(source: Path) -> ModuleType:
    """Import a kernel source by its path: the package around it cannot be imported in a build environment."""
    spec = importlib.util.spec_from_file_location(f"framefuse_tir_{source.stem}", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(target: dict[str, Any], library: Path) -> None:
    import tvm

    functions: dict[str, Any] = {}
    for source in _sources():
        functions |= _load(source).variants()
    compiled = tvm.compile(tvm.IRModule(functions), target=target)
    binary = library.with_suffix(".o")
    compiled.mod.write_to_file(str(binary), "o")
    command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--strip-debug", "-o", str(library), str(binary)]
    subprocess.run(command, check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build and print the paths of the libraries."""
    parser = argparse.ArgumentParser(prog="python -m framefuse.kernels.build", description="Build framefuse's kernels.")
    parser.add_argument("--machine", choices=list(TARGETS), help="default: this machine")
    parser.add_argument("--force", action="store_true", help="build even when the libraries are current")
    options = parser.parse_args(arguments)
    for path in build(options.machine, force=options.force):
        print(path)


if __name__ == "__main__":
    main()
