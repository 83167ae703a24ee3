"""Marks of texts with a gap in published vocabularies (GGUF files of llama.cpp)."""

from __future__ import annotations

import asyncio
import json
import random
from functools import cache
from pathlib import Path

import pytest
import tokenizers

from firelane.text.gguf.tokenizer import model_files
from firelane.text.infill.marks import find_marks
from firelane.text.infill.prompt import Infiller, TextWithGap
from firelane.text.tokens.tokenizer import TextRoom, Tokenizer
from firelane.weights.gguf.header import read_header
from tests.real import artefacts

VOCABULARIES = artefacts.llama_cpp("models/ggml-vocab-*.gguf")
MARKS = {
    "deepseek-coder": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "refact": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
}
WITHOUT = ("command-r", "falcon", "gpt-2", "llama-bpe", "llama-spm", "phi-3")
ROOM = TextRoom(max_tokens=1 << 20, part="prompt", gone=lambda: False)
PREFIX, SUFFIX = "def f(x):\n    return ", "\n\nprint(f(2))\n"


@cache
def tokenizer(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    files = model_files(dict(read_header(path, memoryview(path.read_bytes())).metadata))
    told = json.loads(files["tokenizer_config.json"]).get("infill_names", {})
    return Tokenizer(tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())), told


def named(names: object) -> list[Path]:
    found = [path for path in VOCABULARIES if path.stem.removeprefix("ggml-vocab-") in names]  # type: ignore[operator]
    assert len(found) == len(names) or not VOCABULARIES  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("path", named(MARKS), ids=lambda path: path.stem)
def test_a_prompt_is_the_text_with_its_marks(path: Path) -> None:
    known, told = tokenizer(path)
    marks = find_marks(known, told)
    assert marks is not None
    begin, gap, end = MARKS[path.stem.removeprefix("ggml-vocab-")]
    ids = asyncio.run(
        Infiller(known, marks).prompt(TextWithGap(prefix=PREFIX, suffix=SUFFIX), ROOM, special=True)
    )
    assert ids == known.encode(f"{begin}{PREFIX}{gap}{SUFFIX}{end}")


@pytest.mark.parametrize("path", named(MARKS), ids=lambda path: path.stem)
def test_special_tokens_that_are_typed_stay_text(path: Path) -> None:
    known, told = tokenizer(path)
    marks = find_marks(known, told)
    assert marks is not None
    special = known.special_ids | marks.ends
    names = [known.core.id_to_token(token) or "" for token in special]
    infiller, draws = Infiller(known, marks), random.Random(1)
    for _ in range(100):
        text = "".join(
            draws.choice([*names, " ", "a", "\n", "<", "|", "é"]) for _ in range(draws.randint(1, 8))
        )
        ids = asyncio.run(infiller.prompt(TextWithGap(prefix=text, suffix=text), ROOM, special=False))
        assert sum(token in special for token in ids) == 3
        assert known.decode(ids[1 : ids.index(marks.suffix)]) == text


@pytest.mark.parametrize("path", named(WITHOUT), ids=lambda path: path.stem)
def test_vocabularies_without_marks(path: Path) -> None:
    assert find_marks(*tokenizer(path)) is None
