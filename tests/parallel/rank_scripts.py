"""A leader of ranks whose other ranks do what a test says, and an executor that computes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from firelane.backends.ranks import words
from firelane.backends.ranks.leader import Interconnect, Leader
from firelane.backends.ranks.process import RankProcess
from firelane.contract import NOTHING, GivenBack, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.engine_config import ExecutorConfig
from firelane.models.registry import load_program
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout
from tests.models.families import config_of

MODULE = "tests.parallel.scripted_rank"
LIMITS = StepLimits(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_output_rows=8,
    max_model_len=64,
    block_size=16,
    num_blocks=16,
    spans=(),
)
VOCAB = 250


def say(data: bytes) -> str:
    return f"say:{data.hex()}"


LOADS = f"{say(words.HELLO)} task {say(words.LOADED)}"
SIZES = 100, 20
READY = f"{LOADS} {say(words.READY + words.SIZES.pack(*SIZES))}"


def rested(released: int, resident: int) -> str:
    """Return the script of a rank that is told to go to standby."""
    return f"order {say(words.RESTED + words.GIVEN.pack(released, resident))}"


@cache
def program() -> Any:
    return load_program(config_of("llama3", "bfloat16"))


def task(rank: int = 1) -> words.Task:
    return words.Task(
        program=program(),
        model_dir=Path("/"),
        config=ExecutorConfig(cache_dir=Path("/")),
        rank=rank,
        hosts=HostLayout(ranks=RankLayout(tp=2)),
        limits=LIMITS,
        slots_fd=-1,
        share=None,
        log_level="info",
        log_format="text",
    )


class FakeInterconnect(Interconnect):
    """Ranks that are joined by nothing: what is said to them is noted."""

    lost_errors = (RuntimeError,)
    can_sleep = True

    def __init__(self) -> None:
        self.handed_out: list[StepInputs] = []
        self.ended: list[str] = []
        self.gave_back = self.closed = 0
        self.open_fds = True

    def share(self, rank: int) -> object:
        return f"of rank {rank}"

    def fds(self, rank: int) -> Sequence[int]:
        del rank
        return ()

    def close_fds(self) -> None:
        self.open_fds = False

    def hand_out(self, inputs: StepInputs, state: SlotState, processes: Sequence[RankProcess]) -> None:
        del state
        self.handed_out.append(inputs)
        for process in processes:
            process.order(words.STEP)

    @property
    def has_ended(self) -> bool:
        return bool(self.ended)

    def end(self, why: str) -> None:
        self.ended.append(why)

    def give_back(self) -> None:
        self.gave_back += 1

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeExecutor:
    """The executor of the rank that leads. The first token that a step draws is its number of tokens."""

    state: SlotState = field(default_factory=lambda: SlotState.allocate(LIMITS, VOCAB))
    limits: StepLimits = LIMITS
    max_in_flight: int = 2
    fails: Callable[[], None] = lambda: None
    submitted: int = 0
    most: int = 0
    """Most steps that were in flight."""
    log: list[str] = field(default_factory=list[str])
    vocab_size: int = VOCAB
    hidden_width: int = 8
    can_generate: bool = True
    is_pipelined: bool = False
    arithmetic: str = "fake"
    weights_bytes: int = 7
    kv_bytes: int = 3
    page_memory: None = None
    state_memory: None = None
    adapters: None = None
    can_sleep: bool = True
    _flying: deque[int] = field(default_factory=deque[int])

    def submit(self, inputs: StepInputs) -> None:
        self.fails()
        self.submitted += 1
        self._flying.append(inputs.num_tokens)
        self.most = max(self.most, len(self._flying))

    def wait(self) -> StepOutputs:
        self.fails()
        outputs = StepOutputs.allocate(LIMITS, self.hidden_width)
        outputs.tokens[0] = self._flying.popleft()
        return outputs

    def settle(self) -> None:
        self.log.append("settle")

    def standby(self) -> GivenBack:
        self.log.append("standby")
        return NOTHING

    def wake(self) -> None:
        self.log.append("wake")

    def release(self) -> None:
        self.log.append("release")

    def hand_out(self) -> None:
        """The word of a CPU executor to the other ranks."""
        self.log.append("hand_out")

    def end_group(self) -> None:
        """The end of a CPU executor's ranks."""
        self.log.append("end")

    def give_up(self, why: str) -> None:
        """The end of a GPU executor's ranks."""
        self.log.append(f"give up: {why}")


def leader_of(interconnect: Interconnect, *, count: int = 1, host: int = 0, **layout: int) -> Leader:
    """The first rank of one of `count` hosts, whose other ranks follow RANK_SCRIPT."""
    return Leader(
        hosts=HostLayout(ranks=RankLayout(**layout), count=count),
        host=host,
        whole=program(),
        model_dir=Path("/"),
        config=ExecutorConfig(cache_dir=Path("/")),
        interconnect=interconnect,
        module=MODULE,
    )


def step(tokens: int) -> StepInputs:
    """A step of one chunk whose arrays are told from those of other steps."""
    made = StepInputs.allocate(LIMITS)
    made.num_chunks, made.num_tokens, made.num_rows = 1, tokens, 1
    for name, array in vars(made).items():
        if isinstance(array, np.ndarray):
            array[:1] = tokens + len(name)
    return made


def failing(error: Exception) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails
