"""A Firelane server as Ray Serve LLM sees an engine: at the level of the OpenAI API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ray.llm._internal.serve.core.configs.llm_config import DiskMultiplexConfig, LLMConfig
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionResponse,
    CompletionResponse,
    DetokenizeResponse,
    EmbeddingResponse,
    ErrorInfo,
    ErrorResponse,
    TokenizeResponse,
)
from ray.llm._internal.serve.core.engine.protocol import LLMEngine
from ray.llm._internal.serve.core.protocol import RawRequestInfo

from firelane_ray.relay import AnswerError, Relay
from firelane_ray.server_process import ServerProcess, options_of

Answers = AsyncGenerator[Any, None]
RAYS_OWN = ("request_id",)
"""Fields that Ray puts into a request."""
NO_SPEECH = AnswerError("speech is not served", status=501, kind="not_implemented")


class FirelaneEngine(LLMEngine):
    """One server, with its gateway and its engines, on this machine. engine_kwargs of the LLMConfig are the
    options of `firelane serve`."""

    def __init__(self, llm_config: LLMConfig) -> None:
        loading = llm_config.model_loading_config
        source = loading.model_source or loading.model_id
        names = ["--served-model-name", loading.model_id]
        self._process = ServerProcess([str(source), *names, *options_of(llm_config.engine_kwargs)])
        self._relay: Relay | None = None

    async def start(self) -> None:
        """Raises MachineError with the reason for which the server does not start."""
        self._relay = Relay(await self._process.start())

    async def shutdown(self) -> None:
        if self._relay is not None:
            await self._relay.close()
        await self._process.stop()

    async def check_health(self) -> None:
        """Raises EngineDeadError, after which Ray starts another replica."""
        self._process.check()

    def routing_stats(self) -> dict[str, Any]:
        return {}

    async def resolve_lora(self, lora_model: DiskMultiplexConfig) -> None:
        raise NotImplementedError("adapters (LoRA) are not served")

    async def reset_prefix_cache(self) -> None:
        raise NotImplementedError("the prefix cache is not reset from outside")

    async def chat(self, request: Any, raw_request_info: RawRequestInfo | None = None) -> Answers:
        async for answer in self._ask(
            "/v1/chat/completions", request, raw_request_info, ChatCompletionResponse
        ):
            yield answer

    async def completions(self, request: Any, raw_request_info: RawRequestInfo | None = None) -> Answers:
        async for answer in self._ask("/v1/completions", request, raw_request_info, CompletionResponse):
            yield answer

    async def embeddings(self, request: Any, raw_request_info: RawRequestInfo | None = None) -> Answers:
        async for answer in self._ask("/v1/embeddings", request, raw_request_info, EmbeddingResponse):
            yield answer

    async def tokenize(self, request: Any, raw_request_info: RawRequestInfo | None = None) -> Answers:
        async for answer in self._ask("/tokenize", request, raw_request_info, TokenizeResponse):
            yield answer

    async def detokenize(self, request: Any, raw_request_info: RawRequestInfo | None = None) -> Answers:
        async for answer in self._ask("/detokenize", request, raw_request_info, DetokenizeResponse):
            yield answer

    async def transcriptions(self, request: Any, raw_request_info: RawRequestInfo | None = None) -> Answers:
        del request, raw_request_info
        yield _refusal(NO_SPEECH)

    async def _ask(self, path: str, request: Any, raw: RawRequestInfo | None, answer_type: Any) -> Answers:
        """Yield the answer as the protocol wants it: events as text, or one object, or an ErrorResponse."""
        assert self._relay is not None
        body = request.model_dump(mode="json", exclude_unset=True, exclude=set(RAYS_OWN))
        headers = raw.headers if raw is not None else {}
        try:
            if body.get("stream"):
                async for event in self._relay.stream(path, body, headers):
                    yield event
            else:
                yield answer_type.model_validate(await self._relay.answer(path, body, headers))
        except AnswerError as error:
            yield _refusal(error)


def _refusal(error: AnswerError) -> ErrorResponse:
    return ErrorResponse(error=ErrorInfo(message=f"{error}", type=error.kind, code=error.status))
