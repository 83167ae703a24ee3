"""Metadata of a GGUF file, read with types; what a family's config is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from firelane.errors import UnsupportedModelError

Config = dict[str, Any]
"""Content of config.json."""
MOST_LAYERS = 4096
MOST_EXPERTS = 4096
MOST_SIZE = 1 << 31


class Metadata:
    """Entries of one architecture, by their names behind `ARCHITECTURE.`, and the shapes of the tensors, by
    their names in the file. read: the numbers of a vector. All methods raise UnsupportedModelError naming the
    entry.
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str], list[float]],
    ) -> None:
        self._entries = entries
        self.shapes = shapes
        self._read = read
        self.architecture = self._string("general.architecture")

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._entries

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refusal(key, "an integer is needed")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1."""
        value = self.integer(key, default)
        if not 0 < value <= MOST_SIZE:
            raise self._refusal(key, "a size from 1 on is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._refusal(key, "a number is needed")
        return _shortest(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if not 0 < value < math.inf:
            raise self._refusal(key, "a positive number is needed")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._refusal(key, "true or false is needed")
        return value

    def string(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._refusal(key, "a string is needed")
        return value

    def flags(self, key: str) -> list[bool] | None:
        """True or false for each layer; None where there is no list."""
        value = self._value(key, [])
        if not isinstance(value, list) or not value:
            return None
        if len(cast(list[Any], value)) < self.layers:
            raise self._refusal(key, f"true or false is needed for each of {self.layers} layers")
        return [bool(entry) for entry in cast(list[Any], value)[: self.layers]]

    def of_layers(self, key: str, default: int | None = None) -> list[int]:
        """An integer for each layer: a list of them, or one for all."""
        value = self._value(key, default)
        found = cast(list[Any], value) if isinstance(value, list) else [value] * self.layers
        if len(found) < self.layers or not all(type(entry) is int for entry in found):
            raise self._refusal(key, f"an integer is needed, or one for each of {self.layers} layers")
        return found[: self.layers]

    def same(self, key: str, default: int | None = None) -> int:
        """An integer, or a list of it: one for each layer."""
        found = set(self.of_layers(key, default))
        if len(found) != 1:
            raise self._refusal(key, "layers that differ in it are not supported")
        return found.pop()

    def present(self, key: str) -> int:
        """The value that all layers share, like same(), among those where it is not 0."""
        found = set(self.of_layers(key)) - {0}
        if len(found) != 1:
            raise self._refusal(key, "layers that differ in it, but for having none, are not supported")
        return found.pop()

    def vector(self, tensor: str) -> list[float] | None:
        """The numbers of a tensor that is one; None where there is no such tensor."""
        if tensor not in self.shapes:
            return None
        if len(self.shapes[tensor]) != 1:
            raise UnsupportedModelError(
                f"tensor {tensor} has shape {list(self.shapes[tensor])}, not one axis"
            )
        return [_shortest(value) for value in self._read(tensor)]

    @property
    def layers(self) -> int:
        """Their number, without those that predict further tokens."""
        found = self.size("block_count") - self.integer("nextn_predict_layers", 0)
        if not 0 < found <= MOST_LAYERS:
            raise self._refusal("block_count", f"from 1 to {MOST_LAYERS} layers are supported")
        return found

    @property
    def experts(self) -> int:
        """Number of experts of a layer."""
        found = self.size("expert_count")
        if found > MOST_EXPERTS:
            raise self._refusal("expert_count", f"at most {MOST_EXPERTS} experts are supported")
        return found

    @property
    def vocab_size(self) -> int:
        return self._shape("token_embd.weight")[0]

    def layer_has(self, tensor: str) -> bool:
        """Whether a layer has a tensor of this name."""
        return any(f"blk.{layer}.{tensor}" in self.shapes for layer in range(self.layers))

    def _shape(self, tensor: str) -> tuple[int, ...]:
        if tensor not in self.shapes:
            raise UnsupportedModelError(f"the file has no tensor {tensor}: it is not a whole model")
        return self.shapes[tensor]

    def _string(self, key: str) -> str:
        value = self._entries.get(key)
        if not isinstance(value, str):
            raise UnsupportedModelError(f"metadata {key} is missing: it is not a whole model")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self._entries.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise self._refusal(key, "it is missing")
        return value

    def _refusal(self, key: str, why: str) -> UnsupportedModelError:
        shown = str(self._entries.get(f"{self.architecture}.{key}"))[:60]
        return UnsupportedModelError(f"metadata {self.architecture}.{key} = {shown}: {why}")


def _shortest(value: float) -> float:
    """The number that was meant: 1e-06 again, which float32 can only come near."""
    return float(str(np.float32(value)))
