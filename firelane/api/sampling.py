"""Fields that completions and chat share: how to draw tokens, when to stop, what to report.

Three kinds of field: those that work; those that change nothing here and are ignored (`user`, `store` ...);
and hints, without which the answer is right all the same, which are ignored and named to the client. Fields
that would change the answer but are not implemented are in field_names.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import msgspec.structs
from msgspec import Meta

from firelane.api.formats import Choices, ResponseFormat, StructuredOutputs
from firelane.api.patterns import GrammarText, Pattern
from firelane.api.reading.field_names import FieldNames
from firelane.api.reading.urgency import DeadlineMs, Priority
from firelane.api.speculation import Speculative, most_drafted
from firelane.errors import RequestError
from firelane.request_limits import MAX_BIAS, MAX_LOGPROBS

INT64 = Meta(ge=-(2**63), le=2**63 - 1)
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Limit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""A most number of tokens; -1: as many as the context has room for."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
BadWord = Annotated[str, Meta(min_length=1, max_length=256)]
Object = Annotated[dict[str, Any], Meta(max_length=64)]
ToolType = Annotated[str, Meta(extra_json_schema={"enum": ["function", "custom"]})]
"""The type of a tool. The schema alone says what is understood, so that the refusal can be clear."""


HINTS = (
    *("cache_prompt", "keep_alive", "provider", "service_tier", "slot_id", "id_slot"),
    *("stream_interval", "thinking", "timings_per_token", "usage"),
)

FURTHER = ("response_format", "stop", "max_tokens")
"""Constraints whose fields differ between request types."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`include_usage` adds a last chunk with the usage, `continuous_usage_stats` the usage so far to every
    chunk. `include_obfuscation` is ignored: chunks are not padded.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class RunOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of Workers AI. rejectIfBusy: answer 429 rather than wait for a free place in the engine."""

    reject_if_busy: bool | None = msgspec.field(name="rejectIfBusy", default=None)


class KvTransferParams(msgspec.Struct, kw_only=True):
    """Place of the prompt's pages, as vLLM's connectors and llm-d's sidecar write it. do_remote_decode:
    another server goes on with the request; the answer then says where it gets the pages.
    do_remote_prefill: another server has computed the prompt; all that it said is here. Fields of other
    connectors are ignored."""

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    remote_host: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    remote_port: Annotated[int, Meta(ge=1, le=65535)] | None = None

    @property
    def source(self) -> tuple[str, str]:
        """Engine and address (host:port) that pages come from; both "" where none do."""
        host, port = self.remote_host, self.remote_port
        if not (self.do_remote_prefill and self.remote_engine_id and host and port):
            return "", ""
        return self.remote_engine_id, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class AnswerFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Constraints on an answer, what must not be shared with others, and how soon it is wanted: every request
    type that generates text has these fields, and OWN_NAMES tells what it calls others (field_names.py).
    """

    OWN_NAMES: ClassVar[Mapping[str, str]] = {}
    NO_LIMIT: ClassVar[int | None] = None

    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    grammar: GrammarText | None = None
    json_schema: str | dict[str, Any] | None = None
    allowed_token_ids: Annotated[list[Count], Meta(min_length=1, max_length=1 << 14)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=128)] | None = None
    logit_bias: dict[Count, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[Count], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    speculative: Speculative | None = None
    priority: Priority | None = None
    deadline_ms: DeadlineMs | None = None
    lora_path: Annotated[str, Meta(max_length=256)] | None = None

    @classmethod
    def field_names(cls) -> FieldNames:
        """The rule for fields of this type by other servers' names."""
        known = frozenset(field.encode_name for field in msgspec.structs.fields(cls))
        return FieldNames(
            known, cls.OWN_NAMES, frozenset((*AnswerFields.__struct_fields__, *FURTHER)), cls.NO_LIMIT
        )

    @property
    def most_drafted(self) -> int:
        """Tokens that are drafted at a time at most, as in NewRequest."""
        return most_drafted(self.speculative)

    def give_answer_fields(self, other: AnswerFields) -> None:
        """Set these fields of another request to what they are here, where they are given here."""
        for name in AnswerFields.__struct_fields__:
            if getattr(self, name) is not None:
                setattr(other, name, getattr(self, name))


class SamplingFields(AnswerFields, kw_only=True):
    """Ranges are those of the OpenAI API; fields that it lacks have the names and ranges of vLLM's."""

    NO_LIMIT: ClassVar[int | None] = -1

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Limit | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    seed: Annotated[int, INT64] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_format: ResponseFormat | None = None

    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None

    options: RunOptions | None = None

    kv_transfer_params: KvTransferParams | None = None

    # Ignored: they change nothing about the answer.
    user: Any = None
    store: Any = None
    metadata: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    guided_decoding_backend: Any = None
    spaces_between_special_tokens: Any = None
    request_id: Any = None
    session_id: Any = None

    # Hints: see HINTS.
    cache_prompt: Any = None
    id_slot: Any = None
    keep_alive: Any = None
    provider: Any = None
    service_tier: Any = None
    slot_id: Any = None
    stream_interval: Any = None
    thinking: Any = None
    timings_per_token: Any = None
    usage: Any = None

    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


def unsupported(name: str, value: str = "") -> RequestError:
    """The refusal of a field, or of one value of it."""
    what = f" {value}" if value else ""
    return RequestError(
        f"`{name}`{what} is not supported by this server: leave it out",
        param=name,
        code="unsupported_parameter",
    )


def check_shared(fields: SamplingFields) -> None:
    """Check rules that hold between fields. Raises RequestError."""
    if len(fields.logit_bias or ()) > MAX_BIAS:
        raise RequestError(
            f"`logit_bias` has {len(fields.logit_bias or ())} entries: at most {MAX_BIAS} are taken",
            param="logit_bias",
        )
    if fields.truncate_prompt_tokens == 0:
        raise RequestError(
            "`truncate_prompt_tokens` is 0: use -1 or at least 1", param="truncate_prompt_tokens"
        )
    if fields.prompt_logprobs is not None and fields.stream:
        raise RequestError("`prompt_logprobs` is not available in a stream", param="prompt_logprobs")
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("`stream_options` is only allowed when `stream` is true", param="stream_options")
    limit = fields.max_tokens
    if fields.min_tokens and limit is not None and limit >= 0 and fields.min_tokens > limit:
        raise RequestError(
            f"`min_tokens` ({fields.min_tokens}) is more than `max_tokens` ({limit})", param="min_tokens"
        )
