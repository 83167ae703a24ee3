from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from firelane.text.tokens.detokenize import (
    StopMatcher,
    StreamDetokenizer,
    TableDetokenizer,
    partial_suffix_length,
)
from firelane.text.tokens.tokenizer import Tokenizer
from tests.text.toy_model import byte_tokenizer

BYTES = Tokenizer(byte_tokenizer())


def sentencepiece() -> tokenizers.Tokenizer:
    """The decoder of Llama 2: a marked space, bytes by name, first space dropped."""
    names = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁the", "▁", "cat", "é", "▁▁"]
    core = tokenizers.Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    return core


def stream(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([*map(detokenizer.push, ids), detokenizer.flush()])


@given(st.text(), st.integers(0, 4))
def test_text_survives(text, special):
    ids = BYTES.encode(text, add_special_tokens=False)
    assert stream(BYTES, ids) == text
    assert stream(BYTES, [special, *ids, special]) == text  # special tokens have no text


@given(st.lists(st.integers(0, 300), max_size=30))
def test_any_ids_give_what_the_library_gives(ids):
    assert stream(BYTES, ids) == BYTES.core.decode(ids, skip_special_tokens=True)


@given(st.text(min_size=1))
def test_no_broken_character_on_the_way(text):
    detokenizer = BYTES.detokenizer()
    pieces = [detokenizer.push(token) for token in BYTES.encode(text, add_special_tokens=False)]
    assert text.startswith("".join(pieces[:-1]))


FIRE = ["<0xF0>", "<0x9F>", "<0x94>", "<0xA5>"]


@given(st.lists(st.sampled_from([["▁the"], ["cat"], ["é"], ["▁▁"], ["<unk>"], FIRE])))
def test_sentencepiece(groups):
    core = sentencepiece()
    tokenizer = Tokenizer(core)
    assert isinstance(tokenizer.detokenizer(), TableDetokenizer)
    ids = [core.token_to_id(name) for group in groups for name in group]
    assert stream(tokenizer, ids).removeprefix(" ") == core.decode(ids)


def test_decoder_without_table_uses_the_library():
    core = tokenizers.Tokenizer(
        models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}, unk_token="[UNK]")
    )
    core.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(core)
    assert isinstance(tokenizer.detokenizer(), StreamDetokenizer)
    assert stream(tokenizer, [1, 2, 3]) == "playing now"
    assert tokenizer.token_text(2) == "##ing"


def test_ids_beyond_the_vocabulary_are_empty():
    assert stream(BYTES, [10**6]) == ""
    assert BYTES.token_text(10**6) == ""


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_matcher_equals_a_search_in_the_whole(pieces, stops):
    matcher, out, stopped = StopMatcher(stops), "", False
    for piece in pieces:
        text, stopped = matcher.push(piece)
        out += text
        if stopped:
            break
    out += matcher.flush()
    # A stop string that ends earlier in the stream wins over one that would begin earlier but end later.
    whole = "".join(pieces)
    assert stopped == any(stop in whole for stop in stops)
    if stopped:
        assert whole.startswith(out)
        assert any(whole[len(out) :].startswith(stop) for stop in stops)
        assert not any(stop in out for stop in stops)
    else:
        assert out == whole


def test_stop_matcher_holds_no_more_than_it_must():
    matcher = StopMatcher(["abc"])
    assert matcher.push("xa") == ("x", False)
    assert matcher.push("b") == ("", False)
    assert matcher.push("d") == ("abd", False)


@given(st.text(min_size=1, max_size=20), st.integers(0, 20))
def test_all_at_once_is_one_by_one(text, cut):
    """Also where the end is in the middle of a character."""
    ids = BYTES.encode(text)[: cut + 1]
    for make in (lambda: BYTES.detokenizer(), lambda: StreamDetokenizer(BYTES.core, frozenset())):
        one, at_once = make(), make()
        single = "".join(one.push(token) for token in ids) + one.flush()
        assert at_once.push_all(ids[:2]) + at_once.push_all(ids[2:]) + at_once.flush() == single


def test_long_texts_have_the_same_tokens():
    text = "né 世界 🙂 end <|user|> " * 100
    for special in (True, False):
        expected = BYTES.core.encode(text, add_special_tokens=special).ids
        assert BYTES.encode(text, add_special_tokens=special) == expected


@pytest.mark.parametrize("before", ["", "x", "x" * 50, "<|" * 20])
@pytest.mark.parametrize(("end", "length"), [("<", 1), ("<|en", 4), ("<|end|", 6), ("<|x", 0), ("", 0)])
def test_the_end_of_a_text_that_begins_a_mark(before, end, length):
    assert partial_suffix_length(f"{before} {end}", ["<|end|>", "</s>"]) == length


@pytest.mark.parametrize("tokenizer", [BYTES, Tokenizer(sentencepiece())])
@given(data=st.data())
def test_several_tokens_at_once(tokenizer, data):
    """Several tokens give the texts of one after another, but for those that complete no text."""
    runs = data.draw(st.lists(st.lists(st.integers(0, 270), max_size=6), max_size=4))
    one, several = tokenizer.detokenizer(), tokenizer.detokenizer()
    for run in runs:
        assert several.texts(run) == [text for text in map(one.push, run) if text]
    assert several.flush() == one.flush()


def test_tokens_that_are_text_are_kept_as_text_alone():
    tokenizer = Tokenizer(byte_tokenizer())
    table = tokenizer.token_table(tokenizer.special_ids)
    assert table is not None
    letter, *rest = tokenizer.encode("xé", add_special_tokens=False)
    for token, text in [(letter, "x"), (rest[0], None if len(rest) > 1 else "é")]:
        assert table.texts_of[token] == text
        assert token not in table.bytes_of
    assert table.bytes_of[letter] == table.bytes_of.peek(letter) == b"x"
    shown = min(tokenizer.special_ids)
    assert table.texts_of[shown] == tokenizer.core.id_to_token(shown)
