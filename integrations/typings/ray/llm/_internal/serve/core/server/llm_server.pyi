from typing import Any

from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

class LLMServer:
    async def __init__(self, llm_config: LLMConfig, **options: Any) -> None: ...
    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]: ...
