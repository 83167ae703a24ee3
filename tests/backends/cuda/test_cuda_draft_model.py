"""A draft model beside the served one on a device of the host's memory: both fit, and drafts are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.backends.cuda import loader
from firelane.backends.cuda.lowering.memory import RESERVE_BYTES
from firelane.engine.speculation.draft_model import DraftModel
from firelane.engine.speculation.draft_steps import DraftSteps
from firelane.engine_config import Beside, ExecutorConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.engine.driver import Driver, make_request
from tests.models.families import make_checkpoint

SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 16, "max_model_len": 96}


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


class Pair:
    """A model and itself as its draft model, on one device."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        self.device = HostDevice(memory_bytes=memory_bytes, warm=False)
        self.checkpoint, self.program = Checkpoint.open(directory), load_program(read_config(directory))
        per_token = self.program.kv_bytes_per_token
        beside = Beside(weights_bytes=self.program.weights_bytes, kv_bytes_per_token=per_token)
        self.served = self.load(beside=beside)
        pages = self.served.limits.num_blocks
        self.draft = self.load(num_blocks=pages, kv_cache_bytes=pages * 16 * per_token)

    def load(self, **own):
        config = ExecutorConfig(cache_dir=Path("/nowhere"), threads=2, **SIZES, **own)
        return loader.load_on(self.device, self.program, self.checkpoint, config, lambda *_: None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return make_checkpoint("llama3", "bfloat16", tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def test_both_fit_into_memory_that_is_short(directory, monkeypatch):
    plans = []
    plan = loader.plan_memory
    monkeypatch.setattr(loader, "plan_memory", lambda *a, **k: plans.append(plan(*a, **k)) or plans[-1])
    weights_bytes = Pair(directory, 4 << 30).program.weights_bytes
    roomy = plans[0]
    tight = Pair(directory, 2 * (RESERVE_BYTES + roomy.step) + roomy.weights + weights_bytes + roomy.kv)
    assert tight.draft.limits == tight.served.limits
    assert 96 // 16 <= tight.served.limits.num_blocks < roomy.limits.num_blocks


def test_every_drafted_token_is_right(directory):
    pair = Pair(directory, 4 << 30)
    requests = [make_request(i, [*range(40), i], max_tokens=20, temperature=0.5 * i) for i in range(3)]
    plain = Driver(pair.served)
    plain.submit(*requests)
    plain.run()
    d = Driver(pair.served, proposer=DraftModel(DraftSteps(pair.draft, pair.served)))
    d.core.drafter.times.share_of_one_more = d.core.drafter.times.seconds = lambda _: 0.0
    d.submit(*requests)
    d.run()
    assert d.tokens == plain.tokens
    assert d.core.drafter.drafted_tokens == d.core.drafter.accepted_tokens > 20
