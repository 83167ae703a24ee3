"""Drafts change nothing that a caller sees: the embedded model, with drafts and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane import LLM
from firelane.engine.speculation.proposer import Proposal
from firelane.llm import SamplingParams
from tests.free_steps import make_steps_free

EMBEDDED = Path(__file__).parents[2] / "firelane" / "models" / "embedded"
CODE = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

"""
SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 8},
        "address": {
            "type": "object",
            "properties": {"house_number": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["house_number"],
            "additionalProperties": False,
        },
        "colours": {
            "type": "array",
            "items": {"enum": ["red", "green"]},
            "minItems": 2,
            "maxItems": 3,
        },
    },
    "required": ["first_name", "address", "colours"],
    "additionalProperties": False,
}
CASES = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7, "top_p": 0.9, "seed": 5, "n": 3},
    "penalties": {"seed": 2, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "logprobs": {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 1},
    "stop string": {"temperature": 0.0, "stop": ["pop("]},
    "least tokens": {"temperature": 0.0, "stop_token_ids": list(range(200, 212)), "min_tokens": 20},
    "schema": {"temperature": 0.0, "json_schema": SCHEMA, "logprobs": 1},
    "sampled schema": {"seed": 3, "n": 2, "json_schema": SCHEMA},
    "regex": {"temperature": 0.0, "regex": "(class|def) [a-z]{2,9}: (one|two) hundred and (three|four)"},
    "grammar": {"seed": 1, "grammar": 'start: "begin of the list" ("," /[a-z]+/){2,4} "end of the list"'},
}


@pytest.fixture(scope="module")
def llm():
    with LLM(str(EMBEDDED), isolated=False, max_num_seqs=4, kv_cache_bytes=1 << 27) as model:
        make_steps_free(model._engine.core.drafter)
        yield model


def seen(results):
    return [(o.token_ids, o.text, o.finish_reason, o.logprobs) for result in results for o in result.outputs]


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_plain_decoding(llm, case):
    prompts = [CODE + CODE, CODE + "class Queue:\n", "import os\nimport os\nimport os\n"]
    plain = SamplingParams(max_tokens=96, speculative=False, **CASES[case])
    drafted = SamplingParams(max_tokens=96, **CASES[case])
    before = llm._engine.core.drafter.accepted_tokens
    expected = seen(llm.generate(prompts, plain))
    assert llm._engine.core.drafter.accepted_tokens == before
    assert seen(llm.generate(prompts, drafted)) == expected
    assert llm._engine.core.drafter.accepted_tokens > before


def test_a_proposer_that_fails_is_not_asked_again(llm, caplog):
    class Broken:
        asked = 0

        def propose(self, asked):
            self.asked += len(asked)
            raise RuntimeError("no idea")

    drafter = llm._engine.core.drafter
    kept, drafter._proposer = drafter._proposer, Broken()
    broken = drafter._proposer
    try:
        expected = seen(llm.generate([CODE], SamplingParams(temperature=0, max_tokens=30, speculative=False)))
        assert seen(llm.generate([CODE], SamplingParams(temperature=0, max_tokens=30))) == expected
        assert broken.asked == 1
        assert "speculation_off proposer=Broken" in caplog.text
    finally:
        drafter._proposer = kept


def test_wrong_guesses_do_not_keep_forced_text_from_being_drafted(llm, monkeypatch):
    class Guessing:
        def __init__(self, run):
            self.run = run

        def propose(self, asked):
            return [Proposal(self.run, 1.0) for _ in asked]

    drafter, accepted = llm._engine.core.drafter, []
    for run in ([], [5, 5, 5, 5]):
        monkeypatch.setattr(drafter, "_proposer", Guessing(run))
        before = drafter.accepted_tokens
        llm.generate([CODE], SamplingParams(temperature=0, max_tokens=96, json_schema=SCHEMA))
        accepted.append(drafter.accepted_tokens - before)
    assert accepted[1] >= accepted[0] > 10
