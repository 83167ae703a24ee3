"""Errors of a request that an engine refuses, and of an engine whose frames this gateway does not speak."""

from __future__ import annotations

from firelane.errors import (
    DeadlineError,
    FirelaneError,
    ModelNotServedError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
)
from firelane.wire.frames import PROTOCOL_VERSION, Ready, Rejected


def error_of(frame: Rejected) -> FirelaneError:
    """An error with the frame's status, or with that of its hundred."""
    if frame.code == DeadlineError.reason:
        return DeadlineError(frame.message)
    if frame.status == QueueFullError.status:
        return QueueFullError(frame.message)
    if frame.status == QueueTimeoutError.status:
        return QueueTimeoutError(frame.message)
    if frame.status == ModelNotServedError.status:
        return ModelNotServedError(frame.message, code=frame.code or None)
    if frame.status >= FirelaneError.status:
        return FirelaneError(frame.message)
    return RequestError(frame.message, code="rejected_by_engine")


def protocol_problem(ready: Ready) -> str:
    """The reason why no frames can be exchanged with this engine; "" where they can."""
    if ready.protocol == PROTOCOL_VERSION:
        return ""
    return (
        f"the engine speaks protocol {ready.protocol}, this gateway {PROTOCOL_VERSION}: install the same "
        "version of Firelane for both"
    )
