"""The search for the format of a model's chats: in what its template writes, then in its vocabulary, and last
in the template's own text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from firelane.errors import RequestError
from firelane.text.chat.chat_format import UNKNOWN, ModelChatFormat, Telling
from firelane.text.chat.history_probe import changes, find_shape
from firelane.text.chat.reasoning import MARKS as REASONING_MARKS
from firelane.text.chat.reasoning import THINK, ReasoningMarks
from firelane.text.deltas import CallArguments, CallStart
from firelane.text.history import HistoryShape, Messages
from firelane.text.parsers import REASONING_ALIASES
from firelane.text.rendering.template_probe import (
    ARGUMENTS,
    DEFINITION,
    NO_FACTS,
    QUESTION,
    TOOL,
    Render,
    TemplateFacts,
    TemplateProbe,
)
from firelane.text.rendering.template_process import TemplateRenderer
from firelane.text.tools.families import MARKS, READERS, UNMARKED, marked_families, named_family
from firelane.text.tools.family import Family
from firelane.text.tools.stream_buffer import OutputParser, StreamBuffer
from firelane.text.tools.tool import Tool

PLAIN = "hermes"
"""The format that a template is given which shows neither tools nor calls: the most spread."""
CLOSINGS = tuple(marks.close for marks in REASONING_MARKS.values())
"""Marks that end reasoning."""
DEEPSEEK_ROLE = "<｜Assistant｜>"
_TOOL = Tool(TOOL, None, DEFINITION["function"]["parameters"])
IsToken = Callable[[str], bool]
"""Whether the vocabulary has an added token of this name."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """source: the template's text. facts: what it does. is_token: as IsToken. render: None without a
    template.
    """

    source: str = ""
    facts: TemplateFacts = NO_FACTS
    is_token: IsToken = lambda _: False
    render: Render | None = None

    @property
    def shown(self) -> str:
        """All that the template writes, but not around earlier calls."""
        return "\n".join((self.facts.told, *self.facts.prompts, self.facts.thought))


def gathered(template: TemplateRenderer | None, is_token: IsToken) -> Evidence:
    """The evidence on a model. template: None where it has none."""
    if template is None:
        return Evidence("", NO_FACTS, is_token)
    facts = TemplateProbe(template.trial, template.variables).facts(CLOSINGS)
    return Evidence(template.source, facts, is_token, template.trial)


def find_chat_format(
    evidence: Evidence, tool_parser: str = "auto", reasoning_parser: str = "auto"
) -> ModelChatFormat:
    """tool_parser, reasoning_parser: the options of `serve`."""
    name, reason = _calls(evidence)
    family = None
    if tool_parser == "none":
        reason = "calls are not read, as --tool-parser none asks"
    elif tool_parser != "auto":
        family, reason = (
            named_family(tool_parser, evidence.facts.calls or evidence.source),
            "--tool-parser names it",
        )
    elif name != UNKNOWN:
        family = named_family(name, evidence.facts.calls or evidence.source)
    option = REASONING_ALIASES.get(reasoning_parser, reasoning_parser)
    reader = _reader(family, name, option)
    marks, why = (None, "") if reader and reader.reads_reasoning else _marks(evidence, option)
    found = ModelChatFormat(
        name=family.name if family else "none" if tool_parser == "none" else UNKNOWN,
        family=family,
        reader=reader,
        marks=marks,
        telling=Telling(evidence.facts, family),
        reasons=tuple(
            filter(
                None, (f"tools: {_telling(evidence.facts)}", f"calls: {reason}", why and f"reasoning: {why}")
            )
        ),
    )
    return found if evidence.render is None else _with_shape(found, evidence.render)


def _with_shape(found: ModelChatFormat, render: Render) -> ModelChatFormat:
    """With the shape in which the template takes earlier turns."""

    def write(messages: Messages, tools: Messages, shape: HistoryShape) -> str:
        told, variables = replace(found, shape=shape).history(messages, tools)
        try:
            return render(told, {"add_generation_prompt": True, **variables})
        except RequestError:
            return ""

    shape = find_shape(write)
    return replace(found, shape=shape, reasons=(*found.reasons, *changes(shape)))


def _telling(facts: TemplateFacts) -> str:
    """The way in which the model is told of tools."""
    if facts.tools_variable:
        return f"the template shows them from the variable `{facts.tools_variable}`"
    if facts.tools_in_system:
        return "the template shows them as a part of the system message"
    return "the template shows none: they are told in a message, with an example of a call"


def _calls(evidence: Evidence) -> tuple[str, str]:
    """The name of the format of calls, and how it was found."""
    facts = evidence.facts
    if facts.fails:
        return UNKNOWN, "the template fails on a question alone: it wants what no chat sends"
    if facts.calls:
        names = (*marked_families(facts.calls), *UNMARKED)
        read = {name: num_read(named_family(name, facts.calls), facts) for name in names}
        found = max(read, key=lambda name: read[name])  # the first of the best
        if not read[found]:
            return UNKNOWN, "the template writes calls in a form that no parser here reads"
        return found, "the calls that the template writes are read by it"
    if (found := next(marked_families(evidence.shown), None)) is not None:
        return found, "the template tells the model of its marks"
    if (found := next(_token_families(evidence.is_token), None)) is not None:
        return found, "its marks are tokens of the vocabulary"
    if (found := next(marked_families(evidence.source), None)) is not None:
        return found, "its marks stand in the template's text"
    if facts.shows_tools:
        return UNKNOWN, "the template shows tools, but neither calls nor marks of a known format"
    return (
        PLAIN,
        f"the template shows none: they are written in the most spread form, {PLAIN}",
    )


def num_read(family: Family, facts: TemplateFacts) -> int:
    """The number of the calls that the template writes the family reads; 0 where it reads one wrongly."""
    text = facts.calls
    if family.name in UNMARKED:  # a call is the answer's beginning
        text = text.removeprefix(facts.prompts[0].rpartition(QUESTION)[2])
    calls: list[list[str]] = []
    splitter = OutputParser(StreamBuffer(tools={TOOL: _TOOL}), family.parse)
    for delta in (*splitter.push(text), *splitter.flush()):
        if isinstance(delta, CallStart):
            calls.append([delta.name, ""])
        elif isinstance(delta, CallArguments):
            calls[-1][1] += delta.text
    return len(calls) if all(name == TOOL and _is_asked(said) for name, said in calls) else 0


def _is_asked(arguments: str) -> bool:
    try:
        return json.loads(arguments) == ARGUMENTS
    except ValueError:
        return False


def _token_families(is_token: IsToken) -> Iterator[str]:
    return (name for name, marks in MARKS if all(map(is_token, marks)))


def _reader(family: Family | None, found: str, option: str) -> Family | None:
    """The family whose parser is for every answer. option: the value of --reasoning-parser."""
    if family is not None and family.reads_answers:
        return family
    name = found if option == "auto" else option
    return named_family(name) if name in READERS else None


def _marks(evidence: Evidence, name: str) -> tuple[ReasoningMarks | None, str]:
    """name: the value of --reasoning-parser. The marks around reasoning, and how they were found."""
    if name != "auto":
        return REASONING_MARKS.get(name), "--reasoning-parser names it" if name in REASONING_MARKS else ""
    facts, every = evidence.facts, tuple(REASONING_MARKS.values())
    shown = f"{evidence.shown}\n{facts.calls}"
    for marks in every:
        if marks.open in shown or marks.close in shown:
            return marks, f"the template writes {marks.open} or {marks.close}"
    for marks in every:
        if marks.close == facts.hides and _is_implied(evidence, marks):
            implied = REASONING_MARKS["deepseek_r1"]
            return implied, f"the template leaves out what stands before {marks.close}, and never opens any"
        if marks.close == facts.hides:
            return marks, f"the template leaves out what stands before {marks.close} in earlier answers"
    if not facts.shows_tools and not facts.calls:
        for marks in every:
            if all(map(evidence.is_token, marks.delimiters)):
                return marks, f"{marks.open} and {marks.close} are tokens of the vocabulary"
    for marks in every:
        if marks.open in evidence.source or marks.close in evidence.source:
            return marks, f"{marks.close} stands in the template's text"
    return None, ""


def _is_implied(evidence: Evidence, marks: ReasoningMarks) -> bool:
    """Whether answers begin in reasoning that nothing opens, as DeepSeek R1's older templates have it."""
    return marks == THINK and marks.open not in evidence.source and DEEPSEEK_ROLE in evidence.shown
