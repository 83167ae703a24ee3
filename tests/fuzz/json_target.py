"""Bodies of all APIs: each is decoded and checked, or refused with a RequestError of one line."""

from __future__ import annotations

import json
import random
from pathlib import Path

from mutate import mutate

from firelane.api.batches import BatchRequest
from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest
from firelane.api.errors import describe
from firelane.api.messages import CountTokensRequest, MessagesRequest
from firelane.api.models import DetokenizeRequest, TokenizeRequest
from firelane.api.ollama import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from firelane.api.responses import ResponsesRequest
from firelane.api.scores import RerankRequest, ScoreRequest
from firelane.api.workers_ai import RunRequest
from firelane.errors import RequestError

TYPES = (
    *(BatchRequest, ChatRequest, CompletionRequest, EmbeddingRequest, DetokenizeRequest, TokenizeRequest),
    *(ResponsesRequest, RunRequest, MessagesRequest, CountTokensRequest, ScoreRequest, RerankRequest),
    *(OllamaChatRequest, OllamaGenerateRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest),
    OllamaShowRequest,
)
DECODERS = [BodyDecoder(kind) for kind in TYPES]
GOOD = [
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "stop": ["b"], "n": 2},
    {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}], "tools": [], "tool_choice": "auto"},
    {"prompt": [[1, 2], [3]], "logit_bias": {"5": -1.5}, "max_tokens": 3, "temperature": 0.5},
    {"input": [{"role": "user", "content": "a"}], "truncation": "auto", "text": {"format": {"type": "text"}}},
    {"input": ["a", "b"], "dimensions": 4, "encoding_format": "base64"},
    {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
    {"tokens": [1, 2, 3], "model": "m"},
    {"model": "m", "messages": [{"role": "tool", "content": "a"}], "options": {"stop": ["a"], "top_k": 1}},
    {"model": "m", "prompt": "a", "format": {"type": "object"}, "images": [], "context": [1], "think": "low"},
    {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    {"text_1": ["a", "b"], "text_2": ["c", "d"]},
    {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "max_tokens": 5,
        "tools": [],
    },
    {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"}},
]
FILES = sorted((Path(__file__).parents[1] / "gateway" / "hostile" / "bodies").iterdir())
SEEDS = [json.dumps(body).encode() for body in GOOD] * 4 + [file.read_bytes() for file in FILES]
TOKENS = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"-1", b"1e999", b"9" * 30),
    *(b"0.1", b'""', b"\\ud800", b"\xff", b'"a":', b"[[" * 500, b'{"a":' * 500, b'"stream":true,'),
    *(b'"continue_final_message":true,', b'"guided_json":{},', b'"tools":[{}],', b'"messages":[],'),
]


def run(draw: random.Random) -> None:
    body = mutate(draw, SEEDS, TOKENS)
    try:
        draw.choice(DECODERS).decode(body).check()
    except RequestError as error:
        status, answer = describe(error)
        assert 400 <= status < 500
        message = json.loads(answer)["error"]["message"]
        assert message
        assert "\n" not in message
        assert len(message) <= 1000
