"""Pages as a drive has them: plain with a checksum, or encrypted.

What is compared covers the page's name and group, too, so that a page in another one's place is none.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from firelane.kv.tiers.slots import PageKey

PROOF_BYTES = 28


class PageCipher(Protocol):
    """From pages to bytes on a drive, and back; used by any thread."""

    def hidden(self, name: bytes) -> bytes:
        """A name, or a tenant, as the drive has it: of equal length."""
        ...

    def seal(self, key: PageKey, page: NDArray[np.uint8]) -> bytes:
        """Make these bytes, in place, what the drive gets; returns PROOF_BYTES to be stored elsewhere."""
        ...

    def unseal(self, key: PageKey, page: NDArray[np.uint8], proof: bytes) -> bool:
        """The opposite; False where the bytes are not what `seal` made."""
        ...


class NoCipher:
    """Good against accidents, not against malice."""

    def hidden(self, name: bytes) -> bytes:
        return name

    def seal(self, key: PageKey, page: NDArray[np.uint8]) -> bytes:
        return _checksum(key, page)

    def unseal(self, key: PageKey, page: NDArray[np.uint8], proof: bytes) -> bool:
        return _checksum(key, page) == proof


def _checksum(key: PageKey, page: NDArray[np.uint8]) -> bytes:
    group, name = key
    seed = int.from_bytes(name[:8], "little") ^ group
    return xxhash.xxh3_128_digest(page.data, seed=seed).ljust(PROOF_BYTES, b"\0")
