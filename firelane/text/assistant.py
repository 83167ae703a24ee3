"""The chat side of a model, for whatever API a conversation comes by: the prompt that it becomes, what the
answer must match, and what splits the answer's text.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from firelane.api.chat import ChatRequest, Message
from firelane.errors import RequestError
from firelane.text.constraints import check_size, grammar_of, single_line
from firelane.text.conversation import Conversation, chat_conversation
from firelane.text.deltas import Splitter
from firelane.text.encoder import TextRoom
from firelane.text.prompt import Prompt, PromptBuilder
from firelane.text.reasoning import CLOSE, begins_thinking, budget_grammar, thinks, with_reasoning
from firelane.text.reasoning import OPEN as THINK
from firelane.text.template_process import TemplateRenderer, encoded
from firelane.text.tools.families import find_family
from firelane.text.tools.family import Family
from firelane.text.tools.stream_buffer import OutputParser, Parser, StreamBuffer, all_content
from firelane.wire.frames import Grammar

LARGE_CHARS = 64 << 10
"""Conversations of more are prepared for the template on a thread, one at a time."""
MESSAGE_CHARS = 256
"""The work that a message is, or a part of one, whatever its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedChat:
    """A conversation as the model reads it. special: the tokenizer adds its own special tokens. splitter:
    makes what splits one answer's text, None where all of it is content. visible_special_ids: special tokens
    whose names are part of that text. ignored: fields that this model's template does not know.
    """

    text: str
    special: bool
    splitter: Callable[[], Splitter] | None
    grammar: Grammar | None
    visible_special_ids: frozenset[int]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of a prompt. conversation: without its messages. asked: messages, tools and
    variables, as the template takes them. marker: in the text behind the final message, where the answer goes
    on with that. ignored: as in RenderedChat.
    """

    conversation: Conversation
    grammar: Grammar | None
    template: TemplateRenderer
    asked: bytearray
    marker: str
    ignored: tuple[str, ...]


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
        self._large = asyncio.Lock()

    @property
    def abilities(self) -> list[str]:
        """Capabilities beside answering: "tools", "thinking"."""
        template = self._prompts.template
        tools = self._family is not None and template is not None and "tools" in template.variables
        return [*(["tools"] if tools else []), *(["thinking"] if self._thinks else [])]

    async def chat(self, request: ChatRequest, room: TextRoom) -> RenderedChat:
        """A checked request, also of another API, put into these words. Raises RequestError where the
        template, or this model's way of calling tools, does not allow it, and ContextLengthError where the
        messages alone are too much: then nothing is rendered.
        """
        if _is_large(request):
            async with self._large:
                source = await asyncio.to_thread(self._fitting, request, room)
        else:
            source = self._source(request)
        return self._rendered(source, await source.template.render(source.asked))

    def chat_blocking(self, request: ChatRequest) -> RenderedChat:
        """As `chat`, for a caller without an event loop."""
        source = self._source(request)
        return self._rendered(source, source.template.render_blocking(source.asked))

    async def encode(self, chat: RenderedChat, room: TextRoom) -> Prompt:
        """Raises ContextLengthError, and RequestError where it has no tokens."""
        (prompt,) = await self._prompts.encode([chat.text], room, chat.special)
        return prompt

    def _rendered(self, source: _Source, text: str) -> RenderedChat:
        """Of what the template has written."""
        conversation, grammar = source.conversation, source.grammar
        text = _before(source.marker, text)
        in_reasoning = self._thinks and begins_thinking(text)
        if in_reasoning and grammar is not None:  # it covers all that the model writes: there is no reasoning
            text, in_reasoning = f"{text.rstrip()}\n\n{CLOSE}\n\n", False
        parser = self._parser(conversation, reasons=self._thinks and grammar is None)
        ignored = source.ignored
        if conversation.budget is not None and grammar is None:
            grammar, unread = self._within_budget(conversation.budget, begun=in_reasoning)
            ignored += unread
        return RenderedChat(
            text=text,
            special=conversation.special,
            splitter=None
            if parser is None
            else self._splitters(conversation, parser, in_reasoning=in_reasoning),
            grammar=grammar,
            visible_special_ids=self._visible_special_ids(conversation)
            if parser is not None
            else frozenset(),
            ignored=ignored,
        )

    def _within_budget(
        self, budget: tuple[str, int], *, begun: bool
    ) -> tuple[Grammar | None, tuple[str, ...]]:
        """What holds the reasoning to a budget, and the names of fields that cannot be honoured."""
        name, tokens = budget
        if not self._thinks:  # there is none
            return None, ()
        grammar = budget_grammar(tokens, self._prompts.tokenizer, begun=begun)
        return grammar, () if grammar is not None else (name,)

    def _parser(self, conversation: Conversation, *, reasons: bool) -> Parser | None:
        parser: Parser | None = None
        if conversation.use.active and self._family is not None:
            parser = self._family.parse
        return with_reasoning(parser or all_content) if reasons else parser

    def _splitters(
        self, conversation: Conversation, parser: Parser, *, in_reasoning: bool
    ) -> Callable[[], Splitter]:
        use, family = conversation.use, self._family
        new_id = str if family is None else family.new_id
        known, max_calls = use.names, 0 if use.parallel else 1
        hide = conversation.hide_reasoning

        def make() -> Splitter:
            buffer = StreamBuffer(
                new_id, known=known, max_calls=max_calls, in_reasoning=in_reasoning, hide_reasoning=hide
            )
            return OutputParser(buffer, parser)

        return make

    def _visible_special_ids(self, conversation: Conversation) -> frozenset[int]:
        delimiters: list[str] = [THINK, CLOSE] if self._thinks else []
        if conversation.use.active and self._family is not None:
            delimiters += self._family.delimiters
        return frozenset(token for mark in delimiters if (token := self._special_id(mark)) is not None)

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

    def _fitting(self, request: ChatRequest, room: TextRoom) -> _Source:
        """Of a large request. Raises ContextLengthError, too."""
        room.check_chars(sum(map(_chars, request.messages)))
        return self._source(request)

    def _source(self, request: ChatRequest) -> _Source:
        conversation = chat_conversation(request, grammar_of(request))
        template = self._prompts.template
        if template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or add a chat_template.jinja to its "
                "directory",
                param="messages",
                code="no_chat_template",
            )
        grammar = self._grammar(conversation)
        if grammar is not None:
            check_size(grammar, "tools" if conversation.use.active else "messages")
        variables, ignored = self._variables(conversation, template, constrained=grammar is not None)
        use = conversation.use
        tools = [tool.definition() for tool in use.tools] if use.active else []
        messages = conversation.messages
        marker = secrets.token_hex(16) if conversation.continue_final else ""
        if marker:
            messages = [*messages[:-1], messages[-1] | {"content": messages[-1]["content"] + marker}]
        asked = encoded(messages, tools, variables)
        ignored += conversation.hints
        return _Source(replace(conversation, messages=[]), grammar, template, asked, marker, ignored)

    def _variables(
        self, conversation: Conversation, template: TemplateRenderer, *, constrained: bool
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """With the names of fields that the template does not know."""
        variables = dict(conversation.variables)
        ignored: tuple[str, ...] = ()
        effort = conversation.reasoning_effort
        if effort is not None:
            if "reasoning_effort" in template.variables:
                variables["reasoning_effort"] = effort
            elif effort == "none" and "enable_thinking" in template.variables:
                variables["enable_thinking"] = False
            else:
                ignored = ("reasoning_effort",)
        if constrained and "enable_thinking" in template.variables:
            variables["enable_thinking"] = False
        final = conversation.generation_prompt and not conversation.continue_final
        variables["add_generation_prompt"] = final
        return variables, ignored


def _is_large(request: ChatRequest) -> bool:
    return len(request.messages) * MESSAGE_CHARS > LARGE_CHARS or (
        sum(_chars(message) + MESSAGE_CHARS * _parts(message) for message in request.messages) > LARGE_CHARS
    )


def _chars(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content)


def _parts(message: Message) -> int:
    return len(message.content) if isinstance(message.content, list) else 1


def _before(marker: str, text: str) -> str:
    """Raises RequestError."""
    if not marker:
        return text
    head, found, _ = text.partition(marker)
    if not found:
        raise RequestError(
            "this model's template does not show the final message: leave `continue_final_message` out",
            param="continue_final_message",
        )
    return head
