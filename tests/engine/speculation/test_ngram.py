"""Prompt lookup against a plain search, and where it goes on behind a change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.engine.sequences.sequence import Sequence, TenantInfo
from firelane.engine.speculation import ngram, recent_outputs
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine.speculation.ngram_index import CANDIDATES, GRAM, LONGEST_MATCH, NgramIndex
from firelane.engine.speculation.proposer import Asked
from firelane.engine.speculation.recent_outputs import RecentOutputs
from firelane.kv import PrefixChain
from firelane.kv.prefix import tenant_id
from firelane.wire.frames import Sampling


def sequence(prediction=None, *, salt=b"", tenant="", prompt_len=1):
    prompt = np.zeros(prompt_len, np.int32)
    chain = PrefixChain(salt, 4, tenant=tenant)
    made = Sequence(1, prompt, sampling=Sampling(), end=99, chain=chain, tenant=TenantInfo(tenant, 1.0))
    made.prediction = None if prediction is None else np.array(prediction, np.int32)
    return made


def searched(tokens):
    """The place that agrees longest with the end of `tokens`, the latest of the latest CANDIDATES."""
    found, known = [], len(tokens)
    for place in range(known - 1, GRAM - 1, -1):
        if tokens[place - GRAM : place] == tokens[known - GRAM :]:
            length, most = GRAM, min(LONGEST_MATCH, place)
            while length < most and tokens[place - 1 - length] == tokens[known - 1 - length]:
                length += 1
            found.append((place, length))
    best = max((length for _, length in found[:CANDIDATES]), default=0)
    return next(((place, length) for place, length in found if length == best), (0, 0))


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 60))
def test_the_place_that_agrees_longest_is_found(tokens, cut):
    index = NgramIndex()
    index.extend(tokens[:cut])
    index.extend(tokens[cut:])
    assert index.find() == (searched(tokens) if len(tokens) >= GRAM else (0, 0))


def proposed(proposer, of, tokens, most=4):
    (found,) = proposer.propose([Asked(0, of, np.array(tokens, np.int32), most)])
    return found.tokens


def test_what_followed_is_drafted():
    assert proposed(NgramProposer(), sequence(), [9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]) == [4, 5, 6, 7]
    assert proposed(NgramProposer(), sequence(), [1, 2, 3, 4, 5, 1, 2]) == []
    assert proposed(NgramProposer(), sequence(), [1, 2, 3, 4, 5, 1, 2, 3], most=1) == [4]


def test_a_text_that_repeats_itself_is_drafted_beyond_its_end():
    text = [1, 2, 3, 4, 1, 2, 3, 4]
    assert proposed(NgramProposer(), sequence(), text, most=10) == [*text, 1, 2]
    assert proposed(NgramProposer(), sequence(), [9, 5, 5, 5, 5], most=3) == [5, 5, 5]


def test_a_copy_with_a_changed_token_goes_on_behind_it():
    proposer, of, text = NgramProposer(), sequence(), [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert proposed(proposer, of, [*text, 1, 2, 3]) == [4, 5, 6, 7]
    assert proposed(proposer, of, [*text, 1, 2, 3, 4, 77]) == [6, 7, 8, 9]


def test_a_slot_of_another_sequence_starts_anew():
    proposer, text = NgramProposer(), [1, 2, 3, 4, 5, 1, 2, 3]
    assert proposed(proposer, sequence(), text) == [4, 5, 1, 2]
    assert proposed(proposer, sequence(), [1, 2, 3]) == []


def test_an_expected_answer_is_drafted_from_its_first_token_on():
    proposer, of = NgramProposer(), sequence(prediction=[5, 6, 7, 8])
    assert proposed(proposer, of, [1, 2, 5]) == [6, 7, 8]
    assert proposed(proposer, of, [1, 2, 5, 6, 99]) == [8]
    assert proposed(proposer, of, [1, 2, 5, 6, 99, 5, 6, 7]) == [8]


def test_a_long_prompt_is_taken_in_over_several_steps(monkeypatch):
    monkeypatch.setattr(ngram, "INDEXED_AT_ONCE", 5)
    proposer, of, tokens = NgramProposer(), sequence(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert [proposed(proposer, of, tokens) for _ in range(3)] == [[], [], [4, 5, 6, 7]]


def test_a_long_prediction_is_taken_in_over_several_steps(monkeypatch):
    monkeypatch.setattr(ngram, "INDEXED_AT_ONCE", 4)
    proposer, of = NgramProposer(), sequence(prediction=[5, 6, 7, 8, 9, 10, 11])
    assert [proposed(proposer, of, [1, 5, 6, 7]) for _ in range(3)] == [[], [], [8, 9, 10, 11]]


def test_the_index_of_a_sequence_is_bounded(monkeypatch):
    monkeypatch.setattr(ngram, "MOST_INDEXED", 8)
    proposer, of, tokens = NgramProposer(), sequence(), [1, 2, 3, 4, 5, 1, 2, 3]
    assert proposed(proposer, of, tokens) == [4, 5, 1, 2]
    assert proposed(proposer, of, [*tokens, 4]) == []


def answered(proposer, of, tokens):
    """A sequence that was seen to its end, before another one takes its slot."""
    proposed(proposer, of, tokens)
    proposed(proposer, sequence(tenant="nobody"), [0])


@pytest.mark.parametrize(
    ("owner", "expected"),
    [({"tenant": "a", "salt": b"s"}, [4, 5, 6]), ({"tenant": "b", "salt": b"s"}, []), ({"tenant": "a"}, [])],
)
def test_an_answer_of_before_is_drafted_for_its_tenant_and_salt_alone(owner, expected):
    proposer = NgramProposer()
    answered(proposer, sequence(tenant="a", salt=b"s", prompt_len=2), [8, 9, 1, 2, 3, 4, 5, 6])
    assert proposed(proposer, sequence(**owner), [7, 1, 2, 3]) == expected


def test_the_prompt_of_another_request_is_never_drafted():
    proposer = NgramProposer()
    answered(proposer, sequence(prompt_len=7), [1, 2, 3, 4, 5, 6, 7, 8])
    assert proposed(proposer, sequence(), [7, 1, 2, 3]) == []


def test_the_place_that_agrees_longer_wins_over_the_own_text():
    proposer = NgramProposer()
    answered(proposer, sequence(), [0, 5, 1, 2, 3, 4])
    assert proposed(proposer, sequence(), [1, 2, 3, 9, 5, 1, 2, 3]) == [4]
    assert proposed(proposer, sequence(), [6, 1, 2, 3, 9, 6, 1, 2, 3]) == [9, 6, 1, 2]


def test_a_forgotten_tenant_leaves_nothing():
    proposer = NgramProposer()
    answered(proposer, sequence(tenant="a"), [0, 1, 2, 3, 4])
    answered(proposer, sequence(tenant="b"), [0, 1, 2, 3, 5])
    proposed(proposer, sequence(tenant="a"), [0, 1, 2])
    proposer.forget(tenant_id("a"))
    assert proposed(proposer, sequence(tenant="a"), [7, 1, 2, 3]) == []
    assert proposed(proposer, sequence(tenant="b"), [7, 1, 2, 3]) == [5]


def test_recent_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(recent_outputs, "MOST_TOKENS", 40)
    monkeypatch.setattr(recent_outputs, "MOST_OWNERS", 2)
    recent, owners = RecentOutputs(), [sequence(tenant=name) for name in "abc"]
    for turn in range(30):
        recent.add(owners[turn % 2], list(range(turn % 9 + 1)))
    assert all(len(index.tokens) <= 40 for index in recent._indices.values())
    recent.add(owners[2], [1, 2, 3])
    assert recent.of(owners[0]) is None
    assert recent.of(owners[1]) is not None
    recent.add(owners[2], list(range(500)))
    assert len(recent.of(owners[2]).tokens) <= 41
