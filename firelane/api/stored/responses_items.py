"""Items of /v1/responses: what a client puts in, and what an answer puts out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.chat import MarkedMessage
from firelane.errors import RequestError

CALL_TYPES = (
    *("function_call", "custom_tool_call", "mcp_call", "local_shell_call", "shell_call", "apply_patch_call"),
    "computer_call",
)
"""Calls that a client, or another server, has run; the last four are of tools without a name of their own."""
OUTPUT_TYPES = (
    *("function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output"),
    *("apply_patch_call_output", "computer_call_output"),
)
ITEM_TYPES = ("message", "reasoning", "item_reference", "compaction", *CALL_TYPES, *OUTPUT_TYPES)
ROLES = ("system", "developer", "user", "assistant")
PART_TYPES = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A text: `input_text`, `output_text`, `refusal`, `reasoning_text`, `summary_text`. Parts of other types
    are not read, but for images: `input_image` with its URL.
    """

    type: Annotated[str, Meta(extra_json_schema={"enum": list(PART_TYPES)})] = "input_text"
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    image_url: Any = None
    detail: Any = None

    def content(self, where: str) -> str | None:
        """The text; None where the part is none. Raises RequestError where it is missing."""
        if self.type not in PART_TYPES:
            return None
        text = self.refusal if self.type == "refusal" else self.text
        if text is None:
            raise RequestError(f"`{where}` has a part without a text", param=where)
        return text


InputText = str | list[InputPart]


class InputItem(MarkedMessage, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which fields count depends on `type`:

    message: role, content. reasoning: content, else summary. item_reference: id of an item that is stored.
    function_call, mcp_call: call_id, name, arguments (JSON text), namespace of the function; mcp_call: also
    output or error. custom_tool_call: call_id, name, input. local_shell_call, shell_call, computer_call:
    call_id, action. apply_patch_call: call_id, operation. Outputs of those: call_id, output. Items of other
    types, which other servers make, are left out.
    """

    type: Annotated[str, Meta(extra_json_schema={"enum": list(ITEM_TYPES)})] = "message"
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: InputText | None = None
    phase: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    operation: Any = None
    output: Any = None
    error: Any = None
    summary: list[InputPart] | None = None
    encrypted_content: Any = None
    namespace: str | None = None
    caller: Any = None

    @property
    def call_key(self) -> str:
        """Fields that a call and its output share."""
        return self.call_id or self.id or ""

    def check(self, where: str) -> None:
        """Raises RequestError, which names the part of `where` at fault."""
        if self.type not in ITEM_TYPES and self.role is not None:  # it would be lost
            known = ", ".join(ITEM_TYPES)
            raise RequestError(
                f"`{where}.type` is '{self.type[:40]}': supported are {known}",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        needed = {
            "message": ("role", "content"),
            "item_reference": ("id",),
            "function_call": ("call_id", "name", "arguments"),
            "custom_tool_call": ("call_id", "name"),
            "mcp_call": ("name",),
            "function_call_output": ("call_id", "output"),
        }
        for name in needed.get(self.type, ()):
            if getattr(self, name) is None:
                raise RequestError(
                    f"`{where}.{name}` is missing", param=f"{where}.{name}", code="missing_parameter"
                )
        if self.type == "message" and self.role not in ROLES:
            known = ", ".join(ROLES)
            raise RequestError(
                f"`{where}.role` is '{str(self.role)[:40]}': supported are {known}", param=f"{where}.role"
            )

    def thought(self, where: str) -> str:
        """The text of reasoning; "" where another server has encrypted it. Raises RequestError."""
        value = self.summary if self.content is None else self.content
        if value is None or isinstance(value, str):
            return value or ""
        texts = [part.content(where) or "" for part in value]
        return ("\n" if value is self.summary else "").join(texts)


class ResponsesLogprob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One token, or one alternative to it; top_logprobs: best first, absent in an alternative."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ResponsesLogprob] | None = None


class OutputText(msgspec.Struct, kw_only=True, tag="output_text"):
    text: str
    annotations: list[None] = []
    logprobs: list[ResponsesLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag="reasoning_text"):
    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(msgspec.Struct, kw_only=True, tag="function_call", omit_defaults=True):
    """arguments: JSON text. namespace: of the tool, where it is in one."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class OutputCustomCall(msgspec.Struct, kw_only=True, tag="custom_tool_call", omit_defaults=True):
    """input: the text for the tool. namespace: of the tool, where it is in one."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class OutputReasoning(msgspec.Struct, kw_only=True, tag="reasoning"):
    """The model's own reasoning is in `content`; no summary is made of it."""

    id: str
    status: ItemStatus
    summary: list[None] = []
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputCustomCall | OutputReasoning
