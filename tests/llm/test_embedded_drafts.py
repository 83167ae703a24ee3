"""The embedded model as its own draft model: answers are those of plain decoding, and drafts are right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from firelane import LLM
from firelane.engine.core import EngineCore
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine.speculation.proposer import NO_PROPOSAL
from firelane.errors import MachineError
from firelane.llm import SamplingParams
from tests.free_steps import make_steps_free
from tests.llm.test_speculation import CASES, CODE, EMBEDDED, SCHEMA, seen

PROMPTS = [CODE + CODE, CODE + "class Queue:\n", "import os\nimport os\nimport os\n"]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "n": 2, "repetition_penalty": 1.1}


def load(**options: int) -> LLM:
    given = {"max_num_seqs": 4, "kv_cache_bytes": 1 << 27, "isolated": False} | options
    return LLM(str(EMBEDDED), speculative=f"draft={EMBEDDED}", **given)


def core_of(llm: LLM) -> EngineCore:
    """The engine's loop; the times of steps on a busy machine must not decide about what is tested."""
    core: EngineCore = llm._engine.core  # pyright: ignore
    make_steps_free(core.drafter)
    return core


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load() as model:
        yield model


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_plain_decoding(llm: LLM, case: str) -> None:
    drafter = core_of(llm).drafter
    plain = SamplingParams(max_tokens=96, speculative=False, **CASES[case])
    drafted = SamplingParams(max_tokens=96, **CASES[case])
    before = drafter.accepted_tokens
    expected = seen(llm.generate(PROMPTS, plain))
    assert drafter.accepted_tokens == before
    assert seen(llm.generate(PROMPTS, drafted)) == expected
    assert drafter.accepted_tokens > before


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tokens", [None, 640], ids=["room", "preempted"])
def test_every_token_that_the_model_drafts_is_right(sampling: dict[str, float], tokens: int | None) -> None:
    """Prompts share prefixes with each other and with those before; with little room they take turns."""
    sizes = {} if tokens is None else {"kv_cache_bytes": 2 * 3072 * tokens, "max_model_len": 600}
    with load(**sizes) as llm:
        core = core_of(llm)
        core.drafter._proposer = core.drafter._proposer.model  # pyright: ignore
        prompts = [CODE + CODE, CODE + CODE + "class Queue:\n", CODE + "x = 1\n", "import os\n"]
        plain = SamplingParams(max_tokens=160, speculative=False, **sampling)  # pyright: ignore
        expected = seen(llm.generate(prompts, plain))
        drafted = SamplingParams(max_tokens=160, **sampling)  # pyright: ignore
        for _ in range(2):
            assert seen(llm.generate(prompts, drafted)) == expected
        assert core.drafter.drafted_tokens == core.drafter.accepted_tokens > 300
        assert (core._applier.preemptions > 0) == (tokens is not None)


def test_a_process_without_rights_reads_both_models(tmp_path: Path) -> None:
    """The draft model lies where nothing else of the engine does."""
    draft = tmp_path / "small"
    shutil.copytree(EMBEDDED, draft)
    params = SamplingParams(max_tokens=60, temperature=0.0)
    with LLM(str(EMBEDDED), isolated=True, max_num_seqs=2, kv_cache_bytes=1 << 26) as plain:
        expected = seen(plain.generate(PROMPTS, params))
    options = {"speculative": f"draft={draft}", "max_num_seqs": 2, "kv_cache_bytes": 1 << 26}
    with LLM(str(EMBEDDED), isolated=True, **options) as llm:  # pyright: ignore
        assert seen(llm.generate(PROMPTS, params)) == expected


def test_a_draft_model_that_fails_leaves_what_text_and_grammar_tell(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost() -> None:
        raise MachineError("the device is gone")

    greedy, schema = {"temperature": 0.0}, {"temperature": 0.0, "json_schema": SCHEMA}
    with load() as llm:
        drafter = core_of(llm).drafter
        monkeypatch.setattr(drafter._proposer.model._steps.executor, "wait", lost)  # pyright: ignore
        for prompt, sampling in (("import os\n", greedy), (CODE + CODE, greedy), (CODE, schema)):
            plain = SamplingParams(max_tokens=60, speculative=False, **sampling)  # pyright: ignore
            expected = seen(llm.generate([prompt], plain))
            before = drafter.accepted_tokens
            drafted = SamplingParams(max_tokens=60, **sampling)  # pyright: ignore
            assert seen(llm.generate([prompt], drafted)) == expected
            assert drafter.accepted_tokens > before
        monkeypatch.setattr(NgramProposer, "propose", lambda _, asked: [NO_PROPOSAL] * len(asked))
        before = drafter.accepted_tokens
        llm.generate([CODE], SamplingParams(max_tokens=60, **schema))  # pyright: ignore
        assert drafter.accepted_tokens > before + 10
    assert caplog.text.count("speculation_off proposer=DraftModel") == 1
