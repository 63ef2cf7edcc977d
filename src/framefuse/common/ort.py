"""The onnxruntime package, imported so that it tells nobody what runs here."""

from __future__ import annotations

import os
from typing import Any

from framefuse.errors import CapabilityError

SILENT = 4
"""Of ONNX Runtime's log levels: nothing but what ends the process. Errors come as exceptions; it prints them beside
that, and warnings about every session."""


def onnxruntime(extra: str) -> Any:
    """The module.

    From 1.29 on, ONNX Runtime writes the names and hashes of models down and sends them to its maker, with a number it
    gives the machine, unless ORT_DISABLE_TELEMETRY is set before its first import. Who set it to 0 keeps that.

    Args:
        extra: of framefuse, which has the package, for the remedy.

    Raises:
        CapabilityError: it is not installed.
    """
    if not os.environ.get("ORT_DISABLE_TELEMETRY"):
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise CapabilityError(
            "package onnxruntime is not installed", remedy=f"pip install 'framefuse[{extra}]'"
        ) from error
    return onnxruntime
