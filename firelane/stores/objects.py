"""StoredObject: one version of an object in a store."""

from __future__ import annotations

import msgspec


class StoredObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object's name in its directory, and its version. etag: "" where the store gives none."""

    name: str
    nbytes: int
    etag: str
    modified_s: int

    def is_same(self, other: StoredObject) -> bool:
        """Whether it is the same version of an object: by its ETag, else by its time."""
        if self.nbytes != other.nbytes:
            return False
        return self.etag == other.etag if self.etag and other.etag else self.modified_s == other.modified_s


def plain_etag(etag: str | None) -> str:
    """An ETag as a StoredObject has it: without quotes, strong or weak."""
    return (etag or "").removeprefix("W/").strip('"')
