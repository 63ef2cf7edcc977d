"""The list of CUDA kernels and their machine code.

Pixel kernels come from TensorIR: `kernels/build.py` writes the source of each, and how to launch it, to `_lib/cuda`.
The others are CUDA C++ in `kernels/*/*.cu`; two comments above a kernel say how to launch it:

    // kernels: shrink_u8 <uint8_t>, shrink_u16 <uint16_t>
    // launch: grid ((n + 255) / 256, batch), block 256, waits
    template <class Sample>
    __global__ void __launch_bounds__(256) shrink(const Sample* luma, int n) {

The grid is an expression in the parameters or in further arguments of the launch. `block` is x, or `x * y`; `shared N`
after it is dynamic shared memory in bytes, a number or an `int` of the template; `waits` says that the kernel begins
with `wait_for_previous()`; options of NVRTC may follow. Attributes that are macros follow the launch bounds. A kernel
without a template is `extern "C"`, has its own name and needs no list. `prelude.cuh` comes first; a file includes
others by paths relative to itself.

The first use of a kernel compiles it with NVRTC for the GPU's compute capability; the machine code is cached on disk.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from framefuse.common.files import user_cache, write_atomically
from framefuse.cuda import nvrtc
from framefuse.errors import CapabilityError, UsageError

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "_lib" / "cuda"
"""Folder of the generated CUDA sources and their descriptions."""
WRITTEN = HERE.parent / "kernels"
"""Its folders hold the kernels in CUDA C++."""

INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
KERNEL = re.compile(
    r"(?P<kernels>(?:// kernels: .+\n)*)// launch: grid \((?P<grid>.+)\), block (?P<block>[\d *]+)"
    r"(?:, shared (?P<shared>\w+))?(?P<waits>, waits)?(?P<options>(?:, -\S+)*)\n"
    r"(?P<head>(?:template <(?P<formals>.+)>\n|extern \"C\" )__global__ void (?P<bounds>__launch_bounds__\(.+?\)\s)?"
    r"(?P<name>[a-z]\w*)\()(?P<parameters>[^{]+)\) \{\n"
)
END = re.compile(r"^\}.*(?:\n|\Z)", re.MULTILINE)
"""The last line of a kernel."""
TYPES = dict(
    int="int32", unsigned="uint32", int64_t="int64", uint64_t="uint64", uint32_t="uint32", float="float32", bool="bool"
)
"""Type of a parameter in C -> in the launcher; pointers aside."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Description:
    """A kernel and how to launch it."""

    symbol: str
    family: str
    file: Path
    """Its source."""
    entry: str
    """Name of the kernel in the source."""
    parameters: tuple[tuple[str, str], ...]
    """(expression in the names of arguments, type), in the kernel's order."""
    grid: tuple[str, str, str]
    """Blocks in x, y and z, as expressions in the names of arguments."""
    block: tuple[int, int, int]
    shared: int
    """Bytes of dynamic shared memory."""
    options: tuple[str, ...]
    """Additional options for NVRTC."""
    waits: bool
    """Whether it begins by waiting for the previous kernels on its stream."""
    given: tuple[str, ...] = ()
    """Names that `launch` takes although nothing may need them."""
    head: tuple[str, str] = ("", "")
    """The head of a template in the source, and that of the kernel that it becomes."""
    program: str = ""
    """The source, after `prelude.cuh`, of a kernel that has no file; its kernels are compiled and loaded together."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names that `launch` takes, sorted: addresses, numbers, and sizes of buffers."""
        expressions = (*(text for text, _ in self.parameters), *self.grid)
        names = {name for text in expressions for name in compile(text, text, "eval").co_names}
        return tuple(sorted((names | {*self.given}) - {"min", "max"}))

    @property
    def written(self) -> bool:
        """Whether its source is hand-written CUDA C++, not generated from TensorIR."""
        return bool(self.head[0])

    @property
    def source(self) -> str:
        """CUDA C++ that NVRTC compiles without any header; of a file that has several kernels, this one alone."""
        seen: set[Path] = set()
        prelude = _text(HERE / "prelude.cuh", seen) + "\n"
        if self.program or not self.written:
            return prelude + (self.program or _text(self.file, seen))
        return prelude + _alone(_text(self.file, seen), *self.head)


def _text(file: Path, seen: set[Path]) -> str:
    """A file with what it includes, each once."""
    seen.add(file)

    def included(match: re.Match[str]) -> str:
        path = (file.parent / match[1]).resolve()
        return "" if path in seen else _text(path, seen)

    return INCLUDE.sub(included, file.read_text(encoding="utf-8"))


def _alone(text: str, head: str, instead: str) -> str:
    """The text without its kernels but the one with that head, which gets the other one."""
    parts, at = list[str](), 0
    for kernel in KERNEL.finditer(text):
        last = END.search(text, kernel.end())
        end = last.end() if last else len(text)
        parts.append(text[at : kernel.start()])
        if kernel["head"] == head:
            parts.append(text[kernel.start() : end].replace(head, instead))
        at = end
    return "".join(parts) + text[at:]


@lru_cache(maxsize=1)
def descriptions() -> dict[str, Description]:
    """Every CUDA kernel by its symbol. Reads files only."""
    return _read(SOURCES) | {
        symbol: found for folder in sorted(WRITTEN.iterdir()) for symbol, found in _read_cu(folder)
    }


def add(folder: Path) -> None:
    """Make kernels known to this process: those that `build.build_file` wrote to `folder`, or those of its .cu files.

    Raises:
        UsageError: one of them has the name of a kernel that is known already, or does not say how to launch it.
    """
    found = _read(folder) or dict(_read_cu(folder))
    for symbol in found.keys() & descriptions().keys():
        if descriptions()[symbol].file.parent != folder:
            raise UsageError(f"there is a CUDA kernel named {symbol!r} already", remedy="choose another name")
    descriptions().update(found)


_programs: dict[str, Description] = {}
"""The kernels of programs."""


def add_program(name: str, program: str) -> list[str]:
    """Make the kernels of a program known to `describe`, CUDA C++ that this process wrote.

    Args:
        name: of the program. One that is known already is the same.

    Returns:
        The kernels' symbols, in order: the names that they have in the program.
    """
    found = {symbol: replace(one, program=program) for symbol, one in _kernels_of(program, Path(name), name)}
    _programs.update(found)
    return list(found)


def _read(folder: Path) -> dict[str, Description]:
    return {
        symbol: Description(symbol, path.stem, folder / f"{symbol}.cu", **facts)
        for path in sorted(folder.glob("*.json"))
        for symbol, facts in json.loads(path.read_text(encoding="utf-8"))["kernels"].items()
    }


def _read_cu(folder: Path) -> Iterator[tuple[str, Description]]:
    for path in sorted(folder.glob("*.cu")):
        family = path.stem if path.stem == folder.name else f"{folder.name}_{path.stem}"
        yield from _kernels_of(path.read_text(encoding="utf-8"), path, family)


def _kernels_of(text: str, path: Path, family: str) -> Iterator[tuple[str, Description]]:
    """The kernels of CUDA C++, which a file has."""
    kernels = list(KERNEL.finditer(text))
    if len(kernels) != len(re.findall("__global__", text)):
        message = f"{path} has kernels that do not say how to launch them"
        raise UsageError(message, remedy="put a line `// launch: grid (...), block ...` above each")
    for kernel in kernels:
        parameters = tuple(map(_parameter, kernel["parameters"].split(",")))
        grid = ast.parse(f"f({kernel['grid'].replace('/', '//')})", mode="eval").body
        assert isinstance(grid, ast.Call)
        x, y, z = [*map(ast.unparse, grid.args), "1", "1"][:3]
        across, down = [*map(int, kernel["block"].split("*")), 1][:2]
        shape = (x, y, z), (across, down, 1)
        options, waits = tuple(kernel["options"].split(", ")[1:]), kernel["waits"] is not None
        for symbol, actuals in re.findall(r"(\w+) <(.+?)>", kernel["kernels"]) or [(kernel["name"], "")]:
            given = _given(kernel, actuals)
            launch = *shape, int(given.get(f"int {kernel['shared']}", kernel["shared"] or 0)), options, waits
            head = kernel["head"], _instance(kernel, symbol, given)
            yield symbol, Description(symbol, family, path, symbol, parameters, *launch, head=head)


def _parameter(text: str) -> tuple[str, str]:
    kind, name = text.replace("*", "* ").rsplit(None, 1)
    return name, "pointer" if "*" in kind else TYPES[kind.strip()]


def _given(kernel: re.Match[str], actuals: str) -> dict[str, str]:
    """What the parameters of its template are, such as `int N`."""
    return dict(zip((kernel["formals"] or "").split(", "), actuals.split(", "), strict=True)) if actuals else {}


def _instance(kernel: re.Match[str], symbol: str, given: dict[str, str]) -> str:
    """The head of a kernel, after names for its template: `using Sample = uint8_t;` or `constexpr int N = 2;`."""
    lines = (re.sub("^class", "using", formal) + f" = {actual};\n" for formal, actual in given.items())
    names = "".join(line if line.startswith("using") else f"constexpr {line}" for line in lines)
    return f'{names}extern "C" __global__ void {kernel["bounds"] or ""}{symbol}('


def describe(symbol: str) -> Description:
    """The kernel of that symbol.

    Raises:
        UsageError: there is none.
        CapabilityError: this installation has no CUDA kernels at all.
    """
    if found := _programs.get(symbol) or descriptions().get(symbol):
        return found
    if any(SOURCES.glob("*.json")):
        raise UsageError(f"no CUDA kernel is named {symbol!r}", remedy="`framefuse kernels list` names them")
    raise CapabilityError(
        f"the CUDA kernels are missing: {SOURCES}",
        remedy="in a checkout, run `pip install apache-tvm ziglang && python -m framefuse.kernels.build`; "
        "otherwise install framefuse again",
    )


def cache_directory() -> Path:
    """Folder of the cached machine code."""
    return user_cache() / "kernels"


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
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, code + hashlib.sha256(code).digest())
    except OSError as error:
        _warn_once(f"compiled kernels are kept in memory only: {path.parent}: {error.strerror or error}")
    return code


@lru_cache(maxsize=1)
def _warn_once(reason: str) -> None:
    _logger.warning(reason)
