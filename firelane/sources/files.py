"""Files of a model that are fetched, from wherever it comes: no pickled weights, no code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

WEIGHTS = ["model.safetensors", "model-*.safetensors"]
INDEX = "model.safetensors.index.json"
SMALL = [
    "config.json",
    "firelane_lossless.json",
    "generation_config.json",
    INDEX,
    "tokenizer.json",
    "tiktoken.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
]
OF_A_MODEL = [*SMALL, *WEIGHTS]
TEMPLATES = ["chat_template.jinja", "chat_template.json"]
GGUF_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def is_small(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in SMALL)


def are_weights(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in WEIGHTS)


def of_a_model(names: Iterable[str]) -> list[str]:
    """The files of a repository that are fetched."""
    return [name for name in names if is_small(name) or are_weights(name)]


def gguf_parts(name: str) -> list[str]:
    """The names of all files of a split model, of which `name` is one; else `name` alone."""
    found = GGUF_PART.fullmatch(name)
    if found is None:
        return [name]
    count = int(found["count"])
    return [f"{found['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
