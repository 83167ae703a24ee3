"""A rank whose rows NCCL brings: python -m tests.gpu.nccl_rank FD."""

import sys

from firelane.backends.cuda.ranks.device import gpu_of
from firelane.backends.cuda.ranks.worker import main

MODULE = "tests.gpu.nccl_rank"

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda t: gpu_of(t.rank, t.hosts.ranks, t.share.meeting, gathers=True)))
