"""Listening sockets of one port for several processes: one for each, among which the system shares out the
connections by their addresses (SO_REUSEPORT, socket(7)).

Whoever made them keeps them: connections that come while a process is started again wait in its queue.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

BACKLOG = 1024


def listening_sockets(host: str, port: int, number: int = 1) -> list[socket.socket]:
    """`number` of them for each address of `host`, in turns of the addresses. Raises OSError, also where
    others listen on the port who would share it."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            own = _bound(family, address, shared=False)
            chosen = own.getsockname()
            own.close()
            made += [_bound(family, chosen, shared=True) for _ in range(number)]
        for sock in made:
            sock.listen(BACKLOG)
    except BaseException:
        for sock in made:
            sock.close()
        raise
    return made


def share_out(sockets: Sequence[socket.socket], number: int) -> list[list[socket.socket]]:
    """Sockets of each of `number` processes: together all, and each at least one, which others may have, too.
    They stay the caller's."""
    return [list(sockets[i::number]) or [sockets[i % len(sockets)]] for i in range(number)]


def _bound(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        if not shared:
            sock.listen(1)  # a wild-card address is only taken when it listens
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
