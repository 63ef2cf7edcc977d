"""Ahead-of-time build of the kernels: TensorIR -> LLVM objects -> one shared library per instruction-set level,
and TensorIR -> CUDA source, which the user's machine compiles for its GPU (`cuda/cubins.py`). Kernels in .cu files need
no build.

    python -m framefuse.kernels.build [--machine x86_64|aarch64] [--force]

Needs `apache-tvm` and `ziglang`, whose linker stands in for a compiler on the machine; neither is needed at run time.
The wheel build runs this file by its path, so it imports nothing of framefuse. What is built already from the same
sources, by the same version of TVM, for the same machine, is skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY_DIRECTORY = HERE.parent / "_lib"
PACKAGE = "framefuse_tir"
"""Name under which the build imports this folder."""

CPU, CUDA = "tir_cpu", "tir_cuda"
"""Prefixes of kernel sources: `boxes/tir_cpu.py` holds family `boxes` for the CPU, `geometry/tir_cuda.py` family
`geometry` for CUDA. Code that sources share is in `_tir*.py` beside them and in `tir/`."""

X86_64 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
TARGETS: dict[str, dict[str, dict[str, Any]]] = {
    "x86_64": {
        "x86-64-v2": X86_64 | {"mcpu": "x86-64-v2"},
        "x86-64-v3": X86_64 | {"mcpu": "x86-64-v3"},
        "x86-64-v4": X86_64 | {"mcpu": "x86-64-v4", "mattr": ["+avx512vbmi", "-prefer-256-bit"]},
    },
    "aarch64": {"armv8-a": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}},
}
"""Machine -> its levels."""

EXTRA = ("x86-64-v4",)
"""Levels for kernels whose family has a `level_of` that says so because they are at least 10 % faster there. All others
are built for the rest."""


def build(machine: str | None = None, *, force: bool = False, directory: Path = LIBRARY_DIRECTORY) -> list[Path]:
    """Build the libraries for `machine` (as `platform.machine()` names it; default: this one) unless they are current.

    Returns:
        Every file: a library for each level of the machine, the CUDA sources and their descriptions.

    Raises:
        ValueError: the machine is unknown, or a CUDA kernel cannot be described for its launcher.
        RuntimeError: the compiler or the linker failed.
    """
    machine = machine or platform.machine()
    if machine not in TARGETS:
        raise ValueError(f"no kernels for machine {machine!r}; known: {', '.join(TARGETS)}")
    cuda = directory / "cuda"
    if force or not (_cpu_state(machine, directory)[1] and all(_cuda_state(f, cuda)[2] for f in _families(cuda=True))):
        cpu_half = partial(build_cpu, machine, force=force, directory=directory)
        _run_parallel([cpu_half, partial(build_cuda, force=force, directory=cuda)])
    return build_cpu(machine, directory=directory) + build_cuda(directory=cuda)


def build_cpu(machine: str, *, force: bool = False, directory: Path = LIBRARY_DIRECTORY) -> list[Path]:
    """One library for each level of the machine, and a JSON file that lists their kernels."""
    targets = TARGETS[machine]
    libraries = {level: directory / f"framefuse-{level}.so" for level in targets}
    index = directory / f"{machine}.json"
    key, current = _cpu_state(machine, directory)
    if force or not current:
        kernels: dict[str, str] = {}
        functions: dict[str, dict[str, Any]] = {level: {} for level in targets}
        for source in _families():
            family = family_of(source)
            for symbol, made in _load(source).variants().items():
                for level in _levels(machine, own_level(symbol, family)):
                    functions[level][symbol] = made
                    kernels[symbol] = family
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            built = {level: Path(scratch, path.name) for level, path in libraries.items()}
            _run_parallel([partial(_compile, functions[level], targets[level], path) for level, path in built.items()])
            for level, path in libraries.items():
                os.replace(built[level], path)
            _write_index(index, key, kernels, Path(scratch))
    return [*libraries.values(), index]


def build_cuda(*, force: bool = False, directory: Path = LIBRARY_DIRECTORY / "cuda") -> list[Path]:
    """A CUDA source for each kernel, and a JSON file for each family that describes how to launch them."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = set()
    for source in _families(cuda=True):
        index, key, current = _cuda_state(source, directory)
        if force or not current:
            _generate(_load(source).cuda_variants(), index, key)
        wanted |= {index, *(directory / f"{name}.cu" for name in json.loads(index.read_text("utf-8"))["kernels"])}
    for path in set(directory.iterdir()) - wanted:
        path.unlink(missing_ok=True)  # belongs to a removed kernel
    return sorted(wanted)


def build_file(source: Path, directory: Path) -> list[Path]:
    """Build the kernels of a user's file; `docs/guide/own-kernel.md` shows one.

    Args:
        source: a Python file with `variants()`, `cuda_variants()` or both.
        directory: receives `<stem>-<level>.so` for each level of this machine, and a folder `cuda` for
            `cubins.add`.

    Returns:
        The libraries.
    """
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (directory / "cuda").mkdir(parents=True, exist_ok=True)
    libraries = []
    if hasattr(module, "variants"):
        for level in _levels(platform.machine(), None):
            libraries.append(directory / f"{source.stem}-{level}.so")
            _compile(module.variants(), TARGETS[platform.machine()][level], libraries[-1])
    if hasattr(module, "cuda_variants"):
        _generate(module.cuda_variants(), directory / "cuda" / f"{source.stem}.json", _key("cuda", [source]))
    return libraries


def function(symbol: str, family: str, *, cuda: bool = False) -> Any:
    """The PrimFunc of a kernel. Imports TVM."""
    module = _family(family, cuda)
    return (module.cuda_variants() if cuda else module.variants())[symbol]


def own_level(symbol: str, family: str) -> str | None:
    """The only level for which a CPU kernel is built, or None for all but EXTRA. Imports TVM."""
    level_of: Callable[[str], str | None] = getattr(_family(family, False), "level_of", lambda symbol: None)
    return level_of(symbol)


def assembly(function: Any, level: str) -> str:
    """LLVM's assembly of a PrimFunc for an instruction-set level."""
    import tvm

    target = next(levels[level] for levels in TARGETS.values() if level in levels)
    symbol = str(function.attrs["global_symbol"])
    return str(tvm.compile(tvm.IRModule({symbol: function}), target=target).mod.inspect_source("s"))


def _generate(functions: dict[str, Any], index: Path, key: str) -> None:
    """Write the files of one family, the index last: a family without one counts as not built."""
    generator = _load(HERE / "tir" / "generate.py")
    with tempfile.TemporaryDirectory(dir=index.parent.parent) as scratch:
        kernels = {}
        for symbol, function in functions.items():
            code, kernels[symbol] = generator.generate(symbol, function)
            written = Path(scratch, f"{symbol}.cu")
            written.write_text(code, encoding="utf-8")
            os.replace(written, index.with_name(written.name))
        _write_index(index, key, kernels, Path(scratch))


def _write_index(index: Path, key: str, kernels: dict[str, Any], scratch: Path) -> None:
    written = scratch / index.name
    written.write_text(json.dumps({"key": key, "kernels": kernels}), encoding="utf-8")
    os.replace(written, index)


def _levels(machine: str, own: str | None) -> list[str]:
    """The levels of a kernel, which may have one of its own."""
    return [level for level in TARGETS[machine] if (level == own if own else level not in EXTRA)]


def _families(*, cuda: bool = False) -> list[Path]:
    """The kernel sources for the CPU, or those for CUDA."""
    return sorted(HERE.glob(f"*/{CUDA if cuda else CPU}*.py"))


def family_of(source: Path) -> str:
    """Name of the family that a source holds."""
    return source.parent.name + source.stem.removeprefix(CUDA).removeprefix(CPU)


def _shared(*, cuda: bool) -> list[Path]:
    """Code that kernel sources share; CPU sources use none of the code for CUDA."""
    found = [*HERE.glob("tir/*.py"), *HERE.glob("*/_tir*.py")]
    if cuda:
        return sorted([*found, HERE / "preprocess" / "frame_row.py"])
    found = [path for path in found if "cuda" not in path.stem and path.stem != "generate"]
    return sorted([*found, HERE / "preprocess" / "filters.py"])


def _key(machine: str, sources: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{machine} tvm {importlib.metadata.version('apache-tvm')}".encode())
    for source in [*sources, Path(__file__)]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _cpu_state(machine: str, directory: Path) -> tuple[str, bool]:
    """The key of the libraries of a machine, and whether they are there and have it."""
    key = _key(machine, [*_shared(cuda=False), *_families()])
    there = all((directory / f"framefuse-{level}.so").exists() for level in TARGETS[machine])
    return key, there and _read_key(directory / f"{machine}.json") == key


def _cuda_state(source: Path, directory: Path) -> tuple[Path, str, bool]:
    """The index of a CUDA family, its key, and whether the index has it."""
    index, key = directory / f"{family_of(source)}.json", _key("cuda", [*_shared(cuda=True), source])
    return index, key, _read_key(index) == key


def _read_key(stamp: Path) -> str | None:
    try:
        return str(json.loads(stamp.read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError):
        return None


def _family(family: str, cuda: bool) -> ModuleType:
    return _load(next(source for source in _families(cuda=cuda) if family_of(source) == family))


def _load(source: Path) -> ModuleType:
    """Import a kernel source.

    This folder is imported by its path as a separate package without the `__init__.py` of its folders, since framefuse
    cannot be imported in a build environment.
    """
    folders = {f"{PACKAGE}.{path.parent.name}": path.parent for path in [source, *_shared(cuda=True)]}
    for name, folder in {PACKAGE: HERE, **folders}.items():
        if name not in sys.modules:
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            sys.modules[name] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{PACKAGE}.{source.parent.name}.{source.stem}")


def _compile(functions: dict[str, Any], target: dict[str, Any], library: Path) -> None:
    import tvm

    binary = library.with_suffix(".o")
    tvm.compile(tvm.IRModule(functions), target=target).mod.write_to_file(str(binary), "o")
    command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--strip-debug", "-o", str(library), str(binary)]
    subprocess.run(command, check=True)
    binary.unlink()


def _run_parallel(jobs: Sequence[Callable[[], object]]) -> None:
    """Run each job in a forked process, since a PrimFunc cannot be pickled.

    Raises:
        RuntimeError: a job failed; it has printed the reason.
    """
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=job) for job in jobs]
    with warnings.catch_warnings():  # Python warns of forking with numpy's threads, which are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    if failed := [process.exitcode for process in processes if process.exitcode]:
        raise RuntimeError(f"the kernels could not be compiled: exit status {failed}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build and print the paths of the libraries and of the descriptions of CUDA sources."""
    parser = argparse.ArgumentParser(prog="python -m framefuse.kernels.build", description="Build framefuse's kernels.")
    parser.add_argument("--machine", choices=list(TARGETS), help="default: this machine")
    parser.add_argument("--force", action="store_true", help="build even when the libraries are current")
    options = parser.parse_args(arguments)
    for path in build(options.machine, force=options.force):
        if path.suffix != ".cu":
            print(path)


if __name__ == "__main__":
    main()
