"""Addresses in object stores: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix,
https://host/path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from firelane.errors import UsageError

SCHEMES = ("s3", "gs", "az", "https", "http")
URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[^/?#]*)/?(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL
)


@dataclass(frozen=True)
class StoreAddress:
    """A directory of objects, or one object. host: the bucket, the container, or a web server's name and
    port."""

    scheme: str
    host: str
    path: str

    @property
    def name(self) -> str:
        """The last part, which models go by."""
        return self.path.rpartition("/")[2] or self.host

    @property
    def is_web(self) -> bool:
        """Whether it is a web server, which lists nothing."""
        return self.scheme in ("https", "http")

    @property
    def parent(self) -> StoreAddress:
        return StoreAddress(self.scheme, self.host, self.path.rpartition("/")[0])

    def child(self, name: str) -> str:
        """The path of an object in this directory."""
        return f"{self.path}/{name}" if self.path else name

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")


def is_address(text: str) -> bool:
    """Whether it is meant as an address, a right one or not."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse(text: str) -> StoreAddress:
    """Raises UsageError."""
    found = URL.fullmatch(text)
    if found is None or found["scheme"] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES[:-1])
        raise UsageError(f"{text}: is in no store that is known here; these are: {known}")
    path = found["path"].strip("/")
    if not found["host"] or "@" in found["host"]:
        raise UsageError(
            f"{found['scheme']}://…: names no bucket or host; write {found['scheme']}://NAME/model, and give "
            "credentials in the environment"
        )
    if found["rest"] or {"", ".", ".."} & set(path.split("/") if path else ()):
        raise UsageError(f"{found['scheme']}://{found['host']}/{path}: has an empty part, .., ? or # in it")
    return StoreAddress(found["scheme"], found["host"], path)
