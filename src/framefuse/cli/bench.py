"""framefuse bench: measurements of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefuse.cli.console import check_choice, check_out, print_table, progress_printer, write_out
from framefuse.cli.options import PrintJson, size

if TYPE_CHECKING:
    from framefuse.lab.bench_report import BenchReport

app = typer.Typer(name="bench", help="Measure this machine.", rich_markup_mode=None)


@app.command()
def engines(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model", show_default=False)],
    engine: Annotated[
        list[str] | None, typer.Option(metavar="NAME,..", help="engines; default: all", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda|all", help="auto: the GPU if there is one")] = "auto",
    precision: Annotated[
        str, typer.Option(metavar="NAME,..", help="fp32, bf16, fp16, int8, or auto: the engine's own")
    ] = "auto",
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="images per batch")] = 1,
    imgsz: Annotated[str | None, typer.Option(metavar="N...", help="height and width", show_default=False)] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="measured runs per engine")] = 100,
    warmups: Annotated[int, typer.Option(min=0, metavar="N", help="warm-up runs per engine")] = 20,
    seconds: Annotated[float, typer.Option(metavar="N", help="time limit per engine; slow engines do fewer runs")] = 60,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the result as JSON", show_default=False)
    ] = None,
    print_json: PrintJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print only the result and errors")] = False,
) -> int:
    """Measure one model on every engine: latency, build time, size, and the difference of the outputs."""
    from framefuse.lab.bench import bench_engines

    engine = [name for words in engine or () for name in words.split(",")]
    precisions = precision.split(",")
    check_choice("--device", device, ("auto", "cpu", "cuda", "all"))
    for name in precisions:
        check_choice("--precision", name, ("auto", "fp32", "bf16", "fp16", "int8"))
    check_out(out, model)
    options: dict[str, Any] = {"devices": ("cpu", "cuda") if device == "all" else (device,), "precision": precisions}
    report = bench_engines(
        model,
        engines=engine,
        batch=batch,
        imgsz=size(imgsz) if imgsz else None,
        warmups=warmups,
        runs=runs,
        seconds=seconds,
        say=progress_printer(quiet),
        **options,
    )
    if print_json:
        typer.echo(report.to_json())
    else:
        _print(report)
    if out is not None:
        write_out(out, report.to_json() + "\n")
    report.check(engine)
    return 0


def _print(report: BenchReport) -> None:
    batch, _, height, width = report.shape
    title = f"{report.model}, batch {batch} of {width}x{height}, {report.runs} runs; errors against {report.reference}"
    header, rows = report.table()
    typer.echo(f"{title}\n")
    print_table(header, rows)
