"""Tuning: slices, resuming, torn databases, and what tuned code gives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_tvm import run

from cudnn_nets import Net
from framefuse.cli.app import main
from framefuse.errors import CapabilityError, EngineError, UsageError
from tvm_on_fake_cuda import toolkit

pytest.importorskip("tvm")
pytest.importorskip("cloudpickle")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "framefuse" / "tvm" / "tuning"


def target(arch: str = "generic") -> Any:
    from framefuse.engines.tvm.targets import Target

    return Target("llvm", arch)


def command(model: Path, *options: str) -> list[str]:
    words = ["tune", str(model), "--size", "16x16", "--tasks", "1", "--threads", "1", *options]
    return [sys.executable, "-m", "framefuse", *words]


def small(path: Path) -> Path:
    net = Net()
    return net.save(path, net.conv("images", 16))


def database(folder: Path, *records: str, functions: int = 1, name: str = "llvm-generic") -> Path:
    folder.mkdir()
    (folder / "target.json").write_text(json.dumps({"target": name, "tvm": "x"}))
    (folder / "database_workload.json").write_text('["hash", "module"]\n' * functions)
    (folder / "database_tuning_record.json").write_text("".join(records))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_tuner_goes_on_and_what_it_found_is_used(tmp_path: Path, cache: Path) -> None:
    model = small(tmp_path / "net.onnx")
    first = subprocess.Popen(command(model, "--trials", "400"), stderr=subprocess.PIPE, start_new_session=True)
    records: list[Path] = []
    end = time.monotonic() + 300  # TVM's tensor intrinsics take 40 s of work to import
    while time.monotonic() < end and not (records and records[0].stat().st_size):
        records = list(cache.glob("*/database_tuning_record.json"))
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    found = records[0].read_bytes().count(b"\n")
    assert found
    with records[0].open("ab") as file:
        file.write(b'[0, [[["GetSBl')  # as a kill in the middle of a line leaves it
    second = subprocess.run(command(model, "--trials", str(found + 4)), capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "its last line is torn and is skipped" in second.stderr
    lines = records[0].read_text().splitlines()
    assert len(lines) >= found + 1 and all(json.loads(line) for line in lines)
    third = subprocess.run(command(model, "--trials", "1"), capture_output=True, text=True)
    assert "0 schedules in" in third.stderr and "all trials are done" in third.stderr
    engine, (value,), (expected,) = run(model, (1, 16, 16))
    assert abs(value - expected).max() < 1e-4
    assert not any("not tuned" in reason for reason in engine.reasons)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_network_is_tuned_for_a_gpu(tmp_path: Path, cache: Path) -> None:
    """On a CUDA that computes nothing: candidates are built and run, and the network is compiled with them."""
    from framefuse.engines.tvm import compiling, tuning
    from framefuse.engines.tvm.targets import Target

    model, gpu = small(tmp_path / "net.onnx"), Target("cuda", "sm_90")
    given = command(model, "--trials", "8", "--target", "cuda-sm_90", "--precision", "fp16")
    done = subprocess.run(given, capture_output=True, text=True, env=toolkit(tmp_path / "cuda"))
    assert done.returncode == 0, done.stderr
    assert "8 of 8 schedules, best 50000 us" in done.stderr
    assert "cuModuleLoadData" in (tmp_path / "cuda" / "log").read_text()
    records = tuning.Records(cache / "cuda-sm_90", gpu)
    lowered = compiling.lower(compiling.import_model(model, (1, 3, 16, 16)), gpu, "fp16")
    compiling.compile_to(tmp_path / "net.so", lowered, gpu, database=records.copy())
    fastest = records.copy().get_all_tuning_records()
    assert any("wmma" in str(one.trace) for one in fastest), "none uses tensor cores"


def test_without_what_the_tuner_needs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from framefuse.engines.tvm import package

    monkeypatch.setattr(package, "version", lambda name: "0.1.15.post2")
    with pytest.raises(CapabilityError, match=r"cannot save its database with apache-tvm-ffi 0\.1\.15\.post2"):
        package.check_tuner()
    monkeypatch.setattr(package.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CapabilityError, match="needs cloudpickle and psutil"):
        package.check_tuner()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("33x31", "--size 33x31 is not a multiple of the model's stride 32\n  -> use --size 32x32"),
        ("640", "--size 640 is not WIDTHxHEIGHT"),
        ("0x0", "--size 0x0 is empty"),
    ],
)
def test_a_size_that_the_model_cannot_take_is_said_first(
    size: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "scout-n", "--size", size]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_tuner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a reader: a tuner may be writing that very line."""
    from framefuse.engines.tvm.tuning import Records

    opened: list[str] = []

    def look(self: Records, folder: Path) -> None:
        opened.append((folder / "database_tuning_record.json").read_text())

    monkeypatch.setattr(Records, "_database", look)
    folder = database(tmp_path / "db", "[0, [1]]\n", "[0, [2")
    records = Records(folder, target())
    assert "torn and is skipped" in records.note and records.written == 1
    records.copy()
    assert (folder / "database_tuning_record.json").read_text() == "[0, [1]]\n[0, [2"
    with records.locked():
        records.open()
    assert (folder / "database_tuning_record.json").read_text() == "[0, [1]]\n"
    assert opened == ["[0, [1]]\n"] * 2
    assert Records(folder, target()).note == "" and records.digest


@pytest.mark.parametrize("what", ["database_tuning_record.json", "target.json", "lock"])
def test_a_folder_in_the_place_of_a_file_of_the_database(tmp_path: Path, what: str) -> None:
    from framefuse.engines.tvm.tuning import Records

    folder = database(tmp_path / "db")
    (folder / what).unlink(missing_ok=True)
    (folder / what).mkdir()
    with pytest.raises(EngineError, match=r"tuning database .* cannot be") as error, Records(folder, target()).locked():
        pass
    assert "rm -r" not in str(error.value.remedy)


def test_lines_that_no_tuner_wrote(tmp_path: Path) -> None:
    from framefuse.engines.tvm.tuning import Records

    for number, line in enumerate(("[1e999, 1]\n", "[" * 100_000 + "\n")):
        with pytest.raises(EngineError, match=r"line 1 of database_tuning_record\.json"):
            Records(database(tmp_path / str(number), line, "[0, [1]]\n"), target())


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    from framefuse.engines.tvm.tuning import Records

    with pytest.raises(EngineError, match=r"line 2 of database_tuning_record.json.*\n.*move it away"):
        Records(database(tmp_path / "middle", "[0, [1]]\n", "[0, [2\n", "[0, [3]]\n"), target())
    with pytest.raises(EngineError, match=r"it belongs to function 4, and database_workload.json has 1"):
        Records(database(tmp_path / "lost", "[4, [1]]\n", "[0, [3]]\n"), target())
    with pytest.raises(EngineError, match="tuned for llvm-generic, not for llvm-znver5"):
        Records(database(tmp_path / "other"), target("znver5"))
    nameless = database(tmp_path / "nameless", "[0, [1]]\n")
    (nameless / "target.json").unlink()
    with pytest.raises(EngineError, match=r"target.json is missing"):
        Records(nameless, target())
    (nameless / "target.json").write_text("{")
    with pytest.raises(EngineError, match=r"target.json cannot be read"):
        Records(nameless, target())


def test_one_tuner_at_a_time(tmp_path: Path) -> None:
    from framefuse.engines.tvm.tuning import Records

    records = Records(tmp_path / "db", target())
    with records.locked(), pytest.raises(EngineError, match="another tuner"), records.locked():
        pass


def test_wrong_words_are_refused() -> None:
    from framefuse.engines.tvm import targets

    for text in ("gpu", "metal-x", "cuda-90"):
        with pytest.raises(UsageError):
            targets.parse(text, 1)
    assert targets.parse("cuda-sm_90", 1).text == "cuda-sm_90"
    done = subprocess.run(command(Path("squares"), "--slice", "900"), capture_output=True, text=True)
    assert done.returncode == 2 and "--slice 900 is not between 1 and 480" in done.stderr
