"""Objects of very many fields: the same texts as the general form, at a cost that grows with their number."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from firelane.engine.grammar import wide_objects
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import COMPACT, new_matcher
from firelane.engine.grammar.vocabulary import load_vocabulary
from firelane.wire.frames import Grammar

EMBEDDED = Path(__file__).parents[3] / "firelane" / "models" / "embedded"
TEXT = {"type": "string"}


@pytest.fixture(scope="module")
def vocabulary() -> Any:
    return load_vocabulary(EMBEDDED, 4096)


def an_object(count: int, **more: Any) -> dict[str, Any]:
    fields = {f"f{i}": {"type": "integer", "title": f"Field {i}"} for i in range(count)}
    return {"type": "object", "properties": fields, "additionalProperties": False, **more}


def accepts(matcher: LLMatcher, text: str) -> bool:
    ids = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    one = matcher.deep_copy()
    return one.try_consume_tokens(ids) == len(ids) and one.is_accepting()


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("required", [[], ["f0"], ["f3", "f4"], ["f5"], [f"f{i}" for i in range(6)]], ids=str)
def test_every_choice_of_fields_in_their_order(
    vocabulary: Any, required: list[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(wide_objects, "FEWEST", 0)
    lark = wide_objects.lark_of(an_object(6, required=required), COMPACT)
    assert lark is not None
    matcher = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    names = [f"f{i}" for i in range(6)]
    for chosen in itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(7)):
        assert accepts(matcher, compact(dict.fromkeys(chosen, 1))) is set(chosen).issuperset(required), chosen
    assert not accepts(matcher, '{"f1":1,"f0":1}')
    assert not accepts(matcher, '{"f1":1,"f1":1}')
    assert not accepts(matcher, '{"f1":"a"}')
    assert not accepts(matcher, '{"g":1}')


def test_hundreds_of_fields(vocabulary: Any) -> None:
    schema = an_object(300, required=["f100"], **{"$defs": {"Text": TEXT}})
    schema["properties"]["f7"] = {"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]}
    schema["properties"]['od"d é'] = {"type": "boolean"}
    matcher = new_matcher(Grammar("json_schema", json.dumps(schema)), vocabulary.tokenizer, GrammarLimits())
    draw = random.Random(1)
    for _ in range(20):
        numbers = sorted({100, *draw.sample(range(8, 300), draw.randrange(9))})
        value = {"f7": "say", **{f"f{i}": draw.randrange(1000) for i in numbers}}
        assert accepts(matcher, compact(value))
    assert accepts(matcher, '{"f7":null,"f100":1,"od\\"d é":true}')
    assert not accepts(matcher, '{"f7":7,"f100":1}')
    assert not accepts(matcher, '{"f7":"say"}')


@pytest.mark.parametrize(
    "schema",
    [
        an_object(63),
        an_object(80, required=[f"f{i}" for i in range(40)]),
        an_object(80, additionalProperties=True),
        an_object(80, minProperties=2),
        an_object(80, required=["other"]),
        an_object(80, anyOf=[{}]),
        {**an_object(80), "type": ["object", "null"]},
        {"type": "object", "additionalProperties": False},
        an_object(80) | {"properties": an_object(80)["properties"] | {"next": {"$ref": "#"}}},
    ],
    ids=lambda schema: " ".join(schema),
)
def test_others_go_the_general_way(schema: dict[str, Any]) -> None:
    assert wide_objects.lark_of(schema, COMPACT) is None


def test_equal_values_share_a_rule() -> None:
    lark = wide_objects.lark_of(an_object(100), COMPACT)
    assert lark is not None
    assert lark.count("%json") == 1
