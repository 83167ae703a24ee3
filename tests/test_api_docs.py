"""docs/api.md speaks of every field that a request may have, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from firelane.api.chat import ChatRequest, FunctionDefinition, Message, ToolDefinition
from firelane.api.completions import CompletionRequest
from firelane.api.formats import StructuredOutputs
from firelane.api.models import TokenizeRequest
from firelane.api.reading.field_names import ALIASES, REFUSED
from firelane.api.sampling import AnswerFields, SamplingFields, StreamOptions
from firelane.api.stored.responses import ResponsesRequest
from firelane.api.stored.responses_items import ITEM_TYPES
from firelane.gateway.apis.decisions.decision_types import DecisionQuestion, DecisionRequest
from firelane.gateway.apis.decisions.systemone_types import SystemOneQuestion, SystemOneRequest
from firelane.gateway.apis.embeddings.class_types import PoolingRequest
from firelane.gateway.apis.embeddings.cohere import CohereEmbedRequest
from firelane.gateway.apis.embeddings.score_types import RerankRequest, ScoreRequest
from firelane.gateway.apis.llama_server.types import InfillRequest, NativeCompletionRequest
from firelane.gateway.apis.messages.types import MessagesRequest
from firelane.gateway.apis.ollama.types import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from firelane.gateway.apis.workers_ai.types import RunRequest

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "api.md").read_text()
NAME = re.compile(r"`([a-z_.A-Z][a-z_.A-Z0-9]*)`")


def names(kind: type[msgspec.Struct], prefix: str = "") -> set[str]:
    return {prefix + field.encode_name for field in msgspec.structs.fields(kind)}


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table(title: str) -> set[str]:
    """Names in the first column of a section's tables."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {name for row in rows for name in NAME.findall(row)}


SHARED = names(SamplingFields)
EVERYWHERE = names(AnswerFields)
PARTS_OF_RESPONSES = {"text", "reasoning", "stream_options"}


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Chat", names(ChatRequest) - SHARED | {"max_tokens"}),
        ("Completions", names(CompletionRequest) - SHARED | {"max_tokens"}),
        (
            "Fields of chat and completions",
            SHARED - {"max_tokens", "stream_options", "options"}
            | names(StreamOptions, "stream_options.")
            | {"options.rejectIfBusy"},
        ),
        (
            "Structured output",
            names(StructuredOutputs, "structured_outputs.")
            | {name for name in SHARED if name.startswith("guided_")} - {"guided_decoding_backend"}
            | {"response_format"},
        ),
        (
            "Responses",
            names(ResponsesRequest) - PARTS_OF_RESPONSES - EVERYWHERE
            | {"text.format", "text.verbosity", "reasoning.effort", "reasoning.summary"}
            | {"stream_options.include_obfuscation", *ITEM_TYPES},
        ),
        (
            "Messages",
            names(MessagesRequest) - EVERYWHERE
            | {"text", "tool_use", "tool_result", "thinking", "redacted_thinking"}
            | {"document", "search_result", "compaction"},
        ),
        (
            "Ollama",
            (names(OllamaChatRequest) | names(OllamaGenerateRequest)) - EVERYWHERE
            | names(OllamaEmbedRequest)
            | names(OllamaOptions, "options."),
        ),
        (
            "Score and rerank",
            (names(ScoreRequest) | names(RerankRequest)) - {"options"} | {"options.rejectIfBusy"},
        ),
        (
            "Classes, and what a model makes of texts",
            names(PoolingRequest) - {"options"} | {"options.rejectIfBusy"},
        ),
        ("Cohere's embeddings", names(CohereEmbedRequest)),
        (
            "Decisions",
            (names(SystemOneRequest) | names(DecisionRequest)) - {"options"}
            | names(SystemOneQuestion, "questions.")
            | names(DecisionQuestion, "questions.")
            | {"options.rejectIfBusy"},
        ),
        ("Constraints on every path", EVERYWHERE | {*ALIASES, "format"} | {*REFUSED}),
        ("Workers AI", names(RunRequest) - EVERYWHERE - {"options"} | {"options.rejectIfBusy"}),
        ("Tokens", names(TokenizeRequest)),
        ("llama-server", (names(InfillRequest) | names(NativeCompletionRequest)) - EVERYWHERE),
    ],
)
def test_tables_have_every_field(title: str, fields: set[str]) -> None:
    assert table(title) == fields


def test_parts_of_messages_and_tools_are_told() -> None:
    chat, tools, ollama = section("Chat"), section("Tools"), section("Ollama")
    assert [name for name in names(OllamaMessage) if f"`{name}`" not in ollama] == []
    assert [name for name in names(Message) if f"`{name}`" not in chat] == []
    told = set(NAME.findall(tools))
    assert names(ToolDefinition) - {"function"} | names(FunctionDefinition, "function.") <= told


def test_every_endpoint_has_a_section() -> None:
    titles = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^## (.*)", TEXT, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= titles
