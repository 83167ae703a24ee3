"""Bodies of requests that the client has compressed."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from firelane.gateway.config import HttpLimits

BODY = json.dumps({"prompt": "say", "max_tokens": 40}).encode()


def post(service, body, coding):
    return service.http.post("/v1/completions", content=body, headers={"content-encoding": coding})


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
def test_codings(service, coding, pack):
    answer = post(service, pack(BODY), coding)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == "hello world"


def test_a_coding_that_is_not_known(service):
    answer = post(service, BODY, "br")
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert answer.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "body",
    [BODY, gzip.compress(BODY)[:-9], gzip.compress(BODY) + b"more", b""],
    ids=["plain", "cut", "more", "empty"],
)
def test_what_is_broken(service, body):
    answer = post(service, body, "gzip")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


def test_a_body_that_is_large_when_it_is_unpacked(make_service):
    service = make_service(limits=HttpLimits(body_bytes=10_000))
    fits = BODY + b" " * (10_000 - len(BODY))
    assert post(service, gzip.compress(fits), "gzip").status_code == 200
    assert post(service, gzip.compress(fits + b" "), "gzip").status_code == 413
    assert post(service, gzip.compress(bytes(9_000_000)), "gzip").status_code == 413
