"""python -m firelane.engine FD CONFIG: serve frames on an inherited socket; CONFIG is an EngineConfig as
JSON."""

from __future__ import annotations

import socket
import sys

from firelane import env
from firelane.engine.process import run
from firelane.telemetry import logs
from firelane.wire.engine_config import EngineConfig


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m firelane.engine FD CONFIG (started by `firelane serve`)", file=sys.stderr)
        return 2
    config = EngineConfig.from_json(arguments[1])
    logs.set_up(env.read().log_level, config.log_format)
    return run(socket.socket(fileno=int(arguments[0])), config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
