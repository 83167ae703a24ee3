"""ConfigReader: strict reads of a checkpoint's config.json. A value that is not computed is refused by name;
keys that nobody reads are collected, to be named in one warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from firelane.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from firelane.models.config.harmless import is_harmless
from firelane.models.config.sentence_files import KEY, read_sentence_files
from firelane.program.values import DType
from firelane.quantization_file import with_quantization
from firelane.storage import read_regular

DTYPES = {"bfloat16": DType.BF16, "float32": DType.F32, "float16": DType.F32}
MAX_INT = 2**31 - 1
LEAST, MOST = 1e-18, 1e18
LISTED = re.compile(r"\[\d+\]")
MAX_BYTES = 64 << 20


def read_config(directory: Path) -> dict[str, Any]:
    """The content of config.json, with what hf_quant_config.json says beside it. Raises ModelNotFoundError
    without one, CheckpointError if it is not a JSON object.
    """
    path = directory / "config.json"
    try:
        config = json.loads(read_regular(path, MAX_BYTES))
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"{path}: no such file; give a model directory in Hugging Face layout"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}): make it readable") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}): fetch it again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: not a JSON object: fetch it again")
    config = with_quantization(cast(dict[str, Any], config), directory)
    files = read_sentence_files(directory)
    return config | {KEY: files} if files else config


class ConfigReader:
    """Reads keys with their type and default, and remembers which were read; `unknown` are the rest.

    A value of null stands for an absent key. All methods raise UnsupportedModelError naming the key.
    architecture: of the model, for a family that has several. max_model_len: of the longest sequence that
    will be served, None: the model's own. dtype: of matrices and activations, None: the model's own. unknown:
    keys of the whole config that were not read, to be added to.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        where: str = "config.json",
        architecture: str = "",
        max_model_len: int | None = None,
        dtype: DType | None = None,
        unknown: list[str] | None = None,
    ) -> None:
        self.architecture = architecture
        self.max_model_len = max_model_len
        self.dtype = dtype
        self._config = config
        self._where = where
        self._read: set[str] = set()
        self._unknown: list[str] = [] if unknown is None else unknown

    def has(self, key: str) -> bool:
        return self._config.get(key) is not None

    @property
    def objects(self) -> list[str]:
        """Keys of objects."""
        return [key for key, value in self._config.items() if isinstance(value, dict)]

    def value(self, key: str) -> Any:
        """The value of a key as the config has it, to be shown."""
        return self._config.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_INT:
            raise self.refusal(key, value, "a positive integer is needed")
        return value

    def count(self, key: str, default: int) -> int:
        """An integer of zero or more."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT:
            raise self.refusal(key, value, "an integer of zero or more is needed")
        return value

    def whole(self, key: str, default: int) -> int:
        """Any integer."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INT:
            raise self.refusal(key, value, "an integer is needed")
        return value

    def integer_or_none(self, key: str, default: int) -> int | None:
        """A positive integer; null means None here, and only an absent key the default."""
        if key in self._config and self._config[key] is None:
            self._read.add(key)
            return None
        return self.integer(key, default)

    def number_or_none(self, key: str, default: float | None) -> float | None:
        """A number like number(); null means None here, and only an absent key the default."""
        if key in self._config and self._config[key] is None:
            self._read.add(key)
            return None
        return self.number(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number of a size that leaves float32 room to compute with it."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
            raise self.refusal(key, value, f"a positive number from {LEAST:g} to {MOST:g} is needed")
        return float(value)

    def amount(self, key: str, default: float) -> float:
        """Zero, or a number as number() takes it."""
        value = self._get(key, default)
        return 0.0 if type(value) in (int, float) and value == 0 else self.number(key, default)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, value, "true or false is needed")
        return value

    def choice(self, key: str, default: str | None, *, among: tuple[str, ...]) -> str:
        value = self._get(key, default)
        if value not in among:
            raise self.refusal(key, value, f"supported: {', '.join(among)}")
        return value

    def string(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.refusal(key, value, "a string is needed")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(key, value, "a list of strings is needed")
        return list(value)

    def flags(self, key: str) -> list[bool]:
        """A list of ones and zeros, or of true and false."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(item in (0, 1) for item in value):
            raise self.refusal(key, value, "a list of ones and zeros is needed")
        return [bool(item) for item in value]

    def numbers(self, key: str, count: int) -> list[float]:
        """Exactly `count` numbers as number() takes them."""
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) != count:
            raise self.refusal(key, value, f"a list of {count} numbers is needed")
        return [ConfigReader({key: item}, where=self._where).number(key) for item in value]

    def integers(self, key: str) -> list[int]:
        """A list of integers of zero or more; [] if the key is missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.refusal(key, value, "a list of integers of zero or more is needed")
        return list(value)

    def only(self, key: str, value: bool | int | str | list[Any]) -> None:
        """The one value of this key that is computed, also where the config does not say; any other is
        refused."""
        if self._get(key, value) != value:
            raise self.refusal(key, self._config[key], f"only {json.dumps(value)} is supported")

    def section(self, key: str) -> ConfigReader | None:
        """The object at `key` with a reader of its own (which has to be finished too), or None."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.refusal(key, value, "an object is needed")
        return self._inner(key, value) if value else None

    def sections(self, key: str, count: int) -> list[ConfigReader]:
        """Exactly `count` objects, each with a reader of its own."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refusal(key, value, "a list of objects is needed")
        if len(value) != count:
            raise self.refusal(key, f"{len(value)} objects", f"one for each of {count} is needed")
        return [self._inner(f"{key}[{i}]", item) for i, item in enumerate(value)]

    def _inner(self, key: str, value: Mapping[str, Any]) -> ConfigReader:
        return ConfigReader(value, where=f"{self._where}, {key}", unknown=self._unknown)

    def ignore(self, *keys: str) -> None:
        """These keys have no effect in this configuration."""
        self._read.update(keys)

    def unread(self) -> dict[str, Any]:
        """Keys that say something, that were not read and are not known to be harmless."""
        return {
            key: value
            for key, value in self._config.items()
            if value is not None and key not in self._read and not is_harmless(key)
        }

    def finish(self) -> None:
        """Notes which keys were not read: what they ask for is not known here."""
        path = self._where.removeprefix("config.json").removeprefix(", ")
        self._unknown.extend(f"{path}, {key}".removeprefix(", ") for key in self.unread())

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of all unread keys, those of finished sections among them, each once."""
        return tuple(dict.fromkeys(LISTED.sub("", name).replace(", ", ".") for name in self._unknown))

    def refusal(self, key: str, value: Any, why: str) -> UnsupportedModelError:
        shown = repr(value) if value is not None else "missing"
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return UnsupportedModelError(f"{self._where}: {key} = {shown}: {why}")

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._config.get(key)
        return default if value is None else value


def read_dtype(config: ConfigReader) -> DType:
    """The dtype of matrices and activations, to which those of the checkpoint are cast: bf16 stays BF16; fp32
    is F32; fp16 is widened exactly to F32 (bf16 could not hold its mantissa); a checkpoint that does not say
    is taken as F32, which holds any of the three exactly. Quantised weights stand for bf16 matrices, whatever
    else is stored beside them; and a dtype that is asked for comes first."""
    if config.has("quantization_config") or config.dtype is not None:
        config.ignore("dtype", "torch_dtype")
        return config.dtype or DType.BF16
    key = "dtype" if config.has("dtype") else "torch_dtype"
    if config.value(key) == "auto":  # as the tensors are, which F32 holds exactly
        config.ignore("dtype", "torch_dtype")
        return DType.F32
    name = config.choice(key, "float32", among=tuple(DTYPES))
    config.ignore("dtype", "torch_dtype")
    return DTYPES[name]
