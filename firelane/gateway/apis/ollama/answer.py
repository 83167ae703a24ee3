"""Answers of the paths that are Ollama's. Durations are nanoseconds, times are as in RFC 3339. Errors
are OpenAI's, in Ollama's form.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from firelane.api.errors import ErrorEnvelope
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.formats import encode_json

_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)


class OllamaError(msgspec.Struct, frozen=True, kw_only=True):
    error: str


class OllamaLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """bytes: of the token, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaCalledFunction(msgspec.Struct, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaAnswerCall(msgspec.Struct, kw_only=True):
    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaAnswerCall] | UnsetType = UNSET


class OllamaPiece(msgspec.Struct, kw_only=True):
    """A line of a stream, or the whole answer. What comes from `done_reason` on is in the last line alone.

    load_duration: from its arrival until the engine took the request. prompt_eval_duration: from there to the
    first token; eval_duration: from the first token to the end.
    """

    model: str
    created_at: str
    done: bool
    logprobs: list[OllamaLogprob] | UnsetType = UNSET
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatAnswer(OllamaPiece, kw_only=True):
    message: OllamaAnswerMessage


class OllamaGenerateAnswer(OllamaPiece, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbedAnswer(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(msgspec.Struct, kw_only=True):
    embedding: list[float]


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    """family: `model_type` of the checkpoint, "" where it has none. What the server does not know is ""."""

    parent_model: str = ""
    format: str = ""
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """modified_at: of the server's start. size: bytes of the weights, 0 until an engine is ready. digest: of
    the model's name and the program's version.
    """

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(msgspec.Struct, frozen=True, kw_only=True):
    models: list[OllamaModel]


class OllamaRunning(msgspec.Struct, frozen=True, kw_only=True):
    """size: bytes of weights and KV cache."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    context_length: int


class OllamaRunningModels(msgspec.Struct, frozen=True, kw_only=True):
    models: list[OllamaRunning]


class OllamaPulling(msgspec.Struct, frozen=True, kw_only=True):
    """A line of /api/pull. digest: of what is fetched; total, completed: its bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class OllamaShown(msgspec.Struct, frozen=True, kw_only=True):
    """parameters: the sampling values of requests that name none, a line each. template: Jinja."""

    modelfile: str = ""
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: str


def failure(status: int, body: bytes) -> tuple[int, bytes]:
    """Status and body of Ollama's answer; body: an ErrorEnvelope."""
    return status, encode_json(OllamaError(error=_ENVELOPES.decode(body).error.message))


def answer_as_ollama(exchange: Exchange) -> None:
    """Give the exchange Ollama's form of errors."""
    exchange.error_form = failure
