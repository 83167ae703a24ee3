"""One hostile request, and ways to write one: a body, a good one with a field that is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.hostile_fields import GOOD
from tests.gateway.hostile_grammars import REFUSED


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: bytes
    right: frozenset[int] = REFUSED
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def case(path: str, name: str, body: Any, right: frozenset[int] = REFUSED, **more: Any) -> Case:
    """`body`: bytes as they are, or what is encoded as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(f"{path} {name}", path, raw, right, **more)


def spoilt(path: str, name: str, value: Any, right: frozenset[int] = REFUSED) -> Case:
    """A good request with one field that is not."""
    return case(path, f"{name}={json.dumps(value)[:60]}", GOOD[path] | {name: value}, right)


def raw_field(path: str, name: str, value: str, right: frozenset[int] = REFUSED) -> Case:
    """The same for a value that no JSON encoder writes."""
    head = json.dumps(GOOD[path]).encode()[:-1]
    return case(path, f"{name}={value[:40]}", head + f', "{name}": {value}}}'.encode(), right)
