"""Compiled kernels are brought up to date before the first test, so that none runs on those of an earlier source."""

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_fibres import Fibres
from cuda_on_cpu import Compiled, install
from fake_gpu import Gpu
from fake_gpu import install as install_gpu
from framefuse.kernels import build
from framefuse.kernels.copies import call
from framefuse.models.card import Card, read_card

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import onnxruntime themselves


def pytest_sessionstart(session: pytest.Session) -> None:
    """Not a fixture: the time that a build takes is not the first test's."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell's & leaves it so, and the programs that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not session.config.option.collectonly:
        build.build()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that at the end no worker waits for another's slow file."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    """Commands that run in this process set its level."""
    logger = logging.getLogger("framefuse")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture(autouse=True, scope="module")
def helpers_that_copy_end() -> Iterator[None]:
    """They live as long as the process, and other files look for threads that runs leave behind."""
    yield
    call._helpers.stop()


@pytest.fixture
def fibres(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """`framefuse.cuda` launches on the CPU, where threads of a block may talk to each other."""
    if shutil.which("g++") is None:
        pytest.skip("g++ stands in for the GPU")
    return install(monkeypatch, Fibres)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A fake one, which runs the kernels' own source."""
    return install_gpu(monkeypatch, sources=True)


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Card:
    from segmenter import write_segmenter

    return read_card(write_segmenter(tmp_path_factory.mktemp("models") / "seg.onnx", stride=2))


@pytest.fixture
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder with room for as many kilobytes as the module's DISK_KB says."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.module.DISK_KB}k", "tmpfs", folder]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
