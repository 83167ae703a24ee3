"""python -m firelane.engine FD CONFIG: serve frames on an inherited socket; CONFIG is an EngineConfig as
JSON."""

from __future__ import annotations

import os
import signal
import socket
import sys

from firelane import env
from firelane.engine_config import EngineConfig
from firelane.telemetry import logs

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m firelane.engine FD CONFIG (started by `firelane serve`)", file=sys.stderr)
        return 2
    config = EngineConfig.from_json(arguments[1])
    end_with_parent()
    if config.cores is not None:
        os.sched_setaffinity(0, config.cores)
    from firelane.engine.process import run  # now: the threads that libraries start get the cores, too

    logs.set_up(env.read().log_level, config.log_format)
    return run(socket.socket(fileno=int(arguments[0])), config)


def end_with_parent() -> None:
    """Have the system kill this process when the one that started it dies, however that comes about: an
    engine in a step, or in a load, does not look at its socket. Elsewhere than on Linux that has to do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
