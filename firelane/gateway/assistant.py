"""The chat side of a model, for whatever API a conversation comes by: the prompt that it becomes, what the
answer must match, and what splits the answer's text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from firelane.api.chat import ChatRequest
from firelane.errors import RequestError
from firelane.gateway.constraints import grammar_of, single_line
from firelane.gateway.conversation import Conversation, chat_conversation
from firelane.gateway.deltas import Splitter
from firelane.gateway.prompt import Prompt, PromptBuilder
from firelane.gateway.reasoning import CLOSE, begins_thinking, thinks, with_reasoning
from firelane.gateway.reasoning import OPEN as THINK
from firelane.gateway.template import ChatTemplate
from firelane.gateway.tools.families import find_family
from firelane.gateway.tools.family import Family
from firelane.gateway.tools.tape import Parser, Tape, TapeSplitter, all_content
from firelane.gateway.tools.untaught import TemplateTools
from firelane.wire.frames import Grammar


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What a Job needs of a conversation. kept_ids: special tokens whose names are part of the text."""

    text: str
    prompts: Callable[[], Awaitable[list[Prompt]]]
    splitter: Callable[[], Splitter] | None
    grammar: Grammar | None
    kept_ids: frozenset[int]


class Assistant:
    """Knows how one model's templates and answers are written. tool_parser, reasoning_parser: the options of
    `serve`.
    """

    def __init__(
        self, prompts: PromptBuilder, *, tool_parser: str = "auto", reasoning_parser: str = "auto"
    ) -> None:
        self._prompts = prompts
        template = prompts.template
        source = "" if template is None else template.source
        self._family: Family | None = find_family(tool_parser, source)
        self._thinks = thinks(reasoning_parser, source)
        self._tools = None if template is None else TemplateTools(template)

    def chat(self, request: ChatRequest) -> Turn:
        """The turn of a checked request (also of another API's, put into these words). Raises
        RequestError.
        """
        return self.turn(chat_conversation(request, grammar_of(request)))

    def turn(self, conversation: Conversation) -> Turn:
        """Raises RequestError where the template, or this model's way of calling tools, does not allow it."""
        grammar = self._grammar(conversation)
        text = self._render(conversation, constrained=grammar is not None)
        thinking = self._thinks and begins_thinking(text)
        if thinking and grammar is not None:  # it covers all that the model writes: there is no reasoning
            text, thinking = f"{text.rstrip()}\n\n{CLOSE}\n\n", False
        special = conversation.special

        async def prompts() -> list[Prompt]:
            return [Prompt(await self._prompts.encode(text, special=special, chars=len(text)), text)]

        parser = self._parser(conversation, reasons=self._thinks and grammar is None)
        return Turn(
            text=text,
            prompts=prompts,
            splitter=None if parser is None else self._splitters(conversation, parser, thinking=thinking),
            grammar=grammar,
            kept_ids=self._kept_ids(conversation) if parser is not None else frozenset(),
        )

    def _parser(self, conversation: Conversation, *, reasons: bool) -> Parser | None:
        parser: Parser | None = None
        if conversation.use.active and self._family is not None:
            parser = self._family.parse
        return with_reasoning(parser or all_content) if reasons else parser

    def _splitters(
        self, conversation: Conversation, parser: Parser, *, thinking: bool
    ) -> Callable[[], Splitter]:
        use, family = conversation.use, self._family
        new_id = str if family is None else family.new_id
        known, max_calls = use.names, 0 if use.parallel else 1
        hide = conversation.hide_reasoning

        def make() -> Splitter:
            tape = Tape(new_id, known=known, max_calls=max_calls, thinking=thinking, hide_reasoning=hide)
            return TapeSplitter(tape, parser)

        return make

    def _kept_ids(self, conversation: Conversation) -> frozenset[int]:
        marks: list[str] = [THINK, CLOSE] if self._thinks else []
        if conversation.use.active and self._family is not None:
            marks += self._family.marks
        return frozenset(token for mark in marks if (token := self._special_id(mark)) is not None)

    def _special_id(self, name: str) -> int | None:
        tokenizer = self._prompts.tokenizer
        token = tokenizer.id_of(name)
        return token if token in tokenizer.special_ids else None

    def _grammar(self, conversation: Conversation) -> Grammar | None:
        use, grammar = conversation.use, conversation.grammar
        tools = use.forced or (list(use.tools) if use.active and grammar is not None else [])
        if not tools or (self._family is None and not use.forced):
            return grammar
        if self._family is None:
            raise RequestError(
                "`tool_choice` cannot be honoured: this server was started with --tool-parser none",
                param="tool_choice",
                code="unsupported_parameter",
            )
        rules = self._family.rules(tools, self._special_id, parallel=use.parallel)
        if use.forced:  # no content: a format for it asks for nothing
            return Grammar("lark", "start: calls\n" + rules)
        assert grammar is not None
        if grammar.kind != "json_schema":
            raise RequestError(
                "a regex, choice or grammar cannot hold together with `tools`: leave one of them out",
                param="tools",
                code="unsupported_parameter",
            )
        body = json.dumps(single_line(json.loads(grammar.text)))
        return Grammar("lark", f"start: calls | body\nbody: %json {body}\n{rules}")

    def _render(self, conversation: Conversation, *, constrained: bool) -> str:
        template = self._prompts.template
        if template is None or self._tools is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        variables = self._variables(conversation, template, constrained=constrained)
        use = conversation.use
        tools = [tool.definition() for tool in use.tools] if use.active else []
        messages = conversation.messages
        marker = secrets.token_hex(16) if conversation.continue_final else ""
        if marker:
            messages = [*messages[:-1], messages[-1] | {"content": messages[-1]["content"] + marker}]
        text = self._tools.render(messages, tools, variables)
        if not marker:
            return text
        head, found, _ = text.partition(marker)
        if not found:
            raise RequestError(
                "this model's template does not show the final message: leave `continue_final_message` out",
                param="continue_final_message",
            )
        return head

    def _variables(
        self, conversation: Conversation, template: ChatTemplate, *, constrained: bool
    ) -> dict[str, Any]:
        variables = dict(conversation.variables)
        effort = conversation.reasoning_effort
        if effort is not None:
            if "reasoning_effort" in template.variables:
                variables["reasoning_effort"] = effort
            elif effort == "none" and "enable_thinking" in template.variables:
                variables["enable_thinking"] = False
            else:
                raise RequestError(
                    f"`reasoning_effort` '{effort}' is not known to this model's template: leave it out",
                    param="reasoning_effort",
                    code="unsupported_parameter",
                )
        if constrained and "enable_thinking" in template.variables:
            variables["enable_thinking"] = False
        final = conversation.generation_prompt and not conversation.continue_final
        variables["add_generation_prompt"] = final
        return variables
