"""Reasoning that a model writes before its answer, between marks: <think> and </think> (DeepSeek R1, Qwen 3
and most others), [THINK] and [/THINK] (Mistral), <seed:think> (Seed-OSS), a channel of its own (Gemma 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from firelane.text.tokens.tokenizer import Tokenizer
from firelane.text.tools.call_rules import quoted, symbols
from firelane.text.tools.stream_buffer import (
    OutputParser,
    Parser,
    Reading,
    StreamBuffer,
    begins,
    skip_space,
    until,
)
from firelane.text.tools.unclosed_calls import UnclosedCalls
from firelane.wire.frames import Grammar


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningMarks:
    """open, close: around the reasoning. label: what the model writes behind the opening mark. empty: between
    the marks where there is to be no reasoning. repeated: reasoning may come again within the answer, and a
    mark is never a part of it. implied: every answer begins in reasoning, whether the model opens it or not.
    """

    open: str
    close: str
    label: str = ""
    empty: str = "\n\n"
    repeated: bool = False
    implied: bool = False

    @property
    def delimiters(self) -> tuple[str, str]:
        return self.open, self.close

    def begun(self, prompt: str) -> bool:
        """Whether an answer to the prompt begins in reasoning."""
        return self.implied or prompt.rstrip().endswith(f"{self.open}{self.label}".rstrip())

    def ended(self, prompt: str) -> str:
        """The prompt, behind which reasoning begins, without any."""
        if not prompt.rstrip().endswith(f"{self.open}{self.label}".rstrip()):
            return prompt
        return f"{prompt.rstrip()}{self.empty}{self.close}{self.empty}"


THINK = ReasoningMarks(open="<think>", close="</think>")
MARKS = {
    "think": THINK,
    "deepseek_r1": replace(THINK, implied=True),
    "mistral": ReasoningMarks(open="[THINK]", close="[/THINK]", empty=""),
    "seed_oss": ReasoningMarks(open="<seed:think>", close="</seed:think>"),
    "hy3": ReasoningMarks(open="<think:opensource>", close="</think:opensource>", empty=""),
    "apriel": ReasoningMarks(open="Here are my reasoning steps:", close="[BEGIN FINAL RESPONSE]", empty="\n"),
    "apertus": ReasoningMarks(open="<|inner_prefix|>", close="<|inner_suffix|>", empty=""),
    "cohere": ReasoningMarks(open="<|START_THINKING|>", close="<|END_THINKING|>", empty=""),
    "kimi_k3": ReasoningMarks(open="<|open|>think<|sep|>", close="<|close|>think<|sep|>", empty=""),
    "minimax_m3": ReasoningMarks(open="<mm:think>", close="</mm:think>", empty=""),
    "gemma4": ReasoningMarks(open="<|channel>", close="<channel|>", label="thought", empty="", repeated=True),
}
"""By the name of --reasoning-parser."""


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


def before_answer(
    marks: ReasoningMarks,
    tokenizer: Tokenizer,
    parts: Sequence[str] = (),
    *,
    begun: bool,
    tokens: int | None = None,
    behind: str = "",
) -> str | None:
    """Rules of llguidance's Lark, of which `before` is the reasoning before an answer, white space, and the
    symbols `behind`. begun: the prompt ends within the reasoning; else there may be none. tokens: at most so
    many of it; None is no bound. parts: special tokens that a mark may be made of. None where such a bound
    cannot be held, as the closing mark does not begin with a token."""
    opening, closing = (symbols(mark, (mark, *parts), tokenizer.id_of) for mark in marks.delimiters)
    if not closing.startswith("<["):
        if tokens is not None:
            return None
        thought, rules = "thought", f"thought[suffix={quoted(marks.close)}]: /(?s:.*)/\n"
    elif tokens is None:
        thought, rules = f"thought {closing}", _unmarked(marks.close)
    else:
        thought, rules = _bounded(tokens, closing, tokenizer), ""
    reopened = f"({opening})? " if marks.implied else ""
    whole = f"{reopened}{thought} SPACE" if begun else f"({opening} {thought} SPACE)?"
    return f"before: {whole} {behind}\nSPACE: /[ \\t\\r\\n]{{0,8}}/\n{rules}"


def _unmarked(close: str) -> str:
    """Rules of a thought that never spells its closing mark: whoever reads it would take that for the end."""
    spelled = "".join(f"\\x{{{ord(char):x}}}" for char in close)
    return f"thought: UNMARKED?\nUNMARKED: /(?s:.+)/ & ~MARKED\nMARKED: /(?s:.*{spelled}.*)/\n"


def _bounded(tokens: int, closing: str, tokenizer: Tokenizer) -> str:
    """At most so many tokens, none of them special, and the closing symbols. (llguidance can bound a text's
    tokens, too, but cannot take back what was read of it, as drafts need. All tokens but some would be the
    end of the text, too: so those that may come are named.)"""
    if not tokens:
        return closing
    marks = {int(closing[2 : closing.index("]")]), *tokenizer.special_ids}
    bounds = [-1, *sorted(marks), tokenizer.num_ids]
    between = (f"{a + 1}-{b - 1}" for a, b in pairwise(bounds) if b - a > 1)
    return f"<[{','.join(between)}]>{{0,{tokens}}} {closing}"


def with_reasoning(answer: Parser, marks: ReasoningMarks = THINK, calls: tuple[str, ...] = ()) -> Parser:
    """Reasoning first, unless the text begins otherwise and does not start in it; then `answer`. calls: marks
    that calls begin with, which the model may write without closing its reasoning.
    """

    def parse(buffer: StreamBuffer) -> Reading[None]:
        at = yield from skip_space(buffer, 0)
        opens = marks.implied or not buffer.in_reasoning
        if opens and (yield from begins(buffer, at, marks.open)):
            buffer.take(at + len(marks.open))
            buffer.in_reasoning = True
            yield from _skip_label(buffer, marks)
        if buffer.in_reasoning:
            yield from _reasoning(buffer, answer, marks.close, calls)
        elif (yield from begins(buffer, at, marks.close)):  # it was not open
            yield from _after(buffer, at + len(marks.close))
        yield from (_repeated(buffer, answer, marks) if marks.repeated else answer(buffer))

    return parse


def _skip_label(buffer: StreamBuffer, marks: ReasoningMarks) -> Reading[None]:
    """The label, and further opening marks before it."""
    while marks.repeated and (yield from begins(buffer, 0, marks.open)):
        buffer.take(len(marks.open))
    if marks.label and (yield from begins(buffer, 0, marks.label)):
        buffer.take(len(marks.label))


def _after(buffer: StreamBuffer, size: int) -> Reading[None]:
    """Take so much, and the white space behind it."""
    at = yield from skip_space(buffer, size)
    buffer.take(at)


def _reasoning(buffer: StreamBuffer, answer: Parser, close: str, calls: tuple[str, ...]) -> Reading[None]:
    """Reasoning up to its closing mark, which is taken, or up to the call that ends it."""
    yield from _after(buffer, 0)
    last = "\n"

    def give(text: str) -> None:
        nonlocal last
        last = text[-1:] or last
        buffer.reasoning(text)

    while mark := (yield from until(buffer, (close, *calls), give)):
        if mark == close:
            buffer.in_reasoning = False  # now: white space behind it is none, however long it takes to come
            yield from _after(buffer, len(close))
            break
        if (yield from UnclosedCalls(buffer, answer, close, own_line=last == "\n").read(mark, give)):
            break
    buffer.in_reasoning = False


def _repeated(buffer: StreamBuffer, answer: Parser, marks: ReasoningMarks) -> Reading[None]:
    """The answer, out of which reasoning and stray marks are taken."""
    inner = OutputParser(buffer.fork(), answer)

    def give(text: str) -> None:
        buffer.out += inner.push(text)
        buffer.done = inner.done

    while mark := (yield from until(buffer, marks.delimiters, give)):
        buffer.take(len(mark))
        if mark == marks.open:
            yield from _skip_label(buffer, marks)
            yield from _after(buffer, 0)
            buffer.in_reasoning = True
            closing = yield from until(buffer, (marks.close,), buffer.reasoning)
            buffer.take(len(closing))
            buffer.in_reasoning = False
    buffer.out += inner.flush()
