"""python -m firelane.engine.process.headless CONFIG: the ranks of a host that has no engine; CONFIG is an
EngineConfig as JSON. Ends with the group."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from firelane import env
from firelane.child_process import end_with_parent
from firelane.engine_config import EngineConfig
from firelane.telemetry import logs


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(
            "usage: python -m firelane.engine.process.headless CONFIG (started by `firelane serve`)",
            file=sys.stderr,
        )
        return 2
    config = EngineConfig.from_json(arguments[0])
    end_with_parent()
    logs.set_up(env.read().log_level, config.log_format)
    from firelane.engine.process.rights import rights_of  # see engine/__main__.py

    rights = rights_of(config, has_grammars=False)
    from firelane.engine.process.load import follow
    from firelane.errors import FirelaneError

    def loaded(settle: Callable[[], None]) -> None:
        rights.loaded()
        rights.serves(settle)

    log = logging.getLogger("firelane.engine.process.headless")
    try:
        follow(config, loaded)
    except (FirelaneError, MemoryError) as error:
        log.error("rank_host_ended error=%r", f"{error}" or "out of memory")
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
