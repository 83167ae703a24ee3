"""/v1/files: what a client sees of a stored file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firelane.errors import RequestError

PURPOSES = ("batch",)
"""Purposes of uploads. Files that the server writes have "batch_output"."""
MIN_EXPIRES_S, MAX_EXPIRES_S = 3600, 30 * 86400
MAX_NAME_CHARS = 255


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """bytes: of its content. Times in seconds of Unix time; expires_at None: kept until deleted."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an upload, for the API's description: it is read as it comes, piece by piece."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]
    anchor: Literal["created_at"] | msgspec.UnsetType = msgspec.field(
        name="expires_after[anchor]", default=msgspec.UNSET
    )
    seconds: Annotated[int, Meta(ge=MIN_EXPIRES_S, le=MAX_EXPIRES_S)] | msgspec.UnsetType = msgspec.field(
        name="expires_after[seconds]", default=msgspec.UNSET
    )


class FileListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """after: the id that the page before ended with."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """seconds: after the file was made."""

    anchor: Literal["created_at"]
    seconds: int


def check_expires(seconds: int, param: str) -> int:
    """`seconds`. Raises RequestError out of OpenAI's range."""
    if not MIN_EXPIRES_S <= seconds <= MAX_EXPIRES_S:
        raise RequestError(
            f"`{param}` is {seconds}: use {MIN_EXPIRES_S} to {MAX_EXPIRES_S} seconds", param=param
        )
    return seconds


def check_purpose(purpose: str | None) -> str:
    """`purpose`. Raises RequestError on all that no part of this server would read."""
    if purpose is None:
        raise RequestError("`purpose` is missing: give it as a form field", param="purpose")
    if purpose not in PURPOSES:
        raise RequestError(
            f"`purpose` is {purpose[:40]!r}: this server keeps files for 'batch' only",
            param="purpose",
            code="unsupported_purpose",
        )
    return purpose


def plain_name(name: str) -> str:
    """A client's file name without directories and without what cannot be shown."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(c for c in last if c.isprintable())
    return shown[:MAX_NAME_CHARS] or "file"
