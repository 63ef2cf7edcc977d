"""A model for the tests of engines that are built and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

import small_models


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_models.write(tmp_path_factory.mktemp("tiny") / "tiny_v5.onnx", "tiny_v5")
