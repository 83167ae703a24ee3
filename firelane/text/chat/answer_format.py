"""The form of one model's answers: how it marks reasoning and calls, what reads them, and the grammar that
holds them to what a request asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from firelane.errors import RequestError
from firelane.text.chat.chat_format import UNKNOWN, ModelChatFormat
from firelane.text.chat.conversation import ChatInput
from firelane.text.chat.reasoning import budget_grammar, with_reasoning
from firelane.text.schemas.constraints import single_line
from firelane.text.tokens.tokenizer import Tokenizer
from firelane.text.tools.family import Family
from firelane.text.tools.stream_buffer import Parser, all_content, content_without
from firelane.text.tools.tool import Tool
from firelane.wire.frames import Grammar


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """grammar: what the answer must match. holds_all: it leaves no room for reasoning. has_calls: it may be
    calls.
    """

    grammar: Grammar | None = None
    holds_all: bool = False
    has_calls: bool = False

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
        return with_reasoning(parser or all_content, self._marks, family.openings if family else ())

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

    def begun(self, prompt: str, conversation: ChatInput, grammar: AnswerGrammar) -> tuple[str, bool]:
        """The prompt as the answer goes on from it, and whether that begins in reasoning."""
        begun = self._marks is not None and self._marks.begun(prompt)
        if self._marks is not None and begun and grammar.holds_all:
            prompt, begun = self._marks.ended(prompt), False
        if self._reader is not None and grammar.holds_all and conversation.asks_answer:
            mark = self._reader.content_mark  # the grammar writes it where the answer may be calls
            prompt = prompt.removesuffix(mark) + (mark if grammar.is_content else "")
        return prompt, begun

    def within_budget(self, tokens: int, tokenizer: Tokenizer, *, begun: bool) -> Grammar | None:
        """Any answer with at most so many tokens of reasoning; None where its marks are no tokens."""
        return None if self._marks is None else budget_grammar(tokens, tokenizer, self._marks, begun=begun)

    def grammar(self, conversation: ChatInput) -> AnswerGrammar:
        """Raises RequestError where it cannot be made."""
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
