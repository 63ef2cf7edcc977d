"""framefuse kernels: list the compiled kernels and show their code."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any, Literal

import typer

from framefuse.cli.console import print_rows
from framefuse.cli.options import PrintJson
from framefuse.common.names import nearest
from framefuse.errors import CapabilityError, UsageError

app = typer.Typer(name="kernels", help="List the compiled kernels and show their code.")


Form = Literal["tir", "cuda", "ptx", "asm"]
Device = Literal["cpu", "cuda"]
FORMS: dict[Form, Device] = {"cuda": "cuda", "ptx": "cuda", "asm": "cpu"}
"""Forms that exist for one device only."""


@app.command("list")
def list_(print_json: PrintJson = False) -> int:
    """List the compiled kernels with their family and device."""
    from framefuse.cuda import cubins
    from framefuse.kernels import cpu

    rows = [(name, family, "cpu") for name, family in cpu.names().items()]
    rows += [(name, kernel.family, "cuda") for name, kernel in cubins.descriptions().items()]
    print_rows(("kernel", "family", "device"), rows, print_json)
    return 0


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="name of a kernel; see 'framefuse kernels list'")],
    emit: Annotated[
        Form | None,
        typer.Option(help="TensorIR, CUDA source, PTX, or CPU assembly; default: the source as it was written"),
    ] = None,
    device: Annotated[Device | None, typer.Option(help="device, if both have a kernel of that name")] = None,
    capability: Annotated[int, typer.Option(help="compute capability for the PTX; 89 means 8.9")] = 90,
) -> int:
    """Print one kernel as TensorIR, CUDA source, PTX or assembly."""
    from framefuse.cuda import cubins
    from framefuse.kernels import cpu

    on = {"cpu": name in cpu.names(), "cuda": name in cubins.descriptions()}
    device = (FORMS.get(emit) if emit else None) or device or ("cpu" if on["cpu"] else "cuda")
    if not on[device]:
        other = next((place for place in on if on[place]), None)
        if other is None:
            near = nearest(name, [*cpu.names(), *cubins.descriptions()], 3)
            remedy = f"did you mean {' or '.join(near)}?" if near else "'framefuse kernels list' names them"
            raise UsageError(f"no kernel is named {name!r}", remedy=remedy)
        message = f"no kernel for {device} is named {name!r}, only one for {other}"
        raise UsageError(message, remedy="use --emit cuda or ptx for CUDA kernels, and asm for CPU kernels")
    on_cuda = device == "cuda"
    written = on_cuda and cubins.describe(name).written
    if emit == "tir" and written:
        raise UsageError(f"{name} is written in CUDA C++, not in TensorIR", remedy="--emit cuda prints it")
    if emit == "cuda" or (emit is None and written):
        typer.echo(cubins.describe(name).source)
    elif emit == "ptx":
        from framefuse.cuda import nvrtc

        kernel = cubins.describe(name)
        code = nvrtc.find().compile(kernel.source, name, capability, kernel.options, True)
        typer.echo(code.rstrip(b"\0").decode())
    else:
        if importlib.util.find_spec("tvm") is None:
            raise CapabilityError("TensorIR and assembly need TVM", remedy="pip install 'framefuse[tvm]'")
        from framefuse.kernels import build

        family = cubins.describe(name).family if on_cuda else cpu.names()[name]
        if on_cuda and family == "preprocess":  # 64 PrimFuncs, each of which TVM parses for one or two seconds
            tir: Any = importlib.import_module("framefuse.kernels.preprocess.tir_cuda")
            _, layout, sample, memory, *one = name.split("_")
            function = tir.variant(layout, sample, memory, alone=one == ["one"])
        else:
            function = build.function(name, family, cuda=on_cuda)
        if emit == "asm":
            typer.echo(build.assembly(function, build.own_level(name, family) or cpu.describe().level))
        else:
            typer.echo(function.script())
    return 0
