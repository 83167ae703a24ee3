"""The hello between hosts: pieces, what is none, and versions that differ."""

from __future__ import annotations

import msgspec
import pytest

from firelane.errors import FrameError
from firelane.link.framing import LENGTH_BYTES
from firelane.wire.hello import MOST_BYTES, Hello, Refusal, Welcome, encode_hello, take_hello

HELLO = Hello(protocol=3, version="1.2", model="abc")


@pytest.mark.parametrize("message", [HELLO, Welcome(7), Refusal("no"), Refusal("later", is_passing=True)])
def test_a_message_is_whole_or_not_there(message):
    data = encode_hello(message)
    assert all(take_hello(data[:size]) is None for size in range(len(data)))
    assert take_hello(data) == (message, b"")
    assert take_hello(data + b"frames") == (message, b"frames")


def test_another_version_may_say_more():
    body = msgspec.msgpack.encode({"type": "hello", "protocol": 99, "version": "9", "model": "m", "new": [1]})
    found = take_hello(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    assert found == (Hello(protocol=99, version="9", model="m"), b"")


@pytest.mark.parametrize(
    "data",
    [
        (MOST_BYTES + 1).to_bytes(LENGTH_BYTES, "little"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        (3).to_bytes(LENGTH_BYTES, "little") + b"\xc1\xc1\xc1",
        encode_hello(Hello(protocol=3, version="1.2", model="Z")).replace(b"Z", b"\xdb"),
    ],
    ids=["long", "HTTP", "TLS", "no msgpack", "no UTF-8"],
)
def test_what_is_no_hello_is_refused(data):
    with pytest.raises(FrameError, match="hello"):
        take_hello(data)


def test_an_empty_message_is_no_hello():
    assert take_hello(bytes(LENGTH_BYTES)) is None
    with pytest.raises(FrameError):
        take_hello(bytes(LENGTH_BYTES) + b"x")


def test_nested_arrays_are_no_hello():
    body = b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * (MOST_BYTES - 100) + b"\xc0"
    with pytest.raises(FrameError):
        take_hello(len(body).to_bytes(LENGTH_BYTES, "little") + body)
