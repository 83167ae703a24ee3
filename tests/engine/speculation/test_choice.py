"""The drafts of "auto", and that models with recurrent state are drafted for without being asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane import LLM
from firelane.engine.speculation.choice import MOST_DRAFTING, spare_states
from firelane.engine_config import EngineConfig
from firelane.llm import SamplingParams
from tests.free_steps import make_steps_free
from tests.models.families import make_checkpoint

PROMPTS = ["abcabcabcabcabcabc", "one two three one two three one two", "x = 1; y = 2; x = 1; y ="]
CASES = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7, "seed": 3, "top_k": 4, "logprobs": 2},
    "regex": {"temperature": 0.0, "regex": "(one|two) hundred and (three|four) hundred and (five|six)"},
}


@pytest.mark.parametrize(
    ("backend", "kind", "states"),
    [
        ("cpu", "auto", MOST_DRAFTING),
        ("cpu", "ngram", MOST_DRAFTING),
        ("cpu", "mtp", MOST_DRAFTING),
        ("cpu", "off", 0),
        ("cuda", "auto", 0),
        ("cuda", "ngram", MOST_DRAFTING),
    ],
)
def test_spare_states_are_wanted_where_something_is_drafted(
    tmp_path: Path, backend: str, kind: str, states: int
) -> None:
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, backend=backend, speculative=kind)
    assert spare_states(config) == states


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "granite_hybrid"])
def test_recurrent_models_are_drafted_for(family: str, tmp_path: Path, kernel_cache: Path) -> None:
    model = make_checkpoint(family, "bfloat16", tmp_path)
    sizes = {"max_num_seqs": 3, "kv_cache_bytes": 8 << 20, "threads": 1, "backend": "cpu"}
    with LLM(str(model), cache_dir=kernel_cache, isolated=False, **sizes) as llm:
        drafter = llm._engine.core.drafter
        make_steps_free(drafter)
        for case in CASES.values():
            plain = SamplingParams(max_tokens=96, speculative=False, ignore_eos=True, **case)
            drafted = SamplingParams(max_tokens=96, ignore_eos=True, **case)
            expected = [one.outputs[0] for one in llm.generate(PROMPTS, plain)]
            before = drafter.drafted_tokens, drafter.accepted_tokens
            assert [one.outputs[0] for one in llm.generate(PROMPTS, drafted)] == expected
            assert drafter.drafted_tokens > before[0]
        assert drafter.accepted_tokens


def test_a_recurrent_model_whose_memory_has_no_room_for_spare_states_is_served(
    tmp_path: Path, kernel_cache: Path
) -> None:
    """The longest sequence has its pages all the same."""
    model, greedy = make_checkpoint("lfm2", "bfloat16", tmp_path), SamplingParams(temperature=0, max_tokens=8)
    sizes = {"max_num_seqs": 1, "threads": 1, "state_snapshots": 0, "backend": "cpu", "isolated": False}
    with LLM(str(model), cache_dir=kernel_cache, kv_cache_bytes=1 << 20, speculative="off", **sizes) as llm:
        executor, expected = llm._engine.executor, llm.generate(PROMPTS[:1], greedy)[0].outputs
        needed = executor.kv_bytes + executor.limits.num_states * executor.limits.state_bytes
    with LLM(str(model), cache_dir=kernel_cache, kv_cache_bytes=needed, **sizes) as llm:
        limits = llm._engine.executor.limits
        assert (limits.num_spares, limits.max_model_len) == (0, 256)
        assert not llm._engine.core.drafter.is_on
        assert llm.generate(PROMPTS[:1], greedy)[0].outputs == expected
    with LLM(str(model), cache_dir=kernel_cache, kv_cache_bytes=2 * needed, **sizes) as llm:
        assert llm._engine.executor.limits.num_spares == 1
        assert llm._engine.core.drafter.is_on
