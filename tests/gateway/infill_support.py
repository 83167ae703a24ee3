"""Servers of models that fill in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from completions_support import prompt_of
from service import Service

from tests.text.infill_models import QWEN, with_marks
from tests.text.toy_model import write_model


def coder_service(
    make_service: Callable[..., Service], path: Path, names: tuple[str, ...] = QWEN, **changes: object
) -> Service:
    tokens = with_marks(names)
    return make_service(model_dir=write_model(path, tokens), tokens=tokens, **changes)


def prompt_text(service: Service, index: int = -1) -> str:
    """The text of a prompt that the engine got, with special tokens by their names."""
    return service.core.decode(prompt_of(service.engine.submitted[index]), skip_special_tokens=False)
