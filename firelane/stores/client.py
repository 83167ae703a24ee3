"""ObjectStore: lists and reads objects, with retries and time limits, and says in one line what went wrong.

Every read is checked against the version of the object that was asked for: one that is replaced meanwhile is
never mixed with its successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from firelane import env
from firelane.errors import StoreError
from firelane.stores.address import StoreAddress
from firelane.stores.explain import explained
from firelane.stores.objects import StoredObject, plain_etag

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

    from firelane.stores.direct import DirectReader

MOST_SMALL_BYTES = 64 << 20
"""Bytes of an object that is fetched whole, at most."""
EXTRA = "firelane[object-store]"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The time that a store may take. read_s: between two pieces of a body. retry_s: for one request, all
    tries together."""

    connect_s: float = 5
    read_s: float = 10
    request_s: float = 300
    retries: int = 6
    retry_s: float = 60


class ObjectStore:
    """Objects of one directory. Safe from many threads; connects when it is first asked. client: of obstore,
    None: as the address says."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        allow_http: bool = False,
        patience: Patience | None = None,
        client: Any = None,
    ) -> None:
        self.address = address
        self._allow_http = allow_http
        self._patience = patience or Patience()
        self._given = client

    def list(self) -> list[StoredObject]:
        """All objects of the directory, not of those below it. Raises StoreError."""
        prefix = f"{self.address.path}/" if self.address.path else ""
        with explained(self.address):
            listed = self._api.list_with_delimiter(self._client, prefix or None)
            return [_stored(entry, entry["path"].removeprefix(prefix)) for entry in listed["objects"]]

    def head(self, name: str) -> StoredObject:
        """Raises StoreError."""
        with explained(self.address, name):
            return _stored(self._api.head(self._client, self.address.child(name)), name)

    def fetch(self, name: str, most_bytes: int = MOST_SMALL_BYTES) -> tuple[StoredObject, bytes]:
        """All of a small object. Raises StoreError."""
        with explained(self.address, name):
            answer = self._api.get(self._client, self.address.child(name))
            found = _stored(answer.meta, name)
            if found.nbytes > most_bytes:
                raise self._error(name, f"has {found.nbytes >> 20} MiB, more than such a file may have")
            data = bytes(answer.bytes())
        if len(data) != found.nbytes:
            raise self._error(name, f"gave {len(data)} of {found.nbytes} bytes; try again")
        return found, data

    def read(self, wanted: StoredObject, begin: int, end: int) -> memoryview:
        """Bytes begin .. end - 1 of this version of an object. Raises StoreError."""
        options: GetOptions = {"range": (begin, end)}
        if wanted.etag and not self.address.is_web:
            options["if_match"] = f'"{wanted.etag}"'
        with explained(self.address, wanted.name):
            answer = self._api.get(self._client, self.address.child(wanted.name), options=options)
            if not _stored(answer.meta, wanted.name).is_same(wanted):
                raise self._error(
                    wanted.name, "was replaced while it was read: start again", reason="changed"
                )
            data = memoryview(answer.bytes())
        if len(data) != end - begin:
            raise self._error(wanted.name, f"gave {len(data)} of {end - begin} bytes; try again")
        return data

    def read_into(self, wanted: StoredObject, begin: int, out: memoryview) -> None:
        """Fill `out` with the bytes from `begin` on of this version of an object. Raises StoreError."""
        direct = self._direct
        if direct is None or not direct.read_into(self.address.child(wanted.name), wanted, begin, out):
            out[:] = self.read(wanted, begin, begin + len(out))

    @cached_property
    def _api(self) -> Any:
        """The client library. Raises StoreError where it is not installed."""
        try:
            import_module("obstore.store")
            return import_module("obstore")
        except ModuleNotFoundError:
            raise StoreError(
                f"{self.address}: reading from object stores needs an extra: pip install '{EXTRA}'"
            ) from None

    @cached_property
    def _client(self) -> Any:
        return self._given if self._given is not None else self._connect()

    @cached_property
    def _direct(self) -> DirectReader | None:
        """None where URLs cannot be signed: a public bucket has no keys, and looking for those takes long."""
        kinds, client = self._api.store, self._client
        if not isinstance(client, kinds.HTTPStore) and not (
            isinstance(client, kinds.S3Store) and env.signs_requests()
        ):
            return None
        from firelane.stores.direct import DirectReader

        p = self._patience
        return DirectReader(self._url, connect_s=p.connect_s, read_s=p.read_s)

    def _url(self, path: str, lifetime_s: int) -> str:
        """Address where anybody may read an object for so long. May raise anything."""
        if self.address.is_web:
            return f"{self.address.scheme}://{self.address.host}/{quote(path)}"
        return self._api.sign(self._client, "GET", path, timedelta(seconds=lifetime_s))

    def _connect(self) -> Any:
        kinds = self._api.store
        if self.address.scheme == "http" and not self._allow_http:
            raise self._error("", "is not encrypted: use https, or set FIRELANE_ALLOW_HTTP=1")
        settings: dict[str, Any] = {"client_options": self._options(), "retry_config": self._retries()}
        with explained(self.address):
            if self.address.is_web:
                return kinds.HTTPStore.from_url(f"{self.address.scheme}://{self.address.host}", **settings)
            kind = {"s3": kinds.S3Store, "gs": kinds.GCSStore, "az": kinds.AzureStore}[self.address.scheme]
            return kind(self.address.host, **settings)

    def _options(self) -> dict[str, Any]:
        p = self._patience
        return {
            "allow_http": self._allow_http,
            "connect_timeout": timedelta(seconds=p.connect_s),
            "read_timeout": timedelta(seconds=p.read_s),
            "timeout": timedelta(seconds=p.request_s),
        }

    def _retries(self) -> dict[str, Any]:
        p = self._patience
        return {"max_retries": p.retries, "retry_timeout": timedelta(seconds=p.retry_s)}

    def _error(self, name: str, what: str, reason: str = "other") -> StoreError:
        where = f"{self.address}/{name}" if name else str(self.address)
        return StoreError(f"{where}: {what}", reason=reason)


def _stored(entry: ObjectMeta, name: str) -> StoredObject:
    modified_s = int(entry["last_modified"].timestamp())
    return StoredObject(
        name=name, nbytes=entry["size"], etag=plain_etag(entry["e_tag"]), modified_s=modified_s
    )
