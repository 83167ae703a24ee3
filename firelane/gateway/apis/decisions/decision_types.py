"""POST /v1/decisions: typed questions about one input, and their answers, in OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from firelane.api.chat import Message
from firelane.api.sampling import RunOptions
from firelane.errors import RequestError
from firelane.gateway.apis.decisions import questions as asked
from firelane.gateway.apis.decisions.labels import Answer
from firelane.gateway.apis.decisions.questions import AnswerOption, Question

DECISION_HINTS = ("metadata", "safety_identifier", "service_tier", "store", "user")
MAX_DECISIONS = 200
DECISION_KINDS = ("predicate", "choice", "score")


class DecisionChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    value: str
    description: str | None = None


class DecisionLevel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    label: str
    description: str | None = None


class DecisionQuestion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """choices: of a choice; levels: of a score, lowest first. name: comes back with the answer."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(DECISION_KINDS)})]
    instructions: Annotated[str, Meta(min_length=1)]
    choices: list[DecisionChoice] | None = None
    levels: list[DecisionLevel] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None

    def question(self, index: int) -> Question:
        """Raises RequestError."""
        field = f"questions[{index}]"
        self._check_lists(field)
        if self.type == "predicate":
            return asked.yes_or_no(field, self.instructions, "", "")
        if self.type == "choice":
            choices = [AnswerOption(one.value, one.description or "") for one in self.choices or ()]
            return asked.one_of(f"{field}.choices", self.instructions, choices)
        if self.type == "score":
            levels = [AnswerOption(one.label, one.description or "") for one in self.levels or ()]
            return asked.one_level(f"{field}.levels", self.instructions, levels)
        raise RequestError(
            f"`{field}.type` is {self.type[:80]!r}: use one of {', '.join(DECISION_KINDS)}",
            param=f"{field}.type",
        )

    def _check_lists(self, field: str) -> None:
        for name, kind, given in (("choices", "choice", self.choices), ("levels", "score", self.levels)):
            if given is not None and self.type != kind and self.type in DECISION_KINDS:
                raise RequestError(
                    f"`{field}` is a {self.type}, and only a {kind} has `{name}`: leave them out",
                    param=f"{field}.{name}",
                )


class DecisionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """input: a text, or a conversation."""

    input: str | Annotated[list[Message], Meta(max_length=65536)]
    questions: list[DecisionQuestion]
    model: str | None = None
    options: RunOptions | None = None

    # Hints: see DECISION_HINTS.
    metadata: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if not self.input:
            raise RequestError("`input` is empty: give what the questions are about", param="input")
        if not 1 <= len(self.questions) <= MAX_DECISIONS:
            raise RequestError(
                f"`questions` has {len(self.questions)}: 1 to {MAX_DECISIONS} are taken", param="questions"
            )

    def state(self) -> str:
        """The input as one text: of a conversation each message behind its role."""
        if isinstance(self.input, str):
            return self.input
        texts = [f"{one.role}: {one.text(f'input[{i}]')}" for i, one in enumerate(self.input)]
        return "\n\n".join(texts)

    def asked(self) -> list[Question]:
        """Raises RequestError."""
        return [question.question(index) for index, question in enumerate(self.questions)]


class PredicateDecision(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    """probability: that it holds."""

    name: str | UnsetType = UNSET
    probability: float


class ChoiceProbability(msgspec.Struct, frozen=True, kw_only=True):
    value: str
    probability: float


class ChoiceDecision(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """choice: the value of the likeliest one."""

    name: str | UnsetType = UNSET
    choice: str
    probabilities: list[ChoiceProbability]
    confidence: float


class LevelProbability(msgspec.Struct, frozen=True, kw_only=True):
    """value: the level's number, from 0."""

    value: int
    label: str
    probability: float


class ScoreDecision(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """score: the mean of the levels' numbers."""

    name: str | UnsetType = UNSET
    score: float
    probabilities: list[LevelProbability]
    confidence: float


class TotalDecisionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """input_tokens: the input and each question, once."""

    input_tokens: int
    output_tokens: int = 0
    total_tokens: int


class DecisionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """answers: in the order of the questions."""

    id: str
    object: Literal["decision"] = "decision"
    created: int
    model: str
    answers: list[PredicateDecision | ChoiceDecision | ScoreDecision]
    usage: TotalDecisionUsage


def decision_on(
    question: DecisionQuestion, answer: Answer
) -> PredicateDecision | ChoiceDecision | ScoreDecision:
    """The answer to a checked question."""
    odds, name = answer.probabilities, question.name or UNSET
    if question.type == "predicate":
        return PredicateDecision(name=name, probability=odds[0])
    if question.choices is not None:
        values = [one.value for one in question.choices]
        return ChoiceDecision(
            name=name,
            choice=values[asked.best(odds)],
            probabilities=[
                ChoiceProbability(value=v, probability=p) for v, p in zip(values, odds, strict=True)
            ],
            confidence=asked.choice_confidence(odds),
        )
    labels = [one.label for one in question.levels or ()]
    return ScoreDecision(
        name=name,
        score=asked.expected(odds),
        probabilities=[
            LevelProbability(value=i, label=label, probability=p)
            for i, (label, p) in enumerate(zip(labels, odds, strict=True))
        ],
        confidence=asked.score_confidence(odds),
    )
