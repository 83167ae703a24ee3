"""Reasoning that a model writes before its answer, between <think> and </think> (DeepSeek R1, Qwen 3)."""

from __future__ import annotations

from firelane.text.tokenizer import Tokenizer
from firelane.text.tools.stream_buffer import Parser, Reading, StreamBuffer, begins, skip_space, until
from firelane.wire.frames import Grammar

OPEN = "<think>"
CLOSE = "</think>"


def budget_grammar(tokens: int, tokenizer: Tokenizer, *, begun: bool) -> Grammar | None:
    """A grammar of tokens: any, but at most so many between the marks, whose closing one then has to follow.
    begun: the prompt ends within them. None where a mark is no token by itself.
    """
    opening, closing = tokenizer.id_of(OPEN), tokenizer.id_of(CLOSE)
    if closing is None or (opening is None and not begun):
        return None
    start = "thought" if begun else f"<[^{opening}]>* (<[{opening}]> thought)?"
    some = f"<[^{closing}]>{{0,{tokens}}} " if tokens else ""
    return Grammar("lark", f"start: {start}\nthought: {some}<[{closing}]> <[*]>*\n")


def thinks(name: str, template: str) -> bool:
    """name: the value of --reasoning-parser."""
    return name == "think" or (name == "auto" and (OPEN in template or CLOSE in template))


def begins_thinking(prompt: str) -> bool:
    """Whether the prompt ends where reasoning has begun."""
    return prompt.rstrip().endswith(OPEN)


def with_reasoning(answer: Parser) -> Parser:
    """Reasoning first, unless the text begins otherwise and does not start in it; then `answer`."""

    def parse(buffer: StreamBuffer) -> Reading[None]:
        if not buffer.in_reasoning:
            at = yield from skip_space(buffer, 0)
            if (yield from begins(buffer, at, OPEN)):
                buffer.take(at + len(OPEN))
                buffer.in_reasoning = True
        if buffer.in_reasoning:
            yield from _reasoning(buffer)
        yield from answer(buffer)

    return parse


def _reasoning(buffer: StreamBuffer) -> Reading[None]:
    at = yield from skip_space(buffer, 0)
    buffer.take(at)
    mark = yield from until(buffer, (CLOSE,), buffer.reasoning)
    buffer.in_reasoning = False
    if mark:
        buffer.take(len(CLOSE))
        at = yield from skip_space(buffer, 0)
        buffer.take(at)
