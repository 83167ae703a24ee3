"""Connections to hosts that go without a word."""

from __future__ import annotations

import socket

from firelane.link.tcp import PROBES, watch_peer


def test_a_host_that_is_gone_is_found_out_in_time():
    """Also on a connection that nobody writes to."""
    with socket.socket() as sock:
        watch_peer(sock, 20)
        read = lambda option: sock.getsockopt(socket.IPPROTO_TCP, option)  # noqa: E731
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert read(socket.TCP_NODELAY)
        assert read(socket.TCP_USER_TIMEOUT) == 20_000
        silent_s = read(socket.TCP_KEEPIDLE) + PROBES * read(socket.TCP_KEEPINTVL)
        assert read(socket.TCP_KEEPCNT) == PROBES
        assert silent_s == 20
