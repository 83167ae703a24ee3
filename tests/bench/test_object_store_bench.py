"""A link of a given rate, and what the benchmark of object stores says of a start."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from types import ModuleType
from typing import Any

import pytest

from tests.bench.test_scripts import SCRIPTS, load

RATE = 20e6
NBYTES = 10 << 20


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])


@pytest.fixture
def script() -> ModuleType:
    return load("object_store")


@pytest.fixture
def link() -> Generator[Any]:
    if shutil.which("tc") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2")
    try:
        found = load("shaped_link").ShapedLink()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the system does not allow it: {error.stderr!r}")
    with found:
        yield found


def test_a_start_is_held_against_the_client_and_against_the_link(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    script._report_start(3_000_000_000, [10.0, 20.0], [13.5, 25.5], 3e8)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "",
        "first token / (1.2 x client alone + 1.5 s): 1.00",
        "first token / (1.2 x bytes / rate + 1.5 s): 1.44",
    ]
    script._report_start(3_000_000_000, [10.0], [27.0], 0.0)
    assert capsys.readouterr().out == "\nfirst token / (1.2 x client alone + 1.5 s): 2.00\n"


def received_s(host: str, link: Any) -> float:
    """Receive NBYTES from a server behind the link; return the seconds that it took."""
    send = (
        f"import socket; server = socket.create_server(('{host}', 7001)); "
        f"server.accept()[0].sendall(bytes({NBYTES}))"
    )
    with subprocess.Popen([*link.prefix, sys.executable, "-c", send]):
        while True:
            try:
                connection = socket.create_connection((host, 7001))
                break
            except ConnectionRefusedError:
                threading.Event().wait(0.01)
        began_s, left = time.perf_counter(), NBYTES
        with connection:
            while left:
                left -= len(connection.recv(1 << 20))
        return time.perf_counter() - began_s


def test_nothing_comes_faster_than_the_links_rate(link: Any) -> None:
    link.limit(None)  # there is none yet
    link.limit(RATE)
    shaped = load("shaped_link")
    assert received_s(link.address, link) > 0.9 * (NBYTES - shaped.BURST_BYTES) / RATE
    link.limit(None)
