"""The model that ships in the package: whole, small, sound, and it writes Python."""

from __future__ import annotations

import ast
import io
import json
import math
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

MODEL = Path(__file__).resolve().parents[2] / "firelane" / "models" / "embedded"
FILES = {
    "MODEL_CARD.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
MEBIBYTE = 1 << 20
VOCABULARY_SIZE = 4096
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
STOP_IDS = [1, 3]

# Written for this test, so in no training file.
SNIPPET = '''\
class Parcel:
    """A parcel on its way, with a weight and the stops that it has made."""

    def __init__(self, weight, stops=None):
        self.weight = weight
        self.stops = list(stops or [])

    def add_stop(self, name):
        if not isinstance(name, str):
            raise TypeError("name must be a string")
        self.stops.append(name)

    def __repr__(self):
        return f"{self.__class__.__name__}({self.weight!r}, {self.stops!r})"
'''
UNIFORM_LOSS = math.log(VOCABULARY_SIZE)
SNIPPET_BOUND = 2.3


def read(name: str) -> dict[str, object]:
    return json.loads((MODEL / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    with safe_open(MODEL / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaForCausalLM]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


def complete(model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str, tokens: int) -> str:
    """The greedy continuation, with its special tokens."""
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(made[0, ids.shape[1] :].tolist(), skip_special_tokens=False)


def lexemes(source: str) -> Iterator[tokenize.TokenInfo]:
    """The standard tokenizer's view of the whole lines, up to the end that a cut text lacks."""
    lines, _, _ = source.rpartition("\n")
    try:
        yield from tokenize.generate_tokens(io.StringIO(lines).readline)
    except tokenize.TokenError as error:
        if "EOF" not in str(error):
            raise


def test_files_and_sizes() -> None:
    sizes = {path.name: path.stat().st_size for path in MODEL.iterdir()}
    assert set(sizes) == FILES
    assert sizes["model.safetensors"] <= 12 * MEBIBYTE
    assert sum(sizes.values()) <= 16 * MEBIBYTE


def test_weights_are_bf16_and_finite(tensors: dict[str, torch.Tensor]) -> None:
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert "lm_head.weight" not in tensors
    assert 3_000_000 <= sum(tensor.numel() for tensor in tensors.values()) <= 6_000_000


def test_config() -> None:
    config = read("config.json")
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY_SIZE,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": STOP_IDS,
        "pad_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected
    assert all(config[key] % 32 == 0 for key in ("hidden_size", "intermediate_size", "head_dim"))
    assert read("generation_config.json")["eos_token_id"] == STOP_IDS


def test_special_tokens_lead_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(7))
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    assert tokenizer.encode("x<|end|>").ids[0] == 0
    assert tokenizer.encode("x<|end|>").ids[-1] == 3


def test_source_comes_back_from_its_tokens(tokenizer: Tokenizer) -> None:
    for source in (Path(__file__).read_text(encoding="utf-8"), SNIPPET, "\tx\r\n  é = '→🙂'\n\n\n"):
        assert tokenizer.decode(tokenizer.encode(source).ids, skip_special_tokens=False) == f"<|bos|>{source}"


@given(st.text())
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_code_takes_few_tokens(tokenizer: Tokenizer) -> None:
    assert len(SNIPPET) / len(tokenizer.encode(SNIPPET).ids) > 2.7


@pytest.mark.parametrize("prompted", [True, False])
def test_chat_template(prompted: bool) -> None:
    settings = read("tokenizer_config.json")
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        str(settings["chat_template"])
    )
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": " hi\n"}]
    rendered = template.render(
        messages=messages, add_generation_prompt=prompted, bos_token=settings["bos_token"]
    )
    assert rendered == "<|bos|><|system|>\nBe short.<|end|>\n<|user|>\n hi\n<|end|>\n" + (
        "<|assistant|>\n" if prompted else ""
    )


def test_transformers_reads_the_tokenizer(tokenizer: Tokenizer) -> None:
    read_back = AutoTokenizer.from_pretrained(MODEL)
    assert (read_back.bos_token, read_back.eos_token, read_back.pad_token) == SPECIAL_TOKENS[:3]
    assert read_back(SNIPPET)["input_ids"] == tokenizer.encode(SNIPPET).ids


def test_loss_on_new_code(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    ids = torch.tensor([tokenizer.encode(SNIPPET).ids])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    assert loss < SNIPPET_BOUND < UNIFORM_LOSS / 3


@pytest.mark.parametrize("prompt", ["def", "import", "class Stack:", "for i in range("])
def test_completion_reads_as_python(model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str) -> None:
    made = complete(model, tokenizer, prompt, 48)
    whole = (prompt + made).split("<|eos|>")[0]
    assert not any(token in whole for token in SPECIAL_TOKENS)
    found = [token for token in lexemes(whole) if token.string.strip()]
    assert not any(token.type == tokenize.ERRORTOKEN for token in found)
    assert len({token.string for token in found if token.type == tokenize.NAME}) >= 4


@pytest.mark.parametrize("signature", ["add(a, b)", "is_absolute(path)"])
def test_chat_answers_with_the_function_and_stops(
    model: LlamaForCausalLM, tokenizer: Tokenizer, signature: str
) -> None:
    prompt = f"<|user|>\nWrite a Python function `{signature}`.<|end|>\n<|assistant|>\n"
    answer = complete(model, tokenizer, prompt, 200)
    assert answer.startswith(f"def {signature}:\n")
    assert answer.endswith("<|end|>")
    ast.parse(answer.removesuffix("<|end|>"))
