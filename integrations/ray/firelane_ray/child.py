"""python -m firelane_ray.child COMMAND …: `firelane COMMAND …`, which ends when the process that started it
does: Ray may kill an actor at any moment."""

from __future__ import annotations

import os
import sys

from firelane.child_process import end_with_parent
from firelane.cli import main


def run() -> int:
    end_with_parent()
    if os.getppid() == 1:  # it had ended before
        return 1
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
