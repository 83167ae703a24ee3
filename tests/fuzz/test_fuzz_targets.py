"""All inputs of fuzz/corpus, those of mended crashes among them, and what the parts of the fuzzer promise."""

from __future__ import annotations

import pytest

import fuzz.target
from fuzz.draw import Draw
from fuzz.findings import Findings
from fuzz.native_build import native_names
from fuzz.target import CORPUS, BoundError, Target, find, names


@pytest.mark.parametrize("name", names())
def test_inputs_of_the_corpus(name):
    target, files = find(name), sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        try:
            target.attempt(file.read_bytes())
        except Exception as error:
            error.add_note(str(file))
            raise


def test_no_corpus_is_of_nothing():
    assert sorted(folder.name for folder in CORPUS.iterdir()) == sorted([*names(), *native_names()])


def raising(error: Exception) -> Target:
    def run(data: bytes) -> None:
        del data
        raise error

    return Target(run=run, refusals=(ValueError,))


def test_a_refusal_is_a_right_answer_if_it_has_one_short_line():
    raising(ValueError("no such key")).attempt(b"")
    for message in ("", "two\nlines", "x" * 3000):
        with pytest.raises(BoundError, match="without one short line"):
            raising(ValueError(message)).attempt(b"")
    with pytest.raises(KeyError):
        raising(KeyError("a")).attempt(b"")


def test_time_and_memory_have_a_bound(monkeypatch):
    with pytest.raises(BoundError, match=r"took .* s of"):
        Target(run=lambda _: [None for _ in range(10_000)], limit_s=0.0).attempt(b"")
    peaks = iter((5 << 20, 7 << 20) * 2)
    monkeypatch.setattr(fuzz.target, "_most_memory_bytes", lambda: next(peaks))
    Target(run=lambda _: None, limit_bytes=2 << 20).attempt(b"")
    with pytest.raises(BoundError, match="took 2 MiB of 1 MiB"):
        Target(run=lambda _: None, limit_bytes=1 << 20).attempt(b"")


def test_the_smallest_input_of_each_place_is_kept(tmp_path):
    findings = Findings(tmp_path)
    for target, data in (("a", b"long one"), ("a", b"short"), ("a", b"longer one"), ("b", b"other")):
        try:
            raise KeyError(target) if target == "a" else TypeError(target)
        except (KeyError, TypeError) as error:
            findings.add(error, data)
    kept = {file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".txt"}
    assert kept == {b"short", b"other"}
    assert len(findings) == 2


def test_choices_of_a_case_that_is_over_are_the_first_ones():
    draw = Draw(b"\x05\x01")
    assert draw.choice("abc") == "c"
    assert draw.below(1 << 10) == 1
    assert draw.is_over
    assert [draw.choice("abc"), draw.between(3, 9), draw.below(1 << 20)] == ["a", 3, 0]
    assert Draw(b"\x02\x02\x00").sample("abcd", 3) == ["c", "d", "a"]
    assert 0.0 <= Draw(b"\xff").chance() < 1.0
