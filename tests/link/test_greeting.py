"""The greeting: pieces, what is none, and versions that differ."""

from __future__ import annotations

import msgspec
import pytest

from firelane.errors import FrameError
from firelane.link.framing import LENGTH_BYTES, encode
from firelane.link.greeting import (
    MOST_BYTES,
    Refused,
    facts_of,
    hello,
    protocol_difference,
    take_greeting,
    welcome,
)

HELLO = hello(3, "1.2", {"model": "abc"})


@pytest.mark.parametrize("message", [HELLO, welcome(7), Refused("no"), Refused("later", is_passing=True)])
def test_a_message_is_whole_or_not_there(message):
    data = encode(message)
    assert all(take_greeting(data[:size]) is None for size in range(len(data)))
    assert take_greeting(data) == take_greeting(data + b"frames") == (message, len(data))


def test_facts_are_what_they_were():
    assert facts_of(HELLO, dict[str, str]) == {"model": "abc"}
    assert facts_of(welcome(7), int) == 7
    with pytest.raises(FrameError):
        facts_of(welcome("seven"), int)


def test_another_version_may_say_more():
    body = msgspec.msgpack.encode({"type": "hello", "protocol": 99, "version": "9", "facts": [1], "new": [1]})
    found = take_greeting(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    assert found is not None
    assert "(Firelane 1.2), the other end 99 (Firelane 9)" in protocol_difference(HELLO, found[0])
    assert protocol_difference(HELLO, hello(3, "1.3", None)) == ""


@pytest.mark.parametrize(
    "data",
    [
        (MOST_BYTES + 1).to_bytes(LENGTH_BYTES, "little"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        (3).to_bytes(LENGTH_BYTES, "little") + b"\xc1\xc1\xc1",
        encode(hello(3, "Z", None)).replace(b"Z", b"\xdb"),
        bytes(LENGTH_BYTES),
    ],
    ids=["long", "HTTP", "TLS", "no msgpack", "no UTF-8", "empty"],
)
def test_what_is_no_greeting_is_refused(data):
    with pytest.raises(FrameError, match="not a greeting"):
        take_greeting(data)


def test_nested_arrays_are_no_greeting():
    body = b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * (MOST_BYTES - 100) + b"\xc0"
    with pytest.raises(FrameError):
        take_greeting(len(body).to_bytes(LENGTH_BYTES, "little") + body)
