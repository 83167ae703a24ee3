"""Pages encrypted at rest: AES-256-GCM, by the package `cryptography` (the extra `encryption`).

The key of a segment's pages is derived from the file's secret and the kind of the pages. Each write has a
nonce of its own, of 96 random bits. The page's group and name are authenticated with it, so that neither
another page nor an older key passes. Names and tenants are stored as keyed hashes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import UsageError
from firelane.kv.tiers.cipher import PROOF_BYTES
from firelane.kv.tiers.slots import PageKey
from firelane.storage import read_regular

NONCE_BYTES, TAG_BYTES = 12, 16
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 32, 4096
assert NONCE_BYTES + TAG_BYTES == PROOF_BYTES


class Encrypted:
    """A PageCipher that encrypts."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        """purpose: whatever differs here gets another key. Raises UsageError without the package."""
        self._names = _derived(secret, f"names {purpose}")
        self._aes: Any = _aes_gcm()(_derived(secret, f"pages {purpose}"))
        self.key_id = _derived(secret, f"id {purpose}").hex()[:16]

    def hidden(self, name: bytes) -> bytes:
        return hashlib.blake2b(name, digest_size=len(name), key=self._names).digest()

    def seal(self, key: PageKey, page: NDArray[np.uint8]) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._aes.encrypt(nonce, page.data, _described(key))
        page[:] = np.frombuffer(sealed, np.uint8, count=page.size)
        return nonce + sealed[page.size :]

    def unseal(self, key: PageKey, page: NDArray[np.uint8], proof: bytes) -> bool:
        from cryptography.exceptions import InvalidTag

        sealed = page.tobytes() + proof[NONCE_BYTES:PROOF_BYTES]
        try:
            page[:] = np.frombuffer(self._aes.decrypt(proof[:NONCE_BYTES], sealed, _described(key)), np.uint8)
        except (InvalidTag, ValueError):
            return False
        return True


def read_secret(path: Path) -> bytes:
    """Raises UsageError."""
    try:
        secret = read_regular(path, MOST_SECRET_BYTES)
        is_open = path.stat().st_mode & 0o007
    except OSError as error:
        raise UsageError(f"--kv-disk-key-file {path}: {error.strerror or error}") from None
    if len(secret) < LEAST_SECRET_BYTES:
        raise UsageError(
            f"--kv-disk-key-file {path}: it has {len(secret)} bytes, and {LEAST_SECRET_BYTES} random ones "
            f"are needed: head -c {LEAST_SECRET_BYTES} /dev/urandom makes them"
        )
    if is_open:
        raise UsageError(f"--kv-disk-key-file {path}: everybody may read it; chmod 600 it")
    return secret


def _described(key: PageKey) -> bytes:
    group, name = key
    return group.to_bytes(4, "little") + name


def _derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes. The secret has the entropy of a key already; this keeps uses of it apart."""
    prk = hashlib.blake2b(secret, digest_size=32, person=b"firelane-kv-rest").digest()
    return hashlib.blake2b(purpose.encode(), digest_size=32, key=prk).digest()


def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError(
            "--kv-disk-key-file: the package cryptography is missing; pip install 'firelane[encryption]'"
        ) from None
    return AESGCM
