"""Drafts of models with recurrent state in Triton's interpreter: the same tokens as without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cuda import loader
from firelane.engine_config import ExecutorConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.engine.driver import Driver, make_request
from tests.engine.oracle import Recall
from tests.free_steps import make_steps_free
from tests.models.families import make_checkpoint

SIZES = {"max_num_seqs": 2, "max_num_batched_tokens": 24, "max_model_len": 32, "block_size": 16}
PROMPT = range(10, 17)
FAMILIES = {
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1]},
    "qwen3_next": {},
    "granite_hybrid": {},
}


@pytest.fixture(autouse=True, scope="module")
def _lean() -> Iterator[None]:
    with lean():
        yield


def engine(model_dir: Path, proposer: Recall | None) -> Driver:
    config = ExecutorConfig(cache_dir=Path("/nowhere"), kv_cache_bytes=1 << 20, spare_states=2, **SIZES)
    program, checkpoint = load_program(read_config(model_dir)), Checkpoint.open(model_dir)
    device = HostDevice(warm=False, memory_bytes=2 << 30)
    return Driver(loader.load_on(device, program, checkpoint, config, lambda *_: None), proposer=proposer)


def tokens(d: Driver) -> list[int]:
    d.submit(make_request(1, PROMPT, max_tokens=12, seed=3))
    d.run()
    return d.tokens[1]


@pytest.mark.parametrize(("family", "changes"), FAMILIES.items(), ids=FAMILIES)
def test_the_same_tokens_with_drafts(family: str, changes: dict, tmp_path: Path) -> None:
    directory = make_checkpoint(family, "bfloat16", tmp_path, **changes)
    alone = tokens(engine(directory, None))
    d = engine(directory, Recall({np.array(PROMPT, np.int32).tobytes(): alone}))
    make_steps_free(d.core.drafter)
    assert tokens(d) == alone
    stats = d.frames[-1].stats
    assert 0 < stats.spec_accepted_tokens < stats.spec_draft_tokens
