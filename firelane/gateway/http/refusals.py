"""Errors of a connection that refuses what its client sends."""

from __future__ import annotations

from firelane.gateway.http.exchange import HttpError
from firelane.gateway.http.head import MOST_FIELDS


def malformed(reason: Exception) -> HttpError:
    return HttpError(400, f"malformed HTTP request: {reason}")


def late(*, in_head: bool) -> HttpError:
    part = "headers" if in_head else "body"
    return HttpError(408, f"the request's {part} did not arrive in time")


def large_body(limit_bytes: int) -> HttpError:
    return HttpError(413, f"the body is over {limit_bytes} bytes")


def too_many_pipelined(limit: int) -> HttpError:
    return HttpError(429, f"more than {limit} requests wait on one connection")


def large_head(limit_bytes: int) -> HttpError:
    """Trailers count, too."""
    return HttpError(
        431, f"the request's headers and trailers are over {limit_bytes} bytes or {MOST_FIELDS} lines"
    )


def too_many_bodies() -> HttpError:
    message = "too many bodies arrive at the same time: try again later"
    return HttpError(503, message, retry_after_s=1)
