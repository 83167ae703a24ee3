"""The adapters of an engine by their names, each in its place in the executor's memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firelane.contract import NO_ADAPTER, AdapterMemory, Executor, check_adapter
from firelane.engine.adapters.peft import Adapter, read_adapter
from firelane.engine_config import EngineConfig
from firelane.errors import FirelaneError, ModelError, ModelNotServedError, UsageError
from firelane.weights.storage.files import GGUF_INDEX
from firelane.wire.adapters import AdapterChange, AdaptersServed, LoadAdapter

InUse = Callable[[], set[int]]
"""Gives the places that sequences, or steps in flight, name."""


class AdapterPlaces:
    """Adapters come and go while sequences run. One that is taken away keeps its place until the last
    sequence that names it has ended. Adapters of equal content share a place."""

    def __init__(self, memory: AdapterMemory | None = None) -> None:
        """memory: owned by the caller; None: there can be no adapters."""
        self._memory = memory
        self.digests: dict[str, str] = {}
        """The adapters' content, by name."""
        self._places: dict[str, int] = {}  # by digest, of those that have a name
        self._leaving: set[int] = set()

    @property
    def has_leaving(self) -> bool:
        """Whether places hold adapters that nobody names any more."""
        return bool(self._leaving)

    def of(self, adapter: str) -> int:
        """The place of an adapter, given its digest or its name; of "" that of none. Raises
        ModelNotServedError for one that is not served."""
        if not adapter:
            return NO_ADAPTER
        place = self._places.get(self.digests.get(adapter, adapter))
        if place is None:
            raise ModelNotServedError(
                f"the adapter {adapter[:80]} is not served here, or not any more", code="model_not_found"
            )
        return place

    def put(self, name: str, adapter: Adapter, in_use: InUse) -> None:
        """Serve an adapter by this name, in place of what has the name. Raises UsageError, and changes
        nothing, where it does not fit the model, or no place is free."""
        if self._memory is None:
            raise UsageError("there is no room for adapters: start the server with --max-loras N")
        kept = {digest for other, digest in self.digests.items() if other != name}
        place = self._places.get(adapter.digest)
        if place is None:
            check_adapter(self._memory, 1, adapter.tensors)
            place = self._free_place({self._places[digest] for digest in kept} | in_use())
            self._memory.put(place, adapter.tensors)
        self._name(name, adapter.digest, {**self._places, adapter.digest: place})

    def remove(self, name: str) -> None:
        """Take a name away, if it is one; `sweep` gives the memory back."""
        self._name(name, "", self._places)

    def sweep(self, in_use: InUse) -> None:
        """Give back the memory of adapters that have no name, and no sequence."""
        free = self._leaving - in_use() if self._leaving else set[int]()
        for place in free:
            assert self._memory is not None
            self._memory.clear(place)
        self._leaving -= free

    def _free_place(self, taken: set[int]) -> int:
        assert self._memory is not None
        most = self._memory.limits.max_adapters
        free = [place for place in range(1, most + 1) if place not in taken]
        if not free:
            raise UsageError(
                f"all {most} places for adapters are taken, some perhaps by requests that still run: unload "
                "one, or start the server with a larger --max-loras"
            )
        return min(free, key=self._leaving.__contains__)

    def _name(self, name: str, digest: str, places: dict[str, int]) -> None:
        before = set(self._places.values())
        others = {other: one for other, one in self.digests.items() if other != name}
        self.digests = {**self.digests, name: digest} if digest else others
        self._places = {one: places[one] for one in self.digests.values()}
        self._leaving = (self._leaving | before) - set(self._places.values())


def load_adapters(executor: Executor, config: EngineConfig) -> AdapterPlaces:
    """Read the adapters that `config` names into the executor's memory. Raises UsageError that names the one
    that is at fault."""
    if not config.adapters_option:
        return AdapterPlaces()
    memory = executor.adapters
    if memory is None:
        raise UsageError(f"{config.adapters_option}: this backend serves no adapters: leave it out")
    if (config.model_dir / GGUF_INDEX).exists():
        raise UsageError(
            f"{config.adapters_option}: rows of a GGUF file may be in another order than an adapter's: serve "
            "the model's safetensors files"
        )
    places = AdapterPlaces(memory)
    for name, directory in config.loras:
        try:
            places.put(name, read_adapter(Path(directory)), set)
        except (ModelError, UsageError) as error:
            raise UsageError(f"--lora {name}: {error}") from None
    return places


def change_adapters(places: AdapterPlaces, asked: AdapterChange, in_use: InUse) -> AdaptersServed:
    """Do what a gateway asks for between two steps, and tell what there is then."""
    error = ""
    try:
        if isinstance(asked, LoadAdapter):
            places.put(asked.name, read_adapter(Path(asked.directory)), in_use)
        else:
            places.remove(asked.name)
    except (FirelaneError, OSError) as failed:
        error = str(failed).replace(asked.directory, asked.name) if isinstance(asked, LoadAdapter) else ""
    places.sweep(in_use)
    return AdaptersServed(dict(places.digests), asked.id, error)
