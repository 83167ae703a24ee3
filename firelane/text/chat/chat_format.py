"""The format in which one model writes: how it is told of tools, how its calls and its reasoning are read and
forced, and how earlier turns are shown to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from firelane.errors import RequestError
from firelane.text.chat.conversation import ChatInput
from firelane.text.chat.reasoning import (
    ReasoningMarks,
    before_answer,
    budget_grammar,
    with_reasoning,
)
from firelane.text.history import AS_SENT, HistoryShape, arranged, joined
from firelane.text.rendering.template_probe import Messages, TemplateFacts, in_parts
from firelane.text.rendering.tool_gaps import filled
from firelane.text.schemas.constraints import single_line
from firelane.text.tokens.tokenizer import Tokenizer
from firelane.text.tools.cut_arguments import as_object
from firelane.text.tools.family import Called, Family
from firelane.text.tools.stream_buffer import Parser, all_content, content_without
from firelane.text.tools.tool import Tool
from firelane.wire.frames import Grammar

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChatFormat:
    """name: of --tool-parser, "none" where calls are not to be read, UNKNOWN where nobody knows how this
    model writes calls. family: writes, reads and forces calls; None where calls are not read. reader: reads
    every answer, those without calls, too. marks: around reasoning, None where it has none, or
    `reader` reads it. telling: how
    tools and earlier calls are shown. shape: where the template takes earlier turns. reasons: how this was
    found, one sentence each.
    """

    name: str
    telling: Telling
    family: Family | None = None
    reader: Family | None = None
    marks: ReasoningMarks | None = None
    shape: HistoryShape = AS_SENT
    reasons: tuple[str, ...] = ()

    @property
    def thinks(self) -> bool:
        """Whether reasoning is told from content."""
        return self.marks is not None or (self.reader is not None and self.reader.reads_reasoning)

    @property
    def stops(self) -> tuple[str, ...]:
        """Special tokens that end an answer."""
        shaper = self.reader or self.family
        return shaper.stops if shaper else ()

    @property
    def abilities(self) -> list[str]:
        """Capabilities beside answering: "tools", "thinking"."""
        tools = self.family is not None and self.telling.facts.shows_tools
        return [*(["tools"] if tools else []), *(["thinking"] if self.thinks else [])]

    def history(self, messages: Messages, tools: list[dict[str, Any]]) -> tuple[Messages, dict[str, Any]]:
        """Messages and variables for the template, tools among them."""
        shaper = self.reader or self.family
        messages = arranged(messages, self.shape)
        told, variables = self.telling.told(shaper.history(messages) if shaper else messages, tools)
        told = joined(told, self.shape)
        return (in_parts(told) if self.telling.facts.parts else told), variables

    @property
    def line(self) -> str:
        """One line that names the format for whoever starts the server."""
        facts = self.telling.facts
        words = [] if self.family is None else ["tools" if facts.shows_tools else "tools told in a message"]
        words += ["reasoning"] if self.thinks else []
        text = f"{self.name} ({', '.join(words)})" if words else self.name
        if self.name != UNKNOWN:
            return text
        return f"{text}: calls of tools will not be read; name their format with --tool-parser"


Message = dict[str, Any]
_EXAMPLE: Called = ("NAME", {"ARGUMENT": "VALUE"})
_INSTRUCTIONS = """You may call these functions, each given by a JSON schema:
{tools}
To call one, answer with its name and its arguments in this form, and nothing else:
{example}"""


@dataclass(frozen=True, slots=True)
class Telling:
    """The way in which a model is told of tools, and in which calls and results of earlier turns are shown.
    family: the way in which calls are written where the template has none of its own; None: as JSON."""

    facts: TemplateFacts
    family: Family | None

    def told(self, messages: Messages, tools: list[dict[str, Any]]) -> tuple[Messages, dict[str, Any]]:
        """Messages and variables for the template, which tell of these tools."""
        facts = self.facts
        messages = [self._shown(message) for message in messages]
        if not tools:
            return messages, self._no_tools
        if facts.tools_variable:
            return messages, {facts.tools_variable: [filled(tool, facts.gaps) for tool in tools]}
        if facts.tools_in_system:
            return _with_system_tools(messages, tools), self._no_tools
        return self._instructed(messages, tools), self._no_tools

    @property
    def _no_tools(self) -> dict[str, Any]:
        """The variables that say that there are no tools: `tools` is None, as transformers has it, unless the
        template fails on that.
        """
        return {"tools": None} if self.facts.takes_none else {}

    def _shown(self, message: Message) -> Message:
        if message["role"] == "tool" and not self._takes_results:
            return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if not message.get("tool_calls"):
            return message
        if not self.facts.calls:
            return self._in_plain_words(message)
        return _with_arguments(message | {"content": message["content"] or self.facts.blank}, self._arguments)

    def _arguments(self, given: dict[str, Any] | str) -> dict[str, Any] | str:
        """The arguments of a call in the form that the template takes."""
        if isinstance(given, str):
            given = given if self.facts.takes_texts else as_object(given)
        if isinstance(given, str) or self.facts.takes_objects:
            return given
        return json.dumps(given, ensure_ascii=False)

    @property
    def _takes_results(self) -> bool:
        facts = self.facts
        return bool(facts.calls) or (facts.shows_tools and facts.takes_results)

    def _in_plain_words(self, message: Message) -> Message:
        """The calls as text of the message."""
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [(function["name"], as_object(function["arguments"])) for function in functions]
        parts = [message["content"], _written(self.family, calls)]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        return kept | {"content": "\n".join(filter(None, parts))}

    def _instructed(self, messages: Messages, tools: list[dict[str, Any]]) -> Messages:
        """With the tools in the system message, or before a user's first text where there may be none."""
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=listed, example=_written(self.family, [_EXAMPLE]))
        if messages and messages[0]["role"] == "system":
            return [_after(messages[0], text), *messages[1:]]
        if self.facts.takes_system:
            return [{"role": "system", "content": text}, *messages]
        first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
        if first is None:
            return [{"role": "user", "content": text}, *messages]
        asked = messages[first] | {"content": f"{text}\n\n{messages[first]['content']}"}
        return [*messages[:first], asked, *messages[first + 1 :]]


def _written(family: Family | None, calls: list[Called]) -> str:
    if family is None:
        return "\n".join(json.dumps({"name": name, "arguments": said}) for name, said in calls)
    return family.written(calls)


def _after(message: Message, text: str) -> Message:
    return message | {"content": f"{message['content']}\n\n{text}" if message["content"] else text}


def _with_arguments(message: Message, form: Callable[[Any], Any]) -> Message:
    """With the arguments of its calls put into another form."""
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        arguments = form(call["function"]["arguments"])
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return message | {"tool_calls": calls}


def _with_system_tools(messages: Messages, tools: list[dict[str, Any]]) -> Messages:
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": listed}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": listed}, *messages]


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """grammar: what the answer must match. holds_all: it leaves no room for reasoning. thinks_first: it holds
    behind the reasoning. has_calls: it may be calls.
    """

    grammar: Grammar | None = None
    holds_all: bool = False
    has_calls: bool = False
    thinks_first: bool = False

    @property
    def is_content(self) -> bool:
        """The answer is content alone, from its first token."""
        return self.holds_all and not self.has_calls


class AnswerFormat:
    """Reads and holds the answers of one model. chat_format: how it writes. special_id: the id of a special
    token by its name.
    """

    def __init__(self, chat_format: ModelChatFormat, special_id: Callable[[str], int | None]) -> None:
        self.family, self._reader, self._marks = chat_format.family, chat_format.reader, chat_format.marks
        self.thinks = chat_format.thinks
        self._name = chat_format.name
        self._special_id = special_id

    @property
    def _reasoning(self) -> tuple[str, ...]:
        return self._marks.delimiters if self._marks else ()

    def parser(self, conversation: ChatInput, grammar: AnswerGrammar) -> Parser | None:
        """The parser of an answer; None where all of it is content."""
        reader = self._reader
        if reader is not None and reader.reads_reasoning:
            return None if grammar.is_content or conversation.continue_final else reader.parse
        family = self.family if conversation.use.active else None
        parser = None if family is None else family.parse
        if parser is None and reader is not None and not grammar.is_content:
            parser = content_without(reader.around)
        if self._marks is None or grammar.holds_all:
            return parser
        openings = family.openings if family and not grammar.thinks_first else ()
        return with_reasoning(parser or all_content, self._marks, openings)

    def tools(self, conversation: ChatInput) -> dict[str, Tool]:
        """Tools that an answer may call."""
        use = conversation.use
        return {tool.name: tool for tool in use.tools} if use.active and self.family is not None else {}

    def visible_special_ids(self, conversation: ChatInput) -> frozenset[int]:
        """Special tokens that the parser must see as text."""
        names = {*self._reasoning, *(self._reader.delimiters if self._reader else ())}
        if conversation.use.active and self.family is not None:
            names.update(self.family.delimiters)
        return frozenset(token for name in names if (token := self._special_id(name)) is not None)

    def settled(self, prompt: str, grammar: AnswerGrammar) -> AnswerGrammar:
        """The grammar for an answer to this prompt: where that ends behind reasoning, the answer has none."""
        marks = self._marks
        if not grammar.thinks_first or marks is None or marks.begun(prompt):
            return grammar
        if not prompt.rstrip().endswith(marks.close.rstrip()):
            return grammar
        return replace(grammar, holds_all=True, thinks_first=False)

    def begun(self, prompt: str, conversation: ChatInput, grammar: AnswerGrammar) -> tuple[str, bool]:
        """The prompt as the answer goes on from it, and whether that begins in reasoning."""
        begun = self._marks is not None and self._marks.begun(prompt)
        if self._marks is not None and begun and grammar.holds_all:
            prompt, begun = self._marks.ended(prompt), False
        if self._reader is not None and grammar.holds_all and conversation.asks_answer:
            mark = self._reader.content_mark  # the grammar writes it where the answer may be calls
            prompt = prompt.removesuffix(mark) + (mark if grammar.is_content else "")
        return prompt, begun

    def before(
        self, tokenizer: Tokenizer, tokens: int | None, grammar: AnswerGrammar, *, begun: bool
    ) -> str | None:
        """Rules of the reasoning before what the grammar holds (Grammar.before). tokens: at most so many;
        None is no bound. None where a bound cannot be held."""
        reader = self._reader
        if self._marks is None:
            assert reader is not None
            return None if tokens is not None else reader.reasoning_rules(self._special_id)
        behind = "" if reader is None or grammar.has_calls else reader.content_rule(self._special_id)
        parts = () if reader is None else reader.delimiters
        return before_answer(self._marks, tokenizer, parts, begun=begun, tokens=tokens, behind=behind)

    def within_budget(self, tokens: int, tokenizer: Tokenizer, *, begun: bool) -> Grammar | None:
        """Any answer with at most so many tokens of reasoning; None where its marks are no tokens."""
        return None if self._marks is None else budget_grammar(tokens, tokenizer, self._marks, begun=begun)

    def grammar(self, conversation: ChatInput, *, thinks: bool = True) -> AnswerGrammar:
        """The grammar of an answer. thinks: reasoning is not turned off. Raises RequestError where it cannot
        be made."""
        made = self._held(conversation)
        if not thinks or not made.holds_all or not self._thinks_before(made, conversation):
            return made
        return replace(made, holds_all=False, thinks_first=True)

    def _thinks_before(self, grammar: AnswerGrammar, conversation: ChatInput) -> bool:
        """Whether reasoning may stand before what this grammar holds, and is not a part of it already."""
        if not conversation.asks_answer or not conversation.reasons_first:
            return False
        reads = self._reader is not None and self._reader.reads_reasoning
        return self._marks is not None or (reads and not grammar.has_calls)

    def _held(self, conversation: ChatInput) -> AnswerGrammar:
        use, grammar = conversation.use, conversation.grammar
        if use.forced:  # no content: a format for it asks for nothing
            rules = self._called().rules(use.forced, self._special_id, parallel=use.parallel)
            return AnswerGrammar(Grammar("lark", "start: calls\n" + rules), holds_all=True, has_calls=True)
        if grammar is None:
            return self._free(conversation)
        if not use.active or self.family is None:
            return AnswerGrammar(grammar, holds_all=True)
        if grammar.kind != "json_schema":
            raise RequestError(
                "a regex, choice or grammar cannot hold together with `tools`: leave one of them out",
                param="tools",
                code="unsupported_parameter",
            )
        rules = self.family.rules(use.tools, self._special_id, parallel=use.parallel)
        body = f"{self.family.content_rule(self._special_id)} %json {_schema(grammar)}".strip()
        text = f"start: calls | body\nbody: {body}\n{rules}"
        return AnswerGrammar(Grammar("lark", text), holds_all=True, has_calls=True)

    def _free(self, conversation: ChatInput) -> AnswerGrammar:
        """Text and calls as the model likes, where some tool is strict."""
        use, family = conversation.use, self.family
        strict = use.active and any(tool.strict for tool in use.tools)
        if not strict or family is None or not conversation.asks_answer:
            return AnswerGrammar()
        rules = family.free_rules(use.tools, self._special_id, self._reasoning, parallel=use.parallel)
        return AnswerGrammar(Grammar("lark", rules), has_calls=True)

    def _called(self) -> Family:
        if self.family is None:
            why = "no format of calls is known for this model: name it with --tool-parser"
            if self._name != UNKNOWN:
                why = "this server was started with --tool-parser none"
            raise RequestError(
                f"`tool_choice` cannot be honoured: {why}",
                param="tool_choice",
                code="unsupported_parameter",
            )
        return self.family


def _schema(grammar: Grammar) -> str:
    return json.dumps(single_line(json.loads(grammar.text)))
