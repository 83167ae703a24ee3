"""The embedded model under random grammars: what it writes always matches, and is the same alone, in company,
in chunks and after preemption."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from firelane.engine.grammar.compiler import GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.queue import GrammarQueue
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import Grammar

EMBEDDED = Path(__file__).parents[3] / "firelane" / "models" / "embedded"
EOS = [1, 3]
TOKENIZER = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
WORDS = ["ab", "x y", "ünï", "{", '"q"', "", "true", "日本"]


@pytest.fixture(scope="module")
def queue():
    limits = GrammarLimits(trial_wall_s=600.0, compile_s=600.0)  # the machine may be busy
    queue = GrammarQueue(GrammarCompiler(EMBEDDED, 4096, limits), limits)
    yield queue
    queue.close()


@pytest.fixture(scope="module")
def executors(kernel_cache):
    """One sequence at a time; a batch with chunks of prompts and a cache too small for it."""
    made = []

    def make(**sizes):
        config = EngineConfig(
            model_dir=EMBEDDED, cache_dir=kernel_cache, threads=2, max_model_len=320, weights="bf16", **sizes
        )
        made.append(load_executor(config, lambda *_: None))
        return made[-1]

    single = make(max_num_seqs=1, max_num_batched_tokens=320)
    block_bytes = single.kv_bytes // single.limits.num_blocks
    make(max_num_seqs=6, max_num_batched_tokens=12, kv_cache_bytes=21 * block_bytes)
    yield made
    for executor in made:
        executor.release()


# ---- what may be asked


def objects(values: st.SearchStrategy) -> st.SearchStrategy:
    def schema(properties: dict, optional: bool) -> dict:
        names = list(properties)
        return {
            "type": "object",
            "properties": properties,
            "required": names[1:] if optional else names,
            "additionalProperties": False,
        }

    return st.builds(
        schema, st.dictionaries(st.sampled_from("abcde"), values, min_size=1, max_size=3), st.booleans()
    )


def arrays(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
        values,
        st.integers(0, 2),
        st.integers(0, 1),
    )


leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,4}$"}]),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-200, 200),
        st.integers(0, 500),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 6)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True)
    ),
    st.builds(lambda value: {"const": value}, st.sampled_from([*WORDS, 3, None, [1, 2], {"k": "v"}])),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner), arrays(inner), st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
    ),
    max_leaves=4,
)
pieces = st.recursive(
    st.sampled_from(["a", "[a-f]", "[0-9]", "the ", r"\.", "é", "(?:yes|no)", "[^a-z\n]"]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: f"(?:{a}|{b})", inner, inner),
        st.builds(lambda a, n, m: f"(?:{a}){{{n},{n + m}}}", inner, st.integers(0, 2), st.integers(1, 2)),
    ),
    max_leaves=4,
)
grammars = st.one_of(
    schemas.map(lambda schema: Grammar("json_schema", json.dumps(schema))),
    pieces.map(lambda pattern: Grammar("regex", "x" + pattern)),
    st.none(),
)
requests = st.fixed_dictionaries(
    {
        "grammar": grammars,
        "prompt": st.lists(st.integers(4, 4095), min_size=1, max_size=40),
        "temperature": st.sampled_from([0.0, 1.0]),
        "seed": st.integers(0, 5),
        "top_p": st.sampled_from([1.0, 0.9]),
        "max_tokens": st.sampled_from([60, 250]),
        "min_tokens": st.sampled_from([0, 0, 30]),
        "stop_token_ids": st.sampled_from([[], EOS]),
        "logprobs": st.sampled_from([-1, 1]),
    }
)


def matches(grammar: Grammar, text: str) -> bool:
    if grammar.kind == "regex":
        return re.fullmatch(grammar.text, text) is not None
    jsonschema.validate(json.loads(text), json.loads(grammar.text))
    return True


def answer(d, request_id: int) -> tuple[list[int], str, str, list]:
    tokens = d.tokens.get(request_id, [])
    kept = tokens[:-1] if tokens and tokens[-1] in EOS else tokens
    logprobs = [(e.token, e.logprob) for e in d.logprobs.get(request_id, [])]
    return tokens, d.reasons[request_id], TOKENIZER.decode(kept, skip_special_tokens=False), logprobs


def served(d, requests) -> list:
    d.submit(*requests)
    d.run(100_000)
    return [answer(d, request.id) for request in requests]


def test_what_is_written_matches_in_any_company(driver, request_of, executors, queue) -> None:
    single, small = executors
    preemptions: list[int] = []

    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(batch=st.lists(requests, min_size=4, max_size=9))
    def serve(batch) -> None:
        sent = [request_of(i, **fields) for i, fields in enumerate(batch)]
        alone = [  # first: then no request of the others waits for its grammar, and how they meet is fixed
            served(driver(executor=single, prerequisites=queue, prefix_cache=False), [request])[0]
            for request in sent
        ]
        d = driver(executor=small, prerequisites=queue)
        together = served(d, sent)
        preemptions.append(d.frames[-1].stats.preemptions)
        assert not d.rejected
        for request, (_, reason, text, _) in zip(sent, together, strict=True):
            if request.grammar is not None and reason == "stop":
                assert matches(request.grammar, text), (request.grammar.text, text)
            assert reason in ("stop", "length")
        assert together == alone

    serve()
    assert sum(preemptions) > 0


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stops", [[], EOS])
def test_every_answer_to_a_schema_is_complete(
    driver, request_of, executors, queue, temperature, stops
) -> None:
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    prompts = [
        TOKENIZER.encode(text).ids for text in ("Hello", "def f(x):", "The cat", "{{{", "1 2 3", "日本")
    ]
    sent = [
        request_of(i, prompt, grammar=grammar, temperature=temperature, max_tokens=280, stop_token_ids=stops)
        for i, prompt in enumerate(prompts)
    ]
    for tokens, reason, text, _ in served(driver(executor=executors[1], prerequisites=queue), sent):
        assert reason == "stop"
        assert matches(grammar, text)
        assert not set(tokens) & set(EOS)  # complete without a stop token
