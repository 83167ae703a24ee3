"""Types of a server's words about itself, and of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.chat import MAX_TOOLS, Message, ToolDefinition
from firelane.api.sampling import Count, Object, unsupported
from firelane.errors import RequestError


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "firelane"
    root: str
    parent: str | None = None
    max_model_len: int | None
    quantization: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class HealthReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """reason: why the engine does not serve. broken: helper processes that cannot be had at present, by kind,
    with the reason: requests that need one fail."""

    status: str
    reason: str | None = None
    broken: dict[str, str] | None = None


class ModelQuery(msgspec.Struct, kw_only=True):
    """model: one of the names of a served model; where it is left out, /health tells of all models and /stats
    of the first.
    """

    model: str | None = None


class VersionReport(msgspec.Struct, frozen=True, kw_only=True):
    version: str


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of `prompt`, `content`, and `messages` with what goes into the chat template with them. content,
    add_special, parse_special, with_pieces: llama-server's form, which has an answer of its own.

    add_special_tokens: those that the tokenizer puts around a text (default: with `prompt` only).
    return_token_strs: also the vocabulary's entries.
    """

    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=1 << 16)] | None = None
    model: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Object | None = None

    # Refused.
    chat_template: Any = None
    mm_processor_kwargs: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if [self.prompt, self.content, self.messages].count(None) != 2:
            raise RequestError(
                "give either `prompt`, `content` or `messages`", param="prompt", code="missing_parameter"
            )
        if self.parse_special is False:
            raise unsupported("parse_special", "false")
        for name in ("add_special", "with_pieces"):
            if self.content is None and getattr(self, name):
                raise RequestError(f"`{name}` is only allowed with `content`", param=name)
        for name in ("chat_template", "mm_processor_kwargs"):
            if getattr(self, name):
                raise unsupported(name)
        for name in ("add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs"):
            if self.messages is None and getattr(self, name):
                raise RequestError(f"`{name}` is only allowed with `messages`", param=name)


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """piece: the token's text, or its bytes where they are not a whole one."""

    id: int
    piece: str | list[int]


class ContentTokens(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's answer."""

    tokens: list[int | TokenPiece]


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a request, rendered. text: before it is tokenised, or of token ids that were given."""

    token_ids: list[int]
    text: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Special tokens are null where the model has none."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    vocab_size: int
    model_max_length: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: Annotated[list[Count], Meta(max_length=1 << 20)]
    model: str | None = None

    def check(self) -> None:
        """All that the types allow is allowed."""


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The text, by vLLM's name, by llama-server's and by SGLang's."""

    prompt: str
    content: str
    text: str
