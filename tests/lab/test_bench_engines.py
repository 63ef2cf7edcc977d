"""framefuse bench engines: every engine in one table, and why those that are missing are."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_models
from benchmarks.engines import keep
from benchmarks.results.cpu import engine_lines
from framefuse.cli.app import main
from framefuse.engines import ENGINES, Slot, onnxruntime
from framefuse.errors import CapabilityError, UsageError
from framefuse.lab import bench
from framefuse.lab.bench import BenchReport, Row, Timing, bench_engines
from framefuse.runtime.power import Counter

SIZE = (small_models.HEIGHT, small_models.WIDTH)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_models.write(tmp_path_factory.mktemp("bench") / "tiny_v5.onnx", "tiny_v5")


def test_every_engine_has_a_row(model: Path) -> None:
    report = bench_engines(model, devices=["cpu"], imgsz=SIZE, batch=2, warmups=2, runs=5)
    rows = {row.engine: row for row in report.rows}
    assert set(rows) >= set(ENGINES) and report.shape == (2, 3, *SIZE)
    for name in ("openvino", "onnxruntime", "null"):
        row = rows[name]
        assert row.wall is not None and row.wall.runs == 5 and not row.not_run and row.artifact_bytes
        assert 0 < row.wall.min <= row.wall.median <= row.wall.p95 <= row.wall.p99 <= row.wall.max
    assert report.reference == "onnxruntime cpu fp32" or rows["openvino"].precision == "fp32"
    assert rows["openvino"].error is not None and rows["openvino"].error < 0.2
    assert rows["null"].error is None
    assert "runs on NVIDIA GPUs only" in rows["cudnn"].not_run and rows["cudnn"].wall is None
    header, lines = report.table()
    assert all(len(line) in (1, len(header)) for line in lines)
    assert len([line for line in lines if not line[0].startswith("J/img: ")]) == len(report.rows)
    assert any(line[0].startswith("cudnn on cpu: not run here, because ") for line in lines)
    assert json.loads(report.to_json())["rows"][0]["engine"]


def test_energy_of_an_image(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that takes 10 W whatever it does: a slower engine takes more joules."""
    counter = Counter("cpu", "RAPL", value=lambda: 10 * time.perf_counter())
    monkeypatch.setattr(bench, "find_counters", lambda gpu: [replace(counter)])
    report = bench_engines(model, engines=["onnxruntime"], devices=["cpu"], imgsz=SIZE, batch=2, runs=5, seconds=1)
    (row,) = report.rows
    assert row.energy and row.wall and row.energy.watts == pytest.approx(10, rel=0.1)
    assert row.energy.joules and row.energy.joules_per_frame
    batches = row.energy.joules / row.energy.joules_per_frame / 2
    assert batches == pytest.approx(round(batches)) and batches >= 1
    header, (line,) = report.table()
    assert line[header.index("J/img")] == f"{row.energy.joules_per_frame:.3g}"


def test_energy_that_cannot_be_measured_takes_no_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_counters", lambda gpu: [Counter("cpu", "RAPL", missing="there is none")])
    report = bench_engines(model, engines=["null"], devices=["cpu"], imgsz=SIZE, warmups=0, runs=1)
    header, lines = report.table()
    assert lines[0][header.index("J/img")] == "-"
    assert lines[1:] == [("J/img: cpu not measured, because there is none",)]


def test_an_engine_that_breaks_is_a_row_and_no_more(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "broken", "framefuse.no_such_module")
    report = bench_engines(model, engines=["broken", "null"], devices=["cpu"], imgsz=SIZE, warmups=0, runs=1)
    assert [row.wall is None for row in report.rows] == [True, False]
    assert "it failed: ModuleNotFoundError" in report.rows[0].not_run


def test_a_slow_engine_has_fewer_runs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnxruntime.OnnxRuntimeEngine._run

    def slow(self: Any, slot: Slot) -> None:
        time.sleep(0.1)
        real(self, slot)

    monkeypatch.setattr(onnxruntime.OnnxRuntimeEngine, "_run", slow)
    report = bench_engines(
        model, engines=["null", "onnxruntime"], devices=["cpu"], imgsz=SIZE, warmups=4, runs=12, seconds=0.4
    )
    null, row = report.rows
    assert null.wall is not None and row.wall is not None
    assert null.wall.runs == 12 and 1 <= row.wall.runs <= 4 and row.wall.min > 100


def test_recorded_rows_of_engines_that_are_not_here_are_kept_and_marked(model: Path) -> None:
    def case(**milliseconds: float | None) -> dict[str, Any]:
        rows = [
            Row(name, "cpu", "fp32" if ms else "", wall=Timing.of([ms]) if ms else None, not_run="" if ms else "gone")
            for name, ms in milliseconds.items()
        ]
        report = BenchReport("yolov8n.onnx", (1, 3, 640, 640), rows, 0, 1, "", {})
        found: dict[str, Any] = json.loads(report.to_json())
        return found

    then = {"commit": "0ld", "date": "2026-01-02"}
    before = {**then, "sources": {"engine tvm": "0ld"}, "cases": [case(torch=2.0, tvm=9.0, cudnn=None)]}
    (kept,) = keep([case(torch=1.0, tvm=None, cudnn=None)], before)
    assert [(row["engine"], row["not_run"], row.get("measured")) for row in kept["rows"]] == [
        ("torch", "", None), ("cudnn", "gone", None), ("tvm", "", then),
    ]  # fmt: skip
    assert [row.get("measured") for row in keep([], before)[0]["rows"] if row["wall"]] == [then] * 2
    text = "\n".join(engine_lines([kept]))
    assert "| yolov8n, batch 1 | `torch` fp32 | 1,000 | 1.000" in text and "`tvm` fp32 † |" in text
    assert "- not run: cudnn: gone" in text and "† measured at 0ld, 2026-01-02" in text


def test_a_precision_for_all(model: Path) -> None:
    report = bench_engines(
        model, engines=["openvino", "onnxruntime"], precision="fp32", devices=["cpu"], imgsz=SIZE, warmups=0, runs=2
    )
    assert [row.precision for row in report.rows] == ["fp32", "fp32"]
    assert max(row.error or 0.0 for row in report.rows) < 1e-4


def test_several_precisions_and_one_row_for_what_comes_to_the_same(model: Path) -> None:
    report = bench_engines(
        model, engines=["openvino", "onnxruntime", "cudnn", "null"], precision=["auto", "fp32", "fp16"],
        devices=["cpu"], imgsz=SIZE, warmups=0, runs=1,
    )  # fmt: skip
    ran = [(row.engine, row.precision) for row in report.rows if row.wall is not None]
    assert ran.count(("openvino", "fp32")) == 1 and ran.count(("null", "none")) == 1
    assert [row for row in ran if row[0] == "onnxruntime"] == [("onnxruntime", "fp32")]
    absent = [row.title for row in report.rows if row.not_run]
    assert "onnxruntime fp16 on cpu" in absent and absent.count("cudnn on cpu") == 1
    _, lines = report.table()
    assert any(line[0].startswith("onnxruntime fp16 on cpu: not run here, because ") for line in lines)


def test_what_was_asked_for_by_name_and_is_missing_fails(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", "engines", str(model), "--device", "cpu", "--imgsz", "96", "160", "--runs", "1", "--warmups", "0"]
    assert main([*words, "--engine", "onnxruntime", "--engine", "cudnn"]) == 3
    printed = capsys.readouterr()
    assert "median ms" in printed.out  # what was measured is there
    assert "engine cudnn was not measured: engine cudnn runs on NVIDIA GPUs only" in printed.err.replace("\n", " ")
    monkeypatch.setattr(
        "framefuse.lab.bench.engine_names", lambda: {"null": ENGINES["null"], "cudnn": ENGINES["cudnn"]}
    )
    report = bench_engines(model, devices=["cpu"], imgsz=SIZE, warmups=0, runs=1)
    with pytest.raises(CapabilityError, match="no engine could run tiny_v5"):
        report.check()
    report.check(["null"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"engines": ["nothing"]}, "'nothing'"),
        ({"batch": 0}, "batch 0"),
        ({"runs": 0}, "runs 0"),
        ({"seconds": 0}, "seconds 0"),
    ],
)
def test_wrong_usage(model: Path, options: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        bench_engines(model, devices=["cpu"], **options)


def test_statistics() -> None:
    timing = Timing.of([3.0, 1.0, 2.0, 4.0, 10.0])
    assert (timing.runs, timing.min, timing.median, timing.mean) == (5, 1.0, 3.0, 4.0)
    assert (timing.p95, timing.p99, timing.max) == (pytest.approx(8.8), pytest.approx(9.76), 10.0)
    assert timing.std == pytest.approx(np.std([3, 1, 2, 4, 10], ddof=1))
    assert Timing.of([1.0]).std == 0.0


def test_slots_of_all_kinds_get_the_same_image() -> None:
    image = np.random.default_rng(0).random((1, 3, 4, 5)).astype(np.float32)
    plain = Slot(np.zeros((1, 3, 4, 5), np.float16))
    bf16 = Slot(np.zeros((1, 4, 5, 3), np.uint16), memory_format="nhwc")
    last = Slot(np.zeros((1, 4, 5, 3), np.float32), memory_format="nhwc")
    whole = Slot(np.zeros((1, 3, 4, 5), np.uint8))
    for slot in (plain, bf16, last, whole):
        slot.write(image)
    turned = image.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(plain.input, image, atol=1e-3)
    np.testing.assert_allclose((bf16.input.astype(np.uint32) << 16).view(np.float32), turned, rtol=2**-8)
    np.testing.assert_array_equal(last.input, turned)
    np.testing.assert_allclose(whole.input / 255, image, atol=0.003)


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    words = ["bench", "engines", str(model), "--engine", "null", "--engine", "onnxruntime", "--device", "cpu"]
    words += ["--imgsz", "96", "160", "--runs", "3", "--warmups", "1", "--quiet"]
    assert main([*words, "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert "median ms" in table and "tiny_v5.onnx, batch 1 of 160x96, 3 runs" in table
    assert [row["engine"] for row in json.loads(out.read_text())["rows"]] == ["null", "onnxruntime"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shape"] == [1, 3, 96, 160]
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert main([*words[:3], "--device", "tpu"]) == 2
    assert main([*words[:3], "--precision", "fp32,fp64"]) == 2
    assert main([*words[:3], "--imgsz", "0"]) == 2
    assert "imgsz takes one or two whole numbers above 0" in capsys.readouterr().err


def test_a_shape_that_the_model_does_not_have(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"imgsz 100x160 is not a multiple of the model's stride 32\n.*--imgsz 96 160"):
        bench_engines(model, engines=("onnxruntime",), imgsz=(100, 160), runs=1, warmups=0)
    fixed = small_models.write_segmenter(tmp_path / "fixed.onnx")
    with pytest.raises(UsageError, match=r"batch 8 was asked for, but fixed\.onnx has a fixed batch of 1"):
        bench_engines(fixed, engines=("onnxruntime",), batch=8, runs=1, warmups=0)


def test_a_result_that_cannot_be_kept_is_refused_before_it_is_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "engines", str(model), "--out", str(tmp_path / "nowhere" / "x.json")]) == 1
    assert "no folder" in capsys.readouterr().err
    assert main(["parity", str(model), "--out", str(tmp_path / "nowhere" / "x.html")]) == 1
    assert "no folder" in capsys.readouterr().err
    for words in (["bench", "engines", str(model)], ["parity", str(model)]):  # a folder in which nothing can be made
        assert main([*words, "--out", "/proc/x.json"]) == 1
        assert capsys.readouterr().err.startswith("error: cannot write /proc/x.json: No such file or directory")
