"""The chat side of a model, for whatever API a conversation comes by: the prompt that it becomes, what the
answer must match, and what splits the answer's text.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from firelane.api.chat import ChatRequest, Message
from firelane.errors import RequestError
from firelane.text.chat.chat_format import AnswerFormat, AnswerGrammar
from firelane.text.chat.conversation import ChatInput, ToolUse, chat_conversation
from firelane.text.chat.format_search import find_chat_format, gathered
from firelane.text.embedding_files import check_answers
from firelane.text.images.marks import MarkedImages, check_unread, marked
from firelane.text.prompt import Prompt, PromptBuilder
from firelane.text.rendering.template_probe import MODE, OFF, SWITCHES
from firelane.text.rendering.template_process import TemplateRenderer, encoded
from firelane.text.schemas.constraints import check_size, grammar_of, schema_notes
from firelane.text.tokens.tokenizer import TextRoom
from firelane.text.tools.stream_buffer import OutputParser, Parser, StreamBuffer
from firelane.wire.frames import Grammar

LARGE_CHARS = 64 << 10
"""Conversations of more are prepared for the template on a thread, one at a time."""
MESSAGE_CHARS = 256
"""The work that a message is, or a part of one, whatever its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedChat:
    """A conversation as the model reads it. special: the tokenizer adds its own special tokens. splitter:
    makes what splits one answer's text, None where all of it is content. visible_special_ids: special tokens
    whose names are part of that text. ignored: fields that this model's template does not know. images: of
    which the text has marks.
    """

    text: str
    special: bool
    splitter: Callable[[], OutputParser] | None
    grammar: Grammar | None
    visible_special_ids: frozenset[int]
    ignored: tuple[str, ...] = ()
    images: MarkedImages | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of a prompt. conversation: without its messages. asked: messages, tools and
    variables, as the template takes them. marker: in the text behind the final message, where the answer goes
    on with that. ignored: as in RenderedChat.
    """

    conversation: ChatInput
    grammar: AnswerGrammar
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
        evidence = gathered(prompts.template, prompts.tokenizer.is_added)
        self.chat_format = find_chat_format(evidence, tool_parser, reasoning_parser)
        if prompts.template is not None:
            prompts.template.keep_trials()
        self._format = AnswerFormat(self.chat_format, self._special_id)
        prompts.end_at(self.chat_format.stops)
        self._large = asyncio.Lock()

    @property
    def abilities(self) -> list[str]:
        """Capabilities beside answering: "tools", "thinking"."""
        return self.chat_format.abilities

    async def chat(self, request: ChatRequest, room: TextRoom) -> RenderedChat:
        """A checked request, also of another API, put into these words. Raises RequestError where the
        template, or this model's way of calling tools, does not allow it, and ContextLengthError where the
        messages alone are too much: then nothing is rendered.
        """
        request, images = await marked(request, room, self._prompts.images)
        if _is_large(request):
            async with self._large:
                source = await asyncio.to_thread(self._fitting, request, room)
        else:
            source = self._source(request)
        chat = self._rendered(source, await source.template.render(source.asked))
        return chat if images is None else replace(chat, images=images)

    def chat_blocking(self, request: ChatRequest) -> RenderedChat:
        """Render like `chat`, for a caller without an event loop, and without images."""
        check_unread(request)
        source = self._source(request)
        return self._rendered(source, source.template.render_blocking(source.asked))

    async def encode(self, chat: RenderedChat, room: TextRoom) -> Prompt:
        """Raises ContextLengthError, and RequestError where it has no tokens."""
        if chat.images is not None:
            return await self._encode_images(chat, chat.images, room)
        (prompt,) = await self._prompts.encode([chat.text], room, chat.special)
        return prompt

    async def _encode_images(self, chat: RenderedChat, marks: MarkedImages, room: TextRoom) -> Prompt:
        """Tokens of the texts around the images, each by itself: images stand between special tokens."""
        (first, *others), shown = marks.pieces(chat.text)
        encoder = self._prompts.encoder
        texts = [*await encoder.encode([first], room, special=chat.special)]
        texts += await encoder.encode(others, room, special=False)
        packed, images = marks.joined(texts, shown)
        if len(packed) > 4 * room.max_tokens:
            raise room.too_long()
        return Prompt(packed, None, images, marks.format.image)

    def _rendered(self, source: _Source, text: str) -> RenderedChat:
        """The rendered chat from the text that the template has written."""
        conversation, form = source.conversation, self._format
        text = _before(source.marker, text)
        source = replace(source, grammar=form.settled(text, source.grammar))
        text, in_reasoning = form.begun(text, conversation, source.grammar)
        parser = form.parser(conversation, source.grammar)
        splitter, visible = None, frozenset[int]()
        if parser is not None:
            splitter = self._splitters(conversation, parser, in_reasoning=in_reasoning)
            visible = form.visible_special_ids(conversation)
        grammar, unread = self._within_budget(source, begun=in_reasoning)
        return RenderedChat(
            text=text,
            special=conversation.special,
            splitter=splitter,
            grammar=grammar,
            visible_special_ids=visible,
            ignored=source.ignored + unread,
        )

    def _within_budget(self, source: _Source, *, begun: bool) -> tuple[Grammar | None, tuple[str, ...]]:
        """The grammar of an answer, which may hold its reasoning to a budget, and the names of fields that
        cannot be honoured."""
        grammar, budget = source.grammar, source.conversation.budget
        if grammar.thinks_first:
            return self._behind_reasoning(grammar, budget, begun=begun)
        if budget is None or grammar.holds_all or not self._format.thinks:
            return grammar.grammar, ()
        name, tokens = budget
        if grammar.grammar is not None:  # of strict tools: reasoning is free in it
            return grammar.grammar, (name,)
        held = self._format.within_budget(tokens, self._prompts.tokenizer, begun=begun)
        return held, () if held is not None else (name,)

    def _behind_reasoning(
        self, grammar: AnswerGrammar, budget: tuple[str, int] | None, *, begun: bool
    ) -> tuple[Grammar | None, tuple[str, ...]]:
        """The grammar, behind the reasoning, and the name of the budget's field where it cannot be held."""
        assert grammar.grammar is not None
        tokenizer = self._prompts.tokenizer
        before = self._format.before(tokenizer, budget and budget[1], grammar, begun=begun)
        unread = () if before is not None or budget is None else (budget[0],)
        if before is None:
            before = self._format.before(tokenizer, None, grammar, begun=begun)
        return msgspec.structs.replace(grammar.grammar, before=before), unread

    def _splitters(
        self, conversation: ChatInput, parser: Parser, *, in_reasoning: bool
    ) -> Callable[[], OutputParser]:
        family, tools = self._format.family, self._format.tools(conversation)
        new_id = str if family is None else family.new_id
        max_calls = 0 if conversation.use.parallel else 1
        hide = conversation.hide_reasoning

        def make() -> OutputParser:
            buffer = StreamBuffer(
                new_id, tools=tools, max_calls=max_calls, in_reasoning=in_reasoning, hide_reasoning=hide
            )
            return OutputParser(buffer, parser)

        return make

    def _special_id(self, name: str) -> int | None:
        tokenizer = self._prompts.tokenizer
        token = tokenizer.id_of(name)
        return token if token in tokenizer.special_ids else None

    def _fitting(self, request: ChatRequest, room: TextRoom) -> _Source:
        """The source of a large request. Raises ContextLengthError, too."""
        room.check_chars(sum(map(_chars, request.messages)))
        return self._source(request)

    def _source(self, request: ChatRequest) -> _Source:
        conversation = chat_conversation(request, grammar_of(request))
        template = self._prompts.template
        if template is None:
            check_answers(self._prompts.files.embedding)
            raise RequestError(
                "this model has no chat template: use /v1/completions, or give one with --chat-template",
                param="messages",
                code="no_chat_template",
            )
        told = _told(conversation, template)
        grammar = self._format.grammar(conversation, thinks=told is not False)
        if grammar.grammar is not None:
            check_size(grammar.grammar, "tools" if conversation.use.active else "messages")
        variables, ignored = _variables(conversation, template, told, constrained=grammar.holds_all)
        use = conversation.use
        tools = [tool.definition() for tool in use.tools] if use.active else []
        messages, told = self.chat_format.history(conversation.messages, tools)
        marker = secrets.token_hex(16) if conversation.continue_final else ""
        if marker:
            messages = [*messages[:-1], _ending(messages[-1], marker)]
        asked = encoded(messages, variables | told if tools else told | variables)
        ignored += (*conversation.hints, *schema_notes(request, _schemas_held(conversation.use)))
        return _Source(replace(conversation, messages=[]), grammar, template, asked, marker, ignored)


def _ending(message: dict[str, Any], marker: str) -> dict[str, Any]:
    """The message with a marker behind its text."""
    content: str | list[dict[str, Any]] = message["content"]
    if isinstance(content, str):
        return message | {"content": content + marker}
    return message | {"content": [*content[:-1], content[-1] | {"text": content[-1]["text"] + marker}]}


def _told(conversation: ChatInput, template: TemplateRenderer) -> Any:
    """Whether the request asks for reasoning; None where it does not say."""
    known = template.variables
    has_switch = MODE in known or any(name in known for name in SWITCHES)
    if conversation.reasoning_effort == "none" and "reasoning_effort" not in known and has_switch:
        return False
    said = conversation.variables
    if MODE in known and said.get(MODE) == OFF:
        return False
    return next((said[name] for name in SWITCHES if name in said), None)


def _variables(
    conversation: ChatInput, template: TemplateRenderer, told: Any, *, constrained: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """With the names of fields that the template does not know. told: as _told() says."""
    variables = dict(conversation.variables)
    switches = [name for name in SWITCHES if name in template.variables]
    ignored: tuple[str, ...] = ()
    effort = conversation.reasoning_effort
    if effort is not None:
        if "reasoning_effort" in template.variables:
            variables["reasoning_effort"] = effort
        elif effort != "none" or told is not False:
            ignored = ("reasoning_effort",)
    if constrained:
        told = False
    if told is not None:
        variables |= dict.fromkeys(switches, told)
    if told is False and MODE in template.variables:
        variables[MODE] = OFF if constrained else variables.get(MODE, OFF)
    variables["add_generation_prompt"] = conversation.asks_answer
    return variables, ignored


def _schemas_held(use: ToolUse) -> list[dict[str, Any]]:
    """Schemas of the tools whose calls must match them."""
    if not use.active:
        return []
    tools = use.forced or [tool for tool in use.tools if tool.strict]
    return [tool.parameters for tool in tools if tool.parameters is not None]


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
