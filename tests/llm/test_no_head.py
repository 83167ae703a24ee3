"""A checkpoint whose head is not stored: its embeddings are those of the whole one, text is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from firelane import LLM, SamplingParams
from firelane.engine.sequences.sequence import NO_HEAD
from firelane.errors import RequestError
from firelane.weights.storage.files import SINGLE
from tests.models.families import make_checkpoint

TEXTS = ["some text", "x"]


def test_embeddings_without_a_head(tmp_path: Path, kernel_cache: Path) -> None:
    model = make_checkpoint("llama2", "float32", tmp_path / "model")
    options = {"backend": "cpu", "cache_dir": kernel_cache, "max_num_seqs": 2, "kv_cache_bytes": 8 << 20}
    with LLM(str(model), **options) as llm:
        whole = [llm.embed(TEXTS, pooling=pooling) for pooling in ("last", "mean")]
    tensors = load_file(model / SINGLE)
    del tensors["lm_head.weight"]
    save_file(tensors, model / SINGLE)
    with LLM(str(model), **options) as llm:
        np.testing.assert_array_equal([llm.embed(TEXTS, pooling=p) for p in ("last", "mean")], whole)
        for params in (None, SamplingParams(n=2), SamplingParams(max_tokens=0, prompt_logprobs=1)):
            with pytest.raises(RequestError) as error:
                llm.generate(TEXTS, params)
            assert str(error.value) == NO_HEAD
        with pytest.raises(RequestError, match="cannot generate text"):
            list(llm.stream("x"))
        np.testing.assert_array_equal(llm.embed(TEXTS, pooling="last"), whole[0])
