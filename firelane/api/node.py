"""Bodies of the paths below /admin: models of a node, engines and their roles, pages of a tenant."""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.errors import RequestError

STATES = (
    *("absent", "pulling", "on disk", "packed", "loading", "ready"),
    *("sleeping", "standby", "waking", "stopping", "quarantined"),
)
"""States of a model, as docs/node.md draws them."""


class NodeModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """One model. state: one of STATES. doing: how far it is, while it comes; reason: of a quarantine, or of
    an engine that died. held_bytes: of the node's budget; need_bytes: when it is ready. requests: admitted
    and not ended; waiting: those that wait for the model itself. retry_s: until a quarantined model is tried
    again. pulled_bytes, of pull_bytes: of the last pull, 0 where it does not know. wakes: times that it came
    to memory; loads: those of them that were not from standby. load_s, wake_s: what loads took, and wakes
    from standby, all together; memory_s: how long it waited for memory before them. evictions: times that it
    left for another model; failures: that it did not come.
    """

    name: str
    aliases: list[str]
    state: str
    doing: str
    reason: str
    state_s: float
    idle_s: float
    priority: int
    pinned: bool
    pulled_bytes: int
    pull_bytes: int
    held_bytes: int
    need_bytes: int
    requests: int
    waiting: int
    retry_s: float
    loads: int
    wakes: int
    memory_s: float
    load_s: float
    wake_s: float
    evictions: int
    failures: int


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """budget_bytes: null where there is none."""

    budget_bytes: int | None
    used_bytes: int
    models: list[NodeModelReport]


class NodeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """timeout_s: how long requests may take to end, or the model to come."""

    model: Annotated[str, Meta(min_length=1)]
    timeout_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0

    def check(self) -> None:
        """All that the types allow is allowed."""


def keep_seconds(value: Any) -> float | None:
    """Ollama's keep_alive: seconds, or a duration as Go writes it ("5m", "1h30m", "-1"); below 0: for ever.
    None where there is none. Raises RequestError.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and (seconds := _go_duration(value)) is not None:
        return seconds
    raise RequestError(
        f'`keep_alive` is {reprlib.repr(value)}: give seconds, or a duration such as "5m"', param="keep_alive"
    )


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_PART = re.compile(_NUMBER + "(h|ms|m|s|us|ns)")
# Each part ends in a unit: a text can be read in one way alone, in time proportional to its length.
_DURATION = re.compile(f"-?(?:{_NUMBER}|(?:{_PART.pattern})+)")


def _go_duration(text: str) -> float | None:
    """None for what is no duration."""
    if (found := _DURATION.fullmatch(text)) is None:
        return None
    if found[1] is not None:
        return float(text)
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return -total if text.startswith("-") else total


class UpdateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """source: a directory, a .gguf file, a hub id, or the address of an object store; of an adapter, a
    directory. version: the name of these weights in `system_fingerprint`; null: the number of the update.
    timeout_s: how long the new engines may take to serve."""

    source: Annotated[str, Meta(min_length=1, max_length=4096)]
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]{1,64}$")] | None = None
    timeout_s: Annotated[float, Meta(ge=0, le=3600)] = 600.0

    def check(self) -> None:
        """All that the types allow is allowed."""


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True):
    """version: that new requests get. system_fingerprint: theirs, and before: that of those which run."""

    model: str
    version: str
    system_fingerprint: str
    before: str


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


class ForgetRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """tenant: its name; "" of a server without tenants. timeout_s: for engines to answer."""

    tenant: Annotated[str, Meta(max_length=64)]
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0

    def check(self) -> None:
        """All that the types allow is allowed."""


class ForgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """pages: that were erased, counted in each place where they were. engines: that have; silent: that have
    not answered in time, or cannot be reached."""

    tenant: str
    pages: int
    engines: int
    silent: int
