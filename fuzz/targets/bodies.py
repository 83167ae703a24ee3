"""JSON bodies of all APIs: a letter for the kind, then the body. It is decoded and checked, or refused with a
4xx in one line."""

from __future__ import annotations

import json
from functools import partial

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest
from firelane.api.errors import describe
from firelane.api.models import DetokenizeRequest, TokenizeRequest
from firelane.api.node import NodeRequest, keep_seconds
from firelane.api.stored.batches import BatchRequest
from firelane.api.stored.conversations import ConversationRequest, ConversationUpdate, ItemsRequest
from firelane.api.stored.responses import ResponsesRequest
from firelane.errors import RequestError
from firelane.gateway.apis.embeddings.score_types import RerankRequest, ScoreRequest
from firelane.gateway.apis.messages.types import CountTokensRequest, MessagesRequest
from firelane.gateway.apis.ollama.types import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from firelane.gateway.apis.workers_ai.types import RunRequest
from fuzz.json_mutator import mutate_json
from fuzz.target import Target

TYPES = (
    *(BatchRequest, ChatRequest, CompletionRequest, EmbeddingRequest, DetokenizeRequest, TokenizeRequest),
    *(ResponsesRequest, RunRequest, MessagesRequest, CountTokensRequest, ScoreRequest, RerankRequest),
    *(OllamaChatRequest, OllamaGenerateRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest),
    *(OllamaShowRequest, NodeRequest, ConversationRequest, ConversationUpdate, ItemsRequest),
)
DECODERS = [BodyDecoder(kind) for kind in TYPES]


def run(data: bytes) -> None:
    decoder = DECODERS[(data[0] if data else 0) % len(DECODERS)]
    try:
        found = decoder.decode(data[1:])
        found.check()
        seconds = keep_seconds(getattr(found, "keep_alive", None))
        assert seconds is None or seconds == seconds, "not a number"
    except RequestError as error:
        status, answer = describe(error)
        assert 400 <= status < 500
        message = json.loads(answer)["error"]["message"]
        assert message
        assert "\n" not in message
        assert len(message) <= 1000


TARGET = Target(
    run=run,
    mutate=partial(mutate_json, prefix=1),
    words=(
        *(b'{"model":"m",', b'"messages":[{"role":"user","content":"a"}]', b'"prompt":"a"', b'"input":["a"]'),
        *(b"null", b"true", b"-1", b"1e999", b"99999999999999999999", b"0.1", b'""', b"\\ud800", b"[[[[[[[["),
        *(b'"stream":true', b'"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]'),
        *(b'"tool_choice":"auto"', b'"response_format":{"type":"json_object"}', b'"logit_bias":{"5":-1}'),
        *(
            b'"stop":["a"]',
            b'"n":2',
            b'"max_tokens":3',
            b'"temperature":0.5',
            b'"guided_json":{}',
            b'"logprobs":1',
        ),
        *(
            b'"keep_alive":"5m"',
            b'"options":{"top_k":1}',
            b'"format":"json"',
            b'"images":[]',
            b'"think":"low"',
        ),
        *(b'"role":"tool","content":"x","tool_call_id":"c"', b'"documents":[{"text":"c"}]', b'"query":"a"'),
        *(
            b'"continue_final_message":true',
            b'"previous_response_id":"r"',
            b'"structured_outputs":{"choice":["a"]}',
        ),
        *(b'"thinking":{"type":"enabled","budget_tokens":1024}', b'"system":"s"', b'"dimensions":4'),
    ),
)
