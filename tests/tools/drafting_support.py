"""A target small enough to train for within a second: a peaky Llama and a tokenizer of bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = {"<s>": 0, "</s>": 1}
LAYERS = 4


def write_tokenizer(directory: Path) -> int:
    """A tokenizer with one token for each byte, and two special ones; returns how many."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = SPECIAL | {piece: len(SPECIAL) + i for i, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(directory)
    return len(vocabulary)


def write_target(directory: Path, layers: int = LAYERS) -> Path:
    """A checkpoint whose weights are random, and large enough that it prefers some tokens."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=write_tokenizer(directory),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=96,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def write_text(directory: Path) -> Path:
    """Five short files."""
    directory.mkdir()
    for number in range(5):
        lines = (f"line {number * k} of file {number}\n" for k in range(30))
        (directory / f"{number}.txt").write_text("".join(lines), encoding="utf-8")
    return directory


def run(main: Callable[[], None], monkeypatch: pytest.MonkeyPatch, options: list[object]) -> None:
    """The tool's own entry, with these options on its command line."""
    monkeypatch.setattr(sys, "argv", ["tool", *map(str, options)])
    main()


def options(target: Path, text: Path, directory: Path, *more: object) -> list[object]:
    """A short run that writes ``directory/out``."""
    given = ["--target", target, "--text", text, "--out", directory / "out", "--work", directory / "work"]
    sizes = [
        "--steps",
        60,
        "--learning-rate",
        0.01,
        "--rows",
        4,
        "--length",
        48,
        "--prompt",
        16,
        "--continuations",
        8,
    ]
    return [*given, *sizes, "--measured", 4, "--places", 3, "--every", 100, *more]
