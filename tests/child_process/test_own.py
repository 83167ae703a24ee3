"""A child whose parent ended before it could ask to be killed with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from firelane.child_process import has_parent
from firelane.child_process.forked import fork_helper


def test_the_other_end_of_a_socket_or_a_pipe_tells() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        assert has_parent(theirs.fileno())
        ours.send(b"a frame that nobody has read yet")
        ours.close()
        assert not has_parent(theirs.fileno())
    read, write = os.pipe()
    assert has_parent(write)
    os.close(read)
    assert not has_parent(write)
    os.close(write)


def test_what_is_no_pipe_has_nobody_to_lose() -> None:
    with Path(os.devnull).open("wb") as nowhere:
        assert has_parent(nowhere.fileno())


def test_a_fetch_without_its_parent_ends_at_once() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        command = [sys.executable, "-m", "firelane.sources", str(theirs.fileno()), "owner/name", "/nowhere"]
        assert subprocess.run(command, pass_fds=[theirs.fileno()], timeout=60).returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names")
def test_a_helper_has_a_name() -> None:
    def work(sock: socket.socket) -> None:
        sock.send(Path("/proc/self/comm").read_bytes())

    child, sock = fork_helper(work, "a_helper")
    with sock:
        assert sock.recv(64) == b"a_helper\n"
    assert child.end(60) == 0
