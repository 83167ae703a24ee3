"""Prompts of texts with a gap."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infill_models import (
    CODEGEMMA,
    CODELLAMA,
    CODESTRAL,
    DEEPSEEK,
    QWEN,
    STARCODER,
    sentence_piece,
    spelled,
    with_marks,
)

from firelane.errors import ContextLengthError, RequestError
from firelane.text.infill.marks import FAMILIES, find_marks
from firelane.text.infill.prompt import Infiller, TextWithGap
from firelane.text.tokens.tokenizer import TextRoom, Tokenizer
from tests.text.toy_model import byte_tokenizer

ROOM = TextRoom(max_tokens=4096, part="prompt", gone=lambda: False)
GAP = TextWithGap(prefix="def f(", suffix="):\n    pass\n")
OTHER = TextWithGap(prefix="", suffix=" = 1")
BYTES = Tokenizer(with_marks(QWEN))


def infiller(tokenizer: Tokenizer) -> Infiller:
    marks = find_marks(tokenizer, {})
    assert marks is not None
    return Infiller(tokenizer, marks)


def whole(tokenizer: Tokenizer, gap: TextWithGap, *, special: bool = False) -> list[int]:
    return asyncio.run(infiller(tokenizer).prompt(gap, ROOM, special=special))


def fitted(tokenizer: Tokenizer, gap: TextWithGap, most: int) -> tuple[str, bool]:
    found = asyncio.run(infiller(tokenizer).fitted(gap, ROOM, most))
    assert len(found.ids) <= most
    return spelled(tokenizer, found.ids), found.is_cut


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (QWEN, "<|fim_prefix|>def f(<|fim_suffix|>):\n    pass\n<|fim_middle|>"),
        (DEEPSEEK, "<｜fim▁begin｜>def f(<｜fim▁hole｜>):\n    pass\n<｜fim▁end｜>"),
        (STARCODER, "<fim_prefix>def f(<fim_suffix>):\n    pass\n<fim_middle>"),
        (CODEGEMMA, "<|fim_prefix|>def f(<|fim_suffix|>):\n    pass\n<|fim_middle|>"),
        (CODESTRAL, "[SUFFIX]):\n    pass\n[PREFIX]def f("),
    ],
    ids=["qwen", "deepseek", "starcoder", "codegemma", "codestral"],
)
def test_order_of_each_family(names, expected):
    tokenizer = Tokenizer(with_marks(names))
    assert spelled(tokenizer, whole(tokenizer, GAP)) == expected
    assert spelled(tokenizer, whole(tokenizer, GAP, special=True)) == "<|bos|>" + expected


def test_marks_that_are_not_special():
    tokenizer = Tokenizer(with_marks(QWEN, special=False))
    ids = whole(tokenizer, GAP)
    assert ids[0] == tokenizer.id_of("<|fim_prefix|>")
    assert ids[-1] == tokenizer.id_of("<|fim_middle|>")


def test_sentence_piece_puts_a_space_before_the_text_and_none_behind_the_gap():
    """The reference code of CodeLlama encodes both parts so."""
    tokenizer = Tokenizer(sentence_piece(CODELLAMA))
    names = [
        tokenizer.core.id_to_token(token) for token in whole(tokenizer, TextWithGap(prefix="a", suffix="b"))
    ]
    assert names == ["▁<PRE>", "▁", "a", "▁<SUF>", "b", "▁<MID>"]
    names = [tokenizer.core.id_to_token(token) for token in whole(tokenizer, OTHER, special=True)]
    assert names == ["<s>", "▁<PRE>", "▁<SUF>", "▁", "=", "▁", "1", "▁<MID>"]


def test_a_vocabulary_without_marks():
    assert find_marks(Tokenizer(byte_tokenizer()), {}) is None
    assert find_marks(Tokenizer(with_marks(QWEN[:2])), {}) is None


def test_a_plain_entry_of_the_vocabulary_is_no_mark():
    core = byte_tokenizer()
    assert core.token_to_id("<") is not None
    assert find_marks(Tokenizer(core), {"prefix": "", "suffix": "", "middle": ""}) is None


def test_what_the_file_says_comes_first():
    tokenizer = Tokenizer(with_marks((*QWEN, "<A>", "<B>", "<C>", "<D>")))
    marks = find_marks(tokenizer, {"prefix": "<A>", "suffix": "<B>", "middle": "<C>", "pad": "<D>"})
    assert marks is not None
    assert [marks.prefix, marks.suffix, marks.middle] == [
        tokenizer.id_of(name) for name in ("<A>", "<B>", "<C>")
    ]
    assert tokenizer.id_of("<D>") in marks.ends
    assert marks.repo is None
    known = find_marks(tokenizer, {"prefix": QWEN[0], "suffix": QWEN[1], "middle": QWEN[2]})
    assert known == find_marks(tokenizer, {})
    assert find_marks(tokenizer, {"prefix": "<A>", "suffix": "<nothing>", "middle": "<C>"}) == known


def test_ends():
    tokenizer = Tokenizer(with_marks((*QWEN, "<|endoftext|>")))
    marks = infiller(tokenizer).marks
    assert marks.ends == {tokenizer.id_of(name) for name in (*QWEN, "<|endoftext|>")}


ODD_TEXTS = st.lists(
    st.sampled_from([*QWEN, *QWEN[0], "<|eos|>", "<|bos|>", "<|<|eos|>", "ab", " ", "\n", "☺", "é", "|>"]),
    max_size=12,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(prefix=ODD_TEXTS, suffix=ODD_TEXTS)
def test_marks_that_are_typed_stay_text(prefix, suffix):
    ids = whole(BYTES, TextWithGap(prefix=prefix, suffix=suffix))
    begin, gap, end = (BYTES.id_of(name) for name in QWEN[:3])
    assert [token for token in ids if token in BYTES.special_ids] == [begin, gap, end]
    at = ids.index(gap)
    assert BYTES.decode(ids[1:at]) == prefix
    assert BYTES.decode(ids[at + 1 : -1]) == suffix


PIECES = Tokenizer(sentence_piece(CODELLAMA))
ODD_PIECES = st.lists(
    st.sampled_from([*CODELLAMA, " <PRE>", "<PRE>", "<SUF>", "</s>", "<s>", "ab", " ", "☺", "é"]), max_size=10
).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=ODD_PIECES)
def test_marks_that_are_typed_stay_text_in_pieces(text):
    ids = whole(PIECES, TextWithGap(prefix="x", suffix=text))
    assert sum(token in PIECES.special_ids for token in ids) == 3
    behind = ids[ids.index(PIECES.id_of("▁<SUF>")) + 1 : -1]
    assert PIECES.decode([PIECES.id_of("a"), *behind]) == "a" + text.replace("▁", " ")


def test_files_of_a_repository():
    gap = TextWithGap(prefix="p", suffix="s", begun="b", files=[("a.py", "A = 1\n"), ("b.py", "B = 2\n")])
    text, is_cut = fitted(BYTES, gap, 4096)
    assert text == (
        "<|bos|><|repo_name|>myproject\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\nB = 2\n"
        "<|file_sep|>filename\n<|fim_prefix|>pb<|fim_suffix|>s<|fim_middle|>"
    )
    assert not is_cut


def test_files_without_marks_of_their_own():
    tokenizer = Tokenizer(with_marks(DEEPSEEK))
    text, _ = fitted(tokenizer, TextWithGap(prefix="p", suffix="s", files=[("a.py", "A = 1\n")]), 4096)
    assert text == "<|bos|>\n--- a.py ---\nA = 1\n\n<｜fim▁begin｜>p<｜fim▁hole｜>s<｜fim▁end｜>"


def test_marks_in_names_and_texts_of_files_stay_text():
    gap = TextWithGap(prefix="", suffix="", files=[("<|file_sep|>", "<|fim_prefix|><|eos|>")])
    found = asyncio.run(infiller(BYTES).fitted(gap, ROOM, 4096))
    names = [BYTES.core.id_to_token(token) for token in found.ids if token in BYTES.special_ids]
    assert names == ["<|bos|>", "<|repo_name|>", "<|file_sep|>", "<|file_sep|>", *QWEN[:3]]


def test_long_texts_keep_what_is_near_the_gap():
    gap = TextWithGap(prefix="0123456789" * 10, suffix="abcdefghij" * 10)
    text, is_cut = fitted(BYTES, gap, 44)
    assert is_cut
    assert text == "<|bos|><|fim_prefix|>" + gap.prefix[-30:] + "<|fim_suffix|>abcdefghij<|fim_middle|>"


def test_a_short_prefix_leaves_its_room_to_the_suffix():
    gap = TextWithGap(prefix="12345", suffix="abcdefghij" * 10)
    text, _ = fitted(BYTES, gap, 44)
    assert text == "<|bos|><|fim_prefix|>12345<|fim_suffix|>" + gap.suffix[:35] + "<|fim_middle|>"


def test_of_files_the_last_are_kept():
    files = [("a", "x" * 100), ("b", "y" * 100), ("c", "z" * 50)]
    gap = TextWithGap(prefix="p", suffix="s", files=files)
    text, is_cut = fitted(BYTES, gap, 170)
    assert is_cut
    assert "xx" not in text
    assert f"<|file_sep|>c\n{'z' * 50}<|file_sep|>filename\n" in text
    kept = text.count("y") - 1  # "myproject"
    assert 32 <= kept < 100
    assert fitted(BYTES, gap, 4096)[1] is False
    assert fitted(BYTES, gap, 20) == ("<|bos|><|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>", True)


@settings(max_examples=100, deadline=None)
@given(
    prefix=st.text(max_size=80),
    suffix=st.text(max_size=80),
    begun=st.text(max_size=20),
    most=st.integers(5, 300),
)
def test_a_fitted_prompt_never_exceeds_its_room_and_is_cut_alike(prefix, suffix, begun, most):
    gap = TextWithGap(prefix=prefix, suffix=suffix, begun=begun, files=[("n", suffix), ("m", prefix)])
    assert fitted(BYTES, gap, most) == fitted(BYTES, gap, most)


def test_very_long_texts_are_cut_before_they_are_tokens():
    gap = TextWithGap(prefix="p" * 3_000_000, suffix="s" * 3_000_000)
    text, is_cut = fitted(BYTES, gap, 64)
    assert is_cut
    assert (text.count("p>") or text.count("ppp")) > 0
    with pytest.raises(ContextLengthError):
        whole(BYTES, gap)


def test_families_have_distinct_marks():
    assert len({names.prefix for names in FAMILIES}) == len(FAMILIES)


def test_a_mark_that_does_not_stay_text_is_refused(monkeypatch):
    made = infiller(BYTES)
    monkeypatch.setattr(made._texts, "_names", None)
    with pytest.raises(RequestError, match="does not stay text"):
        asyncio.run(made.prompt(TextWithGap(prefix="<|fim_prefix|>", suffix="s"), ROOM, special=False))


@pytest.mark.parametrize("before", [65_520, 65_530, 65_535, 65_536, 131_070])
def test_marks_at_the_borders_of_searched_parts_stay_text(before):
    text = "x" * before + "<|fim_suffix|><|eos|>"
    room = replace(ROOM, max_tokens=1 << 18)
    ids = asyncio.run(infiller(BYTES).prompt(TextWithGap(prefix=text, suffix="s"), room, special=False))
    assert [token for token in ids if token in BYTES.special_ids] == [BYTES.id_of(name) for name in QWEN[:3]]
    assert BYTES.decode(ids[1 : before + 22]) == text


def test_names_that_begin_alike_or_are_long():
    long = f"<{'long' * 30}>"
    tokenizer = Tokenizer(with_marks((*QWEN, "<|", "<|fim", long, f"{long}!", "ab", "abc", "b")))
    text = f"<|fim_prefix|><|fim<|{long}!{long}abcab|>"
    ids = whole(tokenizer, TextWithGap(prefix=text, suffix=text))
    named = [token for token in ids if token in tokenizer.special_ids]
    b = tokenizer.id_of("b")  # of one character: it cannot be cut
    assert [token for token in named if token != b] == [tokenizer.id_of(name) for name in QWEN[:3]]
