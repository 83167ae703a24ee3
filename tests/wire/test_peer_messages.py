"""Messages between an engine and its parent, and between an engine and its NIXL agent: what is none."""

from __future__ import annotations

import socket

import pytest

from firelane.errors import FrameError
from firelane.nixl import messages
from firelane.wire import peers


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\xa1\xdb", b"\x92\xa1\xdb\x01", b"\x91" * 5000], ids=lambda data: data[:4].hex()
)
@pytest.mark.parametrize("receive", [peers.receive, messages.receive], ids=["peers", "nixl"])
def test_what_is_no_message_is_told_as_such(receive, data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(data)
        with pytest.raises(FrameError):
            receive(theirs)
