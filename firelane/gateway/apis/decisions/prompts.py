"""Prompts of questions over one state: the state comes first, so that all share its pages of the KV cache."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from firelane.api.chat import ChatRequest, Message
from firelane.errors import ContextLengthError, RequestError
from firelane.gateway.apis.decisions.labels import Ids, Read, check_apart, reads_of
from firelane.gateway.apis.decisions.questions import Question
from firelane.text.chat.assistant import Assistant
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import TextRoom, pack_ids


@dataclass(frozen=True, slots=True)
class QuestionPrompt:
    """A question, tokenised. tail: packed ids behind the state's. labels: tokens of each label."""

    field: str
    tail: bytes
    labels: tuple[Ids, ...]

    def reads(self) -> list[Read]:
        return reads_of(self.labels)


@dataclass(frozen=True, slots=True)
class DecisionPrompts:
    """The prompts of a request. head: packed ids that all begin with, those of the state."""

    head: bytes
    questions: list[QuestionPrompt]

    def of(self, question: QuestionPrompt, read: Read) -> bytes:
        return self.head + question.tail + pack_ids(read.behind)

    @property
    def tokens(self) -> int:
        """Tokens of the state and of each question, once."""
        return (len(self.head) + sum(len(one.tail) for one in self.questions)) // 4


@dataclass(frozen=True, slots=True)
class _Frame:
    """The text around a question. special: the tokenizer adds its own special tokens before the head.
    before_label: what stands between the prompt and a label."""

    head: str
    tail: str
    special: bool
    before_label: str


async def decision_prompts(
    assistant: Assistant, builder: PromptBuilder, state: str, questions: Sequence[Question], room: TextRoom
) -> DecisionPrompts:
    """State and questions are tokenised apart: the state's tokens do not depend on what is asked. Raises
    ContextLengthError and RequestError."""
    if builder.template is None:
        frame = _Frame(state, "\nAnswer:", special=True, before_label=" ")
    else:
        frame = await _chat_frame(assistant, state, questions[0].labels, room)
    (head,) = await builder.encoder.encode([frame.head], room, special=frame.special)
    tails = await builder.encoder.encode(
        ["\n\n" + one.text + frame.tail for one in questions], room, special=False
    )
    prompts = [
        QuestionPrompt(one.field, tail, _label_ids(builder, one, frame))
        for one, tail in zip(questions, tails, strict=True)
    ]
    _check_lengths(len(head) // 4, prompts, room)
    return DecisionPrompts(head, prompts)


async def _chat_frame(assistant: Assistant, state: str, labels: Sequence[str], room: TextRoom) -> _Frame:
    """The conversation of one message, the state and a mark for the question, rendered once. The answer is
    held to labels, as one of structured outputs: so it begins at once, without reasoning."""
    mark = secrets.token_hex(16)
    message = Message(role="user", content=f"{state}{mark}")
    request = ChatRequest(messages=[message], guided_choice=list(labels), reasoning_effort="none")
    chat = await assistant.chat(request, room)
    head, *tails = chat.text.split(mark)
    if len(tails) != 1:
        raise RequestError("this model's chat template does not show a user's message once", param="state")
    return _Frame(head, tails[0], special=chat.special, before_label="")


def _label_ids(builder: PromptBuilder, question: Question, frame: _Frame) -> tuple[Ids, ...]:
    """Raises RequestError."""
    encode = builder.tokenizer.encode
    labels = tuple(
        tuple(encode(frame.before_label + label, add_special_tokens=False)) for label in question.labels
    )
    check_apart(question.field, question.labels, labels)
    return labels


def _check_lengths(head: int, questions: Sequence[QuestionPrompt], room: TextRoom) -> None:
    """Raises ContextLengthError. A token has to be left for the answer."""
    for one in questions:
        tokens = head + len(one.tail) // 4 + max(map(len, one.labels))
        if tokens > room.max_tokens:
            raise ContextLengthError(
                f"This model's maximum context length is {room.max_tokens} tokens. However, the state has "
                f"{head} tokens and `{one.field}` {tokens - head}. Please reduce the length of the state.",
                param=room.part,
            )
