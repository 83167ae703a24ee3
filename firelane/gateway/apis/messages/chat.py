"""Messages of Anthropic's API as a chat: the same conversation in the other API's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from firelane.api.chat import (
    CalledFunction,
    CallInMessage,
    ChatRequest,
    ContentPart,
    FunctionDefinition,
    Message,
    NamedFunction,
    ToolDefinition,
    ToolReference,
    marks_of,
)
from firelane.api.formats import JsonSchema, ResponseFormat
from firelane.errors import RequestError
from firelane.gateway.apis.messages.types import (
    Content,
    ContentBlock,
    CountTokensRequest,
    MessagesRequest,
    MessagesToolChoice,
)
from firelane.text.images.sources import data_url

Mode = Literal["auto", "required", "none"]
BILLING = "x-anthropic-billing-header:"
"""Beginning of a block that Claude Code puts before its system prompt. It differs from request to request, so
no prefix cache would ever hit behind it.
"""
EFFORTS = {"xhigh": "high", "max": "high"}
"""The nearest effort that chat templates know."""
SAME_NAMES = (
    *("max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
)
"""Fields that chat has under the same name."""
TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Blocks that change which tools there are: without them the answer would be wrong."""
_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(request: CountTokensRequest) -> ChatRequest:
    """The chat request of a checked request. Raises RequestError."""
    chat = ChatRequest(messages=_Turns(request).messages, model=request.model)
    _set_tools(chat, request)
    _set_thinking(chat, request)
    config = request.output_config
    form = request.output_format if config is None or config.format is None else config.format
    if form is not None:
        schema = JsonSchema(name="answer", schema=form.schema)
        chat.response_format = ResponseFormat(type="json_schema", json_schema=schema)
    request.give_answer_fields(chat)
    if isinstance(request, MessagesRequest):
        _check_end(chat.messages[-1])
        _set_drawing(chat, request)
    last = chat.messages[-1]
    continued = last.role == "assistant" and not last.tool_calls
    chat.continue_final_message = (continued and bool(last.text("messages"))) or None
    chat.check()
    return chat


def _set_drawing(chat: ChatRequest, request: MessagesRequest) -> None:
    """Raises RequestError."""
    chat.stop = request.stop_sequences
    for name in SAME_NAMES:
        setattr(chat, name, getattr(request, name))
    if request.response_format is not None:
        if chat.response_format is not None:
            raise RequestError(
                "`response_format` and `output_config.format` are both given: give one of them",
                param="response_format",
            )
        chat.response_format = request.response_format
    if request.chat_template_kwargs is not None:
        chat.chat_template_kwargs = {**(chat.chat_template_kwargs or {}), **request.chat_template_kwargs}


def _check_end(last: Message) -> None:
    """Raises RequestError."""
    if last.role == "assistant" and (last.tool_calls or not last.text("messages")):
        raise RequestError(
            "the last of `messages` is the assistant's and ends with no text: go on with one of the user",
            param="messages",
        )


def ignored(request: CountTokensRequest, of_chat: Sequence[str]) -> list[str]:
    """Parts that are taken and change nothing, though they ask for something. of_chat: the same of the chat
    that the request has become.
    """
    names = [f"tools[{i}]" for i, tool in enumerate(request.tools or ()) if tool.hosted]
    names += [name for name in of_chat if name.startswith("messages[].")]
    if "thinking_token_budget" in of_chat:
        names.append("thinking.budget_tokens")
    effort = request.output_config is not None and request.output_config.effort is not None
    return [*names, "output_config.effort"] if effort and "reasoning_effort" in of_chat else names


def _set_tools(chat: ChatRequest, request: CountTokensRequest) -> None:
    chat.tools = [
        ToolDefinition(
            type="function",
            function=FunctionDefinition(
                name=tool.name or "",
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            ),
        )
        for tool in request.tools or ()
        if not tool.hosted
    ] or None
    choice = request.tool_choice
    if choice is None or not chat.tools:
        return
    chat.parallel_tool_calls = not choice.disable_parallel_tool_use
    chat.tool_choice = _choice(choice)


def _choice(choice: MessagesToolChoice) -> ToolReference | Mode:
    if choice.type == "tool":
        return ToolReference(type="function", function=NamedFunction(name=choice.name or ""))
    return _MODES[choice.type]


def _set_thinking(chat: ChatRequest, request: CountTokensRequest) -> None:
    """A template that knows no such variable does not look at it."""
    thinking, config = request.thinking, request.output_config
    if config is not None and config.effort is not None:
        chat.reasoning_effort = EFFORTS.get(config.effort, config.effort)
    if thinking is None:
        return
    if thinking.type == "disabled":
        chat.reasoning_effort = "none"
    else:
        chat.chat_template_kwargs = {"enable_thinking": True}
        chat.thinking_token_budget = thinking.budget_tokens
    chat.include_reasoning = thinking.type != "disabled" and thinking.display != "omitted"


@dataclass(slots=True)
class _Turn:
    """One message that is being gathered; a result's `call_id` is of the call that it answers.
    marks: of its last message.
    """

    role: str
    parts: list[ContentPart] = field(default_factory=list[ContentPart])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[CallInMessage] = field(default_factory=list[CallInMessage])
    call_id: str | None = None
    marks: dict[str, Any] = field(default_factory=dict[str, Any])

    def message(self) -> Message:
        return Message(
            role=self.role,
            content=self.parts,
            reasoning_content="".join(self.thoughts) or None,
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
            **self.marks,
        )


class _Turns:
    """Gathers the messages. Neighbours of one role become one turn, as Anthropic has it."""

    def __init__(self, request: CountTokensRequest) -> None:
        self._turns: list[_Turn] = []
        self._called: set[str] = set()
        system = _system(request.system or "")
        if system:
            self._turns.append(_Turn("system", [_text_part(system)]))
        for i, message in enumerate(request.messages):
            self._add(message.role, message.content, f"messages[{i}].content")
            self._turns[-1].marks = marks_of(message)
        self.messages = [turn.message() for turn in self._turns]

    def _add(self, role: str, content: Content, where: str) -> None:
        blocks = [ContentBlock(type="text", text=content)] if isinstance(content, str) else content
        if role == "assistant":
            self._add_answer(self._turn(role), blocks, where)
            return
        for i, block in enumerate(blocks):
            if block.type == "tool_result":  # first of all, whatever stands before it
                self._add_result(block, f"{where}[{i}]")
        said = [(i, block) for i, block in enumerate(blocks) if block.type != "tool_result"]
        if said or not blocks:
            self._turn(role).parts += [_part(block, f"{where}[{i}]") for i, block in said]

    def _turn(self, role: str) -> _Turn:
        """The last one where it is this role's, else a new one."""
        if not self._turns or self._turns[-1].role != role or role == "system":
            self._turns.append(_Turn(role))
        return self._turns[-1]

    def _add_result(self, block: ContentBlock, where: str) -> None:
        call_id: str = block.needed("tool_use_id", where)
        if call_id not in self._called:
            raise RequestError(
                f"`{where}.tool_use_id`: no tool_use of id '{call_id[:80]}' comes before it",
                param=f"{where}.tool_use_id",
            )
        content = (
            [ContentBlock(type="text", text=block.content)]
            if isinstance(block.content, str)
            else block.content
        )
        blocks = content if isinstance(content, list) else []
        parts = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(blocks)]
        if block.is_error:
            parts = [_text_part("Error: " + Message(role="tool", content=parts).text(where))]
        self._turns.append(_Turn("tool", parts, call_id=call_id))

    def _add_answer(self, turn: _Turn, blocks: Sequence[ContentBlock], where: str) -> None:
        """Blocks of one message follow each other, messages stand on lines of their own."""
        if turn.parts:
            turn.parts.append(_text_part("\n"))
        for i, block in enumerate(blocks):
            spot = f"{where}[{i}]"
            if block.type == "tool_use":
                turn.calls.append(self._call(block, spot))
            elif block.type == "thinking":
                turn.thoughts.append(block.needed("thinking", spot))
            elif block.type != "redacted_thinking":
                turn.parts.append(_part(block, spot))

    def _call(self, block: ContentBlock, where: str) -> CallInMessage:
        call_id: str = block.needed("id", where)
        self._called.add(call_id)
        function = CalledFunction(name=block.needed("name", where), arguments=block.needed("input", where))
        return CallInMessage(id=call_id, function=function)


def _system(content: Content) -> str:
    if isinstance(content, str):
        return content
    texts = [_system_text(block, f"system[{i}]") for i, block in enumerate(content)]
    return "\n\n".join(text for text in texts if not text.startswith(BILLING))


def _system_text(block: ContentBlock, where: str) -> str:
    if block.type != "text":
        raise _unsupported(block, where)
    return block.needed("text", where)


def _part(block: ContentBlock, where: str) -> ContentPart:
    """Text of whatever holds some; what does not keeps its type."""
    if block.type in TOOL_CHANGES:
        raise _unsupported(block, where)
    if block.type == "text":
        return _text_part(block.needed("text", where))
    if block.type == "tool_reference" and block.tool_name:
        return _text_part(block.tool_name)
    if block.type == "image" and isinstance(block.source, dict):
        return ContentPart(type="image", image_url=_image_url(block.source))
    text = _text_inside(block)
    return ContentPart(type=block.type) if text is None else _text_part(text)


def _image_url(source: dict[str, Any]) -> Any:
    """The URL of an image that is given as base64, or by one; None where it is given in another way."""
    if source.get("type") == "base64":
        return data_url(str(source.get("media_type") or ""), source.get("data"))
    return source.get("url")


def _text_inside(block: ContentBlock) -> str | None:
    """Texts of a document, of what a search found, or of a summary; None where there is none."""
    held: Any = block.content
    if block.type == "document" and isinstance(block.source, dict):
        source: dict[str, Any] = block.source
        held = source.get("data") if source.get("type") == "text" else source.get("content")
    elif block.type not in ("search_result", "compaction"):
        return None
    if isinstance(held, list):
        parts: list[Any] = held
        texts = [_text_of(part) for part in parts]
        held = "\n".join(text for text in texts if text)
    return "\n".join(filter(None, (block.title, held))) if held and isinstance(held, str) else None


def _text_of(part: Any) -> str | None:
    """Text of a block, decoded or not."""
    found: Any = part.get("text") if isinstance(part, dict) else getattr(part, "text", None)
    return found if isinstance(found, str) else None


def _text_part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def _unsupported(block: ContentBlock, where: str) -> RequestError:
    return RequestError(
        f"`{where}` has the type '{block.type[:40]}', which this server cannot honour: leave it out",
        param=where,
        code="unsupported_parameter",
    )
