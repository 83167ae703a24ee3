"""Draft models that cannot draft for a model are refused when it is loaded, by name, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from firelane import LLM, SamplingParams
from firelane.errors import ModelNotFoundError, UsageError
from firelane.weights.storage.files import SINGLE
from tests.free_steps import make_steps_free
from tests.models.families import make_checkpoint

CONFIG, TOKENIZER = "config.json", "tokenizer.json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", "float32", tmp_path_factory.mktemp("served"))


def load(served: Path, draft: object, **options: object) -> LLM:
    given = {"backend": "null", "max_num_seqs": 2, "speculative": f"draft={draft}"} | options
    return LLM(str(served), **given)


def changed(model: Path, name: str, **values: object) -> Path:
    path = model / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return model


def test_a_draft_of_recurrent_state_is_refused(served: Path, tmp_path: Path) -> None:
    draft = make_checkpoint("qwen3_next", "float32", tmp_path / "draft")
    with pytest.raises(
        UsageError, match=r"--speculative draft=.*keeps recurrent state.*choose a model without"
    ):
        load(served, draft)
    load(draft, served).close()


def test_a_draft_of_a_shorter_context_is_refused(served: Path, tmp_path: Path) -> None:
    draft = changed(make_checkpoint("llama2", "float32", tmp_path), CONFIG, max_position_embeddings=100)
    with pytest.raises(UsageError, match=r"takes 100 tokens, and sequences of 256.*--max-model-len 100"):
        load(served, draft)
    load(served, draft, max_model_len=100).close()


def test_a_draft_of_another_vocabulary_is_refused(served: Path, tmp_path: Path) -> None:
    draft = make_checkpoint("llama2", "float32", tmp_path / "sizes")
    with pytest.raises(UsageError, match=r"it has 999 tokens .*choose a draft model of the same vocabulary"):
        load(served, changed(draft, CONFIG, vocab_size=999))
    draft = make_checkpoint("llama2", "float32", tmp_path / "tokens")
    text = (draft / TOKENIZER).read_text()
    (draft / TOKENIZER).write_text(text.replace("<|im_end|>", "<|other|>"))
    with pytest.raises(UsageError, match=r"token 260 is '<\|other\|>', not '<\|im_end\|>'"):
        load(served, draft)
    (draft / TOKENIZER).write_text("{}")
    with pytest.raises(Exception, match="is not a tokenizer"):
        load(served, draft)


def test_a_draft_without_a_head_is_refused(served: Path, tmp_path: Path, kernel_cache: Path) -> None:
    draft = make_checkpoint("llama2", "float32", tmp_path / "draft")
    tensors = load_file(draft / SINGLE)
    del tensors["lm_head.weight"]
    save_file(tensors, draft / SINGLE)
    options = {"backend": "cpu", "cache_dir": kernel_cache, "kv_cache_bytes": 16 << 20}
    with pytest.raises(UsageError, match="it has no head that draws tokens; choose another one"):
        load(served, draft, **options)


@pytest.mark.parametrize("value", ["draft=", "draft= ", "draft", "drafts=x", "eagle", "", "=x"])
def test_other_values_are_refused(served: Path, value: str) -> None:
    with pytest.raises(UsageError, match=r"speculative: .* is not one of auto, off, ngram, mtp, draft=MODEL"):
        load(served, "", speculative=value)


def test_a_draft_that_is_not_there_is_refused(served: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no config"):
        load(served, tmp_path)
    with pytest.raises(ModelNotFoundError):
        load(served, tmp_path / "nothing")


def test_a_draft_needs_memory_of_the_cache(served: Path) -> None:
    """Two models share what is given to the KV cache, with as many tokens each."""
    options = {"kv_cache_bytes": 1 << 19, "max_num_seqs": 64}
    with LLM(str(served), backend="null", **options) as alone:
        pages = alone._engine.executor.limits.num_blocks  # pyright: ignore
    with load(served, served, **options) as both:
        assert both._engine.executor.limits.num_blocks == pages // 2  # pyright: ignore


@pytest.mark.parametrize(
    ("model", "family"), [("llama3", "llama2"), ("llama3", "gemma3"), ("qwen3_next", "llama2")]
)
def test_a_draft_of_other_layers_changes_no_answer(
    tmp_path: Path, kernel_cache: Path, model: str, family: str
) -> None:
    """gemma3 has a cache group for its windows, beside that of all tokens, and qwen3_next recurrent state.
    Ids from 261 on mean nothing."""
    served = make_checkpoint(model, "float32", tmp_path / "served")
    draft = make_checkpoint(family, "float32", tmp_path / "draft")
    options = {"backend": "cpu", "cache_dir": kernel_cache, "kv_cache_bytes": 16 << 20}
    prompts = [list(range(40)), list(range(60, 200)), [5] * 20]
    with load(served, draft, **options) as llm:
        make_steps_free(llm._engine.core.drafter)  # pyright: ignore
        for sampling in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "logit_bias": {7: 4.0}}):
            plain = SamplingParams(max_tokens=30, speculative=False, ignore_eos=True, **sampling)
            drafted = SamplingParams(max_tokens=30, ignore_eos=True, **sampling)
            expected = [one.outputs[0].token_ids for one in llm.generate(prompts, plain)]
            assert [one.outputs[0].token_ids for one in llm.generate(prompts, drafted)] == expected
        assert llm._engine.core.drafter.drafted_tokens > 0  # pyright: ignore
