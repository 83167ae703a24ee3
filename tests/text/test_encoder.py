"""Texts to token ids: what a request has no room for is not tokenised whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from firelane.errors import ContextLengthError, RequestError, TokenizerError
from firelane.text.tokens import tokenizer as module
from firelane.text.tokens.tokenizer import PIECE_CHARS, TextEncoder, TextRoom, Tokenizer, unpack_ids


def core() -> tokenizers.Tokenizer:
    """A token a byte, 64 spaces in one."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges, spaces = [], "Ġ"
    for _ in range(6):
        merges.append((spaces, spaces))
        spaces += spaces
        names.append(spaces)
    made = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


class Watched(Tokenizer):
    """Notes the characters of each text that it gets."""

    def __init__(self) -> None:
        super().__init__(core())
        self.seen: list[int] = []

    def encode(self, text, *, add_special_tokens=True):
        self.seen.append(len(text))
        return super().encode(text, add_special_tokens=add_special_tokens)

    def count(self, text):
        self.seen.append(len(text))
        return super().count(text)


@pytest.fixture
def tokenizer():
    return Watched()


ROOM = TextRoom(max_tokens=1000, part="prompt", gone=lambda: False)


def run(tokenizer, *texts, room=ROOM, special=True):
    found = asyncio.run(TextEncoder(tokenizer).encode(texts, room, special=special))
    return [unpack_ids(packed).tolist() for packed in found]


@pytest.mark.parametrize("text", ["a b" * 8_000_000, "é" * 10_000_000, "😀" * 1_000_000, "x" * 200_000])
def test_what_cannot_fit_is_not_tokenised(tokenizer, text):
    with pytest.raises(ContextLengthError, match="1000 tokens") as caught:
        run(tokenizer, text)
    assert caught.value.param == "prompt"
    assert sum(tokenizer.seen) <= PIECE_CHARS


@pytest.mark.parametrize("size", [1, 1000, 17_000, 63_990, 70_000, 640_000])
def test_what_fits_is_the_tokens_of_the_whole(tokenizer, size):
    """Spaces: the longest token is 64 of them."""
    text = " " * size
    room = replace(ROOM, max_tokens=size // 64 + 10)
    assert run(tokenizer, text, room=room) == [Tokenizer(core()).encode(text)]


def test_a_short_text_that_is_too_long_is_left_to_the_check_of_tokens(tokenizer):
    assert len(run(tokenizer, "x" * 1100)[0]) == 1100


def test_one_of_many_that_is_too_long_ends_the_work(tokenizer):
    with pytest.raises(ContextLengthError):
        run(tokenizer, *["x" * 2000] * 2000)
    assert sum(tokenizer.seen) <= PIECE_CHARS


@pytest.mark.parametrize("text", ["xy" * 5_000_000, "a b" * 3_000_000, "é" * 5_000_000])
@pytest.mark.parametrize("from_start", [False, True])
def test_a_cut_text_is_tokenised_at_its_end(tokenizer, text, from_start):
    room = replace(ROOM, keep=900, from_start=from_start)
    (ids,) = run(tokenizer, text, room=room)
    assert len(ids) >= 900 + module.MARGIN_TOKENS
    part = text[:64_000] if from_start else text[-64_000:]
    whole = Tokenizer(core()).encode(part)
    assert ids[:900] == whole[:900] if from_start else ids[-900:] == whole[-900:]
    assert sum(tokenizer.seen) < 1_000_000


def test_a_text_to_be_cut_that_is_short_enough(tokenizer):
    text = "x" * 20_000
    assert run(tokenizer, text, room=replace(ROOM, keep=900)) == [Tokenizer(core()).encode(text)]


def test_the_end_of_a_text_is_that_of_the_whole(tokenizer):
    text = "".join(chr(97 + i * i % 26) for i in range(300_000))
    (ids,) = run(tokenizer, text, room=replace(ROOM, keep=700))
    assert ids[-700:] == Tokenizer(core()).encode(text)[-700:]


def test_nothing_is_done_for_a_client_that_has_gone(tokenizer):
    for text in ("x" * 70_000, " " * 1_000_000):
        with pytest.raises(RequestError, match="gone"):
            run(tokenizer, text, room=replace(ROOM, gone=lambda: True))
    assert tokenizer.seen == []


def test_a_client_that_goes_ends_the_work(tokenizer):
    room = replace(ROOM, max_tokens=10**6, gone=lambda: len(tokenizer.seen) >= 2)
    with pytest.raises(RequestError, match="gone"):
        run(tokenizer, "x" * 2_000_000, room=room)
    assert len(tokenizer.seen) == 2


def test_many_texts(tokenizer):
    texts = [chr(97 + i % 26) * (i % 900 + 1) for i in range(400)]
    assert run(tokenizer, *texts) == [Tokenizer(core()).encode(text) for text in texts]
    assert run(tokenizer, *texts[:3], "x" * 66_000, "y", room=replace(ROOM, max_tokens=10**5))[3:] == [
        Tokenizer(core()).encode("x" * 66_000),
        Tokenizer(core()).encode("y"),
    ]


def test_long_texts_take_turns(monkeypatch):
    """Two of each kind are never tokenised at the same time."""
    tokenizer, running, most = Tokenizer(core()), [0], [0]

    async def to_thread(function, *args):
        running[0] += 1
        most[0] = max(most[0], running[0])
        for _ in range(3):
            await asyncio.sleep(0)
        running[0] -= 1
        return function(*args)

    monkeypatch.setattr(module.asyncio, "to_thread", to_thread)

    async def work():
        made, room = TextEncoder(tokenizer), replace(ROOM, max_tokens=10**6)
        await asyncio.gather(*(made.encode(["x" * 66_000], room, special=True) for _ in range(8)))

    asyncio.run(work())
    assert most == [1]


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace("a", "x" * 100),
        normalizers.Replace(tokenizers.Regex("a?"), "x" * 100),
        normalizers.Prepend("x" * 10_000),
        normalizers.Sequence([normalizers.Replace("a", "aaaaaa"), normalizers.Replace("a", "aaaaaa")]),
    ],
)
def test_a_normalizer_that_multiplies_texts(normalizer):
    made = core()
    made.normalizer = normalizer
    with pytest.raises(TokenizerError, match="normaliser"):
        Tokenizer(made)


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.NFKC(),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        normalizers.Replace(tokenizers.Regex(" {2,}"), "▁"),
        normalizers.BertNormalizer(),
    ],
)
def test_usual_normalizers(normalizer):
    made = core()
    if normalizer is not None:
        made.normalizer = normalizer
    assert Tokenizer(made).encode("ab") != []
