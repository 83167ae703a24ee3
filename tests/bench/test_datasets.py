"""Data sets: lengths and prompts as vLLM defines them, and files that are none."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from firelane.bench.datasets import RandomLengths, random_requests, sharegpt_requests
from firelane.errors import UsageError


def words(text: str) -> int:
    return len(text.split())


def write_sharegpt(path: Path, lengths: list[tuple[int, int]]) -> Path:
    """Conversations in the manner of ShareGPT, of these many words each turn."""
    rng = random.Random(7)

    def text(count: int) -> str:
        return " ".join(rng.choice(("how", "why", "the", "fire", "lane")) for _ in range(count))

    entries: list[dict[str, Any]] = [
        {
            "id": f"c{i}",
            "conversations": [
                {"from": "human", "value": text(prompt)},
                {"from": "gpt", "value": text(answer)},
                {"from": "human", "value": "thanks"},
            ],
        }
        for i, (prompt, answer) in enumerate(lengths)
    ]
    entries += [{"id": "short", "conversations": [{"from": "human", "value": text(9)}]}, {"id": "none"}]
    path.write_text(json.dumps(entries))
    return path


def test_random_lengths_fill_their_range() -> None:
    lengths = RandomLengths(input_len=10, output_len=5, range_ratio=0.5, prefix_len=3)
    requests = random_requests(500, lengths, seed=0, vocab_size=400)
    assert {len(r.prompt) - 3 for r in requests} == set(range(5, 16))
    assert {r.output_tokens for r in requests} == set(range(2, 9))
    assert len({tuple(r.prompt[:3]) for r in requests}) == 1
    assert len({tuple(r.prompt) for r in requests}) > 300
    assert all(100 <= int(i) < 400 for r in requests for i in r.prompt)


def test_without_a_range_all_are_as_long_and_ids_follow_each_other() -> None:
    first, *_ = random_requests(2, RandomLengths(input_len=50, output_len=4), seed=1, vocab_size=150)
    ids = [int(i) for i in first.prompt]
    assert (len(ids), first.output_tokens) == (50, 4)
    assert [(b - a) % 150 for a, b in itertools.pairwise(ids)] == [1] * 49


def test_same_seed_same_requests() -> None:
    lengths = RandomLengths(range_ratio=0.3)
    assert random_requests(3, lengths, seed=5, vocab_size=400) == random_requests(
        3, lengths, seed=5, vocab_size=400
    )


@pytest.mark.parametrize("fields", [{"range_ratio": 1.0}, {"range_ratio": -0.1}, {"input_len": 0}])
def test_lengths_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--random-"):
        RandomLengths(**fields)
    assert RandomLengths(input_len=0, prefix_len=1)


def test_first_turns_become_prompts_and_second_ones_lengths(tmp_path: Path) -> None:
    lengths = [(5, 7), (3, 50), (50, 3), (1025, 5), (1000, 1100), (8, 9), (4, 4)]
    path = write_sharegpt(tmp_path / "share.json", lengths)
    requests = sharegpt_requests(path, 3, seed=0, count_tokens=words)
    assert sorted((words(str(r.prompt)), r.output_tokens) for r in requests) == [(4, 4), (5, 7), (8, 9)]
    assert requests == sharegpt_requests(path, 3, seed=0, count_tokens=words)


def test_an_output_length_of_ones_own(tmp_path: Path) -> None:
    path = write_sharegpt(tmp_path / "share.json", [(5, 2)])
    (request,) = sharegpt_requests(path, 1, seed=0, count_tokens=words, output_len=2)
    assert request.output_tokens == 2


def test_too_few_conversations_are_drawn_again(tmp_path: Path) -> None:
    path = write_sharegpt(tmp_path / "share.json", [(5, 7), (8, 9)])
    requests = sharegpt_requests(path, 20, seed=0, count_tokens=words)
    assert len(requests) == 20
    assert {r.output_tokens for r in requests} == {7, 9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no ShareGPT file"),
        ('{"conversations": []}', "is no ShareGPT file"),
        ('[{"conversations": [{}, {}]}]', "is no ShareGPT file"),
        ("[1]", "is no ShareGPT file"),
        ("[]", "no conversation has a prompt of 4 to 1024 tokens"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        sharegpt_requests(path, 1, seed=0, count_tokens=words)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--dataset-path .*No such file"):
        sharegpt_requests(tmp_path / "none.json", 1, seed=0, count_tokens=words)
