"""Task: all that a rank on a GPU needs to know when its process begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firelane.contract import StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.parallel.ranks import RankLayout
from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True)
class Task:
    """program: the whole model's. meeting: of Peers. link_fd, slots_fd: files in memory, of StepLink and
    SlotState."""

    program: Program
    model_dir: Path
    config: ExecutorConfig
    rank: int
    layout: RankLayout
    sizes: StepLimits
    meeting: Path
    link_fd: int
    slots_fd: int
    log_level: str
    log_format: str
