"""A model by several processes of this machine: the bits of one, and the end of all when one ends."""

from __future__ import annotations

import math
import os
import signal
from collections import deque
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from firelane.backends import cpu
from firelane.backends.cpu.ranks import interconnect
from firelane.backends.cpu.ranks.agreement import check_integer_rows, with_activation_dtype
from firelane.backends.ranks import process
from firelane.backends.ranks.group import RankGroup
from firelane.contract import Executor, StepInputs
from firelane.engine_config import ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout, rank_program
from tests.backends.cpu_harness import Chunk, fill, set_greedy
from tests.engine.driver import Driver, make_request
from tests.models.families import config_of, make_checkpoint
from tests.weights.quantized.test_quantized import write_quantized

FAMILY, DTYPE = "qwen3_next", "bfloat16"  # heads, states of heads, routed and shared experts
STEPS = [
    [Chunk(0, 0, 33), Chunk(2, 0, 20)],
    [Chunk(2, 20, 1), Chunk(0, 33, 1), Chunk(1, 0, 13)],
    [Chunk(0, 34, 1)],
    [Chunk(0, 35, 1), Chunk(1, 13, 1), Chunk(2, 21, 1)],
    [Chunk(1, 14, 3, score=True)],
    [Chunk(3, 0, 40, sample=False)],
    [Chunk(3, 40, 9)],
    [Chunk(0, 36, 1), Chunk(2, 22, 1)],
    [Chunk(3, 49, 1)],
]
HAS_CORES = len(interconnect.usable_cores()) > 1
pytestmark = pytest.mark.skipif(not HAS_CORES, reason="ranks need a core each")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(FAMILY, DTYPE, tmp_path_factory.mktemp("ranks"))


def load(directory: Path, cache_dir: Path, tp: int = 1, pp: int = 1, **options: object) -> Executor:
    config = ExecutorConfig(
        cache_dir=cache_dir,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_cache_bytes=16 << 20,
        **options,
    )
    return cpu.load(load_program(read_config(directory)), directory, config, lambda *_: None)


@contextmanager
def loaded(*arguments, **options):
    executor = load(*arguments, **options)
    try:
        yield executor
    finally:
        executor.release()


def run(executor: Executor) -> list[bytes]:
    """Outputs of the steps: tokens, and log-probabilities to the last bit."""
    rng = np.random.default_rng(3)
    for slot in range(4):
        tables = executor.state.block_tables
        each = executor.limits.num_blocks // len(tables)  # of each cache group
        for group, table in enumerate(tables):
            table[slot, :8] = np.arange(8) + slot * 8 + group * each
        set_greedy(executor.state, slot, rng.integers(0, 250, 60).tolist(), 5)
    free = [StepInputs.allocate(executor.limits) for _ in range(executor.max_in_flight)]
    flying: deque[tuple[list[Chunk], StepInputs]] = deque()
    found: list[bytes] = []

    def land() -> None:
        _, inputs = flying.popleft()
        outputs, rows = executor.wait(), inputs.num_rows
        assert np.isfinite(outputs.logprobs[:rows]).all()
        found.append(b"".join(a[:rows].tobytes() for a in (outputs.tokens, outputs.logprobs, outputs.hidden)))
        free.append(inputs)

    for chunks in STEPS:
        while not free or any(draws_for(chunks, before) for before, _ in flying):
            land()
        flying.append((chunks, fill(free.pop(), chunks)))
        executor.submit(flying[-1][1])
    while flying:
        land()
    return found


def draws_for(chunks: list[Chunk], before: list[Chunk]) -> bool:
    """Whether a step reads a token that the one before it draws."""
    return not {c.slot for c in chunks}.isdisjoint(c.slot for c in before if c.sample)


def run_for_ever(executor: Executor) -> NoReturn:
    while True:
        run(executor)


def serve(executor: Executor) -> list[list[int]]:
    """Tokens of requests under an engine: prompts of several chunks, and sequences that end at their own
    times."""
    d = Driver(executor)
    for i in range(6):
        d.submit(make_request(i, range(10, 40 + 12 * i), max_tokens=3 + 2 * i))
        d.step()
    d.run()
    return [d.tokens[i] for i in range(6)]


@pytest.fixture(scope="module")
def alone(checkpoint: Path, kernel_cache: Path) -> tuple[list[bytes], list[list[int]]]:
    with loaded(checkpoint, kernel_cache) as executor:
        return run(executor), serve(executor)


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"tp": 2, "pp": 2}], ids=str)
def test_the_bits_of_one_rank(
    checkpoint: Path, kernel_cache: Path, alone, monkeypatch, sizes: dict[str, int]
) -> None:
    cores = sorted(interconnect.usable_cores())[:2] * (math.prod(sizes.values()) // 2)
    monkeypatch.setattr(interconnect, "usable_cores", lambda: cores)
    with loaded(checkpoint, kernel_cache, **sizes) as group:
        assert run(group) == alone[0]
        assert serve(group) == alone[1]
        assert min(group.busy_seconds()) > 0
        check_standby(group)
        assert run(group) == alone[0]


def check_standby(group: Executor) -> None:
    """All ranks give memory back, each time; a second word is none."""
    assert isinstance(group, RankGroup)
    assert group.can_sleep
    for _ in range(2):
        given = group.standby()
        assert given.released_bytes > 0
        assert given == group.standby()
        group.wake()
        group.wake()
        run(group)


def test_a_rank_that_is_killed_in_standby_is_named(checkpoint: Path, kernel_cache: Path) -> None:
    with loaded(checkpoint, kernel_cache, 2) as group:
        assert isinstance(group, RankGroup)
        group.standby()
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(MachineError, match=r"rank 1 of the model ended \(SIGKILL\)"):
            run_for_ever(group)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_the_bits_of_one_rank_when_experts_are_shared(
    family: str, tmp_path: Path, kernel_cache: Path
) -> None:
    """And attention's heads, of which each rank has its own; or its rows, where all read the same latents,
    which are in memory once."""
    directory = make_checkpoint(family, DTYPE, tmp_path)
    with loaded(directory, kernel_cache) as alone:
        want = run(alone)
        kv_bytes, pages = alone.kv_bytes, alone.limits.num_blocks
    with loaded(directory, kernel_cache, expert_parallel_size=2) as group:
        assert run(group) == want
        assert (group.kv_bytes, group.limits.num_blocks) == (kv_bytes, pages)


@pytest.mark.parametrize(
    ("family", "options", "match"),
    [
        ("llama3", {"expert_parallel_size": 2}, "--expert-parallel-size 2: .* has no experts to share"),
        ("mixtral", {"expert_parallel_size": 4, "tp": 2}, "expert parallel 4 with tensor parallel 2"),
    ],
)
def test_experts_that_cannot_be_shared_are_refused(
    family: str, options: dict, match: str, tmp_path: Path, kernel_cache: Path
) -> None:
    with pytest.raises(UsageError, match=match):
        load(make_checkpoint(family, DTYPE, tmp_path), kernel_cache, **options)


@pytest.mark.parametrize("activations", ["auto", "bf16", "int8"])
def test_the_bits_of_one_rank_in_codes(tmp_path: Path, kernel_cache: Path, activations: str) -> None:
    """Groups of 32 inputs, of which the ranks have 144 each: codes of one rank, and smaller groups of two."""
    directory = write_quantized("int4", tmp_path)
    with loaded(directory, kernel_cache, 1, activation_dtype=activations) as alone:
        want = run(alone)
    with loaded(directory, kernel_cache, 2, activation_dtype=activations) as group:
        assert run(group) == want
        assert group.weights_bytes < 1.2 * alone.weights_bytes


def test_integer_rows_that_ranks_would_round_in_other_groups_are_refused() -> None:
    """A sum has a segment that is no multiple of 32 inputs, and a rank's part of it has none."""
    layout = RankLayout(tp=2)
    for family, fits in (("llama3", True), ("gemma4_e", False)):
        program = load_program(config_of(family, DTYPE))
        programs = [rank_program(program, layout, rank) for rank in range(2)]
        with nullcontext() if fits else pytest.raises(UsageError, match="2 ranks would round rows of"):
            check_integer_rows(program, layout, programs)
        for wanted, found in (("auto", "auto" if fits else "bf16"), ("int8", "int8"), ("bf16", "bf16")):
            config = ExecutorConfig(cache_dir=Path(), tensor_parallel_size=2, activation_dtype=wanted)
            own = with_activation_dtype(program, HostLayout(ranks=layout), config)
            assert own.activation_dtype == found


def test_a_rank_that_is_killed_ends_the_group(checkpoint: Path, kernel_cache: Path) -> None:
    with loaded(checkpoint, kernel_cache, 2) as group:
        assert isinstance(group, RankGroup)
        run(group)
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(MachineError, match=r"rank 1 of the model ended \(SIGKILL\)"):
            run_for_ever(group)
        with pytest.raises(MachineError, match="rank 1"):
            group.submit(StepInputs.allocate(group.limits))


def test_more_ranks_than_cores_are_refused(checkpoint: Path, kernel_cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(interconnect, "usable_cores", lambda: {0})
    with pytest.raises(UsageError, match="--tensor-parallel-size 2: this process has 1 core, and each rank"):
        load(checkpoint, kernel_cache, 2)


def test_a_rank_that_never_appears_is_named(checkpoint: Path, kernel_cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(interconnect, "MODULE", "silent_rank")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(process, "HELLO_S", 0.01)
    with pytest.raises(MachineError, match="rank 1 of the model did not appear within"):
        load(checkpoint, kernel_cache, 2)
