"""python -m firelane.engine FD CONFIG [acceptor=FD] [peers=FD]: serve frames on an inherited socket; CONFIG
is an EngineConfig as JSON. Further sockets: acceptor, over which those of further gateways come; peers, over
which those of other engines come (wire.peers)."""

from __future__ import annotations

import gc
import os
import socket
import sys

from firelane import env
from firelane.child_process import as_child
from firelane.engine_config import EngineConfig
from firelane.telemetry import logs

GC_ALLOCATIONS = 50_000
"""Between two collections, in place of the library's 700: modules and steps leave few cycles behind."""


def main(arguments: list[str]) -> int:
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    if not 2 <= len(arguments) <= 4:
        usage = "python -m firelane.engine FD CONFIG [acceptor=FD] [peers=FD] (started by `firelane serve`)"
        print(f"usage: {usage}", file=sys.stderr)
        return 2
    config = EngineConfig.from_json(arguments[1])
    gateway = as_child(arguments[0])
    if config.cores is not None:
        os.sched_setaffinity(0, config.cores)
    logs.set_up(env.read().log_level, config.log_format)
    # Imported now, so that the threads that libraries start get the cores, too.
    from firelane.engine.process.rights import rights_of

    rights = rights_of(config)
    # Imported now, so that those threads are as confined.
    from firelane.engine.process.process import run

    further = dict(argument.split("=", 1) for argument in arguments[2:])
    sockets = {name: socket.socket(fileno=int(fd)) for name, fd in further.items()}
    return run(gateway, config, rights, acceptor=sockets.get("acceptor"), peer_socket=sockets.get("peers"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
