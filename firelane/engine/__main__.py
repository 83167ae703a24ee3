"""python -m firelane.engine FD [WORD ...]: an engine, which serves frames on an inherited socket. Its config
comes first, with further sockets (engine_config.passing): until then the process loads no more than what
closes the sandbox. The words are for people who list processes."""

from __future__ import annotations

import gc
import os
import sys

from firelane import env
from firelane.child_process import as_child
from firelane.engine_config.passing import receive_config
from firelane.errors import PeerLostError
from firelane.heap import share_one_heap
from firelane.telemetry import logs

GC_ALLOCATIONS = 50_000
"""Between two collections, in place of the library's 700: modules and steps leave few cycles behind."""


def _hash_without_openssl() -> None:
    """Have `hashlib` use Python's own functions: an engine hashes little, and OpenSSL takes 3.5 MiB."""
    sys.modules["_hashlib"] = None  # pyright: ignore[reportArgumentType] (what makes an import fail)


def main(arguments: list[str]) -> int:
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    share_one_heap()
    _hash_without_openssl()
    if not arguments:
        print("usage: python -m firelane.engine FD [WORD ...] (started by `firelane serve`)", file=sys.stderr)
        return 2
    gateway = as_child(arguments[0])
    # Imported now, while the config is still to come: what closes the sandbox starts no thread.
    from firelane.engine.process.rights import rights_of

    try:
        config, sockets = receive_config(gateway)
    except PeerLostError:  # no engine was wanted
        return 1
    if config.cores is not None:
        os.sched_setaffinity(0, config.cores)
    logs.set_up(env.read().log_level, config.log_format)
    rights = rights_of(config)
    # Imported now, so that the threads that libraries start get the cores, and are as confined.
    from firelane.engine.process.process import run

    return run(gateway, config, rights, acceptor=sockets.get("acceptor"), peer_socket=sockets.get("peers"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
