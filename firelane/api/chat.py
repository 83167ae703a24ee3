"""POST /v1/chat/completions: the request. The answer is in chat_answer.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from firelane.api.custom_tools import CustomDefinition, ToolName
from firelane.api.reading.schemas import check_schema
from firelane.api.sampling import (
    HINTS,
    Count,
    Limit,
    Object,
    SamplingFields,
    ToolType,
    check_shared,
    unsupported,
)
from firelane.api.speculation import Prediction
from firelane.errors import RequestError

CHAT_HINTS = (
    *(name for name in HINTS if name != "thinking"),  # it may hold a budget
    *("verbosity", "web_search_options"),
)
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_TOOLS = 1024
# Parts of conversations that models here cannot read: images, sounds, files, items of other servers. In a
# history they are left out, and words stand in their place: refusing them would end a conversation that began
# on another server, or in which a tool gave an image. In the newest message of a user they are refused: the
# answer would be about something that the model has not seen.
_MEDIA = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
    "document": "document",
}
MAX_NAME = 40
"""Characters of a type's name, which a client may have made up."""


class ContentPart(msgspec.Struct, kw_only=True):
    """A text, the words of a refusal, or an image: the URL, or an object with it. Parts of other types are
    not read: see in_place_of."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text", "refusal"]})]
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None

    @property
    def has_image(self) -> bool:
        """Whether it gives an image, which a model with an encoder of images reads."""
        return _MEDIA.get(self.type) == "image" and self.image_url is not None

    @property
    def is_text(self) -> bool:
        return self.type in ("text", "refusal")

    def shown(self, where: str) -> str:
        """The text, or the words in its place. Raises RequestError where a text is missing."""
        if not self.is_text:
            return in_place_of(self.type)
        text = self.text if self.refusal is None else self.refusal
        if text is None:
            raise RequestError(f"`{where}` has a part without `{self.type}`", param=where)
        return text


class CalledFunction(msgspec.Struct, kw_only=True):
    """arguments: JSON text, or what it says. An answer that a limit has cut leaves text that is no JSON."""

    name: str
    arguments: Any = ""


class CalledCustomTool(msgspec.Struct, kw_only=True):
    """input: the text that the tool was given."""

    name: str
    input: str = ""


class CallInMessage(msgspec.Struct, kw_only=True):
    """A call that an earlier answer made. `index` comes from joined stream deltas and means nothing."""

    id: str = ""
    type: str = "function"
    index: Any = None
    function: CalledFunction | None = None
    custom: CalledCustomTool | None = None


MARKS = ("prefix", "partial")


class MarkedMessage(msgspec.Struct, kw_only=True):
    """A message that may carry a mark: the answer goes on with its text. prefix: the mark of Mistral and
    DeepSeek. partial: that of Moonshot and Qwen. In the last message a mark is honoured or refused; in an
    earlier one it changes nothing any more, and the client is told.
    """

    prefix: bool | None = None
    partial: bool | None = None

    @property
    def mark(self) -> str | None:
        """Name of the field that asks for it."""
        return next(iter(marks_of(self)), None)


def marks_of(message: MarkedMessage) -> dict[str, Any]:
    """The marks that are set."""
    return {name: True for name in MARKS if getattr(message, name)}


class Message(MarkedMessage, kw_only=True, forbid_unknown_fields=True):
    """Fields of earlier answers that clients send back are taken. refusal: a text that stands for the
    content. annotations: means nothing. audio: left out. parsed: the openai client's own copy of the
    content. function_call, and the role `function` of its result: what calls were before there were tools.
    """

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallInMessage], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: CalledFunction | None = None
    parsed: Any = None

    def text(self, where: str) -> str:
        """The content as one text: parts of an assistant's follow each other, those of others stand on lines
        of their own. `where` names the message in errors. Raises RequestError where a user's or a system's
        message has no content.
        """
        if isinstance(self.content, str):
            return self.content + (self.refusal or "")
        if self.content is None:
            return self._without_content(where)
        texts = [part.shown(f"{where}.content") for part in self.content]
        return ("" if self.role == "assistant" else "\n").join(texts)

    def _without_content(self, where: str) -> str:
        if self.role in ("system", "developer", "user"):
            raise RequestError(f"`{where}.content` is missing: give a text", param=where)
        return self.refusal or (in_place_of("audio") if self.audio else "")

    @property
    def unread(self) -> list[str]:
        """Types of the parts that are left out."""
        parts = self.content if isinstance(self.content, list) else ()
        left_out = [part.type for part in parts if not (part.is_text or part.has_image)]
        return left_out + (["audio"] if self.audio else [])

    @property
    def images(self) -> list[ContentPart]:
        """Parts that give an image."""
        parts = self.content if isinstance(self.content, list) else ()
        return [part for part in parts if part.has_image]

    def check(self, where: str) -> None:
        if self.role not in ROLES:
            known = ", ".join(ROLES)
            raise RequestError(
                f"`{where}.role` is '{self.role[:40]}': supported are {known}", param=f"{where}.role"
            )
        if self.role == "tool" and not self.tool_call_id:
            name = f"{where}.tool_call_id"
            raise RequestError(f"`{name}` is missing", param=name, code="missing_parameter")
        for name in ("tool_calls", "function_call"):
            if getattr(self, name) and self.role != "assistant":
                raise RequestError(f"`{where}.{name}`: only assistants call tools", param=f"{where}.{name}")


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """parameters: the JSON schema of the arguments, an object."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """A function, or a custom tool, by its type."""

    type: ToolType
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None

    def name(self, where: str) -> str:
        """Raises RequestError where it is of another type, or not there."""
        if self.type not in ("function", "custom"):
            raise unsupported(f"{where}.type", f"'{self.type[:40]}'")
        said = self.function if self.type == "function" else self.custom
        if said is None:
            raise RequestError(f"`{where}.{self.type}` is missing", param=where, code="missing_parameter")
        return said.name


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Meta(min_length=1, max_length=MAX_TOOLS)]


class ToolReference(msgspec.Struct, kw_only=True):
    """One tool by its name, or, with `allowed_tools`, some of them."""

    type: str
    function: NamedFunction | None = None
    custom: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of reasoning, by the names of OpenRouter. effort: as `reasoning_effort`. max_tokens: as
    `thinking_token_budget`. exclude: it is made, but not given out. enabled: false for none.
    """

    effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    max_tokens: Count | None = None
    exclude: bool | None = None
    enabled: bool | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens` and wins. `chat_template_kwargs` go to the
    template. `functions` and `function_call` are the older names of `tools` and `tool_choice`. echo: with
    `continue_final_message`, the answer begins with that message. prediction: drafts are taken from it.
    thinking_token_budget: most tokens of reasoning, also `thinking.budget_tokens` and
    `reasoning.max_tokens`. What `reasoning` says counts where the field of its own does not. store: the
    answer can be read again.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=1 << 16)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolReference | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    include_reasoning: bool | None = None
    reasoning: ReasoningOptions | None = None
    thinking_token_budget: Count | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    echo: bool | None = None
    prediction: Prediction | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    store: bool | None = None

    # Hints: see CHAT_HINTS.
    verbosity: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        if self.max_tokens == -1:
            self.max_tokens = None
        if self.reasoning is not None:
            self._take_reasoning(self.reasoning)
        check_shared(self)
        if self.max_tokens == 0:
            raise RequestError("`max_tokens` is 0: there is nothing to answer", param="max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
        for i, message in enumerate(self.messages):
            message.check(f"messages[{i}]")
        last = self.messages[-1]
        if last.role == "user" and last.unread:
            raise refuse_newest(last.unread[0])
        if self.functions:
            self._call_functions_tools(self.functions)
        self._check_final_message()
        self._check_tools()

    def reasoning_budget(self) -> tuple[str, int] | None:
        """Most tokens of reasoning, after the name of the field that says so."""
        if self.thinking_token_budget is not None:
            return "thinking_token_budget", self.thinking_token_budget
        if self.reasoning is not None and self.reasoning.max_tokens is not None:
            return "reasoning.max_tokens", self.reasoning.max_tokens
        if not isinstance(self.thinking, dict):
            return None
        given = cast(dict[str, Any], self.thinking).get("budget_tokens")
        return ("thinking", given) if isinstance(given, int) and 0 <= given < 2**31 else None

    def _take_reasoning(self, given: ReasoningOptions) -> None:
        if self.reasoning_effort is None:
            self.reasoning_effort = "none" if given.enabled is False else given.effort
        if self.include_reasoning is None and given.exclude is not None:
            self.include_reasoning = not given.exclude

    def _check_final_message(self) -> None:
        last = self.messages[-1]
        if not self.continue_final_message and last.mark is None:
            return
        if self.continue_final_message is False:
            raise RequestError(
                f"`{last.mark}` of the last message and `continue_final_message` say different things: give "
                "one of them",
                param="messages",
            )
        goes_on = last.role == "assistant" and not last.tool_calls and last.text("messages")
        if self.add_generation_prompt or not goes_on:
            asks = "`continue_final_message`" if last.mark is None else f"`{last.mark}` of the last message"
            raise RequestError(
                f"{asks} needs that message to be the assistant's, with a text and no calls, and "
                "`add_generation_prompt` not to be true",
                param="continue_final_message" if last.mark is None else "messages",
            )
        self.continue_final_message = True

    def _call_functions_tools(self, functions: list[FunctionDefinition]) -> None:
        """Say with the newer fields what the older ones say."""
        if self.tools:
            raise RequestError("give either `functions` or `tools`", param="functions")
        self.tools = [ToolDefinition(type="function", function=function) for function in functions]
        self.parallel_tool_calls = False
        choice = self.function_call
        if isinstance(choice, NamedFunction):
            self.tool_choice = ToolReference(type="function", function=choice)
        else:
            self.tool_choice = choice

    def _check_tools(self) -> None:
        names: set[str] = set()
        for i, tool in enumerate(self.tools or ()):
            where = f"tools[{i}]"
            name = tool.name(where)
            if name in names:
                raise RequestError(f"two tools have the name '{name}'", param=where)
            names.add(name)
            if tool.type == "custom":
                tool.function = None
                if tool.custom is not None and tool.custom.format is not None:
                    tool.custom.format.held(f"{where}.custom.format")
            elif tool.function is not None and tool.function.parameters is not None:
                check_schema(tool.function.parameters, f"{where}.function.parameters")
        if not names and self.tool_choice not in (None, "none", "auto"):
            raise RequestError("`tool_choice` is only allowed with `tools`", param="tool_choice")


def in_place_of(kind: str) -> str:
    """The words in place of a part of this type."""
    name = _MEDIA.get(kind)
    if name is not None:
        return f"[{name} left out: this model reads text only]"
    return f"[{' '.join(kind[:MAX_NAME].split('_'))} left out]"


def refuse_newest(kind: str) -> RequestError:
    """The error for a part of this type in the newest message."""
    return RequestError(
        f"the last message has a part of type '{kind[:MAX_NAME]}', but this model reads text only: leave the "
        "part out, or ask a model that reads it",
        param="messages",
        code="unsupported_parameter",
    )
