"""Logging: one line an event, `time level logger event key=value ...`, on standard error."""

from __future__ import annotations

import logging
import sys

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LineFormatter(logging.Formatter):
    """Never more than one line an event, except for tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the library's name
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up(level: str) -> None:
    """Send the logs of `firelane` to standard error. Raises ValueError on an unknown level. May be called
    again.
    """
    if level not in LEVELS:
        raise ValueError(f"log level is {level!r}: use one of {', '.join(LEVELS)}")
    logger = logging.getLogger("firelane")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])
    logger.propagate = False
