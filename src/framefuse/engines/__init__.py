"""Engines run a model on memory that they own. One protocol (`Engine`), described by one `Backend` each."""

from framefuse.engines.backend import (
    ENGINES,
    PREFERENCE,
    Backend,
    Needs,
    Package,
    backends,
    check_capabilities,
    engine_names,
    find_backend,
    open_engine,
    who_can,
)
from framefuse.engines.engine import Capabilities, Device, Engine, EngineOptions, Precision
from framefuse.engines.requests import DeviceExecution, RequestPool, Slot, SlotPool

__all__ = ["ENGINES", "PREFERENCE", "Backend", "Capabilities", "Device", "DeviceExecution", "Engine", "EngineOptions"]
__all__ += ["Needs", "Package", "Precision", "RequestPool", "Slot", "SlotPool", "backends", "check_capabilities"]
__all__ += ["engine_names", "find_backend", "open_engine", "who_can"]
