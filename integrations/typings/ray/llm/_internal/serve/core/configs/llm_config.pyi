from typing import Any

class ModelLoadingConfig:
    model_id: str
    model_source: Any

class DiskMultiplexConfig: ...

class LLMConfig:
    model_loading_config: ModelLoadingConfig
    engine_kwargs: dict[str, Any]
    deployment_config: dict[str, Any]
    runtime_env: dict[str, Any] | None
