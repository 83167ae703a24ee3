"""Typed questions in a model's words, and the labels of which it is to answer with one."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from firelane.errors import RequestError

Words = str | dict[str, Any] | list[Any]
"""A text, or JSON that is shown as such."""
MAX_CHOICES = 255
MAX_LEVELS = 10
YES, NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class AnswerOption:
    """An answer that a question allows. name: as the client calls it. description: "" where it has none."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A checked question. field: its place in the request, for errors. text: what the model reads. labels:
    the texts of which the answer is one, in the order of the options."""

    field: str
    text: str
    labels: tuple[str, ...]


def shown(words: Words) -> str:
    """The text of a state or an instruction; what is no text as JSON."""
    if isinstance(words, str):
        return words
    return json.dumps(words, ensure_ascii=False, separators=(",", ":"))


def yes_or_no(field: str, instructions: str, yes: str, no: str) -> Question:
    """A proposition that holds or not. yes, no: when each is right; "" where nobody says."""
    lines = [f"{label}: {text}" for label, text in ((YES, yes), (NO, no)) if text]
    return _question(field, instructions, lines, "yes or no", (YES, NO))


def one_of(field: str, instructions: str, options: Sequence[AnswerOption]) -> Question:
    """One of several options, each with a letter, or two letters where there are more than 26."""
    _check_options(field, options, MAX_CHOICES)
    labels = tuple(_letters(len(options)))
    return _question(field, instructions, _lines(labels, options), "the letter of one option", labels)


def one_level(field: str, instructions: str, levels: Sequence[AnswerOption]) -> Question:
    """A level of an ordered scale, each with a digit."""
    _check_options(field, levels, MAX_LEVELS)
    labels = tuple(string.digits[: len(levels)])
    return _question(field, instructions, _lines(labels, levels), "the digit of one level", labels)


def _question(
    field: str, instructions: str, lines: Sequence[str], form: str, labels: tuple[str, ...]
) -> Question:
    text = "\n".join([f"Question: {instructions}", *lines, f"Answer with {form} only."])
    return Question(field, text, labels)


def _lines(labels: Sequence[str], options: Sequence[AnswerOption]) -> list[str]:
    return [
        f"{label}: {option.name} - {option.description}" if option.description else f"{label}: {option.name}"
        for label, option in zip(labels, options, strict=True)
    ]


def _letters(count: int) -> Iterator[str]:
    """All of the same length, so that none is the start of another one."""
    letters = string.ascii_uppercase
    if count <= len(letters):
        yield from letters[:count]
        return
    for i in range(count):
        yield letters[i // len(letters)] + letters[i % len(letters)]


def _check_options(field: str, options: Sequence[AnswerOption], most: int) -> None:
    """Raises RequestError."""
    if not 2 <= len(options) <= most:
        raise RequestError(f"`{field}` has {len(options)} options: 2 to {most} are taken", param=field)
    seen = set[str]()
    for option in options:
        if not option.name.strip():
            raise RequestError(f"`{field}` has an option without a name: give each one", param=field)
        if option.name in seen:
            raise RequestError(
                f"`{field}` has the option {option.name[:80]!r} twice: give each another name", param=field
            )
        seen.add(option.name)


def choice_confidence(probabilities: Sequence[float]) -> float:
    """From 0, where all options are equal, to 1: (n max - 1) / (n - 1), as SGLang has it."""
    count = len(probabilities)
    return max(0.0, (count * max(probabilities) - 1) / (count - 1))


def score_confidence(probabilities: Sequence[float]) -> float:
    """1 where all lies on the likeliest level, 0 where it lies as far from it as if all were equal: 1 minus
    the mean distance from that level, over the same of equal probabilities; as SGLang has it."""
    top = best(probabilities)
    distances = [abs(i - top) for i in range(len(probabilities))]
    mean = sum(p * d for p, d in zip(probabilities, distances, strict=True))
    return max(0.0, 1 - mean * len(distances) / sum(distances))


def best(probabilities: Sequence[float]) -> int:
    """The index of the largest; of equal ones the first."""
    return max(range(len(probabilities)), key=lambda i: (probabilities[i], -i))


def expected(probabilities: Sequence[float]) -> float:
    """The mean level."""
    return sum(i * p for i, p in enumerate(probabilities))
