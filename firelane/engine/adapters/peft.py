"""Adapters in PEFT's layout (github.com/huggingface/peft): adapter_config.json, and the factors of each
module in adapter_model.safetensors."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.contract import AdapterTensors, LowRank
from firelane.errors import CheckpointError, UnsupportedModelError
from firelane.models.config.reader import ConfigReader
from firelane.storage import read_regular
from firelane.weights.storage.safetensors import SafetensorsFile

log = logging.getLogger(__name__)
CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.default)?\.weight")
LANGUAGE_MODEL = re.compile(r"^(model\.language_model|language_model\.model)\.")
PLAIN_KEY = re.compile(r"\^?[\w.]+")
"""Keys of patterns that are names: others are regular expressions, which may take for ever."""
MOST_CONFIG_BYTES = 1 << 20
DIGEST_PARTS = 4
"""A part of what a digest is, not of the machine that makes it."""
OFF: dict[str, bool | str] = {
    "use_dora": False,
    "lora_bias": False,
    "use_qalora": False,
    "fan_in_fan_out": False,
    "bias": "none",
}
"""Keys that change what is computed, with the one value that is."""
ABSENT = (
    *("alora_invocation_tokens", "layer_replication", "modules_to_save", "target_parameters"),
    *("trainable_token_indices", "use_bdlora"),
)
"""Keys that change what is computed unless they are empty."""
HARMLESS = (
    *("arrow_config", "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying"),
    *("eva_config", "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform"),
    *("loftq_config", "lora_dropout", "megatron_config", "megatron_core", "peft_version"),
    *("qalora_group_size", "revision", "runtime_config", "target_modules", "task_type"),
)
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin training that change the base model, too."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """The factors of an adapter, and a digest of them, which is the same wherever they lie."""

    tensors: AdapterTensors
    digest: str


def read_adapter(directory: Path) -> Adapter:
    """Raises UnsupportedModelError for what is known and not computed, CheckpointError for files that are
    missing or damaged, each naming the file."""
    if not (directory / WEIGHTS).exists():
        found = (
            f"{PICKLE} may run code: save it as safetensors" if (directory / PICKLE).exists() else "missing"
        )
        raise CheckpointError(f"{directory / WEIGHTS}: {found}")
    scale = _Scale.read(directory)
    file = SafetensorsFile(directory / WEIGHTS)
    pairs: dict[str, dict[str, NDArray[np.uint16]]] = {}
    for name in file.tensors:
        module, factor = _place(directory, name)
        if factor in pairs.setdefault(module, {}):
            raise CheckpointError(f"{directory / WEIGHTS}: {name} stands there under two names")
        pairs[module][factor] = _bits(file, name)
    tensors = {module: _low_rank(directory, module, pair, scale) for module, pair in sorted(pairs.items())}
    if not tensors:
        raise CheckpointError(f"{directory / WEIGHTS}: it has no factors")
    return Adapter(tensors, _digest(tensors))


@dataclass(frozen=True)
class _Scale:
    """Factors of what adapters add, by module: alpha / rank, or alpha / sqrt(rank) (rsLoRA, 2023)."""

    where: Path
    alpha: float
    rank: int
    alphas: dict[str, float]
    ranks: dict[str, float]
    by_root: bool

    @classmethod
    def read(cls, directory: Path) -> _Scale:
        path = directory / CONFIG
        config = ConfigReader(_json(path), where=str(path))
        config.choice("peft_type", "LORA", among=("LORA",))
        for key, value in OFF.items():
            config.only(key, value)
        for key in ABSENT:
            config.ignore(key)
            if config.value(key):
                raise config.refusal(key, config.value(key), "it is not computed: leave it out in training")
        start = config.value("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(CHANGED_BASE):
            why = "such an adapter belongs to a base of its own: convert it to plain LoRA when it is saved"
            raise config.refusal("init_lora_weights", start, why)
        config.ignore("init_lora_weights", *HARMLESS)
        made = cls(
            where=path,
            alpha=config.number("lora_alpha", 8),
            rank=config.integer("r", 8),
            alphas=_pattern(config, "alpha_pattern"),
            ranks=_pattern(config, "rank_pattern"),
            by_root=config.boolean("use_rslora", False),
        )
        config.finish()
        if config.unknown:
            log.warning("adapter_keys_unknown file=%s keys=%s", path, ",".join(config.unknown))
        return made

    def of(self, module: str, rank: int) -> float:
        """Raises CheckpointError where the config says another rank than the file."""
        said = int(_matching(self.ranks, module, self.rank))
        if said != rank:
            raise CheckpointError(f"{self.where}: {module} has rank {said}, and the file rank {rank}")
        alpha = _matching(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(read_regular(path, MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[0][:200]}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: it is no JSON object")
    return cast(dict[str, Any], found)


def _pattern(config: ConfigReader, key: str) -> dict[str, float]:
    given = config.value(key) or {}
    config.ignore(key)
    if not isinstance(given, dict):
        raise config.refusal(key, given, "an object is needed")
    for name, value in cast(dict[str, Any], given).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise config.refusal(key, {name: value}, "positive numbers are needed")
        if not PLAIN_KEY.fullmatch(name):
            raise config.refusal(key, {name: value}, "names of modules are supported, no regular expressions")
    return cast(dict[str, float], given)


def _matching(pattern: dict[str, float], module: str, default: float) -> float:
    """The value of the first key that ends the module's name at a dot, or that is all of it."""
    for key, value in pattern.items():
        if module == key.removeprefix("^") or (key[0] != "^" and module.endswith(f".{key}")):
            return value
    return default


def _place(directory: Path, name: str) -> tuple[str, str]:
    """The module of a tensor, as the checkpoint of the base names it, and the letter of its factor."""
    found = FACTOR.fullmatch(name)
    if found is None:
        raise UnsupportedModelError(
            f"{directory / WEIGHTS}: {name[:120]} is no factor of a linear module: embeddings, biases, "
            "magnitudes and whole modules of adapters are not supported; train without them"
        )
    module = LANGUAGE_MODEL.sub("model.", found["module"].removeprefix(PREFIX))
    return module, found["factor"]


def _bits(file: SafetensorsFile, name: str) -> NDArray[np.uint16]:
    """The tensor's numbers in bf16, rounded to nearest even."""
    shape, dtype = file.tensors[name].shape, file.tensors[name].dtype
    if dtype not in ("BF16", "F16", "F32") or len(shape) != 2 or 0 in shape:
        raise CheckpointError(
            f"{file.path}: tensor {name} is {dtype} {list(shape)}: a matrix of numbers is needed"
        )
    values = file.tensor(name)
    bits = values if dtype == "BF16" else _rounded(values.astype(np.float32))
    if int((bits & 0x7FFF).max()) >= 0x7F80:
        raise CheckpointError(f"{file.path}: tensor {name} has numbers that are not finite")
    return np.ascontiguousarray(bits)


def _rounded(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _low_rank(directory: Path, module: str, pair: dict[str, NDArray[np.uint16]], scale: _Scale) -> LowRank:
    if len(pair) != 2:
        raise CheckpointError(f"{directory / WEIGHTS}: {module} has one factor alone")
    a, b = pair["A"], pair["B"]
    if len(a) != b.shape[1]:
        raise CheckpointError(f"{directory / WEIGHTS}: {module} has factors {a.shape} and {b.shape}")
    return LowRank(a=a, b=b, scale=scale.of(module, len(a)))


def _digest(tensors: AdapterTensors) -> str:
    """The digest of all factors, made by several threads: whoever loads an adapter waits for it."""
    modules = list(tensors.items())
    with ThreadPoolExecutor(DIGEST_PARTS) as pool:
        parts = list(pool.map(_digest_of, (modules[part::DIGEST_PARTS] for part in range(DIGEST_PARTS))))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _digest_of(modules: list[tuple[str, LowRank]]) -> bytes:
    digest = hashlib.sha256()  # processors have instructions for it
    for module, factors in modules:
        digest.update(f"{module}\0{factors.a.shape}\0{factors.b.shape}\0{factors.scale!r}\0".encode())
        digest.update(factors.a.data)
        digest.update(factors.b.data)
    return digest.digest()
