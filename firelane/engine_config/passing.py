"""The config of an engine on its way into the engine's process: the first message over their socket, with the
further sockets of that engine."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from firelane.engine_config.engine import EngineConfig
from firelane.link.line import Line

SOCKETS = ("acceptor", "peers")
"""Further sockets: that over which connections of further gateways come, and that over which those of other
engines come (wire.peers)."""


class _EngineStart(msgspec.Struct):
    """config: as EngineConfig.to_json. sockets: names of SOCKETS, as their descriptors follow each other."""

    config: str
    sockets: list[str]


def send_config(sock: socket.socket, config: EngineConfig, sockets: Mapping[str, socket.socket]) -> None:
    """Called once, before anything else is sent to an engine. sockets: by names of SOCKETS. Raises
    PeerLostError where the process has ended."""
    fds = [one.fileno() for one in sockets.values()]
    Line(sock).send(_EngineStart(config.to_json(), list(sockets)), fds)


def receive_config(sock: socket.socket) -> tuple[EngineConfig, dict[str, socket.socket]]:
    """In the engine: wait for what `send_config` sends. Raises PeerLostError where nobody will any more, and
    FrameError for anything else."""
    start, fds = Line(sock).receive_with(_EngineStart, len(SOCKETS))
    sockets = (socket.socket(fileno=fd) for fd in fds)
    return EngineConfig.from_json(start.config), dict(zip(start.sockets, sockets, strict=True))
