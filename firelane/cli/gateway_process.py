"""python -m firelane.cli.gateway_process FD INDEX FORMAT: one of several gateway processes of a server, which
has the other end of the socket FD. FORMAT: of its log."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

from firelane import env
from firelane.child_process import end_with_parent
from firelane.telemetry import logs


def start(fd: int, index: int, log_format: str) -> subprocess.Popen[bytes]:
    """A process that has this end of a connection. Raises OSError."""
    command = [sys.executable, "-m", "firelane.cli.gateway_process", str(fd), str(index), log_format]
    # A process group of its own: Ctrl-C reaches the owner alone, which then ends all in order.
    return subprocess.Popen(command, pass_fds=[fd], process_group=0, env=env.for_child())


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(
            "usage: python -m firelane.cli.gateway_process FD INDEX FORMAT (started by `firelane serve`)",
            file=sys.stderr,
        )
        return 2
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides, also where all processes get them
    fd, index, log_format = arguments
    logs.set_up(env.read().log_level, log_format, gateway=int(index))
    return _serve(socket.socket(fileno=int(fd)))


def _serve(sock: socket.socket) -> int:
    import uvloop

    from firelane.cli.process_setup import configure_gc, set_up
    from firelane.gateway.processes.worker import GatewayProcess

    async def run() -> int:
        return await GatewayProcess(sock, configure_gc).run()

    set_up()
    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
