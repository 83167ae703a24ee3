"""The report on how the format of a model's chats was found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firelane.text.chat.assistant import Assistant
from firelane.text.chat.chat_format import ModelChatFormat
from firelane.text.model_files import read_model_files
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import tokenizer_directory

MOST_SHOWN = 400
"""Characters of a text that the template writes."""


def explain_chat(model_dir: Path, cache_dir: Path, template: Path | None = None) -> Iterator[str]:
    """Lines for a person. template: a file that is used in place of the model's own. Raises TokenizerError
    where the files cannot be used.
    """
    tokenizer = load_tokenizer(tokenizer_directory(model_dir, cache_dir))
    prompts = PromptBuilder(tokenizer, read_model_files(model_dir, template))
    try:
        if prompts.template is None:
            yield "chat format: none, as the model has no chat template: it serves completions alone"
        else:
            yield from format_lines(Assistant(prompts).chat_format)
    finally:
        prompts.close()


def format_lines(chat_format: ModelChatFormat) -> Iterator[str]:
    """The format's name, how each part of it was found, and what the template writes of calls."""
    facts = chat_format.telling.facts
    yield f"chat format: {chat_format.line}"
    yield from (f"  {reason}" for reason in chat_format.reasons)
    if not chat_format.thinks:
        yield "  reasoning: no marks of any were found"
    if facts.gaps:
        yield f"  the template fails on tools without {', '.join(sorted(facts.gaps))}: these are filled in"
    if not facts.takes_system:
        yield "  the template takes no system message"
    if facts.calls:
        yield f"  the template writes {facts.num_calls} calls so: {facts.calls[:MOST_SHOWN]!r}"
