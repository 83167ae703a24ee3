"""python -m firelane.server.gateway_process FD INDEX FORMAT: one of several gateway processes of a server.
The server has the other end of the socket FD. FORMAT is that of the log."""

from __future__ import annotations

import signal
import socket
import sys

from firelane import env
from firelane.child_process import Child, as_child
from firelane.telemetry import logs

MODULE = "firelane.server.gateway_process"


def start(index: int, log_format: str) -> tuple[Child, socket.socket]:
    """A process, and this end of its connection. Raises OSError."""
    words = [MODULE, str(index), log_format]
    # A process group of its own: Ctrl-C reaches the owner alone, which then ends all in order.
    return Child.connected(words, env.for_child(), leads_group=True)


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(
            "usage: python -m firelane.server.gateway_process FD INDEX FORMAT (started by `firelane serve`)",
            file=sys.stderr,
        )
        return 2
    fd, index, log_format = arguments
    sock = as_child(fd)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides, also where all processes get them
    logs.set_up(env.read().log_level, log_format, gateway=int(index))
    return _serve(sock)


def _serve(sock: socket.socket) -> int:
    import uvloop

    from firelane.gateway.processes.worker import GatewayProcess
    from firelane.server.process_setup import freeze_made, set_up

    async def run() -> int:
        return await GatewayProcess(sock, freeze_made).run()

    set_up()
    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
