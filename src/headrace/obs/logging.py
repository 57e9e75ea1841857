"""How a process writes its log: one line an event, for people or as JSON for machines.

Knows formats and levels. Does not know what is worth saying: loggers are named `headrace.…` and used as the standard
library has them. Extra fields of a record (`logger.info("…", extra={"request_id": …})`) are kept in both formats.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class LogFormat(StrEnum):
    PLAIN = "plain"
    """`12:04:05 INFO headrace.server: message (field=value)`"""
    JSON = "json"
    """One object a line."""


class PlainFormatter(logging.Formatter):
    """For people at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in extra_fields(record).items())
        line = f"{moment} {record.levelname} {record.name}: {record.getMessage()}" + (f" ({fields})" if fields else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """For log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller added to the record beside its message."""
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}


def configure_logging(*, level: str, log_format: LogFormat, output: TextIO | None = None) -> None:
    """Sends the logs of this process to `output`, standard error by default; libraries speak from `warning` on.

    Calling it again replaces what it did before.
    """
    assert level in LEVELS, f"log level {level!r} is none of {LEVELS}"
    handler = logging.StreamHandler(output or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else PlainFormatter())
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, _number(level)), force=True)
    logging.getLogger("headrace").setLevel(_number(level))


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
