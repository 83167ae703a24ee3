"""Toy families of each kind on the CPU under the whole engine: one answer has the same bits in chunks of any
size, from a hit at any block, and taken up after any token; prompts go past windows, chunks and tiles."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from firelane.backends.cpu.executor import CpuExecutor
from firelane.contract import CAUSAL, Chunk
from firelane.engine.pages import tier_reads
from firelane.engine.process.load import load_executor
from firelane.engine.process.tiers import open_tiers
from firelane.engine_config import EngineConfig, TiersConfig
from firelane.kv import SnapshotRule
from firelane.models.registry import load_program
from tests.backends.cpu_harness import limits, machine
from tests.engine.handed_over import handed_over
from tests.engine.resume import resumed
from tests.models.families import FAMILIES, make_checkpoint
from tests.models.toy_config import VOCAB_SIZE

KINDS = [
    ("gpt_oss", "bfloat16"),
    ("llama4", "float32"),
    ("llama_nemotron", "bfloat16"),
    ("gemma4_e", "float32"),
    ("qwen3_next", "bfloat16"),
    ("lfm2", "float32"),
]
EVERY_BLOCK = SnapshotRule(at_least=1)
BLOCK_SIZE = 16
PROMPT = np.random.default_rng(3).integers(0, VOCAB_SIZE, 165)
FIELDS = {"max_tokens": 24, "seed": 7, "logprobs": 3, "prompt_logprobs": 1, "repetition_penalty": 1.1}


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def load(request, tmp_path_factory, kernel_cache):
    """An executor of this family for steps of so many tokens; the first one made is kept for all."""
    family, dtype = request.param
    directory = make_checkpoint(family, dtype, tmp_path_factory.mktemp(family))
    executors: dict[int, CpuExecutor] = {}

    def load(tokens: int) -> CpuExecutor:
        if tokens not in executors:
            executors[tokens] = load_executor(config(directory, kernel_cache, tokens), lambda *_: None)
            executors[tokens].pages[:] = 0xFF
            executors[tokens].states[:] = 0xFF
        return executors[tokens]

    yield load
    for executor in executors.values():
        executor.release()


def config(directory: Path, cache_dir: Path, tokens: int) -> EngineConfig:
    return EngineConfig(
        model_dir=directory,
        cache_dir=cache_dir,
        threads=2,
        max_num_seqs=min(4, tokens),
        max_num_batched_tokens=tokens,
        block_size=BLOCK_SIZE,
        kv_cache_bytes=4 << 20,
    )


def records(driver, request_id: int) -> list:
    """The log-probabilities of one request, without its number."""
    return [msgspec.structs.replace(entry, id=0) for entry in driver.logprobs[request_id]]


@pytest.fixture(scope="module")
def whole(load, driver, request_of):
    """The answer of an engine that has the prompt in one step, and nothing else."""
    d = driver(load(256))
    d.submit(request_of(0, PROMPT, **FIELDS))
    d.run()
    assert d.cached[0] == 0
    return d.tokens[0], records(d, 0)


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_chunks_of_any_size(load, driver, request_of, whole, tokens):
    d = driver(load(tokens))
    d.submit(request_of(0, PROMPT, **FIELDS))
    d.run()
    assert (d.tokens[0], records(d, 0)) == whole


def test_a_hit_at_every_block(load, driver, request_of, whole):
    silent = FIELDS | {"prompt_logprobs": -1}
    for blocks in range(1, len(PROMPT) // BLOCK_SIZE + 1):
        d, known = driver(load(64), snapshots=EVERY_BLOCK), blocks * BLOCK_SIZE
        d.submit(request_of(1, PROMPT[: known + 1], max_tokens=1))
        d.run()
        d.submit(request_of(0, PROMPT, **silent))
        d.run()
        assert d.cached[0] == known
        assert d.tokens[0] == whole[0]
        assert records(d, 0) == [entry for entry in whole[1] if entry.position >= len(PROMPT)]


def test_taken_up_after_any_token(load, driver, request_of, whole):
    request, tokens = request_of(0, PROMPT, **FIELDS), whole[0]
    d = driver(load(64))
    cuts = range(1, len(tokens), 3)
    d.submit(*(resumed(request, tokens[:cut], cut) for cut in cuts))
    d.run()
    for cut in cuts:
        assert d.tokens[cut] == tokens[cut:]


def test_handed_over_behind_its_first_token(load, driver, request_of, whole):
    """From an engine that prefills in chunks to one that decodes; the same prompt again is in its cache."""
    with handed_over(driver(load(7)), driver(load(64))) as pair:
        pair.submit(request_of(0, PROMPT, **FIELDS))
        pair.run()
        assert (pair.tokens[0], records(pair, 0)) == whole
        assert pair.decode.cached[0] == len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
        pair.submit(request_of(1, PROMPT, **FIELDS))
        pair.run()
        assert (pair.tokens[1], records(pair, 1)) == whole


def test_the_next_engine_has_pages_and_states_from_the_drive(
    load, driver, request_of, whole, tmp_path, monkeypatch
):
    """Nothing of the first engine is left in memory."""
    monkeypatch.setattr(tier_reads, "UNKNOWN_S", 120.0)
    tiers, silent = TiersConfig(disk=tmp_path, disk_bytes=64 << 20), FIELDS | {"prompt_logprobs": -1}
    executor = load(64)
    for turn, fields in enumerate((FIELDS, silent)):
        d = driver(executor, snapshots=EVERY_BLOCK)
        opened = open_tiers(tiers, d.core, executor.page_memory, executor.state_memory, "m")
        d.submit(request_of(0, PROMPT, **fields))
        d.run()
        opened.close()
        executor.pages[:], executor.states[:] = 0xFF, 0xFF
        assert d.cached[0] == turn * (len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE)
        assert d.tokens[0] == whole[0]


def test_several_answers_of_one_prompt_of_which_one_is_aborted(load, driver, request_of):
    """A request with `n` asks for several such answers: the same prompt, drawn by seeds of their own."""
    requests = [request_of(i, PROMPT, **FIELDS | {"seed": i, "prompt_logprobs": -1}) for i in range(3)]
    alone = {}
    for request in requests:
        d = driver(load(64))
        d.submit(request)
        alone[request.id] = (d.run().tokens[request.id], records(d, request.id))
    d = driver(load(64))
    d.submit(*requests)
    while len(d.tokens.get(1, [])) < 5:
        d.step()
    d.abort(1)
    d.run()
    assert d.reasons[1] == "abort"
    assert d.tokens[1] == alone[1][0][: len(d.tokens[1])]
    assert all((d.tokens[i], records(d, i)) == alone[i] for i in (0, 2))


CHUNK, CHUNKS = 64, 100
SCOUT = {
    "num_hidden_layers": 4,
    "no_rope_layers": [1, 1, 1, 0],
    "moe_layers": [3],
    "attention_chunk_size": CHUNK,
    "floor_scale": 512,
    "max_position_embeddings": (CHUNKS + 2) * CHUNK,
}
STEP = 256
"""Tokens of a step: some chunks."""


@pytest.fixture(scope="module")
def scout(kernel_cache):
    """A model shaped like Llama 4 Scout, three layers of chunks to a full one, with pages for one sequence of
    100 chunks and little more."""
    program = load_program(FAMILIES["llama4"]() | SCOUT)
    assert program.spans == (Chunk(CHUNK),) * 3 + (CAUSAL,)
    sizes = limits(
        max_num_seqs=2,
        max_num_batched_tokens=STEP,
        max_model_len=(CHUNKS + 1) * CHUNK,
        block_size=BLOCK_SIZE,
        num_blocks=130,
    )
    executor = machine(program, kernel_cache, sizes=sizes).executor
    yield executor
    executor.release()


def test_a_hundred_chunks_hold_full_layers_and_one_chunk(scout, driver, request_of):
    blocks_of_chunk, blocks_of_step = CHUNK // BLOCK_SIZE, STEP // BLOCK_SIZE
    prompt = np.random.default_rng(0).integers(0, VOCAB_SIZE, CHUNKS * CHUNK)
    d, fed, decoding = driver(scout), [], []
    d.submit(request_of(0, prompt, max_tokens=CHUNK - 1))
    while 0 not in d.reasons:
        d.step()
        (decoding if d.tokens.get(0) else fed).append(d.core.kv.num_used_pages)
    whole = len(prompt) // BLOCK_SIZE
    assert max(fed) <= whole + 3 * (blocks_of_chunk + blocks_of_step + 1)
    assert max(decoding[2:-1]) <= whole + blocks_of_chunk + 3 * (blocks_of_chunk + 1)
    assert scout.limits.num_blocks < 2 * whole  # all chunks' pages have been given out again

    half = CHUNKS // 2 * CHUNK  # a multiple of the chunk: the pages of full layers are enough there
    d.submit(request_of(1, prompt[: half + 3], max_tokens=4))
    d.submit(request_of(2, prompt[: half - 3], max_tokens=4))
    d.run()
    assert (d.cached[1], d.cached[2]) == (half, half - CHUNK)
