"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them: the requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from firelane.api.chat import MAX_TOOLS, MarkedMessage
from firelane.api.custom_tools import ToolName
from firelane.api.formats import ResponseFormat
from firelane.api.reading.schemas import check_schema
from firelane.api.sampling import INT64, AnswerFields, Object, Penalty, StopString
from firelane.errors import RequestError

ROLES = ("user", "assistant", "system")
HINTS = (
    *("container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "service_tier"),
    *("speed", "user_profile_id", "workspace_id"),
)
"""Fields without which the answer is right all the same."""
SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
"""Beginnings of the types of tools that Anthropic's servers run by themselves."""


THREAD_UNSUPPORTED = "thread_unsupported_request"
"""Code of an error at which Anthropic's clients send the whole conversation instead of a part of it."""


class ContentBlock(msgspec.Struct, kw_only=True):
    """A piece of content. Which fields count depends on `type`:

    text: text. thinking: thinking. tool_use: id, name, input (an object, or text that is none).
    tool_result: tool_use_id, content, is_error. document: title, source. search_result: title, content.
    compaction: content. tool_reference: tool_name. Of other types nothing is read.
    `cache_control`, `citations`, `signature` and the like mean nothing here.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[ContentBlock] | dict[str, Any] | None = None
    is_error: bool | None = None
    source: Any = None
    title: str | None = None
    tool_name: str | None = None

    def needed(self, name: str, where: str) -> Any:
        """The value of a field that a block of this type must have. Raises RequestError."""
        value = getattr(self, name)
        if value is None:
            raise RequestError(
                f"`{where}.{name}` is missing", param=f"{where}.{name}", code="missing_parameter"
            )
        return value


Content = str | list[ContentBlock]


class InputMessage(MarkedMessage, kw_only=True, forbid_unknown_fields=True):
    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: Content
    cache_control: Any = None

    def check(self, where: str) -> None:
        if self.role not in ROLES:
            known = ", ".join(ROLES)
            raise RequestError(
                f"`{where}.role` is '{self.role[:40]}': supported are {known}", param=f"{where}.role"
            )


class MessagesTool(msgspec.Struct, kw_only=True):
    """A function that the model may call. input_schema: the JSON schema of its input, an object."""

    name: ToolName | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def hosted(self) -> bool:
        return self.type is not None and self.type.startswith(SERVER_TOOLS)

    def check(self, where: str) -> None:
        """Raises RequestError."""
        if self.hosted:
            return
        if self.type not in (None, "custom"):
            raise RequestError(
                f"`{where}.type` is '{self.type[:60]}', which models here know nothing of: give the tool a "
                "name and an `input_schema`, and no type",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        for name in ("name", "input_schema"):
            if getattr(self, name) is None:
                raise RequestError(
                    f"`{where}.{name}` is missing", param=f"{where}.{name}", code="missing_parameter"
                )
        check_schema(self.input_schema or {}, f"{where}.input_schema")


class MessagesToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """name: of `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """budget_tokens: most tokens of reasoning. display: "omitted" leaves it out."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class RequestMetadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class CountTokensRequest(AnswerFields, kw_only=True):
    """Parts of a prompt; the model answers with no more than is in MessagesRequest."""

    OWN_NAMES: ClassVar[Mapping[str, str]] = {"stop": "stop_sequences"}

    model: str | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=1 << 16)]
    system: Content | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    # Refused: `messages` may hold no more than what is new in the conversation.
    thread: Any = None

    # They change nothing about the answer.
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if self.thread is not None:
            raise RequestError(
                "`thread` is not supported by this server, which keeps no messages: leave it out, and "
                "send the whole conversation with its `system` and `tools`",
                param="thread",
                code=THREAD_UNSUPPORTED,
            )
        for i, message in enumerate(self.messages):
            message.check(f"messages[{i}]")
        for i, tool in enumerate(self.tools or ()):
            tool.check(f"tools[{i}]")
        choice = self.tool_choice
        if choice is None:
            return
        if choice.type == "tool" and choice.name is None:
            raise RequestError(
                "`tool_choice.name` is missing", param="tool_choice.name", code="missing_parameter"
            )
        if choice.type in ("any", "tool") and all(tool.hosted for tool in self.tools or ()):
            raise RequestError(
                f"`tool_choice` is '{choice.type}', but there are no `tools`", param="tool_choice"
            )


class MessagesRequest(CountTokensRequest, kw_only=True):
    """max_tokens: more than the context has room for is the rest of it. top_k 0: all."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    metadata: RequestMetadata | None = None

    # Not Anthropic's: as in chat.
    response_format: ResponseFormat | None = None
    seed: Annotated[int, INT64] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    chat_template_kwargs: Object | None = None
