"""Logging: one line an event, on standard error, as text (`time level logger event key=value`) or as JSON.

Prompts and answers are never logged, unless the server was told to.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from firelane.errors import STEERING

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS = ("text", "json")
CONTROLS = {number: f"\\x{number:02x}" for number in STEERING} | {10: "\\n", 13: "\\r"}
"""Text in place of control characters."""
NOTHING: Mapping[str, int] = MappingProxyType({})


class Event:
    """A name and its values: the message of a record that has more than words."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name, self.fields = name, fields

    def __str__(self) -> str:
        return " ".join([self.name, *[f"{key}={_text(value)}" for key, value in self.fields.items()]])


def _text(value: Any) -> str:
    """Quoted where a blank or a quotation mark would make the line ambiguous."""
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        return "-"
    text = str(value)
    return json.dumps(text) if not text or " " in text or '"' in text or not text.isprintable() else text


def event(logger: logging.Logger, name: str, fields: Mapping[str, Any]) -> None:
    """Log an event at level info."""
    if not logger.isEnabledFor(logging.INFO):
        return
    # logger.info() would walk the stack for the caller's line, which no form of ours shows.
    record = logging.LogRecord(logger.name, logging.INFO, "", 0, Event(name, fields), None, None)
    logger.handle(record)


class LineFormatter(logging.Formatter):
    """Never more than one line an event, except for tracebacks."""

    def __init__(self, which: Mapping[str, int] = NOTHING) -> None:
        of = "".join(f"{name}={number} " for name, number in which.items())
        form = f"%(asctime)s %(levelname)s %(name)s {of}%(message)s"
        super().__init__(form, datefmt="%Y-%m-%dT%H:%M:%S%z")
        self._second, self._time = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """The time as the library writes it, made once a second."""
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, super().formatTime(record, datefmt)
        return self._time

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the library's name
        return super().formatMessage(record).translate(CONTROLS)


class JsonFormatter(logging.Formatter):
    """One object a line: time (Unix, seconds), level, logger, and event with its fields or message."""

    def __init__(self, which: Mapping[str, int] = NOTHING) -> None:
        super().__init__()
        self._which = which

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._which,
        }
        message: Any = record.msg
        if isinstance(message, Event):
            line |= {"event": message.name, **message.fields}
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class LogStream(Protocol):
    """The stream that takes lines of the log."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...


def set_up(level: str, form: str = "text", stream: LogStream | None = None, **which: int | None) -> None:
    """Send the logs of `firelane` to a stream, standard error by default; `which`: named in each line, as
    rank=1 of a process that is one of several of an engine. Raises ValueError on an unknown level or format.
    May be called again.
    """
    for what, value, known in (("level", level, LEVELS), ("format", form, FORMATS)):
        if value not in known:
            raise ValueError(f"log {what} is {value!r}: use one of {', '.join(known)}")
    # No form shows them, and each record would look them up (logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logger = logging.getLogger("firelane")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream or sys.stderr)
    known = {name: number for name, number in which.items() if number is not None}
    handler.setFormatter(JsonFormatter(known) if form == "json" else LineFormatter(known))
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])
    logger.propagate = False


def write_to(stream: LogStream) -> None:
    """Send the logs of `firelane` to another stream, as they were set up otherwise."""
    for handler in logging.getLogger("firelane").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)
