"""The list of CUDA kernels and their machine code.

`kernels/build.py` writes the source of each kernel and its launch description to `_lib/cuda`. The first use of a kernel
compiles it with NVRTC for the GPU's compute capability; the machine code is cached on disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from framefuse.cuda import nvrtc
from framefuse.errors import CapabilityError, UsageError

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "_lib" / "cuda"
"""Folder of the CUDA sources and their descriptions."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Description:
    """A kernel and how to launch it."""

    symbol: str
    family: str
    folder: Path
    """Folder of its source."""
    entry: str
    """Name of the kernel in the source."""
    parameters: tuple[tuple[str, str], ...]
    """(expression in the names of arguments, type), in the kernel's order."""
    arguments: tuple[str, ...]
    """Names that `launch` takes, sorted: addresses, numbers, and sizes of buffers."""
    grid: tuple[str, str, str]
    """Blocks in x, y and z, as expressions in the names of arguments."""
    block: tuple[int, int, int]
    shared: int
    """Bytes of dynamic shared memory."""
    options: tuple[str, ...]
    """Additional options for NVRTC."""
    waits: bool
    """Whether it begins by waiting for the previous kernels on its stream."""

    @property
    def source(self) -> str:
        """CUDA C++ that NVRTC compiles without any header."""
        prelude = (HERE / "prelude.cuh").read_text(encoding="utf-8")
        return prelude + "\n" + (self.folder / f"{self.symbol}.cu").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def descriptions() -> dict[str, Description]:
    """Every CUDA kernel by its symbol. Reads files only."""
    return _read(SOURCES)


def add(folder: Path) -> None:
    """Add the kernels that `build.build_file` wrote to `folder`, in this process.

    Raises:
        UsageError: one of them has the name of a kernel that is known already.
    """
    found = _read(folder)
    for symbol in found.keys() & descriptions().keys():
        if descriptions()[symbol].folder != folder:
            raise UsageError(f"there is a CUDA kernel named {symbol!r} already", remedy="choose another name")
    descriptions().update(found)


def _read(folder: Path) -> dict[str, Description]:
    found = {}
    for path in sorted(folder.glob("*.json")):
        for symbol, facts in json.loads(path.read_text(encoding="utf-8"))["kernels"].items():
            texts = [*(text for text, _ in facts["parameters"]), *facts["grid"]]
            used = {name for text in texts for name in compile(text, symbol, "eval").co_names} - {"min", "max"}
            found[symbol] = Description(
                symbol=symbol,
                family=path.stem,
                folder=folder,
                entry=facts["entry"],
                parameters=tuple((text, kind) for text, kind in facts["parameters"]),
                arguments=tuple(sorted({*facts["arguments"], *used})),
                grid=tuple(facts["grid"]),
                block=tuple(facts["block"]),
                shared=facts["shared"],
                options=tuple(facts["options"]),
                waits=facts.get("waits", False),
            )
    return found


def describe(symbol: str) -> Description:
    """The kernel of that symbol.

    Raises:
        UsageError: there is none.
        CapabilityError: this installation has no CUDA kernels at all.
    """
    known = descriptions()
    if not known:
        raise CapabilityError(
            f"the CUDA kernels are missing: {SOURCES}",
            remedy="in a checkout, run `pip install apache-tvm ziglang && python -m framefuse.kernels.build`; "
            "otherwise install framefuse again",
        )
    if symbol not in known:
        raise UsageError(f"no CUDA kernel is named {symbol!r}", remedy="`framefuse kernels list` names them")
    return known[symbol]


def cache_directory() -> Path:
    """Folder of the cached machine code: $XDG_CACHE_HOME/framefuse/kernels."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "framefuse" / "kernels"


def machine_code(description: Description, capability: int) -> bytes:
    """The cubin of a kernel, from the cache or compiled now; PTX for the driver if the GPU is newer than NVRTC.

    A cached file ends in the SHA-256 of its content, so a damaged or truncated one is compiled again. It is written
    under another name and then renamed, so several processes may write it at once. If it cannot be written, the code
    is used nevertheless and a warning is logged once.

    Raises:
        CapabilityError: NVRTC is missing or fails.
    """
    compiler, source = nvrtc.find(), description.source
    newest = compiler.architectures[-1]
    ptx = capability not in compiler.architectures and capability > newest
    target = newest if ptx else capability
    key = f"{source}\0{target}\0{ptx}\0{compiler.version}\0{description.options}"
    path = cache_directory() / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    if len(stored) > 32 and hashlib.sha256(stored[:-32]).digest() == stored[-32:]:
        return stored[:-32]
    code = compiler.compile(source, description.symbol, target, description.options, ptx)
    try:
        _write(path, code + hashlib.sha256(code).digest())
    except OSError as error:
        _warn_once(f"compiled kernels are kept in memory only: {path.parent}: {error.strerror or error}")
    return code


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=1)
def _warn_once(reason: str) -> None:
    _logger.warning(reason)
