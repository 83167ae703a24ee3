"""Regular expressions of a tokenizer: those that go back over a text again and again are refused."""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from firelane.errors import RequestError, TokenizerError
from firelane.text.tokens import pattern_trial, tokenizer
from firelane.text.tokens.pattern_trial import check_patterns
from firelane.text.tokens.tokenizer import load_tokenizer

USUAL = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "threes": r"\d{1,3}(?=(?:\d{3})*\b)|\s+",
}
HOSTILE = {
    "nested": r"(a+)+$",
    "alternatives": r"(a|aa)+$",
    "same_alternatives": r"(Q|Q|Q|Q)+$",
    "literal_behind": r"([a-z]+)*q",
    "any_behind": r"(.+)+z",
    "words": r"(ab|abab)+$",
    "bounded": r"(?:a{1,3}){1,12}b",
    "fourth_power": r"\s+\s+\s+b",
}


def core(regex: str, where: str) -> Tokenizer:
    made = Tokenizer(models.BPE({chr(i): i for i in range(32, 127)}, []))
    if where == "pre-tokenizer":
        split = pre_tokenizers.Split(Regex(regex), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), split])
    else:
        made.normalizer = normalizers.Replace(Regex(regex), "x")
    return made


@pytest.mark.parametrize("regex", USUAL.values(), ids=USUAL)
def test_usual_expressions(regex):
    check_patterns(core(regex, "pre-tokenizer"))


def test_a_delay_that_does_not_come_again(monkeypatch):
    """Garbage collection may cause such a delay: each text takes long the first time."""
    seen, clock = set(), [0.0]
    monkeypatch.setattr(pattern_trial.time, "thread_time", lambda: clock[0])

    def run(text, again=0.0):
        clock[0] += again if text in seen else 1.0
        seen.add(text)

    assert pattern_trial._is_quick(run, ["a"], "!")
    assert not pattern_trial._is_quick(lambda text: run(text, 1.0), ["a"], "!")


@pytest.mark.parametrize("where", ["pre-tokenizer", "normaliser"])
@pytest.mark.parametrize("regex", HOSTILE.values(), ids=HOSTILE)
def test_expressions_that_take_too_long(tmp_path, capfd, regex, where):
    core(regex, where).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=f"expressions of the {where} in tokenizer.json take") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    capfd.readouterr()


def test_without_expressions_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(pattern_trial, "_is_quick", None)
    made = core("a", "pre-tokenizer")
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    check_patterns(made)


@pytest.mark.parametrize("ask", ["encode", "count"])
def test_a_text_that_the_library_gives_up(monkeypatch, capfd, ask):
    monkeypatch.setattr(tokenizer, "check_patterns", lambda _core: None)
    made = tokenizer.Tokenizer(core(HOSTILE["nested"], "pre-tokenizer"))
    with pytest.raises(RequestError, match="tokenizer fails on the text: Onig: Regex search error"):
        getattr(made, ask)("a" * 40 + "!")
    capfd.readouterr()  # the library writes of it, too
