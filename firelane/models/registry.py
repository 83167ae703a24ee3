"""From config.json to a Program: the architecture's name leads to the family's file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol, cast

import firelane.models
from firelane.errors import UnsupportedModelError
from firelane.models.config import ConfigReader
from firelane.program.program import Program

SUFFIX = "ForCausalLM"


class Family(Protocol):
    """What a family's file holds: XForCausalLM lives in models/x.py."""

    ARCHITECTURE: str

    def program(self, config: ConfigReader) -> Program: ...


def load_program(config: Mapping[str, Any]) -> Program:
    """The Program of the model that `config` (the content of config.json) describes.

    Raises UnsupportedModelError, naming the architecture or the key, for all that would not be computed as
    the checkpoint asks.
    """
    family = _family(_architecture(config))
    reader = ConfigReader(config)
    program = family.program(reader)
    reader.finish()
    return program


def architectures() -> list[str]:
    """Names of all supported architectures."""
    modules = (importlib.import_module(f"firelane.models.{name}") for name in _module_names())
    return sorted(m.ARCHITECTURE for m in modules if hasattr(m, "ARCHITECTURE"))


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise UnsupportedModelError(f"config.json: architectures = {names!r}: a list of one name is needed")
    return names[0]


def _family(architecture: str) -> Family:
    name = architecture.removesuffix(SUFFIX).lower()
    if name in _module_names():
        module = importlib.import_module(f"firelane.models.{name}")
        if getattr(module, "ARCHITECTURE", None) == architecture:
            return cast(Family, module)
    known = ", ".join(architectures())
    raise UnsupportedModelError(
        f"config.json: architecture {architecture!r} is not supported; supported: {known}"
    )


def _module_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(firelane.models.__path__)}
