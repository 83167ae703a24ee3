"""Source of a plan's model: a config.json, with or without weights beside it, or the header of a GGUF
file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firelane.errors import ModelNotFoundError
from firelane.models.config.reader import read_config
from firelane.sources.hub import download_config
from firelane.sources.names import source_of
from firelane.sources.resolve import HUB_ID, resolve

CONFIG = "config.json"


def read_model(model: str | None) -> tuple[Path, Mapping[str, Any]]:
    """The directory and the content of config.json; of a model of the hub that file alone is fetched. Raises
    what resolve() and read_config() raise."""
    model = None if model is None else source_of(model)
    path = Path(model).expanduser() if model is not None else None
    if path is not None and path.name == CONFIG and path.is_file():
        return path.parent, read_config(path.parent)
    if model is not None and path is not None and not path.exists():
        if ":" in model and HUB_ID.fullmatch(model.partition(":")[0]):
            raise ModelNotFoundError(
                f"{model}: a plan reads a GGUF file's header; download the file, and give it"
            )
        if HUB_ID.fullmatch(model):
            directory = download_config(model)
            return directory, read_config(directory)
    directory = resolve(model)
    return directory, read_config(directory)
