"""The embedded model on the CPU: an answer cut at any position and taken up by another engine is the same,
token for token and bit for bit of its log-probabilities, with drafts and without."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from firelane.engine.grammar.queue import grammar_queue
from firelane.engine.process.load import load_executor
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine_config import EngineConfig
from firelane.wire.frames import Grammar
from tests.engine.handed_over import handed_over
from tests.engine.resume import resumed
from tests.free_steps import make_steps_free

EMBEDDED = Path(__file__).parents[2] / "firelane" / "models" / "embedded"
PROMPT = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).encode("def main(argv):\n    parser =").ids
LONG_PROMPT = (PROMPT * 9)[:70]
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}'
)
TOKENS = 24
VARIETIES = {
    "greedy": {"temperature": 0.0},
    "seeded": {"top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "logprobs": {"logprobs": 4, "prompt_logprobs": 1},
    "min_tokens": {"stop_token_ids": list(range(200, 214)), "min_tokens": 12},
    "bias": {"logit_bias": [(300, 4.0), (301, -8.0), (350, 2.5)]},
    "schema": {"grammar": Grammar("json_schema", SCHEMA), "stop_token_ids": [1, 3], "max_tokens": 60},
    "regex": {"grammar": Grammar("regex", "[a-z ]{10,20}[.]")},
}


@pytest.fixture(scope="module")
def config(kernel_cache):
    return EngineConfig(
        model_dir=EMBEDDED,
        cache_dir=kernel_cache,
        threads=2,
        max_model_len=320,
        weights="bf16",
        max_num_seqs=9,
        kv_cache_memory="shared",
    )


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "drafts"])
def make_driver(request, driver, config):
    """A new engine at each call, on the same executor; `place`: on another one; `drafts`: as the parameter
    says."""
    executors = [load_executor(config, lambda *_: None) for _ in range(2)]
    grammars = [grammar_queue(EMBEDDED, 4096) for _ in range(2)]
    drafters = []

    def make(place=0, *, drafts=request.param):
        proposer = NgramProposer() if drafts else None
        made = driver(executors[place], prerequisites=grammars[place], proposer=proposer)
        drafters.append(made.core.drafter)
        make_steps_free(drafters[-1])
        return made

    yield make
    assert any(drafter.accepted_tokens for drafter in drafters) == request.param
    for queue in grammars:
        queue.close()
    for executor in executors:
        executor.release()


@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_same_bits_after_every_cut(make_driver, request_of, fields):
    request = request_of(1, PROMPT, **{"seed": 5, "max_tokens": TOKENS, **fields})
    whole, d = make_driver(drafts=False), make_driver()
    whole.submit(request)
    whole.run()
    tokens = whole.tokens[1]
    assert len(tokens) > 4
    cuts = range(1, len(tokens))
    d.submit(*(resumed(request, tokens[:cut], cut) for cut in cuts))
    d.run()
    entries = [msgspec.structs.replace(e, id=0) for e in whole.logprobs.get(1, [])]
    for cut in cuts:
        assert d.tokens[cut] == tokens[cut:]
        assert d.reasons[cut] == whole.reasons[1]
        got = [msgspec.structs.replace(e, id=0) for e in d.logprobs.get(cut, [])]
        assert got == [entry for entry in entries if entry.position >= len(PROMPT) + cut]


@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_same_bits_from_a_prefill_and_a_decode_engine(make_driver, request_of, fields):
    """Three answers at a time, as `n` asks for them, the third behind a prefix that both engines know."""
    fields = {"max_tokens": TOKENS, **fields}
    sent = [request_of(i, LONG_PROMPT[: 70 - 9 * (i == 3)], **{"seed": i, **fields}) for i in (1, 2, 3)]
    whole = make_driver(drafts=False)
    whole.submit(*sent)
    whole.run()
    with handed_over(make_driver(0), make_driver(1)) as pair:
        for request in sent:
            pair.submit(request)
            pair.step()
        pair.run()
        assert pair.handed_over == len(sent)
        assert set(pair.decode.cached.values()) == {64, 48}
        assert (pair.tokens, pair.reasons, pair.logprobs) == (whole.tokens, whole.reasons, whole.logprobs)
