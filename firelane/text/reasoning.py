"""Reasoning that a model writes before its answer, between marks: <think> and </think> (DeepSeek R1, Qwen 3
and most others), [THINK] and [/THINK] (Mistral), <seed:think> (Seed-OSS), a channel of its own (Gemma 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from firelane.text.parsers import REASONING_ALIASES
from firelane.text.tokenizer import Tokenizer
from firelane.text.tools.stream_buffer import Parser, Reading, StreamBuffer, begins, skip_space, until
from firelane.wire.frames import Grammar


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningMarks:
    """open, close: around the reasoning. label: what the model writes behind the opening mark. empty: between
    the marks where there is to be no reasoning.
    """

    open: str
    close: str
    label: str = ""
    empty: str = "\n\n"

    @property
    def delimiters(self) -> tuple[str, str]:
        return self.open, self.close

    def begun(self, prompt: str) -> bool:
        """Whether the prompt ends where reasoning has begun."""
        return prompt.rstrip().endswith(f"{self.open}{self.label}".rstrip())

    def ended(self, prompt: str) -> str:
        """The prompt, in which reasoning has begun, without any."""
        return f"{prompt.rstrip()}{self.empty}{self.close}{self.empty}"


THINK = ReasoningMarks(open="<think>", close="</think>")
_MARKS = {
    "think": THINK,
    "mistral": ReasoningMarks(open="[THINK]", close="[/THINK]", empty=""),
    "seed_oss": ReasoningMarks(open="<seed:think>", close="</seed:think>"),
    "gemma4": ReasoningMarks(open="<|channel>", close="<channel|>", label="thought\n", empty=""),
}


def budget_grammar(
    tokens: int, tokenizer: Tokenizer, marks: ReasoningMarks = THINK, *, begun: bool
) -> Grammar | None:
    """A grammar of tokens: any, but at most so many between the marks, whose closing one then has to follow.
    begun: the prompt ends within them. None where a mark is no token by itself.
    """
    opening, closing = tokenizer.id_of(marks.open), tokenizer.id_of(marks.close)
    if closing is None or (opening is None and not begun):
        return None
    start = "thought" if begun else f"<[^{opening}]>* (<[{opening}]> thought)?"
    some = f"<[^{closing}]>{{0,{tokens}}} " if tokens else ""
    return Grammar("lark", f"start: {start}\nthought: {some}<[{closing}]> <[*]>*\n")


def find_marks(name: str, template: str) -> ReasoningMarks | None:
    """name: the value of --reasoning-parser. None also where the reasoning has no such marks."""
    name = REASONING_ALIASES.get(name, name)
    if name != "auto":
        return _MARKS.get(name)
    return next(
        (marks for marks in _MARKS.values() if marks.open in template or marks.close in template), None
    )


def with_reasoning(answer: Parser, marks: ReasoningMarks = THINK, ends: tuple[str, ...] = ()) -> Parser:
    """Reasoning first, unless the text begins otherwise and does not start in it; then `answer`. ends: marks
    of calls, which end reasoning that the model has not closed.
    """

    def parse(buffer: StreamBuffer) -> Reading[None]:
        if not buffer.in_reasoning:
            at = yield from skip_space(buffer, 0)
            if (yield from begins(buffer, at, marks.open)):
                buffer.take(at + len(marks.open))
                buffer.in_reasoning = True
                yield from _skip_label(buffer, marks.label)
        if buffer.in_reasoning:
            yield from _reasoning(buffer, marks.close, ends)
        yield from answer(buffer)

    return parse


def _skip_label(buffer: StreamBuffer, label: str) -> Reading[None]:
    if label and (yield from begins(buffer, 0, label)):
        buffer.take(len(label))


def _reasoning(buffer: StreamBuffer, close: str, ends: tuple[str, ...]) -> Reading[None]:
    at = yield from skip_space(buffer, 0)
    buffer.take(at)
    mark = yield from until(buffer, (close, *ends), buffer.reasoning)
    buffer.in_reasoning = False
    if mark == close:
        buffer.take(len(close))
        at = yield from skip_space(buffer, 0)
        buffer.take(at)
