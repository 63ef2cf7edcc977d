"""Compiled kernels are brought up to date before the first test, so that none runs on those of an earlier source."""

import pytest

from framefuse.kernels import build


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    build.build()
