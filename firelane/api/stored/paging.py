"""Lists that a client reads page by page: `after`, `limit`, `order` of a query string."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from firelane.errors import RequestError

BETA = "beta"
"""A field that Anthropic's clients add to the query of any path. It asks for nothing here."""


class Listed(Protocol):
    @property
    def id(self) -> str: ...


ListedT = TypeVar("ListedT", bound=Listed)


def read_query(query: bytes, known: Iterable[str]) -> dict[str, str]:
    """The query's fields; of a repeated one the last counts, and BETA is left out. Raises RequestError for
    one not in `known`.
    """
    known = tuple(known)
    try:
        fields = dict(urllib.parse.parse_qsl(query.decode("ascii", "replace"), max_num_fields=16))
    except ValueError:
        raise RequestError("the query has more than 16 fields: leave some out") from None
    fields.pop(BETA, None)
    for name in fields:
        if name not in known:
            raise RequestError(
                f"unknown query field {name[:80]!r}: known are {', '.join(known)}",
                param=name[:80],
                code="unknown_parameter",
            )
    return fields


@dataclass(frozen=True, slots=True)
class PageCursor:
    """after: the id that the page before ended with. newest_first: the order `desc`."""

    after: str | None
    limit: int
    newest_first: bool

    @classmethod
    def read(cls, fields: dict[str, str], *, default: int, most: int) -> PageCursor:
        """From the query's fields; `default` and `most`: of `limit`. Raises RequestError."""
        limit = fields.get("limit", str(default))
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= most):
            raise RequestError(f"`limit` is {limit[:40]!r}: use 1 to {most}", param="limit")
        order = fields.get("order", "desc")
        if order not in ("asc", "desc"):
            raise RequestError(f"`order` is {order[:40]!r}: use asc or desc", param="order")
        return cls(fields.get("after"), int(limit), order == "desc")

    def cut(self, oldest_first: Sequence[ListedT]) -> tuple[list[ListedT], bool]:
        """The page, and whether more follows. Raises RequestError where `after` names nothing."""
        items = list(reversed(oldest_first)) if self.newest_first else list(oldest_first)
        if self.after is not None:
            begin = next((i for i, item in enumerate(items) if item.id == self.after), None)
            if begin is None:
                raise RequestError(f"`after` is {self.after[:80]!r}: there is no such entry", param="after")
            items = items[begin + 1 :]
        return items[: self.limit], len(items) > self.limit
