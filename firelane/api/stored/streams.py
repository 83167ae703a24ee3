"""Streams that are kept: answers about them."""

from __future__ import annotations

from typing import Literal

import msgspec


class StreamDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["stream.deleted"] = "stream.deleted"
    deleted: bool = True
