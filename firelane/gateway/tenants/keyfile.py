"""The file of tenants: TOML or JSON, keys as SHA-256 hashes. docs/tenants.md describes it.

A key is 256 random bits, so that a plain hash cannot be reversed by trying: a salt would add nothing and make
finding a key's tenant a search.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from firelane.errors import UsageError
from firelane.gateway.tenants.tenant import RESERVED, Tenant, salt_of
from firelane.storage import read_regular

PREFIX = "fl-"
SCHEME = "sha256:"
SHORTEST_KEY_CHARS = 20
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
Limit = Annotated[int, Meta(ge=1, le=2**53)]


class TenantEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tenant as the file has it. Absent limits are none."""

    keys: list[str] = []
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    max_concurrent: Limit | None = None
    models: list[str] | None = None
    admin: bool = False


class KeyFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tenants: dict[str, TenantEntry]


class KeyRing:
    """Tenants by the hashes [32 bytes] of their keys."""

    def __init__(self, tenants: dict[bytes, Tenant]) -> None:
        self._by_prefix: dict[bytes, list[tuple[bytes, Tenant]]] = {}
        for digest, tenant in tenants.items():
            self._by_prefix.setdefault(digest[:8], []).append((digest, tenant))
        self.tenants = {tenant.name: tenant for tenant in tenants.values()}

    def find(self, key: bytes) -> Tenant | None:
        """In a time that tells nothing of the known keys: what is looked up is a prefix of a hash, and the
        whole hash is compared to its end.
        """
        digest = key_digest(key)
        for known, tenant in self._by_prefix.get(digest[:8], ()):
            if hmac.compare_digest(known, digest):
                return tenant
        return None


def read_key_file(path: Path) -> KeyRing:
    """Raises UsageError, which names the file and the place."""
    ring: dict[bytes, Tenant] = {}
    for name, entry in load(path, KeyFile).tenants.items():
        tenant = _tenant(path, name, entry)
        for text in entry.keys:
            digest = _digest(path, name, text)
            if digest in ring:
                raise UsageError(f"{path}: a key of tenant {name!r} stands in the file already: remove one")
            ring[digest] = tenant
    return KeyRing(ring)


def load(path: Path, kind: type[Any]) -> Any:
    """A settings file (TOML, or JSON where its name ends in .json) as `kind`. Raises UsageError."""
    try:
        text = read_regular(path).decode("utf-8")
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return msgspec.convert(raw, kind)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # ValidationError, JSONDecodeError and the like are of it
        raise UsageError(f"{path}: {error}") from None


def _tenant(path: Path, name: str, entry: TenantEntry) -> Tenant:
    check_name(name, f"{path}: ")
    return Tenant(
        name=name,
        salt=salt_of(name.encode()),
        weight=entry.weight,
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        max_concurrent=entry.max_concurrent,
        models=None if entry.models is None else frozenset(entry.models),
        admin=entry.admin,
    )


def check_name(name: str, where: str = "") -> None:
    """Raises UsageError: names stand in metrics and logs, so they are short and plain."""
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise UsageError(
            f"{where}{name!r} cannot be a tenant's name: use 1 to 64 letters, digits and ._@-, "
            f"and none of {', '.join(sorted(RESERVED))}"
        )


def _digest(path: Path, name: str, text: str) -> bytes:
    try:
        digest = bytes.fromhex(text.removeprefix(SCHEME))
    except ValueError:
        digest = b""
    if not text.startswith(SCHEME) or len(digest) != 32:
        raise UsageError(
            f"{path}: a key of tenant {name!r} is not {SCHEME} and 64 hex digits: `firelane keys` makes them"
        )
    return digest


def new_key() -> str:
    """A new secret of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(key: str) -> str:
    """The hash that the file holds of a key. Raises UsageError on one that could be found by trying."""
    if len(key) < SHORTEST_KEY_CHARS:
        raise UsageError(
            f"the key has {len(key)} characters, at least {SHORTEST_KEY_CHARS} are needed: "
            "`firelane keys new NAME` makes one"
        )
    return SCHEME + key_digest(key.encode()).hex()


def key_digest(key: bytes) -> bytes:
    """[32 bytes]"""
    return hashlib.sha256(key).digest()
