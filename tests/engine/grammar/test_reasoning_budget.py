"""The grammar of a reasoning budget: any tokens, but few between the marks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import new_matcher
from firelane.engine.grammar.vocabulary import load_vocabulary
from firelane.text.chat.reasoning import THINK, budget_grammar
from firelane.text.tokens.tokenizer import load_tokenizer
from tests.text.toy_model import byte_tokenizer, write_model

OPEN, CLOSE = THINK.delimiters

VOCAB_SIZE = 288
"""More than the tokenizer has, as models do."""


def model(path: Path, marks: tuple[str, ...], *, special: bool) -> Path:
    core = byte_tokenizer()
    core.add_tokens([tokenizers.AddedToken(mark, special=special) for mark in marks])
    return write_model(path, core)


class Text:
    """A text that a model of these marks writes under a budget of reasoning."""

    def __init__(self, path: Path, budget: int, *, begun: bool) -> None:
        self._tokenizer = load_tokenizer(path)
        grammar = budget_grammar(budget, self._tokenizer, begun=begun)
        assert grammar is not None
        self._vocabulary = load_vocabulary(path, VOCAB_SIZE)
        self._matcher = new_matcher(grammar, self._vocabulary.tokenizer, GrammarLimits())

    def write(self, *words: str) -> None:
        for word in words:
            assert self._matcher.consume_token(self.id(word)), word

    def id(self, word: str) -> int:
        found = self._tokenizer.id_of(word)
        assert found is not None, word
        return found

    def allowed(self) -> set[int]:
        """Tokens that may follow, and the vocabulary's `end` where the text may end."""
        mask = np.zeros(VOCAB_SIZE // 32 + 1, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())

    def allows_all(self) -> bool:
        return set(range(self._vocabulary.end + 1)) <= self.allowed()


@pytest.mark.parametrize("special", [True, False])
def test_the_closing_mark_is_forced_where_the_budget_ends(tmp_path: Path, special: bool) -> None:
    text = Text(model(tmp_path, (OPEN, CLOSE), special=special), 3, begun=True)
    for word in "abc":
        assert text.allows_all()
        text.write(word)
    assert text.allowed() == {text.id(CLOSE)}
    text.write(CLOSE)
    for word in ("d", "<|user|>", OPEN, "e", "f", "g", "h", CLOSE):
        assert text.allows_all()
        text.write(word)


def test_reasoning_may_end_by_itself(tmp_path: Path) -> None:
    text = Text(model(tmp_path, (CLOSE,), special=True), 100, begun=True)
    text.write("a", CLOSE, *"bcdefghi")
    assert text.allows_all()


@pytest.mark.parametrize("before", ["", "xyz"])
def test_reasoning_that_the_model_begins_itself(tmp_path: Path, before: str) -> None:
    text = Text(model(tmp_path, (OPEN, CLOSE), special=True), 2, begun=False)
    text.write(*before)
    assert text.allows_all()
    text.write(OPEN, "a", "b")
    assert text.allowed() == {text.id(CLOSE)}
    text.write(CLOSE, *"answer")


def test_no_reasoning_at_all(tmp_path: Path) -> None:
    text = Text(model(tmp_path, (OPEN, CLOSE), special=True), 0, begun=True)
    assert text.allowed() == {text.id(CLOSE)}


def test_marks_that_are_no_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model(tmp_path, (), special=True))
    assert budget_grammar(5, tokenizer, begun=True) is None
    (tmp_path / "closing").mkdir()
    tokenizer = load_tokenizer(model(tmp_path / "closing", (CLOSE,), special=True))
    assert budget_grammar(5, tokenizer, begun=True) is not None
    assert budget_grammar(5, tokenizer, begun=False) is None


def test_a_large_budget_is_small_work(tmp_path: Path) -> None:
    text = Text(model(tmp_path, (OPEN, CLOSE), special=True), 2**31 - 1, begun=False)
    text.write(OPEN, *("a" * 50))
    assert text.allows_all()
