"""The onnxruntime package, imported with its telemetry turned off."""

import os
from pathlib import Path
from typing import Any

from framefuse.errors import CapabilityError


def onnxruntime(extra: str) -> Any:
    """The onnxruntime module, whose sessions log nothing unless their options say so. CapabilityError if the package is
    not installed; the remedy names the extra of framefuse that installs it.

    Since 1.29, ONNX Runtime collects names and hashes of models with an identifier of the machine and sends them to its
    vendor, unless ORT_DISABLE_TELEMETRY is set before the first import. A value that the user has set is kept.
    """
    if not os.environ.get("ORT_DISABLE_TELEMETRY"):
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise CapabilityError("onnxruntime is not installed", remedy=f"pip install 'framefuse[{extra}]'") from error
    onnxruntime.set_default_logger_severity(4)  # fatal: errors are exceptions anyway, and it warns of every session
    return onnxruntime


def cpu_session(ort: Any, model: Path | bytes, options: Any = None) -> Any:
    """A session on the CPU. Its fallback is off, as that prints to stdout, for example when memory runs out."""
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
