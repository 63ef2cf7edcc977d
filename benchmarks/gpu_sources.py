"""What a GPU result was measured on: a hash of each group of sources that decides it, kept in the result.

    save("ledger", {**rows, "sources": stamp("kernel", "engine", "program")})

`python -m benchmarks.results_table --check` compares the hashes of every recorded GPU result with the sources as they
are, and says which of them are stale, and why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import framefuse
from benchmarks.kernel_rows import source_hash
from benchmarks.protocol import RESULTS

PACKAGE = Path(framefuse.__file__).parent
"""What is imported, which may be a wheel."""

GROUPS = {
    "kernel": ("kernels/tir/*.py", "kernels/*/*tir_*.py", "kernels/*/*cuda*.py", "kernels/*/*.cu*", "cuda/*.*"),
    "engine": ("engines/cudnn/*.py",),
    "tvm": ("engines/tvm/*.py",),
    "engines": ("lab/bench*.py", "engines/onnxruntime/*.py", "engines/torch/*.py", "engines/requests.py"),
    "program": (
        "runtime/cuda/*.py",
        "runtime/program.py",
        "runtime/ledger.py",
        "sources/nvdec.py",
    ),
    "feed": (
        *("pipeline.py", "runtime/stages.py", "runtime/channel.py", "runtime/batching.py", "runtime/readers.py"),
        *("fleet/*.py", "sources/*.py"),
    ),
}


def group_hash(group: str) -> str:
    """Twelve hex digits that change with any source of a group."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in GROUPS[group] for path in PACKAGE.glob(pattern)}):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def stamp(*groups: str) -> dict[str, str]:
    """Hash of each group that a result depends on; kernel, engine and program where none is named."""
    return {group: group_hash(group) for group in groups or ("kernel", "engine", "program")}


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded result of a GPU, by name."""
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result.get("gpu") or result.get("environment", {}).get("gpu"):
            yield path.stem, result


def stale() -> list[str]:
    """Which GPU results were measured on other sources than these, in words."""
    found = []
    for name, result in recorded():
        groups = {group: (old, group_hash(group)) for group, old in result.get("sources", {}).items()}
        if not groups and "source_hash" in result:  # of the kernel benchmark, which leaves out the kernels of networks
            groups = {"kernel": (result["source_hash"], source_hash("gpu"))}
        if not groups:
            found.append(f"{name} does not say on which sources it was measured")
        for group, (old, now) in groups.items():
            if now != old:
                found.append(f"{name} was measured on {group} sources {old}; they are {now} now")
    return found
