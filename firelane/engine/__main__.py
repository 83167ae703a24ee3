"""python -m firelane.engine FD CONFIG [INTRODUCTIONS]: serve frames on an inherited socket; CONFIG is an
EngineConfig as JSON, INTRODUCTIONS the descriptor of a further inherited socket (wire.introductions)."""

from __future__ import annotations

import os
import socket
import sys

from firelane import env
from firelane.child_process import end_with_parent
from firelane.engine_config import EngineConfig
from firelane.telemetry import logs


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        usage = "python -m firelane.engine FD CONFIG [INTRODUCTIONS] (started by `firelane serve`)"
        print(f"usage: {usage}", file=sys.stderr)
        return 2
    config = EngineConfig.from_json(arguments[1])
    end_with_parent()
    if config.cores is not None:
        os.sched_setaffinity(0, config.cores)
    logs.set_up(env.read().log_level, config.log_format)
    from firelane.engine.rights import rights_of  # now: the threads that libraries start get the cores, too

    rights = rights_of(config)
    from firelane.engine.process import run  # now: those threads are as confined

    introductions = socket.socket(fileno=int(arguments[2])) if len(arguments) > 2 else None
    return run(socket.socket(fileno=int(arguments[0])), config, rights, introductions)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
