"""What the command line says while it works: text, or with --log-json one JSON object per line, for services.

In JSON, everything on stderr is a line {"time", "level", "logger", "message", ...}: the warnings of sources, progress,
errors with `remedy` and `stage`, and in the end the facts of the report.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from framefuse.cli import console
from framefuse.cli.console import check_choice
from framefuse.common.redact import redact
from framefuse.common.text import without_controls

LEVELS = "debug", "info", "warning", "error"
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="|".join(LEVELS), help="lowest level of log lines (default: warning)"),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="write JSON lines on stderr, by default from level info on")]
logger = logging.getLogger("framefuse")
as_json = False
"""Whether log lines are JSON, and replace all other text on stderr."""


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_controls(redact(super().format(record)))


def set_up(level: str | None, json_lines: bool, quiet: bool) -> None:
    """Print log lines of this level and above on stderr.

    Raises:
        UsageError: there is no such level.
    """
    global as_json
    check_choice("--log-level", level or "info", LEVELS)
    as_json = json_lines
    console.error_logger = logger if json_lines else None
    chosen = level or ("error" if quiet else "info" if json_lines else "warning")
    logger.setLevel(chosen.upper())
    handler = logging.StreamHandler()
    plain = "%(message)s" if level is None else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter(plain))
    logger.handlers[:] = [handler] if json_lines or level is not None else []


def say(level: int, message: str, **facts: Any) -> None:
    """Log a message with facts, which only JSON shows."""
    logger.log(level, message, extra={"facts": facts})
