"""Tokenizers published as ranks, converted: the same ids as tiktoken's, kept once, refused where damaged."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from firelane.errors import CacheError, TokenizerError
from firelane.text.tokens.tokenizer import Tokenizer, load_tokenizer
from firelane.text.tokens.tokenizer_source import KIMI_PATTERN, TEKKEN_SPECIALS, tokenizer_directory

TEXT = (
    " the quick Brown fox's jumped 12345 lazy dogs 中文 English混合 他说 I'm fine abababab aaaaaaaa ababa "
    "Привет мир 你好世界 GPT4发布于2023年 ... !!! naïve café \n\n \t x"
)
WORDS = TEXT.split(" ")
CHARACTERS = "abABéÉzZ019 \n\r\t'sTdmlrev.,!?-中文〇ー々カひ한글العर\u0301\u0308ǅªº٣½Ⅷ😀\u3000\xa0\u200b"
TEKKEN_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI_CONFIG = {
    "tokenizer_class": "TikTokenTokenizer",
    "added_tokens_decoder": {"600": {"content": "[BOS]"}, "602": {"content": "<|im_end|>", "special": True}},
}


def tokens(count: int = 600) -> list[bytes]:
    """All bytes in some order, then random substrings of words: many can be made of two others."""
    rng = random.Random(0)
    found = dict.fromkeys(bytes([byte]) for byte in rng.sample(range(256), 256))
    while len(found) < count:
        text = "".join(rng.choices(WORDS, k=3)).encode()
        at, size = rng.randrange(len(text)), rng.randrange(2, 9)
        found[text[at : at + size] or b"a"] = None
    return list(found)


def texts(count: int = 600) -> list[str]:
    rng = random.Random(1)
    found = ["", " ", "\n", "aaaa" * 40, "<|im_end|>", "a<s>b"]
    for _ in range(count):
        found.append(" ".join(rng.choices(WORDS, k=rng.randrange(1, 8))))
        found.append("".join(rng.choices(CHARACTERS, k=rng.randrange(1, 30))))
    return found


def write_kimi(path: Path, own: list[bytes] | None = None, **config: Any) -> Path:
    lines = [base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(own or tokens())]
    (path / "tiktoken.model").write_bytes(b"".join(lines))
    (path / "tokenizer_config.json").write_text(json.dumps(KIMI_CONFIG | config))
    return path


def write_tekken(path: Path, **change: Any) -> Path:
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for i, token in enumerate(tokens())
    ]
    config = {
        "pattern": TEKKEN_PATTERN,
        "default_vocab_size": 550 + 30,
        "default_num_special_tokens": 30,
        "version": "v11",
    }
    special = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(TEKKEN_SPECIALS)]
    content: dict[str, Any] = {"config": config, "vocab": vocab, "special_tokens": special}
    content["config"] |= change.pop("config", {})
    (path / "tekken.json").write_text(json.dumps(content | change))
    return path


def load(model: Path, cache: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_directory(model, cache))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_kimi_has_the_ids_of_tiktoken(tmp_path: Path, cache: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    got = load(write_kimi(tmp_path), cache)
    ranks = {token: rank for rank, token in enumerate(tokens())}
    names = {"[BOS]": 600, "<|reserved_token_601|>": 601, "<|im_end|>": 602}
    want = tiktoken.Encoding("k", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=names)
    assert got.num_ids == 600 + 256
    assert {name: got.id_of(name) for name in names} == names
    for text in texts():
        assert got.encode(text) == want.encode(text, allowed_special="all"), text
    assert [got.token_bytes(i) for i in range(600)] == tokens()


def test_tekken_has_the_ids_of_tiktoken_behind_the_special_ones(tmp_path: Path, cache: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    got = load(write_tekken(tmp_path), cache)
    ranks = {token: rank for rank, token in enumerate(tokens()[:550])}
    want = tiktoken.Encoding("t", pat_str=TEKKEN_PATTERN, mergeable_ranks=ranks, special_tokens={})
    assert got.num_ids == 580
    assert (got.id_of("<s>"), got.id_of("[INST]"), got.id_of("<SPECIAL_29>")) == (1, 3, 29)
    for text in texts():
        if "<s>" not in text:
            ids = [30 + token for token in want.encode(text)]
            assert got.encode(text, add_special_tokens=False) == ids, text
    assert got.encode("a")[0] == 1
    assert got.encode("[INST]<SPECIAL_25>", add_special_tokens=False) == [3, 25]


def test_a_kept_one_is_used_again(tmp_path: Path, cache: Path) -> None:
    model = write_kimi(tmp_path)
    found = tokenizer_directory(model, cache)
    file = found / "tokenizer.json"
    written = file.stat().st_mtime_ns
    assert tokenizer_directory(model, cache) == found
    assert file.stat().st_mtime_ns == written
    data = file.read_bytes()
    file.write_bytes(data[:-9] + b"x" * 9)
    assert tokenizer_directory(model, cache) == found
    assert file.read_bytes() == data


def test_another_file_or_config_is_converted_apart(tmp_path: Path, cache: Path) -> None:
    first = tokenizer_directory(write_kimi(tmp_path), cache)
    second = tokenizer_directory(write_kimi(tmp_path, own=tokens(500)), cache)
    third = tokenizer_directory(write_kimi(tmp_path, own=tokens(500), more=1), cache)
    assert len({first, second, third}) == 3


def test_the_models_own_file_comes_first(tmp_path: Path, cache: Path) -> None:
    (write_kimi(tmp_path) / "tokenizer.json").write_text("{}")
    assert tokenizer_directory(tmp_path, cache) == tmp_path


def test_none_at_all(tmp_path: Path, cache: Path) -> None:
    assert tokenizer_directory(tmp_path, cache) == tmp_path
    assert not cache.exists()


def test_special_tokens_of_older_tekken_files(tmp_path: Path, cache: Path) -> None:
    got = load(write_tekken(tmp_path, special_tokens=None, config={"version": "v3"}), cache)
    assert got.id_of("[TOOL_CALLS]") == 9
    with pytest.raises(TokenizerError, match="version 'v11' lists its special tokens"):
        tokenizer_directory(write_tekken(tmp_path, special_tokens=None), cache)


BYTES = [bytes([i]) for i in range(256)]
DAMAGED: dict[str, tuple[bytes, str]] = {
    "text": (b"hello", "not a token and its rank"),
    "base64": (b"a@@= 0\n", "not base64"),
    "gap": (b"YQ== 0\nYg== 2\n", "ranks are not 0 to 1"),
    "twice": (b"YQ== 0\nYg== 0\n", "ranks are not 0 to 1"),
    "same token": (b"YQ== 0\nYQ== 1\n", "a token is there twice"),
    "few bytes": (b"YQ== 0\n", "255 of the 256 bytes"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_ranks(tmp_path: Path, cache: Path, name: str) -> None:
    data, message = DAMAGED[name]
    (write_kimi(tmp_path) / "tiktoken.model").write_bytes(data)
    with pytest.raises(TokenizerError, match=rf"tiktoken\.model cannot be converted: .*{message}") as error:
        tokenizer_directory(tmp_path, cache)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": [{"rank": 0}]}, "token_bytes"),
        ({"vocab": 5}, "TypeError"),
        ({"config": {"pattern": "x", "default_vocab_size": "y"}}, "invalid literal"),
        ({"config": {"default_num_special_tokens": 2, "default_vocab_size": 552}}, "none of the 2"),
        ({"special_tokens": [{"rank": 0, "token_str": "a"}]}, "special token 'a' is a token of text"),
    ],
)
def test_damaged_tekken(tmp_path: Path, cache: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tokenizer_directory(write_tekken(tmp_path, **change), cache)


def test_ranks_of_another_model_are_refused(tmp_path: Path, cache: Path) -> None:
    """The pattern is not in the file."""
    with pytest.raises(TokenizerError, match=r"tokenizer_class .* is 'NewTokenizer'.*add a tokenizer\.json"):
        tokenizer_directory(write_kimi(tmp_path, tokenizer_class="NewTokenizer"), cache)


def test_a_cache_that_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(CacheError, match="cannot be written"):
        tokenizer_directory(write_kimi(tmp_path), cache)
