"""From config.json to the ImageTower of a model that takes images."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import firelane.models.towers
from firelane.errors import CheckpointError, UnsupportedModelError
from firelane.models.config.composite import language_model
from firelane.models.config.reader import ConfigReader, read_config, read_dtype
from firelane.models.registry import DECLARED, NAME
from firelane.models.towers.tower import ImageTower
from firelane.program.values import DType
from firelane.storage import read_regular

FILES = ("preprocessor_config.json", "processor_config.json")
MAX_BYTES = 1 << 20


def read_tower(directory: Path, *, dtype: DType | None = None) -> ImageTower:
    """The tower of the model in this directory. dtype: of matrices; None: the model's own. Raises ModelErrors
    that name what is wrong with its files, UnsupportedModelError where no tower is known of the model."""
    config = read_config(directory)
    names = config.get("architectures")
    module = _modules().get(names[0]) if isinstance(names, list) and names else None
    if module is None:
        raise UnsupportedModelError(
            f"--images: no encoder of images is known of {names}: leave it out. Images are supported of "
            f"{', '.join(sorted(_modules()))}"
        )
    processor = ConfigReader(read_processor(directory), where="the image processor's config")
    own = read_dtype(ConfigReader(language_model(config).config))
    return importlib.import_module(module).tower(ConfigReader(config), processor, dtype or own)


def read_processor(directory: Path) -> Mapping[str, Any]:
    """The content of preprocessor_config.json, or what processor_config.json says of images; {} where there
    is none. Raises CheckpointError."""
    for name in FILES:
        try:
            found = json.loads(read_regular(directory / name, MAX_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{directory / name}: cannot be read ({error}): fetch it again") from error
        if isinstance(found, dict):
            found = cast(dict[str, Any], found)
            return found.get("image_processor", found)
        raise CheckpointError(f"{directory / name}: not a JSON object: fetch it again")
    return {}


def _modules() -> dict[str, str]:
    """The module of each architecture."""
    found: dict[str, str] = {}
    for source in sorted(Path(firelane.models.towers.__path__[0]).glob("*.py")):
        declared = DECLARED.search(source.read_text(encoding="utf-8"))
        for name in NAME.findall(declared[1]) if declared else ():
            found[name] = f"{firelane.models.towers.__name__}.{source.stem}"
    return found
