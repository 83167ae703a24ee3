"""Addresses of engines: HOST:PORT as users write them, and what a host's name means at present."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

from firelane.errors import UsageError


class Address(NamedTuple):
    """host: a name or an IP address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Place(NamedTuple):
    """One engine: where it is, and the name by which it was asked for, which its certificate is to have."""

    address: Address
    name: str

    def __str__(self) -> str:
        return str(self.address)


def parse_address(text: str, default_port: int) -> Address:
    """The address in HOST, HOST:PORT or [HOST]:PORT. Raises UsageError."""
    host, sign, port = text.rpartition(":")
    if not sign or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = text, str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    if not is_port or not _is_host(host):
        raise UsageError(f"{text}: is not HOST, HOST:PORT or [HOST]:PORT")
    return Address(host, int(port))


def _is_host(text: str) -> bool:
    """Whether it can be a name or an IP address: what else there is, a resolver does not take."""
    try:
        return bool(text) and not set(text) & set("[]/ ") and bool(text.encode("idna"))
    except UnicodeError:
        return False


class NameDiscovery:
    """Finds the engines of a list of names: each address of a name is one. The name of a headless service
    of Kubernetes has one for each pod; an IP address has itself."""

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses

    async def find(self) -> list[Place]:
        """Engines that there are at present. Raises OSError where that cannot be told."""
        found: dict[Address, Place] = {}
        for host, port in self._addresses:
            for ip in await _resolve(host, port):
                found.setdefault(Address(ip, port), Place(Address(ip, port), host))
        return list(found.values())


async def _resolve(host: str, port: int) -> list[str]:
    """IP addresses of one family, IPv4 where there are some: a host may have both, and is one engine. None of
    a name that does not exist, such as that of a service without pods."""
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    families = {info[0] for info in infos}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return [str(info[4][0]) for info in infos if info[0] == family]
