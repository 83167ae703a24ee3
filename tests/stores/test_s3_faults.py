"""A real S3 server that fails: what is retried gives the right bytes, all else one line that says what to
do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from firelane.errors import StoreError
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore, Patience
from firelane.stores.objects import StoredObject
from tests.stores.s3_server import Fault, S3Server, s3_server

NAME = "model.safetensors"
DATA = random.Random(0).randbytes(3_000_000)
PATIENT = Patience(connect_s=120, read_s=120, retries=2, retry_s=120)
SHORT = Patience(connect_s=120, read_s=0.5, retries=6, retry_s=120)
"""Patience with a server that says nothing more."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket" / "model" / "below").mkdir(parents=True)
    (root / "bucket" / "model" / NAME).write_bytes(DATA)
    (root / "bucket" / "model" / "config.json").write_text("{}")
    (root / "bucket" / "model" / "below" / "other.json").write_text("{}")
    with s3_server(root) as running:
        yield running


@pytest.fixture
def faults(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fault]]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.proxy.faults.clear()
    server.proxy.always = None
    yield server.proxy.faults
    server.proxy.always = None


@pytest.fixture
def store(faults: list[Fault]) -> ObjectStore:  # noqa: ARG001 - its environment
    return opened("s3://bucket/model")


def opened(url: str, patience: Patience = PATIENT) -> ObjectStore:
    return ObjectStore(parse(url), allow_http=True, patience=patience)


def wanted(store: ObjectStore) -> StoredObject:
    return next(one for one in store.list() if one.name == NAME)


def test_objects(store: ObjectStore) -> None:
    listed = {one.name: one for one in store.list()}
    assert {name: one.nbytes for name, one in listed.items()} == {NAME: len(DATA), "config.json": 2}
    assert store.head(NAME).is_same(listed[NAME])
    assert store.fetch("config.json")[1] == b"{}"
    assert bytes(store.read(listed[NAME], 10, 2_000_000)) == DATA[10:2_000_000]


RETRIED = {
    "503": [Fault(status=503, code="SlowDown")] * 2,
    "500": [Fault(status=500, code="InternalError")],
    "cut": [Fault(after=1_000_000, how="cut")],
    "ended": [Fault(after=1_000_000, how="end")],
    "stalled": [Fault(after=1_000_000, how="stall")],
    "cut before the first byte": [Fault(how="cut")],
}


@pytest.mark.parametrize("what", RETRIED)
def test_what_is_retried(what: str, store: ObjectStore, faults: list[Fault]) -> None:
    one = wanted(store)
    store = opened("s3://bucket/model", SHORT if what == "stalled" else PATIENT)
    faults += RETRIED[what]
    assert bytes(store.read(one, 100, len(DATA))) == DATA[100:]
    assert not faults
    faults += RETRIED[what]
    found = bytearray(len(DATA) - 100)
    store.read_into(one, 100, memoryview(found))
    assert found == DATA[100:]
    assert not faults


REFUSED = {
    "keys": (
        Fault(status=403, code="InvalidAccessKeyId"),
        r"credentials are wrong .*: set AWS_ACC",
    ),
    "rights": (
        Fault(status=403, code="AccessDenied"),
        r"access is denied \(AccessDenied\): the credentials need the right",
    ),
    "expired": (Fault(status=400, code="ExpiredToken"), r"have expired \(ExpiredToken\): renew them"),
    "clock": (Fault(status=403, code="RequestTimeTooSkewed"), "the clock of this machine is wrong"),
    "region": (
        Fault(status=400, code="AuthorizationHeaderMalformed", more="<Region>eu-west-1</Region>"),
        "lies in another region: set AWS_REGION=eu-west-1$",
    ),
    "moved": (Fault(status=301, code="PermanentRedirect"), "lies in another region: set AWS_REGION$"),
    "gone": (Fault(status=404, code="NoSuchKey"), "is not there$"),
    "503": (Fault(status=503, code="SlowDown"), r"the store fails \(SlowDown\), tried several times"),
    "odd": (Fault(status=418), r"the store refuses \(418\)"),
    "cut": (Fault(after=10, how="cut"), "the connection breaks off, each time"),
    "short": (Fault(after=10, how="end"), "the connection breaks off, each time"),
    "stalled": (Fault(after=10, how="stall"), "does not answer in time: try again later"),
    "replaced": (Fault(how="replace"), "was replaced while it was read: start again"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str, server: S3Server, store: ObjectStore) -> None:
    one = wanted(store)
    server.proxy.always, says = REFUSED[what]
    read_s = 0.1 if what == "stalled" else 120
    store = opened("s3://bucket/model", Patience(connect_s=120, read_s=read_s, retries=1, retry_s=5))
    with pytest.raises(StoreError, match=says) as raised:
        store.read_into(one, 0, memoryview(bytearray(100)))
    assert str(raised.value).startswith(f"s3://bucket/model/{NAME}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("faults")
def test_wrong_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StoreError, match=r"credentials are wrong \(SignatureDoesNotMatch\)") as raised:
        opened("s3://bucket/model").fetch("config.json")
    assert raised.value.reason == "denied"


def test_azure_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match="no credentials: set AZURE_STORAGE_ACCOUNT_NAME and") as raised:
        opened("az://container/model").list()
    assert raised.value.reason == "denied"


@pytest.mark.usefixtures("faults")
def test_places_that_are_not_there(tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(StoreError, match="there is no such bucket"):
        opened("s3://nobody").list()
    assert opened("s3://bucket/nothing").list() == []
    with pytest.raises(StoreError, match="is not there") as raised:
        opened("s3://bucket/model").fetch("nothing.json")
    assert raised.value.reason == "missing"


@pytest.mark.usefixtures("faults")
def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"cannot be reached .* AWS_ENDPOINT_URL") as raised:
        opened("s3://bucket/model").list()
    assert raised.value.reason == "unreachable"


@pytest.mark.usefixtures("faults")
def test_plain_http_is_not_taken_unasked() -> None:
    with pytest.raises(StoreError, match="not encrypted: use https, or set FIRELANE_ALLOW_HTTP=1"):
        ObjectStore(parse("s3://bucket/model"), patience=PATIENT).list()
    with pytest.raises(StoreError, match="not encrypted: use https, or set FIRELANE_ALLOW_HTTP=1"):
        ObjectStore(parse("http://127.0.0.1/model")).fetch("config.json")
