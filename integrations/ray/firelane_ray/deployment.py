"""The class that an LLMConfig of Ray Serve names: server_cls="firelane_ray.deployment.FirelaneServer"."""

from __future__ import annotations

import copy
from typing import Any

from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.llm._internal.serve.core.server.llm_server import LLMServer

from firelane_ray.engine import FirelaneEngine


class FirelaneServer(LLMServer):
    """A replica of Ray Serve LLM with a Firelane server."""

    async def __init__(self, llm_config: LLMConfig, **options: Any) -> None:
        """options: as LLMServer takes them."""
        await super().__init__(llm_config, **{"engine_cls": FirelaneEngine, **options})

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """Options of the config's deployment_config: one actor, with its server's processes beside it."""
        options: dict[str, Any] = copy.deepcopy(llm_config.deployment_config)
        if llm_config.runtime_env:
            options.setdefault("ray_actor_options", {}).setdefault("runtime_env", llm_config.runtime_env)
        return options
