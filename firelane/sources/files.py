"""Files of a model that are fetched, from wherever it comes: no pickled weights, no code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from firelane.errors import ModelNotFoundError

WEIGHTS = ["model.safetensors", "model-*.safetensors"]
INDEX = "model.safetensors.index.json"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
"""The one file that is taken from below a model's directory."""
SMALL = [
    "config.json",
    "firelane_lossless.json",
    "generation_config.json",
    "hf_quant_config.json",
    INDEX,
    "tokenizer.json",
    "tiktoken.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
    TOOL_TEMPLATE,
]
OF_A_MODEL = [*SMALL, *WEIGHTS]
TEMPLATES = ["chat_template.jinja", "chat_template.json"]
PART = re.compile(r"-\d{5}-of-\d{5}$")
NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""GGUF files that are not language models: of eyes, and of statistics."""
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


def choose(hub_id: str, files: Sequence[str], name: str) -> list[str]:
    """The file of a repository that is meant, or all its parts. Raises ModelNotFoundError."""
    parts: dict[str, list[str]] = {}
    for file in sorted(files):
        stem = PART.sub("", file.removesuffix(".gguf"))
        if file.endswith(".gguf") and not NO_MODEL.search(file):
            parts.setdefault(stem, []).append(file)
    ending = re.compile(rf"(^|[-._/]){re.escape(name)}$", re.IGNORECASE)
    found = [stem for stem in parts if ending.search(stem)]
    if len(found) == 1:
        return parts[found[0]]
    there = ", ".join(Path(stem).name for stem in found or parts)[:400] or "none"
    why = "several GGUF files end so" if found else "no GGUF file of the repository ends so"
    raise ModelNotFoundError(f"{hub_id}:{name}: {why}; there are: {there}")
