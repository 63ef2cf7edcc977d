"""Engines by name: the table, entry points, what is refused before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefuse.engines import (
    ENGINES,
    Backend,
    Capabilities,
    Engine,
    EngineOptions,
    Package,
    backends,
    engine_names,
    find_backend,
    open_engine,
)
from framefuse.engines.null import NullEngine
from framefuse.errors import CapabilityError, EngineError, UsageError
from framefuse.models import find_model
from framefuse.pipeline import Pipeline


def open_plain(model: Path, options: EngineOptions) -> Engine:
    """What an entry point may name."""
    return NullEngine(lambda images: [np.zeros((len(images), 7, 84), np.float32)])


def open_nothing(model: Path, options: EngineOptions) -> Any:
    return object()


DESCRIBED = Backend("described", Capabilities({"cpu": ("fp32",)}), opener=f"{__name__}:open_plain")


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name, f"{__name__}:{target}", "framefuse.engines")
        for name, target in (("plain", "open_plain"), ("described", "DESCRIBED"), ("wrong", "open_nothing"))
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)


def test_entry_points_add_engines() -> None:
    assert {"plain", "described"} <= set(engine_names()) and "plain" not in ENGINES
    assert find_backend("described") is DESCRIBED
    wrapped = find_backend("plain")
    assert wrapped.capabilities.devices == ("cpu", "cuda") and not wrapped.capabilities.calibrates
    assert wrapped.missing("cuda") is None
    engine = open_engine("plain", find_model("squares"), EngineOptions())
    assert engine.capabilities is wrapped.capabilities
    assert len(list(Pipeline([np.zeros((64, 64, 3), np.uint8)], "squares", engine="plain", device="cpu"))) == 1


def test_what_an_entry_point_states_is_a_promise() -> None:
    with pytest.raises(CapabilityError, match="engine described has no fp16 on cpu") as error:
        open_engine("described", find_model("squares"), EngineOptions(precision="fp16"))
    assert "engines that can" in str(error.value.remedy)
    with pytest.raises(EngineError, match="engine wrong is a object") as wrong:
        open_engine("wrong", find_model("squares"), EngineOptions())
    assert "framefuse.engines.Engine" in str(wrong.value.remedy)


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="no engine is called 'nothing'") as error:
        find_backend("nothing")
    assert "openvino" in str(error.value.remedy) and "plain" in str(error.value.remedy)
    with pytest.raises(UsageError, match=r"device is 'tpu'"):
        open_engine("null", find_model("squares"), EngineOptions("tpu"))  # type: ignore[arg-type]


def test_the_table_names_backends() -> None:
    assert [backend.name for backend in backends()] == list(ENGINES)


def test_knowing_an_engine_loads_no_package() -> None:
    code = (
        "import sys; from framefuse.engines import backends\n"
        "for backend in backends():\n"
        "    for device in backend.capabilities.devices: backend.missing(device)\n"
        "heavy = {'openvino', 'onnx', 'onnxruntime', 'torch', 'tvm', 'tvm_ffi', 'cupy', 'cudnn', 'tensorrt'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_is_found_by_any_of_its_modules_or_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert Package("some", ("no_such_package", "some_package")).found()
    assert not Package("some", ("some_package",), "lib/cuda.so").found()
    assert Package("some", ("some_package",), "__init__.py").found()
    assert not Package("none", ("no_such_package",)).found()
    assert "some_package" not in sys.modules


@pytest.mark.parametrize("name", ["null", "openvino", "onnxruntime"])
def test_the_smallest_job(name: str) -> None:
    backend = find_backend(name)
    if backend.missing("cpu"):
        pytest.skip("it is not installed")
    found = backend.selftest("cpu")
    assert ("off NumPy at most" in found) == (name != "null")


def test_a_missing_package_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "found", lambda self: False)
    with pytest.raises(CapabilityError, match="onnxruntime is not installed") as error:
        find_backend("onnxruntime").selftest("cpu")
    assert error.value.remedy == "pip install 'framefuse[ort]'"


def test_an_engine_of_the_cpu_has_no_execution() -> None:
    engine = open_engine("null", find_model("squares"), EngineOptions("cpu"))
    with pytest.raises(CapabilityError, match="engine null was opened for the CPU"):
        engine.execution(1, 64, 64)
