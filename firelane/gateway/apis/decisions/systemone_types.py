"""POST /v1/systemone: typed questions about one state, and their answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from firelane.api.sampling import RunOptions, unsupported
from firelane.errors import RequestError
from firelane.gateway.apis.decisions import questions as asked
from firelane.gateway.apis.decisions.labels import Answer
from firelane.gateway.apis.decisions.questions import AnswerOption, Question, Words, shown

SYSTEMONE_HINTS = ("metadata", "user")
MAX_QUESTIONS = 64
MAX_ID = 100
KINDS = ("noul", "choice", "score")
_ID = re.compile(r"[A-Za-z0-9_.-]+")


class SystemOneQuestion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """criteria: of noul when `true` and when `false` is right, which may be left out; of choice the options,
    each with a description or null; of score the levels, lowest first."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]
    instructions: Words = ""
    criteria: dict[str, str | None] | list[str] | None = None

    def options(self, field: str) -> list[AnswerOption]:
        """The options of choice and score. Raises RequestError."""
        criteria = self.criteria
        if self.type == "score":
            if not isinstance(criteria, list):
                raise RequestError(f"`{field}.criteria` of a score is a list of levels", param=field)
            return [AnswerOption(level) for level in criteria]
        if not isinstance(criteria, dict):
            raise RequestError(
                f"`{field}.criteria` of a choice is an object of options, each with a description or null",
                param=field,
            )
        return [AnswerOption(name, text or "") for name, text in criteria.items()]

    def question(self, name: str) -> Question:
        """Raises RequestError."""
        field = f"questions.{name}"
        words = shown(self.instructions) or name
        if self.type == "noul":
            return asked.yes_or_no(field, words, *self._noul_criteria(field))
        if self.type == "choice":
            return asked.one_of(f"{field}.criteria", words, self.options(field))
        if self.type == "score":
            return asked.one_level(f"{field}.criteria", words, self.options(field))
        raise RequestError(
            f"`{field}.type` is {self.type[:80]!r}: use one of {', '.join(KINDS)}", param=f"{field}.type"
        )

    def _noul_criteria(self, field: str) -> tuple[str, str]:
        given = self.criteria or {}
        if not isinstance(given, dict) or given.keys() - {"true", "false"}:
            raise RequestError(
                f"`{field}.criteria` of a noul is an object of `true` and `false`: when each is right",
                param=f"{field}.criteria",
            )
        return given.get("true") or "", given.get("false") or ""


class SystemOneRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """state: a text, or JSON. questions: by id. images: refused where there are any."""

    state: Words
    questions: dict[str, SystemOneQuestion]
    model: str | None = None
    options: RunOptions | None = None
    images: list[Any] | None = None

    # Hints: see SYSTEMONE_HINTS.
    metadata: Any = None
    user: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if self.images:
            raise unsupported("images")
        if not self.state:
            raise RequestError("`state` is empty: give what the questions are about", param="state")
        if not 1 <= len(self.questions) <= MAX_QUESTIONS:
            raise RequestError(
                f"`questions` has {len(self.questions)}: 1 to {MAX_QUESTIONS} are taken", param="questions"
            )
        for name in self.questions:
            if len(name) > MAX_ID or not _ID.fullmatch(name):
                raise RequestError(
                    f"the id {name[:MAX_ID]!r} of a question: use 1 to {MAX_ID} letters, digits, `_`, `.` "
                    "and `-`",
                    param="questions",
                )

    def asked(self) -> list[Question]:
        """Raises RequestError."""
        return [question.question(name) for name, question in self.questions.items()]


class NoulAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="noul"):
    """noul: the probability of yes. label_mass: as in ChoiceAnswer."""

    noul: float
    label_mass: float


class ChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """choice: the likeliest option. label_mass: the probability that the model answers with one of the labels
    at all."""

    choice: str
    probabilities: dict[str, float]
    confidence: float
    label_mass: float


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """score: the mean of the levels' numbers, which are the keys of legend and probabilities."""

    score: float
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float
    label_mass: float


class DecisionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """input_tokens: the state and each question, once."""

    input_tokens: int
    output_tokens: int = 0


class SystemOneResponse(msgspec.Struct, frozen=True, kw_only=True):
    """answers: by the ids of the questions."""

    model: str
    answers: dict[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage


def answer_to(question: SystemOneQuestion, answer: Answer) -> NoulAnswer | ChoiceAnswer | ScoreAnswer:
    """The answer to a checked question."""
    odds, mass = answer.probabilities, answer.label_mass
    if question.type == "noul":
        return NoulAnswer(noul=odds[0], label_mass=mass)
    if question.type == "choice":
        names = list(cast(dict[str, str | None], question.criteria))
        return ChoiceAnswer(
            choice=names[asked.best(odds)],
            probabilities=dict(zip(names, odds, strict=True)),
            confidence=asked.choice_confidence(odds),
            label_mass=mass,
        )
    numbers = [str(i) for i in range(len(odds))]
    return ScoreAnswer(
        score=asked.expected(odds),
        legend=dict(zip(numbers, cast(list[str], question.criteria), strict=True)),
        probabilities=dict(zip(numbers, odds, strict=True)),
        confidence=asked.score_confidence(odds),
        label_mass=mass,
    )
