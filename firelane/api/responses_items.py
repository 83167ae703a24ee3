"""Items of /v1/responses: what a client puts in, and what an answer puts out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.errors import RequestError

ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
ROLES = ("system", "developer", "user", "assistant")
PART_TYPES = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Only texts are understood: `input_text`, `output_text`, `refusal`, `reasoning_text`, `summary_text`."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(PART_TYPES)})] = "input_text"
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None

    def content(self, where: str) -> str:
        """Raises RequestError where the part is no text."""
        text = self.refusal if self.type == "refusal" else self.text
        if text is None or self.type not in PART_TYPES:
            kind = self.type[:40]
            raise RequestError(
                f"`{where}` has a part of type '{kind}': only texts are supported", param=where
            )
        return text


InputText = str | list[InputPart]


class InputItem(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which fields count depends on `type`:

    message: role, content. function_call: call_id, name, arguments (JSON text), namespace of the function.
    function_call_output: call_id, output. reasoning: content, else summary.
    """

    type: Annotated[str, Meta(extra_json_schema={"enum": list(ITEM_TYPES)})] = "message"
    id: str | None = None
    status: ItemStatus | None = None
    role: str | None = None
    content: InputText | None = None
    phase: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: InputText | None = None
    summary: list[InputPart] | None = None
    encrypted_content: Any = None
    namespace: str | None = None
    caller: Any = None

    def check(self, where: str) -> None:
        """Raises RequestError, which names the part of `where` at fault."""
        if self.type not in ITEM_TYPES:
            known = ", ".join(ITEM_TYPES)
            raise RequestError(
                f"`{where}.type` is '{self.type[:40]}': supported are {known}",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        for name in ("encrypted_content", "caller"):
            if getattr(self, name):
                raise RequestError(
                    f"`{where}.{name}` is not supported by this server: leave it out",
                    param=f"{where}.{name}",
                    code="unsupported_parameter",
                )
        self._check_fields(where)

    def _check_fields(self, where: str) -> None:
        needed = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
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

    def text(self, where: str) -> str:
        """The item's own text. Raises RequestError."""
        value = self.output if self.type == "function_call_output" else self.content
        name = "output" if self.type == "function_call_output" else "content"
        if self.type == "reasoning" and value is None:
            value, name = self.summary, "summary"
        if value is None or isinstance(value, str):
            return value or ""
        return "".join(part.content(f"{where}.{name}") for part in value)


class Logprob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One token, or one alternative to it; top_logprobs: best first, absent in an alternative."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Logprob] | None = None


class OutputText(msgspec.Struct, kw_only=True, tag="output_text"):
    text: str
    annotations: list[None] = []
    logprobs: list[Logprob] = []


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


class OutputReasoning(msgspec.Struct, kw_only=True, tag="reasoning"):
    """The model's own reasoning is in `content`; no summary is made of it."""

    id: str
    status: ItemStatus
    summary: list[None] = []
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputReasoning
