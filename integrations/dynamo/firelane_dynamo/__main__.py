"""firelane-dynamo [MODEL] [OPTIONS]: one worker of Dynamo, with one engine."""

from __future__ import annotations

import sys

from firelane.errors import FirelaneError


def main() -> int:
    from dynamo.common.backend.run import run

    from firelane_dynamo.worker import FirelaneEngine

    try:
        run(FirelaneEngine)
    except FirelaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
