"""/v1/messages/batches: what a client of Anthropic's asks and sees of a batch."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.decode import BodyDecoder
from firelane.api.stored.batches import OPEN, Batch
from firelane.errors import RequestError
from firelane.gateway.batches.input import MAX_LINES

PATH = "/v1/messages/batches"
ENDPOINT = "/v1/messages"
OURS, THEIRS = "batch_", "msgbatch_"
"""The beginnings of a batch's id, as it is stored and as these clients see it."""


class _StreamField(msgspec.Struct):
    stream: Any = None


_PARAMS: BodyDecoder[_StreamField] = BodyDecoder(_StreamField)


class MessageBatchItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """params: the body of a request to /v1/messages, which is looked at when it runs."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=64)]
    params: msgspec.Raw


class MessageBatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    requests: Annotated[list[MessageBatchItem], Meta(min_length=1, max_length=MAX_LINES)]

    def check(self) -> None:
        """Raises RequestError."""
        seen: set[str] = set()
        for i, item in enumerate(self.requests):
            if item.custom_id in seen:
                raise RequestError(
                    f"`custom_id` {item.custom_id!r} was used before: give each request its own",
                    param=f"requests[{i}].custom_id",
                )
            seen.add(item.custom_id)
            _check_params(item.params, f"requests[{i}].params")


def _check_params(params: msgspec.Raw, where: str) -> None:
    try:
        fields = _PARAMS.decode(bytes(params))
    except RequestError:
        raise RequestError(f"`{where}` is not an object", param=where) from None
    if fields.stream is True:
        raise RequestError(
            f"`{where}.stream` is true: a batch's answers come in one piece, leave it out",
            param=f"{where}.stream",
        )


class MessageBatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """All requests are in `processing` until the batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Times are as in RFC 3339. results_url: a path of this server; null until the batch has ended."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    ended_at: str | None
    created_at: str
    expires_at: str
    archived_at: str | None = None
    cancel_initiated_at: str | None
    results_url: str | None


class MessageBatchList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """before_id, after_id: the id that the page behind or before begins or ends with."""

    before_id: str | None = None
    after_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class MessageBatchDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """message: the answer, where it has succeeded; error: what a client would have got, where it has not."""

    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


class MessageBatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the results."""

    custom_id: str
    result: MessageResult


def shown(batch: Batch) -> MessageBatch:
    """A batch as these clients see it."""
    name = THEIRS + batch.id.removeprefix(OURS)
    ended = batch.status not in OPEN
    return MessageBatch(
        id=name,
        processing_status="ended" if ended else "canceling" if batch.cancelling_at else "in_progress",
        request_counts=_counts(batch) if ended else MessageBatchCounts(processing=batch.request_counts.total),
        ended_at=_time(batch.completed_at or batch.cancelled_at or batch.expired_at or batch.failed_at),
        created_at=_time(batch.created_at) or "",
        expires_at=_time(batch.expires_at) or "",
        cancel_initiated_at=_time(batch.cancelling_at),
        results_url=f"{PATH}/{name}/results" if ended else None,
    )


def _counts(batch: Batch) -> MessageBatchCounts:
    counts = batch.request_counts
    left = counts.total - counts.completed - counts.failed
    return MessageBatchCounts(
        succeeded=counts.completed,
        errored=counts.failed,
        canceled=left if batch.status == "cancelled" else 0,
        expired=left if batch.status == "expired" else 0,
    )


def _time(unix_s: int | None) -> str | None:
    return None if unix_s is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
