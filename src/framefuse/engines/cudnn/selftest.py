"""The common self-test, with the version of cuDNN."""

from __future__ import annotations

from framefuse.engines import selftest
from framefuse.engines.backend import Backend
from framefuse.engines.engine import Device


def run(backend: Backend, device: Device) -> str:
    """The common self-test, with the version of cuDNN."""
    found = selftest.run(backend, device)
    from framefuse.engines.cudnn.convolutions import frontend

    number = frontend().backend_version()
    return f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}, {found}"
