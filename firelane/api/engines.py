"""GET /admin/engines and POST /admin/engines/role: engines of a model, and what part of requests they do."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class RoleRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """engine: its name, as in EngineReport. model: null for the first one."""

    engine: Annotated[str, Meta(min_length=1, max_length=64)]
    role: Literal["prefill", "decode", "both"]
    model: str | None = None

    def check(self) -> None:
        """All that the types allow is allowed."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """role: prefill, decode or both. state: starting, ready, standby or dead. requests: in flight there."""

    name: str
    role: str
    state: str
    requests: int


class EnginesReport(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    engines: list[EngineReport]
