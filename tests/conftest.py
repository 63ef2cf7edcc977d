"""Compiled kernels are brought up to date before the first test, so that none runs on those of an earlier source."""

import pytest

from framefuse.kernels import build


def pytest_sessionstart(session: pytest.Session) -> None:
    """Not a fixture: the time that a build takes is not the first test's."""
    if not session.config.option.collectonly:
        build.build()
