"""Compiled kernels are brought up to date before the first test, so that none runs on those of an earlier source."""

import signal

import pytest

from framefuse.kernels import build


def pytest_sessionstart(session: pytest.Session) -> None:
    """Not a fixture: the time that a build takes is not the first test's."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell's & leaves it so, and the programs that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not session.config.option.collectonly:
        build.build()
