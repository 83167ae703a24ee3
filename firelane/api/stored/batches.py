"""/v1/batches: what a client asks and sees of a batch, and the lines of its files."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firelane.api.stored.files import ExpiresAfter, check_expires
from firelane.api.usage import OutputTokensDetails
from firelane.errors import RequestError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""The states that a batch leaves by itself."""
MAX_WINDOW_S = 30 * 86400
MIN_WINDOW_S = 60
_WINDOW = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_UNIT_S = {"m": 60, "h": 3600, "d": 86400}
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """completion_window: minutes, hours or days, such as "24h"."""

    input_file_id: Annotated[str, Meta(max_length=128)]
    endpoint: str
    completion_window: Annotated[str, Meta(max_length=16)]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    def check(self) -> None:
        """Raises RequestError."""
        if self.endpoint not in ENDPOINTS:
            raise RequestError(
                f"`endpoint` is {self.endpoint[:80]!r}: use one of {', '.join(ENDPOINTS)}", param="endpoint"
            )
        self.window_s()
        if self.output_expires_after is not None:
            check_expires(self.output_expires_after.seconds, "output_expires_after.seconds")

    def window_s(self) -> int:
        """The completion window in seconds. Raises RequestError."""
        found = _WINDOW.fullmatch(self.completion_window)
        seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
        if not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
            raise RequestError(
                f"`completion_window` is {self.completion_window!r}: use 1m to 30d, such as 24h",
                param="completion_window",
            )
        return seconds


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """line: of the input file, from 1; None where the file as a whole is at fault."""

    code: str
    line: int | None = None
    message: str
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """completed: lines of the output file. failed: lines that ran and got an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchInputDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all lines so far."""

    input_tokens: int = 0
    input_tokens_details: BatchInputDetails = BatchInputDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds of Unix time."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage = BatchUsage()
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """after: the id that the page before ended with."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class InputLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of an input file. body: JSON, not looked into."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """body: the JSON that a client would have got."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a line was not run."""

    code: Literal["batch_expired", "batch_cancelled"]
    message: str


class ResultLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None
