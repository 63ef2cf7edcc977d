"""What this machine has and can do: framefuse doctor, power, bench engines and kernels."""

import dataclasses
import importlib
import importlib.util
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from framefuse.cli.console import check_choice, check_out, print_rows, print_table, progress_printer, write_out
from framefuse.cli.interrupts import stop_if_interrupted
from framefuse.cli.options import App, PrintJson, option, size
from framefuse.common.names import nearest
from framefuse.errors import CapabilityError, UsageError

bench = App(name="bench", help="Measure this machine.")
kernels = App(name="kernels", help="List the compiled kernels and show their code.")
Form = Literal["tir", "cuda", "ptx", "asm"]
Device = Literal["cpu", "cuda"]
FORMS: dict[Form | None, Device] = {"cuda": "cuda", "ptx": "cuda", "asm": "cpu"}
"""Forms that exist for one device only."""
STYLES = {"PASS": "green", "FAIL": "bold red", "ABSENT": "dim"}


def doctor(print_json: PrintJson = False) -> int:
    """Run a tiny job on every part and report what works."""
    from framefuse.lab.doctor import checks, facts

    if print_json:
        found = list(checks())
        typer.echo(json.dumps({"facts": facts(), "checks": [dataclasses.asdict(check) for check in found]}, indent=2))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        for key, value in facts().items():
            console.print(Text.assemble((f"{key:<29}", "dim"), value))
        console.print()
        found = []
        for check in checks():
            found.append(check)
            status = f"{check.status:<8}", STYLES[check.status]
            console.print(Text.assemble(status, f"{check.name:<29}{check.detail}"))
            if check.remedy:
                console.print(Text(f"{'':<8}{'':<29}-> {check.remedy}", style="dim"))
    broken = [check.name for check in found if check.core and check.status != "PASS"]
    if broken:
        raise CapabilityError(f"the core does not work here: {', '.join(broken)}", remedy="see the lines above")
    return 0


def power(
    seconds: Annotated[float, option("N", "how long to measure")] = 5.0,
    device: Annotated[str, option("auto|cpu|cuda|cuda:N|board", "auto: all; board: a Jetson")] = "auto",
    save_idle: Annotated[
        bool, typer.Option("--save-idle", help="save the measured watts as the idle power that later reports subtract")
    ] = False,
    print_json: PrintJson = False,
) -> int:
    """Show the power of every device over some seconds, by which counter, and why others are missing."""
    from framefuse.runtime.power import Meter, board_counter, cpu_counter, gpu_counter, gpu_counters

    if not 1 <= seconds <= 3600 or not re.fullmatch(r"auto|cpu|board|cuda(:\d{1,3})?", device):
        remedy = "use 1 to 3600 seconds, and auto, cpu, cuda, cuda:1 or board"
        raise UsageError(f"cannot measure --device {device} for --seconds {seconds:g}", remedy=remedy)
    found = [board_counter(), *([gpu_counter(int(device[5:]))] if ":" in device else gpu_counters()), cpu_counter()]
    meter = Meter(counter for counter in found if device == "auto" or counter.device.startswith(device))
    meter.start()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and any(not counter.missing for counter in meter.counters):
        stop_if_interrupted()
        time.sleep(min(left, 0.1))
    meter.stop()
    rows = meter.facts()
    lines = "\n".join(row.line() for row in rows)
    typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) if print_json else lines)
    if all(row.missing for row in rows) and device != "auto":
        raise CapabilityError(f"--device {device}: {rows[0].missing}", remedy="--device auto shows all devices")
    for counter, row in zip(meter.counters, rows, strict=True):
        if save_idle and row.watts:
            write_out(counter.idle_file, f"{row.watts}")
    return 0


@bench.command()
def engines(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    engine: Annotated[list[str] | None, option("NAME,...", "engines; default: all")] = None,
    device: Annotated[str, option("auto|cpu|cuda|all", "auto: the GPU if there is one")] = "auto",
    precision: Annotated[str, option("NAME,...", "fp32, bf16, fp16, int8, or auto: the engine's own")] = "auto",
    batch: Annotated[int, option("N", "images per batch", min=1)] = 1,
    imgsz: Annotated[str | None, option("N,...", "a number, or height and width")] = None,
    runs: Annotated[int, option("N", "measured runs per engine", min=1)] = 100,
    warmups: Annotated[int, option("N", "warm-up runs per engine", min=0)] = 20,
    seconds: Annotated[float, option("N", "time limit per engine; slow engines do fewer runs")] = 60,
    out: Annotated[Path | None, option("FILE", "write the result as JSON")] = None,
    print_json: PrintJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print only the result and errors")] = False,
) -> int:
    """Measure one model on every engine: latency, build time, size, and the difference of the outputs."""
    from framefuse.engines import Precision
    from framefuse.lab.bench import bench_engines

    engine = [name for words in engine or () for name in words.split(",")]
    precisions = precision.split(",")
    check_choice("--device", device, ("auto", "cpu", "cuda", "all"))
    for name in precisions:
        check_choice("--precision", name, get_args(Precision))
    check_out(out, model)
    options: dict[str, Any] = {"devices": ("cpu", "cuda") if device == "all" else (device,), "precision": precisions}
    counts: dict[str, Any] = {"batch": batch, "warmups": warmups, "runs": runs, "seconds": seconds}
    sides = size(imgsz) if imgsz else None
    report = bench_engines(model, engines=engine, imgsz=sides, say=progress_printer(quiet), **options, **counts)
    if print_json:
        typer.echo(report.to_json())
    else:
        batch, _, height, width = report.shape
        title = f"{report.model}, batch {batch} of {width}x{height}, {report.runs} runs"
        typer.echo(f"{title}; errors against {report.reference}\n")
        columns, rows = report.table()
        print_table([columns, *rows])
    if out is not None:
        write_out(out, report.to_json() + "\n")
    report.check(engine)
    return 0


@kernels.command("list")
def list_(print_json: PrintJson = False) -> int:
    """List the compiled kernels with their family and device."""
    from framefuse.cuda import cubins
    from framefuse.kernels import cpu

    rows = [(name, family, "cpu") for name, family in cpu.names().items()]
    rows += [(name, kernel.family, "cuda") for name, kernel in cubins.descriptions().items()]
    print_rows(("kernel", "family", "device"), rows, print_json)
    return 0


@kernels.command()
def show(
    name: Annotated[str, typer.Argument(help="name of a kernel; see 'framefuse kernels list'")],
    emit: Annotated[
        Form | None,
        option("tir|cuda|ptx|asm", "TensorIR, CUDA, PTX or CPU assembly; default: as written"),
    ] = None,
    device: Annotated[Device | None, option("cpu|cuda", "device, if both have a kernel of that name")] = None,
    capability: Annotated[int, typer.Option(help="compute capability for the PTX; 89 means 8.9")] = 90,
) -> int:
    """Print one kernel as TensorIR, CUDA source, PTX or assembly."""
    from framefuse.cuda import cubins
    from framefuse.kernels import cpu

    families, described = cpu.names(), cubins.descriptions()
    found: dict[Device, Mapping[str, object]] = {"cpu": families, "cuda": described}
    places = [place for place in found if name in found[place]]
    if not places:
        near = nearest(name, [*families, *described], 3)
        remedy = f"did you mean {' or '.join(near)}?" if near else "'framefuse kernels list' names them"
        raise UsageError(f"no kernel is named {name!r}", remedy=remedy)
    device = FORMS.get(emit) or device or places[0]
    if device not in places:
        message = f"no kernel for {device} is named {name!r}, only one for {places[0]}"
        raise UsageError(message, remedy="use --emit cuda or ptx for CUDA kernels, and asm for CPU kernels")
    kernel = described[name] if device == "cuda" else None
    if kernel and kernel.written and emit == "tir":
        raise UsageError(f"{name} is written in CUDA C++, not in TensorIR", remedy="--emit cuda prints it")
    if kernel and (emit == "cuda" or (emit is None and kernel.written)):
        typer.echo(kernel.source)
    elif kernel and emit == "ptx":
        from framefuse.cuda import nvrtc

        code = nvrtc.find().compile(kernel.source, name, capability, kernel.options, True)
        typer.echo(code.rstrip(b"\0").decode())
    else:
        if importlib.util.find_spec("tvm") is None:
            raise CapabilityError("TensorIR and assembly need TVM", remedy="pip install 'framefuse[tvm]'")
        from framefuse.kernels import build

        family = kernel.family if kernel else families[name]
        if kernel and family == "preprocess":  # 64 PrimFuncs, each of which TVM parses for one or two seconds
            tir: Any = importlib.import_module("framefuse.kernels.preprocess.tir_cuda")
            _, layout, sample, memory, *one = name.split("_")
            function = tir.variant(layout, sample, memory, alone=one == ["one"])
        else:
            function = build.function(name, family, cuda=kernel is not None)
        if emit == "asm":
            typer.echo(build.assembly(function, build.own_level(name, family) or cpu.describe().level))
        else:
            typer.echo(function.script())
    return 0
