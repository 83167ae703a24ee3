"""The families that are known, and which of them a chat template is of."""

from __future__ import annotations

from firelane.text.tools.family import Family
from firelane.text.tools.hermes import OPEN, Hermes
from firelane.text.tools.llama3 import MARK, Llama3Json
from firelane.text.tools.mistral import ARGS, CALLS, Mistral


def find_family(name: str, template: str) -> Family | None:
    """name: the value of --tool-parser. A template without the delimiters of any family gets Hermes', the
    most spread.
    """
    if name == "none":
        return None
    if name == "auto":
        name = _by_marks(template)
    if name == "mistral":
        return Mistral(names_first=ARGS in template)
    return Llama3Json() if name == "llama3_json" else Hermes()


def _by_marks(template: str) -> str:
    if CALLS in template:
        return "mistral"
    if OPEN in template:
        return "hermes"
    return "llama3_json" if MARK in template or '"parameters": dictionary' in template else "hermes"
