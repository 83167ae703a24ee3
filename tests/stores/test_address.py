from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.stores.address import StoreAddress, is_address, parse


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/models/llama", StoreAddress("s3", "bucket", "models/llama")),
        ("s3://bucket/models/llama/", StoreAddress("s3", "bucket", "models/llama")),
        ("gs://bucket", StoreAddress("gs", "bucket", "")),
        ("az://container/x", StoreAddress("az", "container", "x")),
        ("https://host:8443/a/b.gguf", StoreAddress("https", "host:8443", "a/b.gguf")),
    ],
)
def test_addresses(text: str, address: StoreAddress) -> None:
    assert is_address(text)
    assert parse(text) == address
    assert str(address) == text.rstrip("/")


def test_parts() -> None:
    address = parse("s3://bucket/models/llama")
    assert (address.name, str(address.parent)) == ("llama", "s3://bucket/models")
    assert address.child("config.json") == "models/llama/config.json"
    assert (parse("s3://bucket").name, parse("s3://bucket").child("x")) == ("bucket", "x")
    assert not address.is_web
    assert parse("https://host/x").is_web


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://host/x", "in no store that is known here; these are: s3://, gs://, az://, https://$"),
        ("S3://bucket/x", "in no store that is known here"),
        ("s3:///x", "names no bucket or host"),
        ("https://name:secret@host/x", "give credentials in the environment"),
        ("s3://bucket/a//b", "has an empty part"),
        ("s3://bucket/a/../b", "has an empty part, .., "),
        ("https://host/x?token=secret", r"host/x: has an empty part, \.\., \? or # in it"),
    ],
)
def test_what_is_no_address(text: str, says: str) -> None:
    assert is_address(text)
    with pytest.raises(UsageError, match=says) as raised:
        parse(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["owner/name", "owner/name:Q4_K_M", "/a/b", "C:/x", "./s3", ""])
def test_other_names(text: str) -> None:
    assert not is_address(text)
