"""Clients told apart by their connections."""

from __future__ import annotations

import pytest

from firelane.gateway.http.exchange import NOBODY, client_of


class Transport:
    def __init__(self, peer) -> None:
        self.peer = peer

    def get_extra_info(self, name: str):
        return {"peername": self.peer}[name]


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("192.0.2.7", 5000), ("192.0.2.7", "5000")),
        (("2001:db8:1:2:3:4:5:6", 5000, 0, 0), ("2001:db8:1:2::/64", "5000")),
        (("2001:db8:1:2::9", 5001, 0, 0), ("2001:db8:1:2::/64", "5001")),
        (("fe80::1%eth0", 5000, 0, 2), ("fe80::/64", "5000")),
        (("::ffff:192.0.2.7", 5000, 0, 0), ("192.0.2.7", "5000")),
        (("odd", 5000), ("odd", "5000")),
        (("", 0), ("", "0")),
        ("/run/a.sock", NOBODY),
        (None, NOBODY),
    ],
)
def test_clients(peer, client) -> None:
    assert client_of(Transport(peer)) == client
