"""Answers of a quantised checkpoint, and of the bf16 checkpoint of its numbers beside it (twin/)."""

from __future__ import annotations

from pathlib import Path

from firelane import LLM, SamplingParams
from firelane.llm import CompletionOutput


def answers_of(directory: Path) -> list[CompletionOutput]:
    """The checkpoint's, whose codes are multiplied as the numbers that they stand for, and its twin's."""
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=2, ignore_eos=True)
    llms = [LLM(str(m), activation_dtype="bf16") for m in (directory, directory / "twin")]
    return [llm.generate("The quick brown", params)[0].outputs[0] for llm in llms]
