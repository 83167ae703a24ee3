"""Settings: config.json, or hf_quant_config.json, on a checkpoint's quantisation: the method, and what the
shapes do not tell."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from firelane.errors import CheckpointError, ModelError, UnsupportedModelError
from firelane.quantization_file import with_quantization
from firelane.storage import read_regular
from firelane.weights.storage.files import GGUF_INDEX

KEY = "quantization_config"
METHODS = ("fp8", "compressed-tensors", "awq", "gptq", "mxfp4", "modelopt")
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """method: one of METHODS. block: rows and columns that share a scale, where fp8 has such. bits: of a
    packed number. zero_offset: what is added to stored zero points."""

    method: str
    block: tuple[int, int] | None = None
    bits: int = 4
    zero_offset: int = 0


def read_settings(directory: Path) -> Settings | None:
    """None for a checkpoint that is not quantised. Raises UnsupportedModelError for a method that is not
    supported, CheckpointError for a config that cannot be read."""
    found = _section(directory / "config.json")
    if not found:
        return None
    method = str(found.get("quant_method", ""))
    if method not in METHODS:
        raise _refusal("quant_method", method, f"supported: {', '.join(METHODS)}")
    check = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "compressed-tensors": _compressed}.get(method, _plain)
    return check(method, found)


def quantization_of(directory: Path) -> str:
    """The method that a checkpoint is quantised by, one of METHODS or "gguf"; "" of one that is not, or that
    cannot be read."""
    if (directory / GGUF_INDEX).is_file():
        return "gguf"
    try:
        found = read_settings(directory)
    except ModelError:
        return ""
    return found.method if found else ""


def _section(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        config = json.loads(read_regular(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        return None
    content = with_quantization(cast(dict[str, Any], config), path.parent)
    text = content.get("text_config")
    nested = cast(dict[str, Any], text).get(KEY) if isinstance(text, dict) else None
    section = content.get(KEY) or nested
    return cast(dict[str, Any], section) if isinstance(section, dict) else None


def _plain(method: str, _: dict[str, Any]) -> Settings:
    return Settings(method)


def _fp8(method: str, found: dict[str, Any]) -> Settings:
    block = found.get("weight_block_size")
    if block is None:
        return Settings(method)
    sizes = cast(list[Any], block) if isinstance(block, list) else []
    if len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
        raise _refusal("weight_block_size", block, "two positive numbers are needed")
    return Settings(method, block=(sizes[0], sizes[1]))


def _compressed(method: str, found: dict[str, Any]) -> Settings:
    if found.get("sparsity_config"):
        form = cast(dict[str, Any], found["sparsity_config"]).get("format", "dense")
        if form != "dense":
            raise _refusal("sparsity_config.format", form, "only dense weights are supported")
    if found.get("transform_config"):
        raise _refusal("transform_config", "...", "transforms of activations are not supported")
    groups = found.get("config_groups")
    bits, block = 4, None
    for group in cast(dict[str, Any], groups).values() if isinstance(groups, dict) else []:
        weights = group.get("weights") or {}
        bits = int(weights.get("num_bits") or bits)
        sizes = weights.get("block_structure")
        block = (int(sizes[0]), int(sizes[1])) if isinstance(sizes, list) and len(sizes) == 2 else block
    return Settings(method, block=block, bits=bits)


def _awq(method: str, found: dict[str, Any]) -> Settings:
    version = str(found.get("version", "gemm")).lower()
    if version != "gemm":
        raise _refusal("version", version, "only the packing of 'gemm' is supported")
    return Settings(method, bits=_bits(found, (4,)))


def _gptq(method: str, found: dict[str, Any]) -> Settings:
    form = str(found.get("checkpoint_format") or "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise _refusal("checkpoint_format", form, "supported: gptq, gptq_v2")
    return Settings(method, bits=_bits(found, (4, 8)), zero_offset=int(form == "gptq"))


def _bits(found: dict[str, Any], among: tuple[int, ...]) -> int:
    bits = found.get("bits", found.get("w_bit", 4))
    if bits not in among:
        raise _refusal("bits", bits, f"supported: {', '.join(map(str, among))}")
    return int(bits)


def _refusal(key: str, value: Any, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"config.json, {KEY}: {key} = {str(value)[:60]!r}: {why}")
