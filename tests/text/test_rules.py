"""Grammars of forced calls: they hold the tools' schemas, and give what the family's parser reads."""

from __future__ import annotations

import json
import random

import llguidance
import numpy as np
import pytest
from splitting import joined, split

from firelane.text.schemas.constraints import single_line
from firelane.text.tools.family import Family
from firelane.text.tools.formats.hermes import Hermes
from firelane.text.tools.formats.llama3 import Llama3Json
from firelane.text.tools.formats.mistral import Mistral
from firelane.text.tools.tool import Tool

TOKENIZER = llguidance.LLTokenizer("byte")
REFERRING = {
    "type": "object",
    "properties": {"c": {"$ref": "#/$defs/Colour"}},
    "required": ["c"],
    "additionalProperties": False,
    "$defs": {"Colour": {"enum": ["red", "blue"]}},
}
TOOLS = [Tool("f", None, REFERRING), Tool("no-args")]
FAMILIES = {
    "hermes": Hermes(),
    "llama3": Llama3Json(),
    "mistral": Mistral(),
    "mistral-names-first": Mistral(names_first=True),
}
CALLS = {
    "hermes": ('<tool_call>\n{"name": "f", "arguments": {"c": "red"}}\n</tool_call>', "\n"),
    "llama3": ('{"name": "f", "parameters": {"c": "red"}}', None),
    "mistral-names-first": ('[TOOL_CALLS]f[ARGS]{"c": "red"}', ""),
}


def no_token(name: str) -> None:
    del name


def rules(family: Family, start: str = "calls", *, parallel: bool = True) -> str:
    return f"start: {start}\n" + family.rules(TOOLS, no_token, parallel=parallel)


def matcher(lark: str) -> llguidance.LLMatcher:
    made = llguidance.LLMatcher(TOKENIZER, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def matches(lark: str, text: str) -> bool:
    tokens = TOKENIZER.tokenize_str(text)
    made = matcher(lark)
    return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_and_several(name):
    text, separator = CALLS[name]
    family = FAMILIES[name]
    assert matches(rules(family), text)
    assert not matches(rules(family), text.replace("red", "green"))
    assert not matches(rules(family), text.replace('"f"', '"g"').replace("]f[", "]g["))
    assert not matches(rules(family), "Of course! " + text)
    assert not matches(rules(family), "")
    if separator is not None:
        assert matches(rules(family), separator.join([text] * 3))
        assert not matches(rules(family), separator.join([text] * 17))
        assert not matches(rules(family, parallel=False), separator.join([text] * 2))


def test_the_list_of_mistral():
    call = '{"name": "f", "arguments": {"c": "blue"}}'
    family = FAMILIES["mistral"]
    assert matches(rules(family), f"[TOOL_CALLS] [{call}]")
    assert matches(rules(family), f"[TOOL_CALLS] [{call}, {call}]")
    assert not matches(rules(family, parallel=False), f"[TOOL_CALLS] [{call}, {call}]")


def random_text(lark: str, seed: int) -> str | None:
    """A text of the grammar, drawn token by token; None where it does not end within 400."""
    made, rng = matcher(lark), random.Random(seed)
    tokens: list[int] = []
    for _ in range(400):
        mask = np.frombuffer(made.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        ends = made.is_accepting() and rng.random() < 0.5
        if ends or made.is_stopped():
            return TOKENIZER.decode_bytes(tokens).decode()
        token = rng.choice([t for t in allowed if t != TOKENIZER.eos_token])
        tokens.append(token)
        made.consume_token(token)
    return None


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_drawn_is_read_as_calls(name, seed):
    text = random_text(rules(FAMILIES[name]), seed)
    assert text is not None
    content, reasoning, calls = joined(split(FAMILIES[name].parse, list(text), known=("f", "no-args")))
    assert (content, reasoning) == ("", "")
    assert calls
    for called, arguments in calls:
        value = json.loads(arguments)
        assert value in ({"c": "red"}, {"c": "blue"}) if called == "f" else value == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_beside_a_format(name):
    """The format's own JSON may begin as a call does."""
    form = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "q": {"type": "integer"}},
        "required": ["q"],
    }
    lark = rules(FAMILIES[name], f"calls | body\nbody: %json {json.dumps(single_line(form))}")
    text = CALLS.get(name, ('[TOOL_CALLS] [{"name": "f", "arguments": {"c": "red"}}]', ""))[0]
    assert matches(lark, text)
    assert matches(lark, '{"name": "f", "q": 1}')
    assert matches(lark, '{"q": 1}')
    assert not matches(lark, '{"name": "f"}')


def test_marks_that_are_tokens():
    family = Mistral(names_first=True)
    lark = family.rules(TOOLS, lambda name: 7 if name == "[TOOL_CALLS]" else None, parallel=False)
    assert "calls: <[7]> block" in lark
