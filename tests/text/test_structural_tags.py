"""Structural tags: whatever is drawn under their grammar is what they say, read plainly; what is so can be
written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import llguidance
import msgspec
import numpy as np
import pytest
import tokenizers
from drawing import FIRST_SPECIAL, tokenizer
from tag_checker import holds

from firelane.api.sampling import SamplingFields
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import new_matcher
from firelane.engine.grammar.vocabulary import load_vocabulary
from firelane.text.schemas.constraints import grammar_of
from firelane.wire.frames import Grammar

Node = dict[str, Any]
MOST_TOKENS = 6000
SEEDS = range(12)
BEFORE = 'before: "<think>" thought\nthought[suffix="</think>"]: /(?s:.*)/\n'
SCHEMA: Node = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "</f>", "<f"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def tag(begin: str, content: Node, end: str | list[str]) -> Node:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> Node:
    return {"type": "const_string", "value": value}


def triggered(triggers: list[str], *tags: Node, **more: Any) -> Node:
    return {"type": "triggered_tags", "triggers": triggers, "tags": list(tags), **more}


JSON: Node = {"type": "json_schema", "json_schema": SCHEMA}
TEXT: Node = {"type": "any_text"}
DIGITS: Node = {"type": "regex", "pattern": "[0-9/]+"}
LARK: Node = {"type": "grammar", "grammar": 'start: /[0-9]+/ "," /[a-z]+/'}
GBNF: Node = {"type": "grammar", "grammar": 'root ::= "go " ("up" | "down")'}
CALLS = (tag("<f=a>", JSON, "</f>"), tag("<f=b>", LARK, "</f>"))
FORMATS: dict[str, Node] = {
    "triggered": triggered(["<f="], *CALLS),
    "short trigger": triggered(["<", "<f="], *CALLS),
    "several triggers": triggered(["<f=", "[["], *CALLS, tag("[[", GBNF, "]]"), tag("[[q", TEXT, "]]")),
    "at least one": triggered(["<f"], *CALLS, at_least_one=True),
    "one": triggered(["<f"], *CALLS, at_least_one=True, stop_after_first=True),
    "one or text": triggered(["<f"], *CALLS, stop_after_first=True),
    "excluded": triggered(["<f"], *CALLS, excludes=["stop", "<g"]),
    "separated": {"type": "tags_with_separator", "tags": list(CALLS), "separator": "\n"},
    "separated, some": {
        "type": "tags_with_separator",
        "tags": list(CALLS),
        "separator": ", ",
        "at_least_one": True,
    },
    "regex in a tag": tag("<n>", {"type": "regex", "pattern": "[^x]*"}, "</n>"),
    "several ends": tag("<n>", {**TEXT, "excludes": ["no"]}, ["</n>", "<end>"]),
    "sequence": {"type": "sequence", "elements": [const("é: "), DIGITS, const("/1"), JSON, TEXT]},
    "text, then more": {"type": "sequence", "elements": [TEXT, const("</think>"), triggered(["<f"], *CALLS)]},
    "or": {"type": "or", "elements": [JSON, const("none"), tag("<t>", TEXT, "</t>"), GBNF]},
    "repeated": {
        "type": "sequence",
        "elements": [
            {"type": "plus", "content": const("ab")},
            {"type": "optional", "content": DIGITS},
            {"type": "star", "content": tag("<j>", JSON, "</j>")},
        ],
    },
    "tags in a tag": {
        "type": "sequence",
        "elements": [tag("<o>", triggered(["<f"], *CALLS), "</o>"), tag("<p>", JSON, ""), const("!")],
    },
    "tags in triggered tags": triggered(["<o"], tag("<o>", triggered(["<f"], *CALLS), "</o>")),
    "marks of one letter": triggered(
        ["<", "|"],
        tag("<", {"type": "plus", "content": const("a")}, "a"),
        tag("|x", triggered(["b"], tag("b", DIGITS, "")), "!"),
    ),
    "regex and ends of one letter": {
        "type": "star",
        "content": tag("<", {"type": "regex", "pattern": "[^<]*"}, ["<a", "a"]),
    },
    "an optional text": tag("<n>", {"type": "optional", "content": TEXT}, "</n>"),
}


def grammar_for(node: Node) -> Grammar:
    form = {"type": "structural_tag", "format": node}
    made = grammar_of(msgspec.convert({"response_format": form}, SamplingFields))
    assert made is not None
    return made


def marks_in(node: Any) -> list[str]:
    """Texts that the format speaks of, and parts of them."""
    if isinstance(node, list):
        return [mark for part in node for mark in marks_in(part)]
    if isinstance(node, dict):
        return [mark for key, part in node.items() if key != "type" for mark in marks_in(part)]
    return [node, node[:-1], node[1:]] if isinstance(node, str) and len(node) < 20 else []


class Drawing:
    """Texts drawn at random from a grammar, often marks where they may stand."""

    def __init__(self, grammar: Grammar, marks: list[str]) -> None:
        self._matcher = new_matcher(grammar, tokenizer(()), GrammarLimits())
        self._marks = [list(mark.encode()) for mark in marks if mark]

    def takes(self, text: str) -> bool:
        made, tokens = self._matcher.deep_copy(), list(text.encode())
        return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()

    def draw(self, seed: int) -> str:
        made, rng, tokens = self._matcher.deep_copy(), random.Random(seed), list[int]()
        while len(tokens) < MOST_TOKENS:
            allowed = self._allowed(made)
            if made.is_stopped() or (made.is_accepting() and (not allowed or rng.random() < 0.1)):
                return self._text(tokens)
            found = self._mark(rng, made) or [rng.choice(allowed)]
            tokens += found
            assert made.consume_tokens(found), made.get_error()
        raise AssertionError(f"no end: {self._text(tokens[-200:])!r}")

    def _text(self, tokens: list[int]) -> str:
        return bytes(tokens).decode()

    def _mark(self, rng: random.Random, made: llguidance.LLMatcher) -> list[int]:
        if rng.random() < 0.5:
            return []
        mark = rng.choice(self._marks)
        return mark if made.deep_copy().try_consume_tokens(mark) == len(mark) else []

    def _allowed(self, made: llguidance.LLMatcher) -> list[int]:
        mask = np.frombuffer(made.compute_bitmask(), np.uint8)
        found = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        whole = [token for token in found if token < FIRST_SPECIAL - 1]
        return [token for token in whole if token < 128] or whole


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_is_drawn_holds(name: str) -> None:
    node = FORMATS[name]
    drawing = Drawing(grammar_for(node), marks_in(node))
    texts = {drawing.draw(seed) for seed in SEEDS}
    assert len(texts) > 1
    for text in texts:
        assert holds(node, text), text


@pytest.mark.parametrize("name", ["triggered", "sequence", "tags in a tag"])
def test_behind_reasoning(name: str) -> None:
    node = FORMATS[name]
    grammar = msgspec.structs.replace(grammar_for(node), before=BEFORE)
    drawing = Drawing(grammar, [*marks_in(node), "</think>"])
    for seed in SEEDS:
        thought, _, answer = drawing.draw(seed).partition("</think>")
        assert thought.startswith("<think>")
        assert holds(node, answer), answer


TEXTS = {
    "triggered": [
        '<f=a>{"a": 1}</f>',
        "hi <f=b>1,a</f>",
        "<f",
        "",
        "<f=",
        "<f=c>",
        "<f=a>{}</f>",
        "<<f=b>1,a</f>",
    ],
    "short trigger": ["<f=b>1,a</f>.", "<", "a<b", "<f=b>1,a<"],
    "several triggers": ["[[go up]] [ <f=b>1,a</f>", "[[qgo up]]", "[[go in]]", "[[q]", "[[q[[]]"],
    "at least one": ["hi <f=b>1,a</f>", "<f=b>1,a</f> hi", "<f=b>1,a</f> hi<f"],
    "one": ["<f=b>1,a</f> hi", "<f=b>1,a</f>"],
    "one or text": ["hi <f=b>1,a</f>", "<f=b>1,a</f> hi", "text", "text <f"],
    "excluded": ["a stop", "a sto", "sto<f=b>1,a</f>stop", "sto<f=b>1,a</f><g", "<f=b>1,a</f><"],
    "separated": [
        "",
        "<f=b>1,a</f>",
        "<f=b>1,a</f>\n<f=b>1,a</f>",
        "<f=b>1,a</f>\n",
        "<f=b>1,a</f><f=b>1,a</f>",
    ],
    "regex in a tag": ["<n></n>", "<n></n></n>", "<n>a<</n>", "<n>x</n>"],
    "several ends": ["<n>a<end>", "<n></n>", "<n>a no</n>", "<n>a</n><end>"],
    "sequence": ['é: 1/1{"a": 1}', 'é: 1/1/1{"a": 1} more', 'é: 1{"a": 1}'],
    "text, then more": ["a</think>b", "ab", "a<f</think><f=b>1,a</f></think>", "a</think><f"],
    "tags in a tag": ['<o>a</o><p>{"a": 1}!', '<o>a<f=b>1,a</f></o><p>{"a": 1}!', "<o><f</o>"],
    "marks of one letter": ["<aa<aaa", "<aa|xb1b2!<aa", "<aa|x!!", "|x|!", "<a", "x<", "|xb!", "|x<b1<!|x!"],
    "regex and ends of one letter": ["<a<a", "<b<a<ba", "<aa", "<b", ""],
    "an optional text": ["<n></n>", "<n>a</n>", "<n>"],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_can_be_written_where_it_holds(name: str) -> None:
    drawing = Drawing(grammar_for(FORMATS[name]), [])
    for text in TEXTS[name]:
        assert drawing.takes(text) == holds(FORMATS[name], text), text


def test_the_older_form_is_triggered_tags() -> None:
    form = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
        "triggers": ["<f="],
    }
    older = grammar_of(msgspec.convert({"response_format": form}, SamplingFields))
    assert older == grammar_of(
        msgspec.convert({"structured_outputs": {"structural_tag": json.dumps(form)}}, SamplingFields)
    )
    newer = triggered(["<f="], CALLS[0], at_least_one=False, stop_after_first=False, excludes=[])
    assert older is not None
    drawing = Drawing(older, marks_in(newer))
    for seed in SEEDS:
        assert holds(newer, drawing.draw(seed))


EMBEDDED = Path(__file__).parents[2] / "firelane" / "models" / "embedded"
WORDS = 4096


class WordDrawing(Drawing):
    """Texts of tokens that are several letters, and end within or behind a mark."""

    def __init__(self, grammar: Grammar, marks: list[str]) -> None:
        self._words = tokenizers.Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
        self._vocabulary = load_vocabulary(EMBEDDED, WORDS)
        self._matcher = new_matcher(grammar, self._vocabulary.tokenizer, GrammarLimits())
        self._marks = [self._tokens(mark) for mark in marks if mark]

    def _tokens(self, text: str) -> list[int]:
        return self._words.encode(text, add_special_tokens=False).ids

    def _text(self, tokens: list[int]) -> str:
        return self._words.decode(tokens, skip_special_tokens=False)

    def _allowed(self, made: llguidance.LLMatcher) -> list[int]:
        mask = np.zeros(WORDS // 32 + 1, np.uint32)
        made.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        found = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        words = [token for token in found if token != self._vocabulary.end]
        return [token for token in words if self._text([token]).isascii()] or words


@pytest.mark.parametrize("name", ["triggered", "several triggers", "excluded", "sequence", "tags in a tag"])
def test_whatever_is_drawn_of_longer_tokens_holds(name: str) -> None:
    node = FORMATS[name]
    drawing = WordDrawing(grammar_for(node), marks_in(node))
    for seed in range(3):
        text = drawing.draw(seed)
        assert holds(node, text), text
