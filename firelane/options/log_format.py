"""The option for the form of the log, which each process of a server has."""

from __future__ import annotations

from typing import Annotated

from firelane.options.option import Group, Option

TELEMETRY = Group("logs", "logs, metrics and traces", table="server")
LogFormat = Annotated[
    str, Option("form of a log line", TELEMETRY, choices=("text", "json"), see="observability.md#log")
]
