"""Which engine runs where nobody says: every device, precision and set of installed engines."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from framefuse.config import settings_from
from framefuse.engines import ENGINES, PREFERENCE, Backend, Precision, backends, find_backend
from framefuse.engines.backend import Doubt
from framefuse.engines.null import CudaNullEngine, NullEngine
from framefuse.errors import CapabilityError, UsageError
from framefuse.runtime import choices
from framefuse.runtime.choices import choose_device, choose_engine

INSTALLED = {
    "everything": set(ENGINES),
    "cuda13": {"openvino", "onnxruntime", "cudnn"},
    "torch": {"openvino", "torch"},
    "tensorrt": {"openvino", "cudnn", "tensorrt"},
    "tvm": {"openvino", "cudnn", "tvm"},
    "plain": {"openvino"},
    "nothing": set[str](),
}
PRECISIONS = get_args(Precision)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of what this machine, with a GPU, has; a test fills it."""
    names: set[str] = set()
    monkeypatch.setattr(choices, "check_cuda", lambda gpu=None: None)
    monkeypatch.setattr(choices, "NVDEC", type("Found", (), {"found": lambda self: True})())
    monkeypatch.setattr(
        Backend,
        "missing",
        lambda self, device, precision="auto": None if self.name in names else "its package is not installed",
    )
    return names


def able(device: str, precision: str, calibrate: bool = False) -> list[str]:
    """By the tables of the engines alone."""
    found = []
    for name in PREFERENCE[device]:
        known = find_backend(name).capabilities
        as_written = (device, precision) == ("cpu", "int8") and known.quantised_as_written
        has = precision == "auto" or as_written or precision in known.precisions.get(device, ())
        if device in known.precisions and has and (known.calibrates or not calibrate):
            found.append(name)
    return found


def chosen(device: str, refused: dict[str, str] | None = None, **options: Any) -> tuple[str, str]:
    return choose_engine(
        settings_from({"device": device, **options}), lambda backend: (refused or {}).get(backend.name)
    )


@pytest.mark.parametrize("calib", [None, "clip.mp4"])
@pytest.mark.parametrize("here", INSTALLED)
@pytest.mark.parametrize(("device", "precision"), list(product(("cpu", "cuda"), PRECISIONS)))
def test_auto_takes_the_first_that_can(
    device: str, precision: str, here: str, calib: str | None, installed: set[str]
) -> None:
    installed |= INSTALLED[here]
    could = able(device, precision, calib is not None)
    expected = [name for name in could if name in installed]
    if expected:
        name, reason = chosen(device, precision=precision, calib=calib)
        assert name == expected[0] and reason.startswith(f"engine {name}: ")
        passed = PREFERENCE[device][: PREFERENCE[device].index(name)]
        assert all(f"engine {other}" in reason for other in passed), reason
        return
    with pytest.raises(CapabilityError, match=f"no engine here runs the model.* on {device}: ") as error:
        chosen(device, precision=precision, calib=calib)
    remedy = str(error.value.remedy)
    for place in ("cpu", "cuda"):
        for name in able(place, precision, calib is not None):
            assert (name if name in installed else f"{name} ({find_backend(name).install(place)})") in remedy


@pytest.mark.parametrize(("device", "precision"), list(product(("cpu", "cuda"), PRECISIONS)))
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "null"])
def test_an_engine_that_is_named_is_a_promise(engine: str, device: str, precision: str, installed: set[str]) -> None:
    installed |= {"openvino", "cudnn"}
    known = find_backend(engine).capabilities
    if known.can(device, precision):
        assert chosen(device, engine=engine, precision=precision) == (engine, f"engine {engine}: as asked")
        return
    with pytest.raises(CapabilityError) as error:
        chosen(device, engine=engine, precision=precision)
    assert f"engine {engine}" in error.value.message
    for place in ("cpu", "cuda"):
        for other in able(place, precision):
            hint = other if other in installed else f"{other} ({find_backend(other).install(place)})"
            assert hint in str(error.value.remedy)


def test_cuda_in_fp32_is_for_the_next_best(installed: set[str]) -> None:
    """Engine cudnn doubts that its own kernels for it are the faster ones (`test_cudnn_fp32.py`)."""
    installed |= INSTALLED["cuda13"]
    name, reason = chosen("cuda", {"cudnn": Doubt("its kernels are exact")}, precision="fp32")
    assert name == "onnxruntime"
    assert reason == (
        "engine onnxruntime: the next best; engine cudnn: its kernels are exact; "
        "engine tensorrt: its package is not installed"
    )


@pytest.mark.parametrize("precision", ["auto", "int8", "fp8"])
def test_calibration_is_for_the_engine_that_uses_it(precision: str, installed: set[str]) -> None:
    installed |= set(ENGINES)
    assert chosen("cuda", precision=precision, calib="clip.mp4")[0] == "cudnn"
    with pytest.raises(UsageError, match="no use for calibration frames") as error:
        chosen("cpu", engine="openvino", calib="clip.mp4")
    assert "cudnn" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("options", "engine"), [({}, "tensorrt"), ({"precision": "fp32"}, "tensorrt"), ({"precision": "bf16"}, "torch")]
)
def test_a_model_that_an_engine_refuses_goes_to_the_next(
    options: dict[str, Any], engine: str, installed: set[str]
) -> None:
    installed |= set(ENGINES)
    name, reason = chosen("cuda", {"cudnn": "engine cudnn cannot take it"}, **options)
    assert name == engine
    assert options or reason == "engine tensorrt: the next best; engine cudnn: cannot take it"


def test_an_engine_that_has_its_doubts_comes_last(installed: set[str]) -> None:
    installed |= set(ENGINES)
    name, reason = chosen("cuda", {"cudnn": Doubt("slowly")})
    assert name == "tensorrt" and reason == "engine tensorrt: the next best; engine cudnn: slowly"
    others = dict.fromkeys(set(ENGINES) - {"cudnn", "torch"}, "cannot") | {"torch": Doubt("hardly")}
    name, reason = chosen("cuda", {**others, "cudnn": Doubt("slowly")})
    assert name == "cudnn" and reason.startswith("engine cudnn: there is no other; engine cudnn: slowly; ")


@pytest.mark.parametrize("options", [{"precision": "fp8"}, {"calib": "clip.mp4"}])
def test_a_model_that_the_only_able_engine_refuses(options: dict[str, Any], installed: set[str]) -> None:
    installed |= INSTALLED["cuda13"]
    with pytest.raises(CapabilityError, match="engine cudnn: cannot take it") as error:
        chosen("cuda", {"cudnn": "cannot take it"}, **options)
    assert "cudnn" not in str(error.value.remedy)


def test_the_flags_of_this_cpu_decide_too(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = find_backend("openvino")
    for flags, why in (({"avx2"}, "this CPU has no native bf16"), ({"avx2", "amx_bf16"}, None), (set[str](), None)):
        monkeypatch.setattr("framefuse.kernels.cpu.cpu_flags", lambda flags=flags: frozenset(flags))
        assert backend.missing("cpu", "bf16") == why
        assert backend.missing("cpu", "fp32") is None


@pytest.mark.parametrize(("device", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_an_engine_that_is_open_stays_where_it_is(device: str, other: str, installed: set[str]) -> None:
    """Such as torch and tvm: the same class on a CPU and on a GPU."""
    engine: Any = NullEngine(lambda images: []) if device == "cpu" else CudaNullEngine(lambda *shape: [])
    settings, reason = choose_device(settings_from({}), lambda backend: None, engine)
    assert (settings.device, reason) == (device, f"device {device}: that of the given engine")
    assert choose_engine(settings, lambda backend: None, engine) == ("null", "engine null: as given")
    with pytest.raises(CapabilityError, match=f"device {other} was asked for, but the engine given was opened for"):
        choose_engine(settings_from({"device": other}), lambda backend: None, engine)


def test_every_backend_says_what_it_needs() -> None:
    for backend in backends():
        assert set(backend.needs) <= set(backend.capabilities.devices)
        assert backend.name == "null" or set(backend.needs) == set(backend.capabilities.devices)
        for device in backend.capabilities.devices:
            assert backend.install(device).startswith("pip install ")
    assert {backend.name for backend in backends() if backend.core} == {"null", "openvino"}


def test_extras_that_are_named_exist() -> None:
    import tomllib

    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for backend in backends():
        for needs in backend.needs.values():
            extras = needs.extra.split(",") if needs.extra else []
            assert set(extras) <= set(project["optional-dependencies"])
            listed = " ".join([*project["dependencies"], *(
                line for extra in extras for line in project["optional-dependencies"][extra]
            )])  # fmt: skip
            assert all(package.name in listed for package in needs.packages), backend.name
