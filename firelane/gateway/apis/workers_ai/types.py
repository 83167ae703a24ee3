"""The native form of Workers AI: POST /client/v4/accounts/{account}/ai/run/{model}.

Fields, defaults and error codes as in Cloudflare's reference of text generation ("Workers AI models",
"Workers AI errors", "Reject busy requests", "JSON Mode").
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.chat import MAX_TOOLS, ContentPart, MarkedMessage
from firelane.api.sampling import INT64, AnswerFields, Object, Penalty, RunOptions, StopString
from firelane.errors import RequestError

DEFAULT_MAX_TOKENS = 256

OUT_OF_QUOTA = 3036
OUT_OF_CAPACITY = 3040
NOT_ALLOWED = 3041
SERVER_ERROR = 3043
LORA_UNSUPPORTED = 5005
INVALID_INPUT = 5006
NO_SUCH_MODEL = 5007
AUTHENTICATION_ERROR = 10000


class LoraUnsupportedError(RequestError):
    status = 405


class RunMessage(MarkedMessage, kw_only=True, forbid_unknown_fields=True):
    """tool_calls: of the assistant, as in an answer. name: of the tool whose result this is."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[Object], Meta(max_length=MAX_TOOLS)] | None = None


class RunFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """json_schema: the schema itself, or OpenAI's object around it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class RunRequest(AnswerFields, kw_only=True):
    """Either `prompt` or `messages`. raw: `prompt` is not put into the chat template."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[RunMessage], Meta(min_length=1, max_length=1 << 16)] | None = None
    raw: bool | None = None
    stream: bool | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, INT64] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    response_format: RunFormat | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    tools: Annotated[list[Object], Meta(max_length=MAX_TOOLS)] | None = None
    options: RunOptions | None = None

    # Refused.
    lora: Any = None
    functions: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if self.lora is not None:
            raise LoraUnsupportedError("`lora` is not supported by this server: leave it out", param="lora")
        if self.functions:
            raise RequestError("`functions` is not supported by this server: use `tools`", param="functions")
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either `prompt` or `messages`", param="prompt", code="missing_parameter")
        if self.raw and self.prompt is None:
            raise RequestError("`raw` is only allowed with `prompt`", param="raw")
        if self.raw and (self.tools or self.response_format):
            raise RequestError("`raw` has no `tools` and no `response_format`", param="raw")


class RunUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class RunCall(msgspec.Struct, kw_only=True):
    """A call in both of Workers AI's forms: name and arguments (an object), and OpenAI's."""

    name: str
    arguments: Any
    id: str
    type: Literal["function"] = "function"
    function: dict[str, str]


class RunResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """response: a text; with `response_format` the JSON value; None where tools are called instead."""

    response: Any
    usage: RunUsage
    tool_calls: list[RunCall] = []
    reasoning_content: str | None = None


class RunErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    message: str


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    result: RunResult
    success: Literal[True] = True
    errors: list[RunErrorBody] = []
    messages: list[str] = []


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    result: None = None
    success: Literal[False] = False
    errors: list[RunErrorBody]
    messages: list[str] = []


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    reject_if_busy: Literal["true", "false"] | None = msgspec.field(name="rejectIfBusy", default=None)
