"""The adapters of an engine by their names, each in its place in the executor's memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firelane.contract import Executor
from firelane.engine.adapters.peft import read_adapter
from firelane.engine_config import EngineConfig
from firelane.errors import ModelError, RequestError, UsageError
from firelane.weights.storage.files import GGUF_INDEX


class AdapterPlaces:
    """digests: of the adapters' content, by name."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        self.digests = digests
        self._places = {name: place for place, name in enumerate(digests, 1)}

    def of(self, name: str) -> int:
        """The place of an adapter; of "" that of none. Raises RequestError for a name that is not served."""
        if not name:
            return 0
        if name not in self._places:
            raise RequestError(f"the adapter {name[:80]} is not served here")
        return self._places[name]


NO_ADAPTERS = AdapterPlaces({})


def load_adapters(executor: Executor, config: EngineConfig) -> AdapterPlaces:
    """Read the adapters that `config` names into the executor's memory. Raises UsageError that names the one
    that is at fault."""
    if not config.adapters_option:
        return NO_ADAPTERS
    memory = executor.adapters
    if memory is None:
        raise UsageError(f"{config.adapters_option}: this backend serves no adapters: leave it out")
    if (config.model_dir / GGUF_INDEX).exists():
        raise UsageError(
            f"{config.adapters_option}: rows of a GGUF file may be in another order than an adapter's: serve "
            "the model's safetensors files"
        )
    digests: dict[str, str] = {}
    for place, (name, directory) in enumerate(config.loras, 1):
        try:
            adapter = read_adapter(Path(directory))
            memory.put(place, adapter.tensors)
        except (ModelError, UsageError) as error:
            raise UsageError(f"--lora {name}: {error}") from None
        digests[name] = adapter.digest
    return AdapterPlaces(digests)
