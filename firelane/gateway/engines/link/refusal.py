"""The error of a request that its engine has refused."""

from __future__ import annotations

from firelane.errors import FirelaneError, QueueFullError, QueueTimeoutError, RequestError
from firelane.wire.frames import Rejected


def error_of(frame: Rejected) -> FirelaneError:
    """An error with the frame's status, or with that of its hundred."""
    if frame.status == QueueFullError.status:
        return QueueFullError(frame.message)
    if frame.status == QueueTimeoutError.status:
        return QueueTimeoutError(frame.message)
    if frame.status >= FirelaneError.status:
        return FirelaneError(frame.message)
    return RequestError(frame.message, code="rejected_by_engine")
