"""Answers that can be read again and continued: in memory, bounded, each tenant's apart."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.errors import NotFoundError
from firelane.gateway.answers.tenant_store import TenantStore

MAX_BYTES = 256 << 20
ENTRY_BYTES = 512
"""Bytes that an entry takes besides its JSON, about."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """body: JSON of the answer. inputs: JSON of each item that it was made from, the turns before included.
    outputs: of each item that it gave. Turns share the items of the turns before them.
    """

    id: str
    body: bytes
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]

    @property
    def size_bytes(self) -> int:
        """An upper bound: shared items count in each turn."""
        return ENTRY_BYTES + len(self.body) + sum(map(len, self.inputs)) + sum(map(len, self.outputs))


class ResponseStore(TenantStore[StoredResponse]):
    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_entries, max_bytes, _not_found)


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(
        f"no response '{response_id[:80]}' is stored here: it was made with `store: false`, deleted, pushed "
        "out by newer ones, or belongs to another key; send the whole conversation instead",
        param="previous_response_id",
        code="response_not_found",
    )
