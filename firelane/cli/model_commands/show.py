"""Show what a model is, and how it draws tokens where a request does not say.

A model of this machine, or one that the server at --url has. No more of its weights is read than their names
and shapes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client
from firelane.errors import ModelError
from firelane.server.options import shared as options

if TYPE_CHECKING:
    from pathlib import Path

    from firelane.env import Environment
    from firelane.program.program import Program
    from firelane.text.model_files import ModelTextFiles

LABEL_WIDTH = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    node_client.add_optional_server(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    lines = _served(arguments) if arguments.url is not None else _local(arguments.model, environment)
    for label, text in lines:
        print(f"{label:<{LABEL_WIDTH}}{text}")
    return 0


def _local(model: str | None, environment: Environment) -> Iterator[tuple[str, str]]:
    from firelane.models.config.reader import read_config
    from firelane.models.registry import load_program
    from firelane.plan.table import parameters
    from firelane.server.options.served_models import served_name
    from firelane.server.start_lines import count_text
    from firelane.sources.resolve import resolve
    from firelane.text.model_files import read_model_files

    directory = resolve(model, cache_dir=environment.cache_dir)
    program = load_program(read_config(directory))
    files = read_model_files(directory)
    yield (
        "model",
        f"{served_name(model)}: {program.name}, {count_text(parameters(program))} parameters",
    )
    yield "context", f"{program.max_model_len:,} tokens"
    if _writes(program, directory):
        yield "template", "none: for completions alone" if files.template is None else "for chats"
    else:
        yield "can", _what_else(program, files)
        return
    yield from _sampling(files)


def _what_else(program: Program, files: ModelTextFiles) -> str:
    """The use of a model that writes no text."""
    labels = len(files.embedding.labels)
    if labels:
        return f"score texts: it has {labels} label{'s' * (labels > 1)}"
    return (
        "embed alone: it is an encoder" if program.head is None else "embed alone: its checkpoint has no head"
    )


def _writes(program: Program, directory: Path) -> bool:
    """Whether it generates text; assumed where the weights are not there, or damaged."""
    from firelane.weights.checkpoints.checkpoint import Checkpoint
    from firelane.weights.checkpoints.head import with_stored_head

    try:
        return with_stored_head(program, Checkpoint.open(directory)).can_generate
    except ModelError:
        return True


def _sampling(files: ModelTextFiles) -> Iterator[tuple[str, str]]:
    """Lines of the author's advice on sampling, and of both ways to fill in the rest."""
    from firelane.text.prompt import default_sampling

    author = files.defaults
    yield "author", f"advises {_values(author)}" if author else "advises no sampling"
    yield (
        "sampling",
        f"{_values(default_sampling(author, 'llama.cpp'))}: chat, generate, the page, Ollama's API",
    )
    yield "", f"{_values(default_sampling(author, 'vllm'))}: the other APIs"


def _values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _served(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Lines about a served model, as its server tells them in Ollama's form."""
    name, shown = node_client.shown(arguments)
    info = shown["model_info"]
    kind = info.get("general.architecture", "unknown")
    yield "model", f"{name}: {kind}"
    if f"{kind}.context_length" in info:
        yield "context", f"{info[f'{kind}.context_length']:,} tokens"
    yield "can", ", ".join(shown["capabilities"])
    yield "sampling", ", ".join(shown["parameters"].splitlines())
