"""Stand-ins of the types of Ray Serve LLM that an engine meets, in the place of its modules: Ray itself is
not among the packages that the tests install."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict


class LLMEngine:
    pass


class LLMServer:
    async def __init__(self, llm_config: Any, **options: Any) -> None:
        self.llm_config, self.options = llm_config, options


class Model(BaseModel):
    """Request or answer with any fields."""

    model_config = ConfigDict(extra="allow")


class ErrorInfo(BaseModel):
    message: str
    type: str
    code: int


class ErrorResponse(BaseModel):
    error: ErrorInfo


ANSWERS = (
    *("ChatCompletionResponse", "CompletionResponse", "EmbeddingResponse"),
    *("TokenizeResponse", "DetokenizeResponse"),
)
CORE = "ray.llm._internal.serve.core"
MODULES: dict[str, dict[str, Any]] = {
    f"{CORE}.configs.llm_config": {"LLMConfig": object, "DiskMultiplexConfig": object},
    f"{CORE}.configs.openai_api_models": {
        **dict.fromkeys(ANSWERS, Model),
        "ErrorInfo": ErrorInfo,
        "ErrorResponse": ErrorResponse,
    },
    f"{CORE}.engine.protocol": {"LLMEngine": LLMEngine},
    f"{CORE}.protocol": {"RawRequestInfo": object},
    f"{CORE}.server.llm_server": {"LLMServer": LLMServer},
}


def install(patch: pytest.MonkeyPatch) -> None:
    """For as long as the patch lasts; so are the modules that import them."""
    for path, contents in MODULES.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in sys.modules:
                patch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[path].__dict__.update(contents)
    for name in ("engine", "deployment"):
        patch.delitem(sys.modules, f"firelane_ray.{name}", raising=False)
