"""Short names of well-known models, in the way that Ollama's users type them, and the hub ids that they mean.

A name without a tag means the size that Ollama gives for it. All are instruction-tuned or reasoning models in
their authors' own repositories, or embedding models; some of these ask to accept a licence first.
"""

from __future__ import annotations

from collections.abc import Mapping


def _sizes(name: str, default: str, ids: Mapping[str, str]) -> dict[str, str]:
    """The names of one family: with each size as a tag, and without one."""
    return {name: ids[default], **{f"{name}:{size}": hub_id for size, hub_id in ids.items()}}


def _published(prefix: str, sizes: str, suffix: str = "") -> dict[str, str]:
    """Hub ids that differ in the size alone, as published."""
    return {size.lower(): f"{prefix}{size}{suffix}" for size in sizes.split()}


SHORT_NAMES: Mapping[str, str] = {
    **_sizes("qwen3", "8b", _published("Qwen/Qwen3-", "0.6B 1.7B 4B 8B 14B 32B 30B-A3B 235B-A22B")),
    **_sizes("qwen2.5", "7b", _published("Qwen/Qwen2.5-", "0.5B 1.5B 3B 7B 14B 32B 72B", "-Instruct")),
    **_sizes(
        *("qwen2.5-coder", "7b"),
        _published("Qwen/Qwen2.5-Coder-", "0.5B 1.5B 3B 7B 14B 32B", "-Instruct"),
    ),
    **_sizes("qwen3-coder", "30b", {"30b": "Qwen/Qwen3-Coder-30B-A3B-Instruct"}),
    **_sizes("smollm2", "1.7b", _published("HuggingFaceTB/SmolLM2-", "135M 360M 1.7B", "-Instruct")),
    **_sizes("smollm3", "3b", {"3b": "HuggingFaceTB/SmolLM3-3B"}),
    **_sizes("gemma3", "4b", _published("google/gemma-3-", "270m 1b 4b 12b 27b", "-it")),
    **_sizes("llama3.2", "3b", _published("meta-llama/Llama-3.2-", "1B 3B", "-Instruct")),
    **_sizes("llama3.1", "8b", _published("meta-llama/Llama-3.1-", "8B 70B", "-Instruct")),
    **_sizes("llama3.3", "70b", {"70b": "meta-llama/Llama-3.3-70B-Instruct"}),
    **_sizes("phi4", "14b", {"14b": "microsoft/phi-4"}),
    **_sizes("phi4-mini", "3.8b", {"3.8b": "microsoft/Phi-4-mini-instruct"}),
    **_sizes("mistral", "7b", {"7b": "mistralai/Mistral-7B-Instruct-v0.3"}),
    **_sizes("mistral-nemo", "12b", {"12b": "mistralai/Mistral-Nemo-Instruct-2407"}),
    **_sizes("mixtral", "8x7b", {"8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1"}),
    **_sizes("gpt-oss", "20b", _published("openai/gpt-oss-", "20b 120b")),
    **_sizes(
        *("deepseek-r1", "8b"),
        {
            "8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
            **_published("deepseek-ai/DeepSeek-R1-Distill-Qwen-", "1.5B 7B 14B 32B"),
            **_published("deepseek-ai/DeepSeek-R1-Distill-Llama-", "70B"),
        },
    ),
    **_sizes("granite3.3", "8b", _published("ibm-granite/granite-3.3-", "2b 8b", "-instruct")),
    **_sizes("tinyllama", "1.1b", {"1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}),
    **_sizes("qwen3-embedding", "8b", _published("Qwen/Qwen3-Embedding-", "0.6B 4B 8B")),
    **_sizes("all-minilm", "22m", {"22m": "sentence-transformers/all-MiniLM-L6-v2"}),
    **_sizes("bge-m3", "567m", {"567m": "BAAI/bge-m3"}),
    **_sizes("nomic-embed-text", "v1.5", {"v1.5": "nomic-ai/nomic-embed-text-v1.5"}),
}
"""Hub ids by short names."""
