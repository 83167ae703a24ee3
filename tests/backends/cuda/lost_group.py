"""Two ranks, one of which ends before they have met: python -m tests.backends.cuda.lost_group CHECKPOINT.

In a process of its own: a meeting that has failed is never forgotten by torch.distributed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from firelane.backends.ranks.process import RankEndedError
from tests.backends.cuda import interpreter
from tests.backends.cuda.lean import lean
from tests.backends.cuda.test_cuda_rank_group import group_of

LOST = "tests.backends.cuda.lost_rank"


def main(directory: Path) -> None:
    interpreter.install()
    try:
        with lean(), group_of(directory, module=LOST, tensor_parallel_size=2):
            print("all ranks have met", flush=True)
    except RankEndedError as error:
        print(error, flush=True)
    os._exit(0)  # a thread waits for the lost rank


if __name__ == "__main__":
    main(Path(sys.argv[1]))
