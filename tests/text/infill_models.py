"""Vocabularies of models that fill in the middle: bytes, and the marks of one family."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, normalizers, processors

from firelane.text.tokens.tokenizer import Tokenizer
from tests.text.toy_model import byte_tokenizer

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<｜end▁of▁sentence｜>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<repo_name>", "<file_sep>")
CODEGEMMA = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>")
CODESTRAL = ("[PREFIX]", "[SUFFIX]", "[MIDDLE]")
CODELLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")


def with_marks(names: tuple[str, ...], *, special: bool = True) -> tokenizers.Tokenizer:
    """Byte tokens, with BOS, and these marks."""
    core = byte_tokenizer()
    core.add_tokens([tokenizers.AddedToken(name, special=special, normalized=False) for name in names])
    return core


def sentence_piece(names: tuple[str, ...]) -> tokenizers.Tokenizer:
    """Characters and bytes in SentencePiece's way: a space is put before each text."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [chr(code) for code in range(33, 127)]
    vocab = {name: i for i, name in enumerate(["<unk>", "<s>", "</s>", *bytes_, "▁", *letters])}
    core = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([tokenizers.AddedToken(name) for name in ("<unk>", "<s>", "</s>")])
    core.add_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The tokens' text, with special ones by their names."""
    return tokenizer.core.decode(ids, skip_special_tokens=False)
