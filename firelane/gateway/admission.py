"""Hop 2: who asks, for which model, and whether there is room."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from firelane.errors import ModelNotServedError, QueueFullError, RequestError


@dataclass(slots=True)
class Admitted:
    """Room for `sequences`, held until `release`. `tenant_salt` keeps the tenant's KV blocks apart from
    others'.
    """

    tenant_salt: bytes
    sequences: int
    admission: Admission | None

    def release(self) -> None:
        """Give the room back. May be called again."""
        admission, self.admission = self.admission, None
        if admission is not None:
            admission.held -= self.sequences


class Admission:
    """Counts sequences between admission and end. Room is what the engine runs at once plus `max_queue`
    waiting.
    """

    def __init__(self, served_names: tuple[str, ...], max_queue: int) -> None:
        self._served_names = frozenset(served_names)
        self._max_queue = max_queue
        self.held = 0

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotServedError. A request that names no model gets the one that is served."""
        if name is not None and name not in self._served_names:
            raise ModelNotServedError(
                f"The model `{name[:200]}` does not exist: see /v1/models",
                param="model",
                code="model_not_found",
            )

    def admit(self, sequences: int, max_num_seqs: int, salt: bytes) -> Admitted:
        """Raises QueueFullError when there is no room now, RequestError when there never will be."""
        room = max_num_seqs + self._max_queue
        if sequences > room:
            raise RequestError(
                f"{sequences} sequences in one request: this server takes at most {room}", param="n"
            )
        if self.held + sequences > room:
            raise QueueFullError(f"the queue is full ({self._max_queue} waiting requests): try again later")
        self.held += sequences
        return Admitted(salt, sequences, self)


def tenant_salt(headers: dict[bytes, bytes], cache_salt: str | None) -> bytes:
    """Requests share cached prefixes only when they carry the same API key and the same `cache_salt`."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    tenant = key.strip() if scheme.lower() == b"bearer" else b""
    if not tenant and cache_salt is None:
        return b""
    digest = hashlib.blake2b(tenant, digest_size=16, person=b"firelane.tenant")
    digest.update(b"\0" + (cache_salt or "").encode())
    return digest.digest()
