"""Forms of weights in memory: how many bits a number of each weight takes, in a form that is asked for, or as
the checkpoint has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, cast

from firelane.errors import UsageError
from firelane.program.ops import Embed, Linear, Route
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.gguf.index import read_index

FORMS: Mapping[str, float] = {
    "bf16": 16.0,
    "lossless12": 12.08,
    "int8": 8.5,
    "fp8": 8.0,
    "int4": 4.5,
    "mxfp4": 4.25,
}
"""Bits a number. int8, int4: codes and a scale of 16 bits for each 32; mxfp4: one of 8; fp8: scales of blocks
of 128 x 128. lossless12: with tables and the weights that the window of exponents leaves out."""
TINY_BYTES = 16 << 20
"""Bytes of models whose weights stay bf16 unless something else is asked for."""


@dataclass(frozen=True)
class StoredBits:
    """Bits a number of the checkpoint's tensors, by name; None: as config.json's dtype says. by_tensor: known
    of each one, not by a rule for matrices."""

    of: Callable[[str], float | None]
    by_tensor: bool


@dataclass(frozen=True)
class WeightForm:
    """name: of FORMS, or "checkpoint" for what it brings; bits: by weight that is not as the program says."""

    name: str
    bits: Mapping[Weight, float]

    def nbytes(self, weight: Weight) -> float:
        return self.ratio(weight) * weight.nbytes

    def ratio(self, weight: Weight) -> float:
        """Bytes in memory to those of the plain numbers."""
        return self.bits[weight] / (8 * weight.dtype.itemsize) if weight in self.bits else 1.0


def choose_form(program: Program, wanted: str, directory: Path, config: Mapping[str, Any]) -> WeightForm:
    """The form that `wanted` asks for; "auto" is what a quantised checkpoint has, else lossless12. Raises
    UsageError for a quantised checkpoint that is to have another one."""
    stored = stored_bits(directory, config)
    if stored is not None:
        if wanted not in ("auto", "bf16"):
            raise UsageError(
                f"--weights {wanted}: the checkpoint is quantised already; leave it out, or bf16"
            )
        return WeightForm("bf16", {}) if wanted == "bf16" else _as_stored(program, stored)
    if wanted == "auto":
        wanted = "bf16" if program.weights_bytes <= TINY_BYTES else "lossless12"
    return plain_form(program, wanted)


def plain_form(program: Program, name: str) -> WeightForm:
    """All matrices in the form of this name that may have it: quantisers leave some as they are."""
    coded = _matrices(program) if name == "lossless12" else _linear(program)
    return WeightForm(name, {} if name == "bf16" else dict.fromkeys(coded, FORMS[name]))


def stored_bits(directory: Path, config: Mapping[str, Any]) -> StoredBits | None:
    """Bits of each stored tensor, in a GGUF file or by config.json's quantization_config; None: not
    quantised."""
    index = read_index(directory)
    if index is not None:
        tensors = {name: tensor for file in index.files for name, tensor in file.tensors.items()}
        sizes = {name: 8 * (t.end - t.begin) / prod(t.shape) for name, t in tensors.items()}
        return StoredBits(sizes.get, by_tensor=True) if any(bits < 16 for bits in sizes.values()) else None
    section = config.get("quantization_config") or _section(config, "text_config").get("quantization_config")
    return _of_section(cast(Mapping[str, Any], section)) if isinstance(section, dict) else None


@dataclass(frozen=True)
class _Group:
    """Modules that are quantised in one way: those named, or all where a class of modules is."""

    bits: float
    modules: tuple[str, ...]

    @classmethod
    def of(cls, section: Mapping[str, Any], group: Mapping[str, Any]) -> _Group:
        found = {**section, **_section(group, "weights")}
        targets = tuple(_strings(group.get("targets") or ()))
        is_class = not targets or any(target.isidentifier() for target in targets)
        return cls(_packed_bits(str(section.get("quant_method", "")), found), () if is_class else targets)

    def has(self, module: str) -> bool:
        return not self.modules or any(_names(target, module) for target in self.modules)


def _of_section(section: Mapping[str, Any]) -> StoredBits | None:
    sections = _section(section, "config_groups").values()
    groups = [_Group.of(section, cast(Any, group)) for group in sections if isinstance(group, dict)]
    groups = groups or [_Group.of(section, {})]
    kept = [
        str(name) for key in ("ignore", "modules_to_not_convert") for name in _strings(section.get(key) or ())
    ]

    @cache
    def find(module: str) -> float | None:
        if any(_names(pattern, module) for pattern in kept):
            return None
        return next((group.bits for group in groups if group.has(module)), None)

    return StoredBits(lambda tensor: find(_module(tensor)), by_tensor=False)


def _module(tensor: str) -> str:
    """The module that a tensor is of; of experts the first one."""
    name = re.sub(r"\.(weight|weight_packed|\w+_blocks)$", "", tensor)
    return re.sub(r"\.experts\.\d+\.", ".experts.0.", name)


def _packed_bits(method: str, found: Mapping[str, Any]) -> float:
    """Bits a number: code and scale."""
    if method == "mxfp4":
        return FORMS["mxfp4"]
    if method == "fp8":
        return FORMS["fp8"]
    bits = int(found.get("num_bits") or found.get("bits") or found.get("w_bit") or 4)
    group = int(found.get("group_size") or found.get("q_group_size") or 0)
    is_float = found.get("type") == "float"
    zeros = 0 if is_float or found.get("symmetric", found.get("sym", method == "gptq")) else bits
    scale = 8 if is_float and bits == 4 else 16
    return bits + ((scale + zeros) / group if group > 0 else 0.0)


def _names(pattern: str, module: str) -> bool:
    """Whether a pattern of config.json means the module, or one that it lies in."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    tail = pattern.removeprefix("language_model.").removeprefix("model.")
    own = module.removeprefix("language_model.").removeprefix("model.")
    if "*" in tail:
        return fnmatchcase(own, tail) or fnmatchcase(own, f"{tail}.*")
    return own == tail or own.startswith(f"{tail}.") or f".{tail}." in f".{own}."


def _as_stored(program: Program, stored: StoredBits) -> WeightForm:
    """Each weight of products as its tensors are, on average; routers, embeddings and the head are plain
    unless they are said to be otherwise."""
    found: dict[Weight, float] = {}
    for weight in _matrices(program) if stored.by_tensor else _linear(program):
        plain = 8.0 * weight.dtype.itemsize
        sizes = {stored.of(tensor) or plain for tensor in weight.tensors}
        found[weight] = sizes.pop() if len(sizes) == 1 else _average(weight, stored, plain)
    return WeightForm("checkpoint", found)


def _average(weight: Weight, stored: StoredBits, plain: float) -> float:
    sizes = [(stored.of(piece.tensor) or plain, piece.height * piece.width) for piece in weight.pieces]
    return sum(bits * n for bits, n in sizes) / sum(n for _, n in sizes)


def _matrices(program: Program) -> list[Weight]:
    """Weights of bf16 that are multiplied, and embeddings."""
    tables = [op.table for op in program.ops if isinstance(op, Embed)]
    every = dict.fromkeys([*(p.weight for p in program.products), *tables])
    return [weight for weight in every if weight.dtype is DType.BF16]


def _linear(program: Program) -> list[Weight]:
    """Weights without embeddings, the head and routers, which quantisers leave as they are."""
    logits = {op.logits for op in program.ops if isinstance(op, Route)}
    routers = {op.weight for op in program.ops if isinstance(op, Linear) and op.out in logits}
    tables = {op.table for op in program.ops if isinstance(op, Embed)}
    head = {program.head.weight} if program.head else set[Weight]()
    return [weight for weight in _matrices(program) if weight not in routers | tables | head]


def _section(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = found.get(key)
    return cast(Mapping[str, Any], section) if isinstance(section, dict) else {}


def _strings(found: object) -> Iterable[str]:
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else ()
