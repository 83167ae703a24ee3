"""From a model's name to its source: aliases of the user, models of other programs, short names."""

from __future__ import annotations

from pathlib import Path

from firelane import env
from firelane.sources.aliases import aliases
from firelane.sources.others import find
from firelane.sources.short_names import SHORT_NAMES
from firelane.stores.address import is_address


def source_of(model: str) -> str:
    """The path, address or hub id that a name means; a text that is none of these names comes back as it is.
    What is there under this very name comes first, then an alias, which may be a short name; then a model
    that Ollama, LM Studio or llama.cpp keeps here; then a short name. Raises UsageError."""
    if is_address(model) or _is_there(model):
        return model
    meant = aliases().get(model, model)
    if is_address(meant) or _is_there(meant):
        return meant
    kept = find(meant, env.model_places())
    if kept is not None:
        return str(kept)
    return SHORT_NAMES.get(meant.lower().removesuffix(":latest"), meant)


def _is_there(model: str) -> bool:
    try:
        return Path(model).expanduser().exists()
    except (OSError, ValueError):
        return False
