"""POST /v1/responses and what belongs to it: request and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from firelane.api.chat import MAX_TOOLS
from firelane.api.custom_tools import InputFormat
from firelane.api.formats import ResponseFormat
from firelane.api.sampling import INT64, AnswerFields, Count, Object, Penalty, RunOptions, StopString
from firelane.api.stored.responses_items import InputItem, OutputItem
from firelane.api.usage import OutputTokensDetails
from firelane.errors import RequestError

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""All but the first speak of items that no answer of this server has: they ask for nothing."""
RESPONSE_HINTS = ("context_management", "service_tier")
MetadataText = Annotated[str, Meta(max_length=512)]
MetadataKey = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")]
Status = Literal["completed", "incomplete", "failed", "in_progress", "queued", "cancelled"]


TOLD = ("function", "custom", "namespace")
"""Types of tools that the model is told of."""


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that the model may call, or a custom tool. parameters: a JSON schema. format: of a custom
    tool's input. tools: those of a `namespace`. Of other types, which the makers of models run on their
    servers, nothing is read.
    """

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: InputFormat | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | UnsetType | None = UNSET

    @property
    def members(self) -> list[FunctionTool]:
        return self.tools or [] if self.type == "namespace" else []

    def check(self, where: str) -> None:
        """Raises RequestError."""
        if self.type in TOLD and self.name is None:
            raise RequestError(f"`{where}.name` is missing", param=f"{where}.name")
        if self.type == "custom" and self.format is not None:
            self.format.held(f"{where}.format")
        for i, tool in enumerate(self.members):
            if tool.type == "namespace":
                raise _unsupported(f"{where}.tools[{i}].type: namespace", param=f"{where}.tools[{i}].type")
            tool.check(f"{where}.tools[{i}]")


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """name, schema, description, strict: of json_schema."""

    ALWAYS_STRICT: ClassVar[bool] = True

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """effort: as `reasoning_effort` of chat. No summaries are made. context: which earlier reasoning counts;
    here it is the template's to say.
    """

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Any = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(AnswerFields, kw_only=True):
    """OpenAI's fields; below them those of vLLM's that chat has too."""

    OWN_NAMES: ClassVar[Mapping[str, str]] = {"max_tokens": "max_output_tokens"}

    model: str | None = None
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=1 << 16)] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    metadata: Annotated[dict[MetadataKey, MetadataText], Meta(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None

    response_format: ResponseFormat | None = None
    seed: Annotated[int, INT64] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    thinking_token_budget: Count | None = None
    chat_template_kwargs: Object | None = None
    options: RunOptions | None = None

    # Harmless: they change nothing about the answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    client_metadata: Any = None

    # Hints: see RESPONSE_HINTS.
    context_management: Any = None
    service_tier: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        for name in self.include or ():
            if name not in INCLUDABLE:
                raise _unsupported(f"include: {name[:60]}", param="include")
        if self.top_logprobs and not self.wants_logprobs:
            raise RequestError(f"`top_logprobs` needs '{LOGPROBS}' in `include`", param="top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "`stream_options` is only allowed when `stream` is true", param="stream_options"
            )
        if self.background and self.store is False:
            raise RequestError(
                "an answer made in the background is stored, and read by its id: leave `background` out, or "
                "`store`",
                param="store",
            )
        self._check_input()
        for i, tool in enumerate(self.tools or ()):
            tool.check(f"tools[{i}]")
        form = self.text.format if self.text is not None else None
        if form is not None and form.type == "json_schema" and (form.schema is None or form.name is None):
            missing = "schema" if form.schema is None else "name"
            raise RequestError(f"`text.format.{missing}` is missing", param=f"text.format.{missing}")

    def _check_input(self) -> None:
        if self.conversation is not None and self.previous_response_id is not None:
            raise RequestError(
                "`conversation` and `previous_response_id` are both given: give one of them",
                param="conversation",
            )
        if self.conversation is not None and conversation_id(self.conversation) is None:
            raise RequestError(
                '`conversation` is neither an id nor {"id": ...} with one', param="conversation"
            )
        if not self.input and self.previous_response_id is None and self.conversation is None:
            raise RequestError("`input` is missing: give a text or a list of items", param="input")
        if isinstance(self.input, list):
            for i, item in enumerate(self.input):
                item.check(f"input[{i}]")


def conversation_id(given: str | dict[str, Any] | None) -> str | None:
    """The id in a request's `conversation`; None where there is none."""
    found = given.get("id") if isinstance(given, dict) else given
    return found if isinstance(found, str) and found else None


def _unsupported(name: str, *, param: str | None = None) -> RequestError:
    return RequestError(
        f"`{name}` is not supported by this server: leave it out",
        param=param or name,
        code="unsupported_parameter",
    )


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All counts are tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """The answer; most of it repeats the request. Times: Unix time in seconds."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    background: bool = False
    conversation: dict[str, str] | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, str | None]
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[FunctionTool] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """stream: the events of an answer made in the background, those after the number starting_after."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    include_obfuscation: bool | None = None


class InputItemsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: the id of the item before the first one wanted. `include` asks for nothing that is here."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
