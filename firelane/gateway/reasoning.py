"""Reasoning that a model writes before its answer, between <think> and </think> (DeepSeek R1, Qwen 3)."""

from __future__ import annotations

from firelane.gateway.tools.tape import Parser, Reading, Tape, begins, skip_space, until

OPEN = "<think>"
CLOSE = "</think>"


def thinks(name: str, template: str) -> bool:
    """name: the value of --reasoning-parser."""
    return name == "think" or (name == "auto" and (OPEN in template or CLOSE in template))


def begins_thinking(prompt: str) -> bool:
    """Whether the prompt ends where reasoning has begun."""
    return prompt.rstrip().endswith(OPEN)


def with_reasoning(answer: Parser) -> Parser:
    """Reasoning first, unless the text begins otherwise and the tape does not start in it; then `answer`."""

    def parse(tape: Tape) -> Reading[None]:
        if not tape.thinking:
            at = yield from skip_space(tape, 0)
            if (yield from begins(tape, at, OPEN)):
                tape.take(at + len(OPEN))
                tape.thinking = True
        if tape.thinking:
            yield from _reasoning(tape)
        yield from answer(tape)

    return parse


def _reasoning(tape: Tape) -> Reading[None]:
    at = yield from skip_space(tape, 0)
    tape.take(at)
    mark = yield from until(tape, (CLOSE,), tape.reasoning)
    tape.thinking = False
    if mark:
        tape.take(len(CLOSE))
        at = yield from skip_space(tape, 0)
        tape.take(at)
