"""The CPU backend under the whole engine: tokens and log-probabilities are the same bits alone, in company,
in any chunks, after preemption, from the prefix cache, and with drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from firelane.contract.limits import sequence_pages
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine.speculation.choice import MOST_DRAFTING
from firelane.engine_config import EngineConfig
from firelane.kv import SnapshotRule
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit, TokenLogprobs
from tests.engine.driver import Driver
from tests.engine.handed_over import handed_over
from tests.engine.oracle import Recall
from tests.free_steps import make_steps_free
from tests.models.families import make_checkpoint
from tests.models.toy_config import VOCAB_SIZE

BLOCK_SIZE = 16
MAX_MODEL_LEN = 96


def record(entry: TokenLogprobs) -> tuple:
    return (entry.position, entry.token, entry.logprob, entry.top_ids, entry.top_logprobs)


@dataclass
class Recorder:
    """A channel that submits requests at given turns and keeps (token, logprob, alternatives) of each
    position."""

    arrivals: dict[int, list[NewRequest]]
    turn: int = 0
    heard: dict[int, list[tuple]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    preemptions: int = 0
    cached: int = 0
    accepted: int = 0
    most_running: int = 0

    def receive(self, wait_s: float | None) -> list[Submit]:  # noqa: ARG002
        self.turn += 1
        return [Submit(self.arrivals.pop(self.turn - 1, []))]

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        for entry in frame.logprobs:
            self.heard.setdefault(entry.id, []).append(record(entry))
        self.open -= {finished.id for finished in frame.finished}
        self.preemptions = frame.stats.preemptions
        self.accepted = frame.stats.spec_accepted_tokens
        self.cached = frame.stats.prefix_hits
        self.most_running = max(self.most_running, len(frame.ids))


def run(executor, arrivals: dict[int, list[NewRequest]], proposer: Recall | None = None) -> Recorder:
    channel = Recorder(dict(arrivals), open={r.id for batch in arrivals.values() for r in batch})
    rule = SnapshotRule(interval=BLOCK_SIZE, at_least=1)
    core = EngineCore(executor, channel, snapshots=rule, proposer=proposer)
    make_steps_free(core.drafter)
    while channel.open or not core.is_idle:
        core.step()
        core.check_integrity()
    assert core.kv.num_used_pages == 0
    return channel


def random_requests(random: np.random.Generator, count: int) -> list[NewRequest]:
    """Some share a prefix; some are greedy, some drawn with every filter on; some want their prompt
    scored."""
    prefix = random.integers(0, 256, 30)
    requests = []
    for i in range(count):
        own = random.integers(0, 256, int(random.integers(1, 14)))
        prompt = np.concatenate([prefix[: random.integers(0, 31)], own]).astype(np.int32)
        drawn = {"top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3}
        sampling = Sampling(
            seed=i,
            max_tokens=int(random.integers(1, 50)),
            logprobs=3,
            prompt_logprobs=2 if i % 5 == 0 else -1,
            **({"temperature": 0.0} if i % 2 else drawn),
        )
        requests.append(NewRequest(id=i, prompt=prompt.tobytes(), sampling=sampling))
    return requests


def known_answers(requests: list[NewRequest], heard: dict[int, list[tuple]]) -> Recall:
    """Drafts of these answers, with wrong tokens among them."""
    answers = {}
    for request in requests:
        start = len(request.prompt) // 4
        told = {position: token for position, token, *_ in heard[request.id] if position >= start}
        answers[request.prompt] = [told[position] for position in sorted(told)]
    return Recall(answers)


KINDS = [
    ("llama3", "bfloat16"),
    ("qwen2_moe", "float32"),
    ("gpt_oss", "bfloat16"),
    ("llama4", "float32"),
    ("deepseek_v3", "bfloat16"),
    ("glm_moe_dsa", "float32"),
    ("qwen3_next", "bfloat16"),
    ("lfm2", "float32"),
    ("gpt_oss", "bfloat16", "int8"),
]
"""A family of each kind, and a dtype of the cache; where it can be, one that its neighbours compile."""
SNAPSHOTS = 32


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def load(request, tmp_path_factory, kernel_cache):
    base = tmp_path_factory.mktemp("schedules")
    family, dtype, *cache = request.param
    make_checkpoint(family, dtype, base / "model")
    executors = []

    def load(max_num_seqs, max_num_batched_tokens, kv_cache_bytes):
        config = EngineConfig(
            model_dir=base / "model",
            cache_dir=kernel_cache,
            threads=2,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            block_size=BLOCK_SIZE,
            kv_cache_bytes=kv_cache_bytes,
            state_snapshots=SNAPSHOTS,
            kv_cache_dtype=cache[0] if cache else "auto",
        )
        executors.append(load_executor(config, lambda *_: None))
        return executors[-1]

    yield load
    for executor in executors:
        executor.release()


@pytest.mark.parametrize(
    ("slots", "budget", "pool_sequences"), [(8, 24, 1.5), (3, 64, 1.2), (8, 200, 40.0), (32, 256, 40.0)]
)
@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafts"])
def test_the_same_bits_in_any_company(load, slots, budget, pool_sequences, drafts):
    reference = load(1, 128, 1 << 22)
    block_bytes = reference.kv_bytes // reference.limits.num_blocks
    pages = sequence_pages(reference.limits.spans, MAX_MODEL_LEN, budget, BLOCK_SIZE)
    states = (slots + SNAPSHOTS + min(slots, MOST_DRAFTING)) * reference.limits.state_bytes
    executor = load(slots, budget, int(block_bytes * pages * pool_sequences) + states)
    assert executor.limits.max_num_seqs == slots
    random = np.random.default_rng(slots * budget)
    assert reference.vocab_size == VOCAB_SIZE
    seen_preemptions = seen_hits = most_running = 0
    for _ in range(2):
        requests = random_requests(random, slots + 12)
        alone = {r.id: run(reference, {0: [r]}).heard[r.id] for r in requests}
        arrivals: dict[int, list[NewRequest]] = {}
        for request in requests:
            arrivals.setdefault(int(random.integers(0, 12)), []).append(request)
        known = known_answers(requests, alone) if drafts else None
        together = run(executor, arrivals, known)
        assert together.heard == alone
        assert (together.accepted > 0) == drafts
        seen_preemptions += together.preemptions
        seen_hits += together.cached
        most_running = max(most_running, together.most_running)
    assert seen_hits > 0
    if pool_sequences > 3:
        assert most_running == slots  # tokens of one step: the whole batch was in it
    else:
        assert drafts or seen_preemptions > 0


def test_the_same_bits_from_a_prefill_and_a_decode_engine(load):
    """Requests that share prefixes, in chunks and batches of other sizes at each engine."""
    reference = load(1, 128, 1 << 22)
    engines = [load(slots, budget, 1 << 22) for slots, budget in ((8, 24), (3, 64))]
    requests = random_requests(np.random.default_rng(7), 14)
    alone = {r.id: run(reference, {0: [r]}).heard[r.id] for r in requests}
    rule = SnapshotRule(interval=BLOCK_SIZE, at_least=1)
    with handed_over(*(Driver(executor, snapshots=rule) for executor in engines)) as pair:
        for begin in range(0, len(requests), 5):
            pair.submit(*requests[begin : begin + 5])
            for _ in range(4):
                pair.step()
        pair.run()
        assert pair.decode.frames[-1].stats.pulled_bytes > 0
    assert {i: [record(entry) for entry in entries] for i, entries in pair.logprobs.items()} == alone
