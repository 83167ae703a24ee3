"""Addresses of engines, and what names mean."""

from __future__ import annotations

import asyncio
import socket

import pytest

from firelane.cluster.addresses import Address, NameDiscovery, Place, parse_address
from firelane.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a", "a", 9),
        ("a:1", "a", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:5", "::1", 5),
        ("[::1]", "::1", 9),
        ("fe80::1", "fe80::1", 9),
    ],
)
def test_addresses(text, host, port):
    assert parse_address(text, 9) == Address(host, port)


@pytest.mark.parametrize(
    "text", ["", ":1", "a:0", "a:65536", "a:x", "a:-1", "[]:1", "a:²", "a..b", "x" * 64, "[::1:5"]
)
def test_what_is_no_address(text):
    with pytest.raises(UsageError, match="HOST"):
        parse_address(text, 9)


def test_an_address_as_text():
    assert str(Address("::1", 5)) == "[::1]:5"
    assert str(Place(Address("a", 5), "name")) == "a:5"


def found(monkeypatch, infos, *names):
    """Places of names, of which the system's resolver gives (family, ip)."""

    async def scenario():
        async def getaddrinfo(host, port, **_):
            if isinstance(infos[host], OSError):
                raise infos[host]
            return [(family, socket.SOCK_STREAM, 6, "", (ip, port)) for family, ip in infos[host]]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await NameDiscovery([Address(name, 1) for name in names]).find()

    return asyncio.run(scenario())


def test_each_address_of_a_name_is_an_engine(monkeypatch):
    infos = {"pods": [(socket.AF_INET, "10.0.0.1"), (socket.AF_INET, "10.0.0.2")]}
    infos["one"] = [(socket.AF_INET, "10.0.0.2")]
    places = found(monkeypatch, infos, "pods", "one")
    assert [(str(place), place.name) for place in places] == [("10.0.0.1:1", "pods"), ("10.0.0.2:1", "pods")]


def test_a_host_with_addresses_of_both_families_is_one_engine(monkeypatch):
    infos = {"both": [(socket.AF_INET6, "fe80::1"), (socket.AF_INET, "10.0.0.1")]}
    assert [str(place) for place in found(monkeypatch, infos, "both")] == ["10.0.0.1:1"]
    infos = {"new": [(socket.AF_INET6, "fe80::1")]}
    assert [str(place) for place in found(monkeypatch, infos, "new")] == ["[fe80::1]:1"]


def test_a_service_without_pods_has_no_engine_and_a_failing_resolver_is_an_error(monkeypatch):
    gone = socket.gaierror(socket.EAI_NONAME, "unknown")
    assert found(monkeypatch, {"none": gone}, "none") == []
    with pytest.raises(OSError, match="again"):
        found(monkeypatch, {"none": socket.gaierror(socket.EAI_AGAIN, "try again")}, "none")
