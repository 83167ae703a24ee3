"""The processes of this package: `helper`, and the agent that it starts."""

from __future__ import annotations

import os
import signal
import socket
import sys

from firelane.child_process import end_with_parent, has_parent
from firelane.nixl.processes import serve_engine


def main(arguments: list[str]) -> int:
    fd, part, *rights = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the engine's parent, and it decides
    sock = socket.socket(fileno=int(fd))
    if part == "helper":
        serve_engine(sock, rights)
        return 0
    end_with_parent()
    if not has_parent(sock.fileno()):
        return 1
    if rights:
        from firelane.sandbox.confine import confine_agent

        confine_agent()
    from firelane.nixl.agent import Agent  # now: libraries start threads, which are as confined

    agent = Agent(sock)
    try:
        agent.run()
        agent.close()
    finally:
        os._exit(0)  # UCX crashes where a process ends in the usual way


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
