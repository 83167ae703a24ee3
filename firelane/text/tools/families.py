"""The families that are known, by name, and the marks that a text of each shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from firelane.text.parsers import TOOL_ALIASES
from firelane.text.tools.family import Family
from firelane.text.tools.formats import (
    cohere,
    deepseek,
    functionary,
    gemma4,
    glm4,
    harmony,
    hermes,
    kimi_k2,
    llama3,
    mistral,
)
from firelane.text.tools.formats.minimax_m3 import OPEN as MINIMAX_M3
from firelane.text.tools.formats.minimax_m3 import MinimaxM3
from firelane.text.tools.formats.muse_glimmer import MuseGlimmer
from firelane.text.tools.json_calls import json_list
from firelane.text.tools.json_calls.json_lines import GIGACHAT3, GIGACHAT31, MINIMAX_M1, JsonLines
from firelane.text.tools.json_calls.keyed_list import APERTUS, KeyedList
from firelane.text.tools.python_calls.python_lines import OLMO3, PythonLines
from firelane.text.tools.python_calls.pythonic import Pythonic
from firelane.text.tools.tagged_calls import tags
from firelane.text.tools.tagged_calls.tagged import Tagged

LLAMA4 = ("<|python_start|>", "<|python_end|>")
LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
_FAMILIES: dict[str, Callable[[str], Family]] = {
    "hermes": lambda _: hermes.Hermes(),
    "llama3_json": lambda _: llama3.Llama3Json(),
    "mistral": lambda template: mistral.Mistral(names_first=mistral.ARGS in template),
    "harmony": lambda _: harmony.Harmony(),
    "deepseek_v3": lambda _: deepseek.deepseek(fenced=True),
    "deepseek_v31": lambda _: deepseek.deepseek(fenced=False),
    "deepseek_v32": lambda _: Tagged("deepseek_v32", tags.DEEPSEEK_V32),
    "deepseek_v4": lambda _: Tagged("deepseek_v4", tags.DEEPSEEK_V4),
    "kimi_k2": lambda _: kimi_k2.kimi_k2(),
    "qwen3_coder": lambda _: Tagged("qwen3_coder", tags.QWEN3_CODER),
    "glm45": lambda _: Tagged("glm45", tags.GLM45),
    "glm47": lambda _: Tagged("glm47", tags.GLM47),
    "minimax_m2": lambda _: Tagged("minimax_m2", tags.MINIMAX_M2),
    "seed_oss": lambda _: Tagged("seed_oss", tags.SEED_OSS),
    "gemma4": lambda _: gemma4.Gemma4(),
    "llama4_pythonic": lambda _: Pythonic("llama4_pythonic", *LLAMA4, marked=False),
    "lfm2": lambda _: Pythonic("lfm2", *LFM2, marked=True),
    "phi4_mini_json": lambda _: json_list.JsonList("phi4_mini_json", json_list.PHI4_MINI),
    "granite": lambda _: json_list.JsonList("granite", json_list.GRANITE),
    "nemotron_json": lambda _: json_list.JsonList("nemotron_json", *json_list.NEMOTRON),
    "minimax_m1": lambda _: JsonLines("minimax_m1", *MINIMAX_M1),
    "apriel": lambda _: json_list.JsonList("apriel", *MINIMAX_M1, around=json_list.APRIEL),
    "gigachat3": lambda shown: _gigachat(older=GIGACHAT3 in shown),
    "apertus": lambda _: KeyedList("apertus", *APERTUS),
    "hy3": lambda shown: Tagged("hy3", tags.HY3_PREVIEW if tags.HY3_PREVIEW.call_end in shown else tags.HY3),
    "minicpm5": lambda _: Tagged("minicpm5", tags.MINICPM5),
    "olmo3": lambda _: PythonLines("olmo3", *OLMO3),
    "muse_glimmer": lambda _: MuseGlimmer(),
    "minimax_m3": lambda _: MinimaxM3(),
    "kimi_k3": lambda _: Tagged("kimi_k3", tags.KIMI_K3),
    "glm4": lambda shown: glm4.Glm4(metadata=glm4.METADATA in shown),
    "functionary_v31": lambda _: functionary.functionary_v31(),
    "cohere": lambda shown: cohere.Cohere(newer=cohere.TEXT[1] in shown),
}


def _gigachat(*, older: bool) -> Family:
    """older: a call is a message of its own."""
    if older:
        return JsonLines("gigachat3", GIGACHAT3, tokens=("<|message_sep|>", "<|role_sep|>"))
    return JsonLines("gigachat3", GIGACHAT31)


MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", (harmony.CHANNEL, harmony.MESSAGE)),
    ("gemma4", (gemma4.OPEN,)),
    ("cohere", cohere.ACTION[:1]),
    ("muse_glimmer", tags.ATEM.sections),
    ("minimax_m3", (MINIMAX_M3,)),
    ("kimi_k3", tags.KIMI_K3.delimiters),
    ("kimi_k2", (kimi_k2.CALL[0],)),
    ("deepseek_v4", (tags.DSML, "tool_calls>")),
    ("deepseek_v32", (tags.DSML,)),
    ("deepseek_v3", (deepseek.CALL[0], deepseek.FENCED)),
    ("deepseek_v31", (deepseek.CALL[0],)),
    ("minimax_m2", tags.MINIMAX_M2.sections),
    ("seed_oss", tags.SEED_OSS.sections),
    ("hy3", (tags.HY3_PREVIEW.call_end,)),
    ("glm47", (tags.GLM47.key_end,)),
    ("glm45", (tags.GLM45.key,)),
    ("qwen3_coder", (tags.QWEN3_CODER.call, tags.QWEN3_CODER.key)),
    ("mistral", (mistral.CALLS,)),
    ("lfm2", (LFM2[0],)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("granite", (json_list.GRANITE,)),
    ("nemotron_json", (json_list.NEMOTRON[0],)),
    ("olmo3", (OLMO3[0],)),
    ("hy3", tags.HY3.sections),
    ("minicpm5", (tags.MINICPM5.call, tags.MINICPM5.key)),
    ("apriel", (f"{MINIMAX_M1[0]}[",)),
    ("minimax_m1", (MINIMAX_M1[0],)),
    ("apriel", (MINIMAX_M1[0],)),
    ("gigachat3", (GIGACHAT31,)),
    ("gigachat3", (GIGACHAT3,)),
    ("apertus", APERTUS[:1]),
    ("hermes", (hermes.OPEN,)),
    ("phi4_mini_json", (json_list.PHI4_MINI,)),
    ("phi4_mini_json", ("<|/tool|>",)),
    ("llama3_json", ('"parameters": dictionary',)),
    ("functionary_v31", functionary.CALL),
    ("glm4", (glm4.TELLS,)),
    ("llama4_pythonic", (LLAMA4[0],)),
    ("llama4_pythonic", ("[func_name1(",)),
    ("llama3_json", (llama3.MARK,)),
)
"""Marks that a family's texts show, in the order in which it tells: a later family's marks may stand in the
texts of an earlier one.
"""
READERS = ("harmony", "apriel", "cohere", "kimi_k3", "muse_glimmer")
"""Families whose parser is for every answer, those without calls, too."""
UNMARKED = ("llama3_json", "llama4_pythonic")
"""Families whose calls may have no mark."""


def named_family(name: str, shown: str = "") -> Family:
    """name: a value of --tool-parser beside auto and none. shown: what the model's template shows, by which
    some families choose between two ways of writing.
    """
    return _FAMILIES[TOOL_ALIASES.get(name, name)](shown)


def marked_families(text: str) -> Iterator[str]:
    """The names of families whose marks are all in the text, the likeliest first."""
    return (name for name, marks in MARKS if all(mark in text for mark in marks))
