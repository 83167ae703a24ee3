"""The embedded model on the CPU: an answer cut at any position and taken up by another engine is the same,
token for token and bit for bit of its log-probabilities."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from firelane.engine.grammar.queue import grammar_queue
from firelane.engine.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import Grammar
from tests.engine.resume import resumed

EMBEDDED = Path(__file__).parents[2] / "firelane" / "models" / "embedded"
PROMPT = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).encode("def main(argv):\n    parser =").ids
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
def make_driver(driver, kernel_cache):
    """A new engine at each call, on the same executor."""
    config = EngineConfig(
        model_dir=EMBEDDED,
        cache_dir=kernel_cache,
        threads=2,
        max_model_len=320,
        weights="bf16",
        max_num_seqs=9,
    )
    executor, grammars = load_executor(config, lambda *_: None), grammar_queue(EMBEDDED, 4096)
    yield lambda **options: driver(executor, prerequisites=grammars, **options)
    grammars.close()
    executor.release()


@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_same_bits_after_every_cut(make_driver, request_of, fields):
    request = request_of(1, PROMPT, **{"seed": 5, "max_tokens": TOKENS, **fields})
    whole, d = make_driver(), make_driver()
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
