"""The words between the first rank of a host and the processes of the others, over a socket pair: a rank says
what rank_words has, and its SIZES behind READY. Then it is told ORDERs, and says RESTED when it is in
standby."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from firelane.backends.cpu.link import LinkSizes, RankWires
from firelane.contract import StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.parallel.hosts import HostLayout
from firelane.program.program import Program

SIZES = struct.Struct("<qq")
"""Bytes of a rank's weights and of its KV cache."""
ORDER = struct.Struct("<q")
"""Number of steps after which to go to standby; WAKE."""
WAKE = -1
RESTED = struct.Struct("<qq")
"""GivenBack of a rank that is in standby."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that a rank needs to know; `program` is the whole model's."""

    program: Program
    model_dir: Path
    config: ExecutorConfig
    rank: int
    hosts: HostLayout
    limits: StepLimits
    link_sizes: LinkSizes
    link_fd: int
    slots_fd: int
    wires: RankWires
    cores: tuple[int, ...]
    group_cores: int
    log_level: str
    log_format: str
