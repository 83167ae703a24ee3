"""The name of a block's content: a chain of hashes that starts from the tenant's salt and the cache's code.

Block i is named by the hash of the name of block i - 1 and its own token ids, so equal names mean equal
salts, equal codes and equal tokens from the first one on. The digest is long enough that no tenant can search
for a collision.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from firelane.wire.page_names import PAGE_TOKENS, more_page_names

DIGEST_BYTES = 32
TENANT_BYTES = 16


def tenant_id(tenant: str) -> bytes:
    """The id under which pages of a tenant are accounted for, from its name: TENANT_BYTES bytes."""
    return blake2b(tenant.encode(), digest_size=TENANT_BYTES, person=b"firelane-tenant").digest()


class PrefixChain:
    """Names of the leading full blocks of one sequence; it only grows, and outlives preemption."""

    __slots__ = ("_block_size", "_names", "_pages", "_salt", "is_salted", "root", "tenant")

    def __init__(self, salt: bytes, block_size: int, code: str = "", tenant: str = "") -> None:
        """code: as StepLimits.kv_cache_code. tenant: whose pages these are; it is no part of their names.
        root: from which anyone could name blocks of this salt."""
        self.tenant = tenant_id(tenant)
        person = b"firelane-kv" + code.encode()
        self.root = blake2b(salt, digest_size=DIGEST_BYTES, person=person).digest()
        self.is_salted = bool(salt)
        self._block_size = block_size
        self._names: list[bytes] = []
        self._salt = salt
        self._pages: list[int] = []

    @property
    def known(self) -> list[bytes]:
        """Names that have been asked for so far; do not change the list."""
        return self._names

    def names(self, tokens: NDArray[np.int32], num_blocks: int) -> list[bytes]:
        """Names of the first `num_blocks` blocks of `tokens` (int32, contiguous, at least that many tokens).

        The list belongs to the chain and may hold more names than asked for; do not change it.
        """
        names, size = self._names, self._block_size
        if num_blocks > len(names):
            name = names[-1] if names else self.root
            data = tokens[len(names) * size : num_blocks * size].tobytes()
            block_bytes = size * tokens.itemsize
            for start in range(0, len(data), block_bytes):
                name = blake2b(name + data[start : start + block_bytes], digest_size=DIGEST_BYTES).digest()
                names.append(name)
        return names

    def page_names(self, tokens: NDArray[np.int32], num_pages: int) -> list[int]:
        """Names of the first pages of `tokens`, by which gateways know them; of the list as in `names`."""
        if num_pages > len(self._pages):
            data = tokens[: num_pages * PAGE_TOKENS].astype("<i4", copy=False)
            more_page_names(self._pages, self._salt, data.data)
        return self._pages
