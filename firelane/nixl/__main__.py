"""The processes of this package: `helper`, and the agent that it starts."""

from __future__ import annotations

import os
import sys

from firelane.child_process import as_child
from firelane.child_process.own import as_grandchild
from firelane.nixl.processes import serve_engine


def main(arguments: list[str]) -> int:
    fd, part, *rights = arguments
    if part == "helper":
        serve_engine(as_grandchild(fd), rights)
        return 0
    sock = as_child(fd)
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
