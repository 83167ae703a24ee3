"""Probabilities of labels from those of their tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import RequestError
from firelane.gateway.apis.decisions.labels import Answer, Ids, Read, answer_of, check_apart, reads_of
from firelane.gateway.apis.decisions.questions import (
    AnswerOption,
    best,
    choice_confidence,
    expected,
    one_level,
    one_of,
    score_confidence,
    yes_or_no,
)
from firelane.request_limits import MAX_LOGPROBS

VOCAB = 5


def logprob(behind: Ids, token: int) -> float:
    """A distribution over VOCAB tokens behind any tokens."""
    weights = [1 + (31 * sum(behind) + 7 * len(behind) + 13 * i * i) % 11 for i in range(VOCAB)]
    return math.log(weights[token] / sum(weights))


def found_by(reads: list[Read]) -> dict[Ids, dict[int, float]]:
    found: dict[Ids, dict[int, float]] = {}
    for read in reads:
        found.setdefault(read.behind, {}).update({t: logprob(read.behind, t) for t in read.wanted})
    return found


def test_labels_of_one_token_need_one_read() -> None:
    assert reads_of([(3,), (1,), (2,)]) == [Read((), (3, 1, 2))]


def test_many_labels_need_a_read_for_every_twenty() -> None:
    reads = reads_of([(i,) for i in range(2 * MAX_LOGPROBS + 1)])
    assert [len(read.wanted) for read in reads] == [MAX_LOGPROBS, MAX_LOGPROBS, 1]
    assert {t for read in reads for t in read.wanted} == set(range(2 * MAX_LOGPROBS + 1))


def test_labels_that_share_their_first_token_are_read_behind_it() -> None:
    labels = [(1, 2), (1, 3), (4,)]
    reads = reads_of(labels)
    assert reads == [Read((), (1, 4)), Read((1,), (2, 3))]
    answer = answer_of(labels, found_by(reads))
    mass = [
        math.exp(logprob((), 1) + logprob((1,), 2)),
        math.exp(logprob((), 1) + logprob((1,), 3)),
        math.exp(logprob((), 4)),
    ]
    assert answer.probabilities == pytest.approx([m / sum(mass) for m in mass])
    assert answer.label_mass == pytest.approx(sum(mass))
    assert answer.probabilities[0] != answer.probabilities[1]


@given(st.sets(st.integers(0, VOCAB**3 - 1), min_size=2, max_size=40))
def test_chains_of_a_whole_tree_are_its_distribution(numbers: set[int]) -> None:
    labels = [(n // 25, n // 5 % 5, n % 5) for n in sorted(numbers)]
    answer = answer_of(labels, found_by(reads_of(labels)))
    exact = [math.exp(sum(logprob(label[:i], t) for i, t in enumerate(label))) for label in labels]
    assert answer.label_mass == pytest.approx(min(1.0, sum(exact)))
    assert answer.probabilities == pytest.approx([p / sum(exact) for p in exact])
    assert math.fsum(answer.probabilities) == pytest.approx(1)


def test_all_labels_of_a_distribution_have_all_of_its_mass() -> None:
    labels = [(i, j) for i in range(VOCAB) for j in range(VOCAB)]
    assert answer_of(labels, found_by(reads_of(labels))).label_mass == pytest.approx(1)


def test_the_order_of_labels_changes_no_bit() -> None:
    labels = [(i, (3 * i + 1) % VOCAB) for i in range(VOCAB)]
    found = found_by(reads_of(labels))
    assert answer_of(labels[::-1], found) == Answer(
        answer_of(labels, found).probabilities[::-1], answer_of(labels, found).label_mass
    )


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_labels_without_any_probability_are_equally_likely(value: float) -> None:
    assert answer_of([(1,), (2,)], {(): {1: value, 2: value}}) == Answer((0.5, 0.5), 0.0)


def test_a_label_that_cannot_be_said_has_no_probability() -> None:
    assert answer_of([(1,), (2,)], {(): {1: -3.0, 2: -math.inf}}).probabilities == (1.0, 0.0)


@pytest.mark.parametrize("labels", [[(1, 2), (1, 2)], [(1,), (1, 2)], [(), (3,)], [(5,), (1, 2), (1,)]])
def test_labels_that_are_not_told_apart_are_refused(labels: list[Ids]) -> None:
    with pytest.raises(RequestError, match="does not tell the labels"):
        check_apart("questions.q", [f"label {i}" for i in range(len(labels))], labels)


def test_labels_of_a_common_start_are_told_apart() -> None:
    check_apart("questions.q", ["a", "b", "c"], [(1, 2), (1, 3), (2,)])


# ---- what the model reads, and what is made of the probabilities


def test_questions_in_words() -> None:
    assert yes_or_no("f", "Is it late?", "", "").text == "Question: Is it late?\nAnswer with yes or no only."
    assert yes_or_no("f", "Late?", "after ten", "").text.split("\n")[1] == "yes: after ten"
    choice = one_of("f", "Which?", [AnswerOption("one", "the first"), AnswerOption("two")])
    assert choice.text.split("\n")[1:] == [
        "A: one - the first",
        "B: two",
        "Answer with the letter of one option only.",
    ]
    assert choice.labels == ("A", "B")
    assert one_level("f", "How much?", [AnswerOption("low"), AnswerOption("high")]).labels == ("0", "1")


@pytest.mark.parametrize(("count", "last"), [(26, "Z"), (27, "BA"), (255, "JU")])
def test_letters_are_distinct_and_of_one_length(count: int, last: str) -> None:
    labels = one_of("f", "Which?", [AnswerOption(str(i)) for i in range(count)]).labels
    assert labels[-1] == last
    assert len(set(labels)) == count
    assert len({len(label) for label in labels}) == 1


def test_confidence_and_mean() -> None:
    assert choice_confidence([0.25] * 4) == 0
    assert choice_confidence([0, 1, 0]) == 1
    assert choice_confidence([0.5, 0.3, 0.2]) == pytest.approx(0.25)
    assert score_confidence([0, 0, 1]) == 1
    assert score_confidence([1 / 3] * 3) == pytest.approx(0)
    assert score_confidence([0.5, 0, 0.5]) == 0  # as far apart as can be: no less than nothing
    assert expected([0.5, 0.25, 0.25]) == 0.75
    assert best([0.4, 0.4, 0.2]) == 0
