"""Published models, served: the probabilities of a real text against those of transformers in float32, whose
weights are the same bf16 numbers."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from firelane import LLM, SamplingParams
from firelane.sources.resolve import resolve
from firelane.text.tokens.tokenizer import load_tokenizer
from tests.real import artefacts
from tests.real.dequantised import write_directory

TOKENS = 800
LEAST_SAME = {
    "gguf": 0.99,
    "gguf, int8": 0.93,
    "bf16": 0.99,
    "lossless": 0.99,
    "int8": 0.95,
    "int4": 0.68,
}
"""Share of places where the likeliest token is transformers'."""
MOST_LOSS = {
    "gguf": 0.005,
    "gguf, int8": 0.02,
    "bf16": 0.005,
    "lossless": 0.005,
    "int8": 0.02,
    "int4": 0.3,
}
"""By how much a token's mean logarithm of probability may differ, in nats."""


@dataclass(frozen=True)
class Scores:
    """The likeliest token at each place but the text's first, and the log-probability of the text's own
    token."""

    likeliest: np.ndarray
    own: np.ndarray


class Published:
    """A GGUF file, the directory of its numbers in bf16, and what transformers says of a text. Each form is
    served once; behind a comma stands the type of activations, bf16 where none is named."""

    def __init__(self, gguf: Path, directory: Path, cache: Path) -> None:
        self._gguf, self._directory, self._cache = gguf, directory, cache
        converted = resolve(str(gguf), cache_dir=cache)
        write_directory(gguf, directory)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(converted / name, directory / name)
        text = (artefacts.need("llama-cpp-python") / "README.md").read_text()[1000:6000]
        self.ids = load_tokenizer(directory).encode(text)[:TOKENS]
        self.wanted = self._of_transformers()
        self._served: dict[str, Scores] = {}

    def served(self, form: str) -> Scores:
        if form not in self._served:
            kind, _, inputs = form.partition(", ")
            model = self._gguf if kind == "gguf" else self._directory
            options = {} if kind == "gguf" else {"weights": form}
            options["activation_dtype"] = inputs or "bf16"
            llm = LLM(str(model), max_model_len=1024, cache_dir=self._cache, **options)
            params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
            (output,) = llm.generate([self.ids], params)
            llm.close()
            assert output.prompt_logprobs is not None
            places = [place for place in output.prompt_logprobs if place is not None]
            assert len(places) == TOKENS - 1
            self._served[form] = Scores(
                np.array([next(i for i, one in place.items() if one.rank == 1) for place in places]),
                np.array([place[i].logprob for place, i in zip(places, self.ids[1:], strict=True)]),
            )
        return self._served[form]

    def _of_transformers(self) -> Scores:
        model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32).eval()
        with torch.no_grad():
            found = torch.log_softmax(model(torch.tensor([self.ids])).logits[0, :-1], -1)
        own = found.gather(1, torch.tensor(self.ids[1:])[:, None])[:, 0]
        return Scores(found.argmax(-1).numpy(), own.numpy())


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Published:
    return Published(smollm2_gguf, tmp_path_factory.mktemp("smollm2"), cache_dir)


@pytest.fixture(scope="module")
def gemma3(gemma3_gguf: Path, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Published:
    return Published(gemma3_gguf, tmp_path_factory.mktemp("gemma3"), cache_dir)


def check(model: Published, form: str) -> None:
    found = model.served(form)
    same = float((found.likeliest == model.wanted.likeliest).mean())
    loss = abs(float(found.own.mean() - model.wanted.own.mean()))
    apart = float(np.abs(found.own - model.wanted.own).mean())
    print(f"{form}: likeliest token the same {same:.2%}, mean {loss:.4f} nats apart, each {apart:.4f}")
    assert same >= LEAST_SAME[form]
    assert loss <= MOST_LOSS[form]


@pytest.mark.parametrize("form", LEAST_SAME)
def test_smollm2_is_as_in_transformers(smollm2: Published, form: str) -> None:
    check(smollm2, form)


@pytest.mark.parametrize("form", ["lossless", "gguf"])
def test_smollm2_has_the_very_bits_of_bf16(smollm2: Published, form: str) -> None:
    assert np.array_equal(smollm2.served(form).own, smollm2.served("bf16").own)
    assert np.array_equal(smollm2.served(form).likeliest, smollm2.served("bf16").likeliest)


def test_smollm2_answers(smollm2_gguf: Path, cache_dir: Path) -> None:
    """A chat with bf16 activations (with others its first token is nearly a tie), a completion with both."""
    for inputs in ("bf16", "auto"):
        llm = LLM(str(smollm2_gguf), max_model_len=1024, cache_dir=cache_dir, activation_dtype=inputs)
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        (answer,) = llm.chat(messages, SamplingParams(max_tokens=24, temperature=0))
        (rest,) = llm.generate("The capital of France is", SamplingParams(max_tokens=4, temperature=0))
        llm.close()
        assert "Paris" in answer.outputs[0].text or inputs != "bf16"
        assert "Paris" in rest.outputs[0].text


@pytest.mark.parametrize("form", ["gguf", "gguf, int8"])
def test_gemma3_is_as_in_transformers(gemma3: Published, form: str) -> None:
    check(gemma3, form)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bf16", "lossless", "int8", "int4"])
def test_gemma3_of_safetensors_is_as_in_transformers(gemma3: Published, form: str) -> None:
    check(gemma3, form)
