"""A model by two processes on CPU tensors, every kernel in the interpreter; gloo brings rows together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from firelane.backends.cuda import loader
from firelane.backends.cuda.ranks.group import check_stages, leader_of, load_led
from firelane.backends.ranks.group import RankGroup
from firelane.backends.ranks.member import Member
from firelane.contract import SAMPLE, Executor
from firelane.engine_config import ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.host_rank import MODULE, peer_of
from tests.backends.cuda.lean import lean
from tests.backends.executor_contract import Batch
from tests.models.families import make_checkpoint
from tests.models.toy_config import VOCAB_SIZE

SIZES = {"max_num_seqs": 2, "max_num_batched_tokens": 4, "max_model_len": 32, "block_size": 16}
PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, 4).tolist()


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", "bfloat16", tmp_path_factory.mktemp("ranks"))


def config_of(directory: Path, **options: object) -> ExecutorConfig:
    return ExecutorConfig(
        cache_dir=directory / "cache", threads=1, kv_cache_bytes=1 << 20, **SIZES, **options
    )


@contextmanager
def group_of(directory: Path, module: str = MODULE, **options: object) -> Generator[RankGroup]:
    config = config_of(directory, **options)
    program = load_program(read_config(directory))
    with ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "meeting"  # each group its own
        leader, interconnect = leader_of(program, directory, config, meeting, module)
        stack.callback(leader.close)
        device = peer_of(leader.rank, leader.hosts.ranks, meeting)
        group = load_led(leader, interconnect, device, lambda *_: None, stack)
        try:
            yield group
        finally:
            group.release()


def alone(directory: Path) -> Executor:
    config = config_of(directory)
    program, checkpoint = loader.opened(load_program(read_config(directory)), directory, config)
    device = HostDevice(warm=False, memory_bytes=2 << 30)
    return loader.load_on(device, program, checkpoint, config, lambda *_: None, Member())


def test_two_processes_give_the_tokens_of_one_and_end_together(checkpoint: Path) -> None:
    want = Batch(alone(checkpoint)).generate(1, PROMPT, 3)
    with group_of(checkpoint, tensor_parallel_size=2) as group:
        batch = Batch(group)
        assert batch.generate(1, PROMPT, 3) == want
        assert len(group.pids) == 2
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(MachineError, match=r"rank 1 of the model ended \(SIGKILL\)"):
            run_for_ever(batch)


def test_two_stages_have_two_steps_in_flight(checkpoint: Path) -> None:
    """Each step holds one sequence, and every second step begins before the first has ended."""
    other = PROMPT[::-1]
    single = Batch(alone(checkpoint))
    want = [single.generate(slot, prompt, 3) for slot, prompt in enumerate((PROMPT, other))]
    with group_of(checkpoint, pipeline_parallel_size=2) as group:
        assert (group.max_in_flight, group.is_pipelined) == (2, True)
        batch, found = Batch(group), ([], [])
        for slot, prompt in enumerate((PROMPT, other)):
            batch.install(slot, prompt)
            batch.submit((slot, 0, 4, {3: SAMPLE}))
        for position in (4, 5):
            for slot in (0, 1):
                found[slot].append(int(group.wait().tokens[0]))
                batch.submit((slot, position, 1, {position: SAMPLE}))
        for slot in (0, 1):
            found[slot].append(int(group.wait().tokens[0]))
    assert list(found) == want


def test_a_stage_without_attention_is_refused(tmp_path: Path) -> None:
    directory = make_checkpoint("qwen3_next", "bfloat16", tmp_path)
    program = load_program(read_config(directory))
    config = config_of(directory, pipeline_parallel_size=4)
    leader, _ = leader_of(program, directory, config, tmp_path / "meeting")
    with pytest.raises(UsageError, match="--pipeline-parallel-size 4: a stage would have no attention"):
        check_stages(leader, program)


def test_a_rank_that_ends_before_all_have_met(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "tests.backends.cuda.lost_group", str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert "rank 1 of the model ended (SIGKILL) while it was loading" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int4"}, "--weights int4 with --tensor-parallel-size 2: ranks on GPUs keep"),
        ({"weights": "lossless"}, "--weights lossless with"),
        ({"gemm": "library"}, "gemm = library with"),
    ],
)
def test_options_that_ranks_do_not_take(checkpoint: Path, options: dict[str, str], message: str) -> None:
    config = config_of(checkpoint, tensor_parallel_size=2, **options)
    with pytest.raises(UsageError, match=message):
        leader_of(load_program(read_config(checkpoint)), checkpoint, config, checkpoint / "meeting")


def run_for_ever(batch: Batch) -> NoReturn:
    while True:
        batch.step((1, 0, 1, {0: SAMPLE}))
