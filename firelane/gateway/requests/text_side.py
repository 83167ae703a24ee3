"""Text side of a model: what its requests are read with."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.child_process import Replacements
from firelane.gateway.config import ModelConfig
from firelane.text.chat.assistant import Assistant
from firelane.text.model_files import read_model_files
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import load_tokenizer


@dataclass(frozen=True)
class TextSide:
    prompts: PromptBuilder
    assistant: Assistant


def read_text_side(config: ModelConfig, replaced: Replacements) -> TextSide | None:
    """None while the model's files are not here. replaced: notes processes of the template that were lost.
    Raises TokenizerError."""
    if config.model_dir is None:
        return None
    tokenizer, files = (
        load_tokenizer(config.tokenizer_dir or config.model_dir),
        read_model_files(config.model_dir, config.chat_template),
    )
    tokenizer.check_vocab(files.vocab_size)  # now: the engine may take minutes until it says so
    prompts = PromptBuilder(tokenizer, files, replaced, config.trials_dir)
    tools, reasoning = config.tool_parser, config.reasoning_parser
    return TextSide(prompts, Assistant(prompts, tool_parser=tools, reasoning_parser=reasoning))
