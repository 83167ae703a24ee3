"""Listening sockets of one port for several processes."""

from __future__ import annotations

import socket

import pytest

from firelane.link.listening import listening_sockets, share_out


@pytest.fixture
def sockets():
    made: list[socket.socket] = []
    yield made
    for sock in made:
        sock.close()


def test_all_listen_on_one_port(sockets) -> None:
    sockets += listening_sockets("127.0.0.1", 0, 3)
    assert len({sock.getsockname() for sock in sockets}) == 1
    clients = [socket.create_connection(sockets[0].getsockname()) for _ in range(64)]
    accepted = []
    for sock in sockets:
        taken = 0
        while True:
            try:
                sock.accept()[0].close()
            except BlockingIOError:
                break
            taken += 1
        accepted.append(taken)
    assert sum(accepted) == 64
    assert sum(bool(taken) for taken in accepted) > 1
    for client in clients:
        client.close()


def test_a_port_that_others_share_out_is_taken(sockets) -> None:
    sockets += listening_sockets("127.0.0.1", 0, 2)
    with pytest.raises(OSError, match="in use"):
        listening_sockets("127.0.0.1", sockets[0].getsockname()[1], 2)


@pytest.mark.parametrize(
    ("there", "number", "shares"),
    [(2, 2, [[0], [1]]), (3, 2, [[0, 2], [1]]), (1, 3, [[0], [0], [0]]), (2, 3, [[0], [1], [0]])],
)
def test_sockets_of_another_server_are_shared_out(sockets, there, number, shares) -> None:
    """Its number of processes may be another one."""
    sockets += [socket.socket() for _ in range(there)]
    found = share_out(sockets, number)
    assert [[sockets.index(sock) for sock in own] for own in found] == shares
