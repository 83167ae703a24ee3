"""Tokenizers out of GGUF metadata against the tokenizers that they were made from: token for token, on texts
that are hard to cut."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers.models.gemma.tokenization_gemma import GemmaTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN35

from firelane.errors import TokenizerError
from firelane.text.gguf.splitting import SPLITTINGS, splitting
from firelane.text.gguf.tokenizer import model_files
from firelane.text.model_files import read_model_files
from firelane.text.tokens.tokenizer_source import KIMI_PATTERN

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "I'll, you're, WE'VE, she'd, it's; don't 'quote' O'Neill's",
    "numbers 1 12 123 1234 1234567 3.14159 1,000,000 ½ ٣٤٥ 二〇二六",
    "  leading,  double   triple    and trailing   ",
    "tabs\tand\t\ttabs\n\nnew\r\nlines \n \n  \n",
    "camelCaseWords HTMLParser iOS snake_case SCREAMING_CASE",
    "déjà vu, naïve, Å vs A\u030a, e\u0301 vs é, ﬁ ligature",
    "日本語のテキスト、中文字符，한국어 텍스트 Ελληνικά Русский עברית العربية हिन्दी ไทย",
    "emoji 🙂👩‍👩‍👧‍👦🏳️‍🌈 ©®™ ←→ ∀x∈ℝ",
    "code: if (a != b) { return x[i++] << 2; } // comment /* */ #!/bin/sh",
    "<s>not special</s> <|im_start|>user\nhi<|im_end|>\n",
    "\u200b\ufeff\u00a0\u3000 odd\u2028spaces\u0000nul",
    "a" * 300 + " " * 40 + "!" * 100 + "\n" * 20,
    "",
    " ",
    "\n",
    "ſ K ŉ ' ʼ '’s",
]
CORPUS = [
    *TEXTS,
    *(f"{word} " * 5 for word in ("the", "they're", "123", "42", "über", "naïve", "中文", "tokens")),
] * 3
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{ENDINGS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        SPACES,
    ]
)
Metadata = dict[str, Any]


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


ORIGINALS: dict[str, tuple[list[pre_tokenizers.PreTokenizer], bool, bool, bool]] = {
    # name in the file: what cuts, whether GPT-2's pattern follows, NFC, whole pieces first
    "gpt-2": ([], True, False, False),
    "smollm": ([pre_tokenizers.Digits(individual_digits=True)], True, False, False),
    "qwen2": ([_split(QWEN2)], False, True, False),
    "qwen35": ([_split(QWEN35)], False, True, False),
    "llama-bpe": ([_split(WORDS)], False, False, True),
    "dbrx": ([_split(WORDS)], False, False, False),
    "gpt-4o": ([_split(O200K)], False, False, False),
    "glm4": ([_split(WORDS)], False, False, True),
    "deepseek-coder": (
        [
            *(_split(p) for p in ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")),
            pre_tokenizers.Digits(individual_digits=True),
        ],
        False,
        False,
        False,
    ),
    "kimi-k2": ([_split(KIMI_PATTERN)], False, False, False),
}
"""The pre-tokenizers in the tokenizer.json of a model of each kind."""


@cache
def trained(pre: str) -> tokenizers.Tokenizer:
    splits, gpt2, composed, whole = ORIGINALS[pre]
    core = tokenizers.Tokenizer(BPE(ignore_merges=whole))
    if composed:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2)]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    core.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    core.add_tokens([tokenizers.AddedToken("<tool>", special=False, normalized=False)])
    return core


def metadata_of(core: tokenizers.Tokenizer, pre: str) -> Metadata:
    """Return the metadata as a converter writes it: names of tokens, their types, and merges."""
    model = json.loads(core.to_str())["model"]
    tokens = [core.id_to_token(i) for i in range(core.get_vocab_size())]
    added = core.get_added_tokens_decoder()
    types = [(3 if added[i].special else 4) if i in added else 1 for i in range(len(tokens))]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": core.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.bos_token_id": core.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def converted(metadata: Metadata) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(model_files(metadata)["tokenizer.json"].decode())


@pytest.mark.parametrize("pre", ORIGINALS)
@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokens_are_those_of_the_original(pre: str, text: str) -> None:
    core, found = trained(pre), converted_bpe(pre)
    assert found.encode(text).ids == core.encode(text).ids
    ids = core.encode(text).ids
    assert found.decode(ids, skip_special_tokens=False) == core.decode(ids, skip_special_tokens=False)


FALCON = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
)
"""Numbers are looked for among the bytes' stand-ins, of which some are numbers: 0xB2 is "²"."""


@pytest.mark.parametrize("text", [*TEXTS, "x²³ ¼ é²12345 ٣٤٥"])
@pytest.mark.parametrize("pre", ["falcon", "default", ""])
def test_pieces_of_falcon_and_of_files_that_do_not_say(pre: str, text: str) -> None:
    cut = splitting(pre)
    assert cut is not None
    made = tokenizers.Tokenizer(BPE())
    state = json.loads(made.to_str()) | {"pre_tokenizer": cut.pre_tokenizer()}
    found = tokenizers.Tokenizer.from_str(json.dumps(state)).pre_tokenizer
    assert found.pre_tokenize_str(text) == FALCON.pre_tokenize_str(text)


def test_a_file_that_does_not_say_how_texts_are_cut_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for pre, warns in (("gpt-2", False), ("", True)):
        files = model_files(metadata_of(trained("gpt-2"), pre))
        (tmp_path / "tokenizer_config.json").write_bytes(files["tokenizer_config.json"])
        read_model_files(tmp_path)
        assert any("tokenizer_splitting_unknown" in line for line in caplog.messages) is warns


@cache
def converted_bpe(pre: str) -> tokenizers.Tokenizer:
    return converted(metadata_of(trained(pre), pre))


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_each_way_of_cutting_gives_the_text_back(pre: str) -> None:
    found = converted(metadata_of(trained("gpt-2"), pre))
    for text in TEXTS:
        if not SPLITTINGS[pre].composed:
            assert found.decode(found.encode(text).ids, skip_special_tokens=False) == text


@cache
def sentence_piece(*, prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """A byte-pair model with tokens of bytes, runs of spaces, and symbols of its user's own."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.splitlines() if line.strip("\0 ")),
        model_writer=out,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def sentence_piece_metadata(model: sentencepiece.SentencePieceProcessor, *, prefix: bool) -> Metadata:
    def kind(i: int) -> int:
        if model.is_unknown(i):
            return 2
        if model.is_control(i):
            return 3
        return 6 if model.is_byte(i) else 4 if model.id_to_piece(i) == "<tool>" else 1

    size = model.get_piece_size()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": [model.get_score(i) for i in range(size)],
        "tokenizer.ggml.token_type": [kind(i) for i in range(size)],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": prefix,
    }


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", [t for t in TEXTS if "<s>" not in t])
def test_sentence_piece_tokens_are_those_of_the_original(prefix: bool, text: str) -> None:
    model = sentence_piece(prefix=prefix)
    found = converted_sp(prefix=prefix)
    assert found.encode(text).ids == [model.bos_id(), *model.encode(text)]
    assert found.decode(found.encode(text, add_special_tokens=False).ids) == model.decode(model.encode(text))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(
    "parts", [["a", "<tool>"], ["x", "<tool>", "y"], ["", "<tool>", " 12", "<tool>", ""]]
)
def test_tokens_of_the_user_are_found_in_the_raw_text(prefix: bool, parts: list[str]) -> None:
    """Wherever they stand, and, where texts have a prefix, what follows begins as a text does."""
    model = sentence_piece(prefix=prefix)
    found = converted_sp(prefix=prefix).encode("".join(parts), add_special_tokens=False).ids
    if prefix:
        tool = model.piece_to_id("<tool>")
        assert found == [i for part in parts for i in ([tool] if part == "<tool>" else model.encode(part))]
    else:
        assert found == model.encode("".join(parts))


@cache
def converted_sp(*, prefix: bool) -> tokenizers.Tokenizer:
    return converted(sentence_piece_metadata(sentence_piece(prefix=prefix), prefix=prefix))


@cache
def gemma() -> GemmaTokenizer:
    """Build a tokenizer like Gemma 4's with transformers, of a vocabulary with tokens of bytes and runs of
    line ends."""
    core = tokenizers.Tokenizer(BPE())
    core.normalizer = normalizers.Replace(" ", "\u2581")
    core.train_from_iterator(CORPUS, BpeTrainer(vocab_size=500, show_progress=False))
    model = json.loads(core.to_str())["model"]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*names, *(token for token in model["vocab"] if token not in names)]
    merges = [tuple(merge) for merge in model["merges"]]
    return GemmaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)


@cache
def converted_gemma() -> tokenizers.Tokenizer:
    model = json.loads(gemma().backend_tokenizer.to_str())["model"]
    types = [3, 3, 3, 2, 3, *[6] * 256]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": list(model["vocab"]),
        "tokenizer.ggml.token_type": types + [1] * (len(model["vocab"]) - len(types)),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
    }
    return converted(metadata)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_pieces_with_merges_are_those_of_the_original(text: str) -> None:
    ids = gemma().encode(text, add_special_tokens=False)
    assert converted_gemma().encode(text).ids == [2, *ids]
    assert converted_gemma().decode(ids) == gemma().decode(ids)


def test_special_tokens_and_templates() -> None:
    metadata = metadata_of(trained("qwen2"), "qwen2") | {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
        "tokenizer.ggml.add_bos_token": True,
    }
    files = {name: json.loads(data) for name, data in model_files(metadata).items()}
    settings = files["tokenizer_config.json"]
    assert settings["eos_token"] == "<|endoftext|>"
    assert settings["chat_template"] == [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]
    core = trained("qwen2")
    ends = sorted(core.token_to_id(name) for name in ("<|endoftext|>", "<|im_end|>"))
    assert files["generation_config.json"] == {"eos_token_id": ends}
    assert converted(metadata).encode("a").ids[0] == core.token_to_id("<|endoftext|>")


def _without(key: str) -> Callable[[Metadata], Metadata]:
    return lambda metadata: {k: v for k, v in metadata.items() if k != key}


BROKEN: dict[str, tuple[Callable[[Metadata], Metadata], str]] = {
    "no tokens": (_without("tokenizer.ggml.tokens"), "tokens is missing"),
    "no kind": (_without("tokenizer.ggml.model"), r"model = '' is not supported"),
    "another kind": (lambda m: m | {"tokenizer.ggml.model": "rwkv"}, "model = 'rwkv' is not supported"),
    "another way to cut": (lambda m: m | {"tokenizer.ggml.pre": "new"}, "pre = 'new' is not known"),
    "types too few": (lambda m: m | {"tokenizer.ggml.token_type": [1]}, "not one for each"),
    "tokens of numbers": (lambda m: m | {"tokenizer.ggml.tokens": [1]}, "tokens is no list of str"),
    "no merges": (_without("tokenizer.ggml.merges"), "merges is missing"),
    "merges of one": (lambda m: m | {"tokenizer.ggml.merges": ["ab"]}, "'ab' is no pair"),
    "an end outside": (lambda m: m | {"tokenizer.ggml.eos_token_id": 10**6}, "there are 604 tokens"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_metadata_are_refused_in_a_line(name: str) -> None:
    change, says = BROKEN[name]
    with pytest.raises(TokenizerError, match=says) as error:
        model_files(change(metadata_of(trained("gpt-2"), "gpt-2")))
    assert "\n" not in str(error.value)


def test_marks_of_texts_with_a_gap(tmp_path: Path) -> None:
    core = trained("qwen2")
    special = core.get_added_tokens_decoder()
    names = sorted(token.content for token in special.values())[:3]
    ids = dict(
        zip(("fim_pre", "fim_suf", "fim_mid"), (core.token_to_id(name) for name in names), strict=True)
    )
    assert not read_names(metadata_of(core, "qwen2"), tmp_path)
    told = {f"tokenizer.ggml.{role}_token_id": token for role, token in ids.items()}
    older = {
        "tokenizer.ggml.prefix_token_id": ids["fim_mid"],
        "tokenizer.ggml.suffix_token_id": ids["fim_mid"],
    }
    found = read_names(metadata_of(core, "qwen2") | older | told, tmp_path)
    assert found == dict(zip(("prefix", "suffix", "middle"), names, strict=True))
    with pytest.raises(TokenizerError, match="fim_pre_token_id"):
        model_files(metadata_of(core, "qwen2") | {"tokenizer.ggml.fim_pre_token_id": 10**7})


def read_names(metadata: Metadata, path: Path) -> dict[str, str]:
    """Names of marks that the gateway reads from the converted files."""
    for name, data in model_files(metadata).items():
        (path / name).write_bytes(data)
    return read_model_files(path).infill_names
