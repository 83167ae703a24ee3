"""The format of every published template is known, or left out by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.text.chat.format_search import CLOSINGS, Evidence, find_chat_format
from firelane.text.rendering.template import ChatTemplate
from firelane.text.rendering.template_probe import TemplateProbe
from tests.real import artefacts

TEMPLATES = artefacts.llama_cpp("models/templates/*.jinja")
SPECIALS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
TOKENS = {"LFM2.5-Instruct": ("<|tool_call_start|>", "<|tool_call_end|>")}
"""Added tokens of vocabularies that tell what their templates do not."""
THINKS, CALLS, BOTH, IN_WORDS = "(reasoning)", "(tools)", "(tools, reasoning)", "(tools told in a message)"
BOTH_IN_WORDS = "(tools told in a message, reasoning)"
HERMES = f"hermes {CALLS}"
QWEN3_CODER, GLM47, GLM45 = f"qwen3_coder {BOTH}", f"glm47 {BOTH}", f"glm45 {BOTH}"
DEEPSEEK_R1 = f"deepseek_v3 {BOTH_IN_WORDS}"
KNOWN = {
    "Apertus-8B-Instruct": f"apertus {BOTH}",
    "Apriel-1.6-15b-Thinker-fixed": f"apriel {BOTH}",
    "GigaChat3-10B-A1.8B": f"gigachat3 {CALLS}",
    "GigaChat3.1-10B-A1.8B": f"gigachat3 {CALLS}",
    "MiniMax-M1": f"minimax_m1 {CALLS}",
    "openbmb-MiniCPM5-1B": f"minicpm5 {BOTH}",
    "tencent-Hy3": f"hy3 {BOTH}",
    "unsloth-Apriel-1.5": f"apriel {BOTH}",
    "Bielik-11B-v3.0-Instruct": f"hermes {BOTH}",
    "ByteDance-Seed-OSS": f"seed_oss {BOTH}",
    "Cohere2MoE": f"cohere {BOTH}",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": f"cohere {BOTH}",
    "GLM-4.6": GLM45,
    "GLM-4.7-Flash": GLM47,
    "HuggingFaceTB-SmolLM3-3B": f"hermes {BOTH_IN_WORDS}",  # a copy without the original's tools
    "Kimi-K2-Instruct": f"kimi_k2 {CALLS}",
    "Kimi-K2-Thinking": f"kimi_k2 {BOTH}",
    "Kimi-K3": f"kimi_k3 {BOTH}",
    "LFM2-8B-A1B": f"lfm2 {CALLS}",
    "LFM2.5-8B-A1B": f"lfm2 {BOTH}",
    "LFM2.5-Instruct": f"lfm2 {BOTH}",
    "MiMo-VL": HERMES,
    "MiniMax-M2": f"minimax_m2 {BOTH}",
    "MiniMax-M3": f"minimax_m3 {BOTH}",
    "Mistral-Small-3.2-24B-Instruct-2506": f"mistral {CALLS}",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": QWEN3_CODER,
    "NVIDIA-Nemotron-Nano-v2": f"nemotron_json {BOTH}",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "Qwen-QwQ-32B": f"hermes {BOTH}",
    "Qwen-Qwen2.5-7B-Instruct": HERMES,
    "Qwen-Qwen3-0.6B": f"hermes {BOTH}",
    "Qwen3-Coder": f"qwen3_coder {CALLS}",
    "Qwen3.5-4B": QWEN3_CODER,
    "Reka-Edge": f"hermes {BOTH}",
    "Spark2.5": GLM47,
    "StepFun3.5-Flash": QWEN3_CODER,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": DEEPSEEK_R1,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": DEEPSEEK_R1,
    "deepseek-ai-DeepSeek-V3.1": f"deepseek_v31 {BOTH_IN_WORDS}",
    "deepseek-ai-DeepSeek-V3.2": f"deepseek_v32 {BOTH}",
    "deepseek-ai-DeepSeek-V4": f"deepseek_v4 {BOTH}",
    "deepseek-ai-DeepSeek-V4-Flash-0731": f"deepseek_v4 {BOTH}",
    "google-gemma-2-2b-it": f"hermes {IN_WORDS}",
    "google-gemma-4-31B-it": f"gemma4 {BOTH}",
    "google-gemma-4-31B-it-interleaved": f"gemma4 {BOTH}",
    "ibm-granite-granite-3.3-2B-Instruct": f"granite {BOTH}",
    "ibm-granite-granite-4.0": HERMES,
    "ibm-granite-granite-4.1": HERMES,
    "inclusionai-ling-3.0-flash": GLM45,
    "llama-cpp-deepseek-r1": DEEPSEEK_R1,
    "llama-cpp-rwkv-world": f"hermes {BOTH_IN_WORDS}",
    "meta-llama-Llama-3.1-8B-Instruct": f"llama3_json {CALLS}",
    "meta-llama-Llama-3.2-3B-Instruct": f"llama3_json {CALLS}",
    "meta-llama-Llama-3.3-70B-Instruct": f"llama3_json {CALLS}",
    "meetkai-functionary-medium-v3.1": f"functionary_v31 {CALLS}",
    "microsoft-Phi-3.5-mini-instruct": f"hermes {IN_WORDS}",
    "mistralai-Ministral-3-14B-Reasoning-2512": f"mistral {BOTH}",
    "mistralai-Mistral-Nemo-Instruct-2407": f"mistral {CALLS}",
    "moonshotai-Kimi-K2": f"kimi_k2 {CALLS}",
    "muse-glimmer": f"muse_glimmer {BOTH}",
    "openai-gpt-oss-120b": f"harmony {BOTH}",
    "poolside-Laguna-S-2.1": GLM47,
    "poolside-Laguna-XS-2.1": GLM45,
    "poolside-Laguna-XS.2": GLM45,
    "unsloth-mistral-Devstral-Small-2507": f"mistral {CALLS}",
}
UNKNOWN = {
    "fireworks-ai-llama-3-firefunction-v2": "functools[...], but it wants variables that no chat sends",
    "CohereForAI-c4ai-command-r-plus-tool_use": "Action: and a fenced list, without marks",
    "meetkai-functionary-medium-v3.2": ">>>name, and JSON",
    "upstage-Solar-Open-100B": "calls whose ids come first",
}
"""Formats that are not read, by the template's name, each with how it writes calls."""


def line_of(path: Path) -> str:
    source = path.read_text("utf-8")
    template = ChatTemplate(source, SPECIALS)
    facts = TemplateProbe(template.render, template.variables).facts(CLOSINGS)
    return find_chat_format(Evidence(source, facts, TOKENS.get(path.stem, ()).__contains__)).line


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_format_is_named(path: Path) -> None:
    line = line_of(path)
    if path.stem in KNOWN:
        assert line == KNOWN[path.stem]
    else:
        assert path.stem in UNKNOWN, f"a new template, read as {line}"
        assert line.startswith("unknown")
        assert "will not be read" in line


def test_no_template_is_missing() -> None:
    artefacts.need("llama-cpp-python")
    assert {path.stem for path in TEMPLATES} >= {*KNOWN, *UNKNOWN}
