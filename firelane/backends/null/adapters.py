"""Adapters of an executor without a model: they are checked, and kept."""

from __future__ import annotations

from collections.abc import Mapping

from firelane.contract import AdapterLimits, AdapterTensors, check_adapter


class NullAdapters:
    """A contract.AdapterMemory. tensors: by place, what is there."""

    def __init__(self, limits: AdapterLimits, modules: Mapping[str, tuple[int, int]]) -> None:
        self.limits, self.modules = limits, modules
        self.tensors: dict[int, AdapterTensors] = {}

    def put(self, place: int, tensors: AdapterTensors) -> None:
        check_adapter(self, place, tensors)
        self.tensors[place] = dict(tensors)

    def clear(self, place: int) -> None:
        self.tensors.pop(place, None)
