"""Changes of JSON texts that leave them JSON: bytes changed at random rarely do, and come no further than the
parser."""

from __future__ import annotations

import json
import random
from typing import Any

ABSURD: tuple[Any, ...] = (
    *(
        0,
        -1,
        1,
        2,
        3,
        7,
        1 << 20,
        2**31 - 1,
        2**31,
        2**53 + 1,
        2**63,
        2**64,
        10**400,
        1e308,
        5e-324,
        -0.0,
        0.5,
        float("nan"),
    ),
    *(float("inf"), True, False, None, "", "a", "..", "a\0b", "\ud800", "é", "x" * 300, [], {}, [[[]]]),
    *({"a": []}, [1, "a", None], "1", "true", [0], [-1], ["a"], {"": {}}),
)


def mutate_json(data: bytes, draw: random.Random, prefix: int = 0) -> bytes | None:
    """A changed copy; None where it is no JSON. prefix: bytes before it, which stay."""
    try:
        root = [json.loads(data[prefix:])]
    except (ValueError, RecursionError):
        return None
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _change(root, draw)
    return data[:prefix] + json.dumps(root[0], separators=(",", ":")).encode()


def _change(root: list[Any], draw: random.Random) -> None:
    places = _places(root)
    holder, key = draw.choice(places)
    other_holder, other_key = draw.choice(places)
    kind = draw.randrange(6)
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1:
        holder[key] = _copy(other_holder[other_key])
    elif kind == 2 and isinstance(holder[key], int):
        holder[key] = draw.choice((holder[key] + 1, holder[key] * 2, -holder[key], holder[key] // 2))
    elif kind == 3 and isinstance(holder, dict):
        holder[str(other_key) if draw.random() < 0.8 else draw.choice(("", "a", "é"))] = _copy(holder[key])
    elif kind == 4 and isinstance(holder[key], list):
        holder[key].append(_copy(other_holder[other_key]))
    else:
        holder[key] = _copy(draw.choice(ABSURD))


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """All values: what holds each of them, and its key there."""
    found: list[tuple[Any, Any]] = []
    todo: list[Any] = [root]
    while todo and len(found) < 1000:
        holder = todo.pop()
        for key in range(len(holder)) if isinstance(holder, list) else list(holder):
            found.append((holder, key))
            if isinstance(holder[key], list | dict):
                todo.append(holder[key])
    return found


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, list | dict) else value
