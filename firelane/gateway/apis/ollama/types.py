"""POST /api/chat, /api/generate, /api/embed, /api/embeddings and /api/show: Ollama's requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from firelane.api.chat import MAX_TOOLS, FunctionDefinition, MarkedMessage
from firelane.api.formats import ResponseFormat
from firelane.api.sampling import INT64, AnswerFields, Penalty, StopString
from firelane.errors import RequestError

ROLES = ("system", "user", "assistant", "tool")
HINTS = ("shift", "truncate")
"""Fields without which the answer is right all the same."""
PULL_HINTS = ("insecure", "username", "password")
SHOW_HINTS = ("verbose",)
OPTION_HINTS = (
    *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch"),
    *("num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n"),
    *("use_mlock", "use_mmap", "vocab_only"),
)
"""Options that say how to load a model, which is loaded here, or that change next to nothing."""


SAME_OPTIONS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty"),
)
"""Options that chat has as fields of the same name."""


class OllamaOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """num_predict 0, -1, -2: no limit but the context's. seed -1: another one each time. top_k 0: all.
    draft_num_predict: tokens that are drafted at a time at most; 0: none, -1: as many as pay."""

    num_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, INT64] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    draft_num_predict: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    # Hints: see OPTION_HINTS.
    embedding_only: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    low_vram: Any = None
    main_gpu: Any = None
    num_batch: Any = None
    num_ctx: Any = None
    num_gpu: Any = None
    num_keep: Any = None
    num_thread: Any = None
    numa: Any = None
    penalize_newline: Any = None
    repeat_last_n: Any = None
    use_mlock: Any = None
    use_mmap: Any = None
    vocab_only: Any = None

    def given_hints(self) -> list[str]:
        return [f"options.{name}" for name in OPTION_HINTS if getattr(self, name) is not None]


class OllamaFunction(msgspec.Struct, kw_only=True):
    """arguments: an object, or its JSON text, which a limit may have cut."""

    name: str
    arguments: Any = None


class OllamaCall(msgspec.Struct, kw_only=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(MarkedMessage, kw_only=True, forbid_unknown_fields=True):
    """tool_name, tool_call_id: of a tool's message, the call that it answers; without the latter it answers
    the earliest one of that name which has no answer yet.
    """

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    # Not read: refused in the newest message of a user, else words stand in their place.
    images: Any = None

    def check(self, where: str) -> None:
        """Raises RequestError."""
        if self.role not in ROLES:
            known = ", ".join(ROLES)
            raise RequestError(
                f"`{where}.role` is '{self.role[:40]}': supported are {known}", param=f"{where}.role"
            )


class OllamaTool(msgspec.Struct, kw_only=True):
    function: FunctionDefinition
    type: str | None = None


class OllamaRequest(AnswerFields, kw_only=True):
    """Fields of chat and generate. stream: true where it is left out. format: "json", or a JSON schema."""

    OWN_NAMES: ClassVar[Mapping[str, str]] = {
        "max_tokens": "options.num_predict",
        "repetition_penalty": "options.repeat_penalty",
        **{name: f"options.{name}" for name in SAME_OPTIONS},
    }

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    options: OllamaOptions | None = None
    format: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    think: bool | Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    # Hints: see HINTS.
    keep_alive: Any = None
    shift: Any = None
    truncate: Any = None

    @property
    def streams(self) -> bool:
        return self.stream is not False

    def check_shared(self) -> None:
        """Raises RequestError."""
        if isinstance(self.format, str) and self.format not in ("", "json"):
            raise RequestError(
                f"`format` is '{self.format[:40]}': use \"json\" or a JSON schema, an object", param="format"
            )


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """Without messages it asks whether the model is loaded."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=1 << 16)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=MAX_TOOLS)] | None = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        self.check_shared()
        for i, message in enumerate(self.messages or ()):
            message.check(f"messages[{i}]")


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """Without a prompt and a suffix it asks whether the model is loaded. raw: `prompt` is not put into the
    template. suffix: the text behind a gap that follows `prompt`, whose filling is the answer.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        self.check_shared()
        if self.raw and self.system:
            raise RequestError("`raw` has no `system`: put it into the prompt", param="system")
        if self.suffix and self.system:
            raise RequestError("`suffix` has no `system`: leave one of them out", param="system")

    @property
    def asks_nothing(self) -> bool:
        return not self.prompt and not self.suffix


class OllamaEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """truncate (true): take as many tokens of a longer input as the model does, its first ones. Without an
    input it asks whether the model is loaded.
    """

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    options: OllamaOptions | None = None
    keep_alive: Any = None

    def inputs(self) -> list[str]:
        given = [self.input] if isinstance(self.input, str) else self.input or []
        return [] if given == [""] else given

    def check(self) -> None:
        """All that the types allow is looked at where the inputs are."""


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The older form: one text, and a vector that is not scaled."""

    model: Annotated[str, Meta(min_length=1)]
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: Any = None

    def check(self) -> None:
        """All that the types allow is allowed."""


class OllamaShowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """name: the older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: Any = None

    def check(self) -> None:
        """Raises RequestError."""
        _check_named(self.model or self.name)


class OllamaPullRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """name: the older name of `model`. Models come from where the server's configuration says: what concerns
    Ollama's registry changes nothing.
    """

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: Any = None
    username: Any = None
    password: Any = None

    def check(self) -> None:
        """Raises RequestError."""
        _check_named(self.model or self.name)


class OllamaDeleteRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """name: the older name of `model`."""

    model: str | None = None
    name: str | None = None

    def check(self) -> None:
        """Raises RequestError."""
        _check_named(self.model or self.name)


def _check_named(name: str | None) -> None:
    if not name:
        raise RequestError("`model` is missing", param="model", code="missing_parameter")
