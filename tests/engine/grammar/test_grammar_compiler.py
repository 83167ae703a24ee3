"""Grammars of all kinds, good and hostile, compiled for the embedded model."""

from __future__ import annotations

import json
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hostile_grammars import HOSTILE
from tokenizers import Tokenizer

from firelane.child_process import Replacements
from firelane.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from firelane.engine.grammar.limits import STACK_BYTES, GrammarLimits
from firelane.engine.grammar.sandbox import Sandbox
from firelane.engine.grammar.source import check_size
from firelane.engine.grammar.trial_process import start_trial
from firelane.errors import QueueTimeoutError, RequestError, TokenizerError
from firelane.text.schemas.constraints import single_line
from firelane.wire.frames import Grammar

EMBEDDED = Path(__file__).parents[3] / "firelane" / "models" / "embedded"
VOCAB = 4096
LIMITS = GrammarLimits(trial_wall_s=600.0)
LONGEST_S = 10.0  # of this process: one compilation takes 2 s at most
GROWTH_BYTES = 300 << 20


@pytest.fixture(scope="module")
def compiler():
    compiler = GrammarCompiler(EMBEDDED, VOCAB, LIMITS)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def encode():
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def compiled(compiler: GrammarCompiler, kind: str, text: str) -> CompiledGrammar | str:
    """Compile a grammar as the queue's thread does it, with a stack of the same size."""
    grammar = Grammar(kind, text)
    found: list[CompiledGrammar | str] = []

    def run() -> None:
        try:
            check_size(grammar, LIMITS)
            found.append(compiler.compile(grammar))
        except RequestError as error:
            found.append(str(error))

    before = threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=run)
    thread.start()
    threading.stack_size(before)
    thread.join()
    return found[0]


def accepts(grammar: CompiledGrammar, ids: list[int]) -> bool:
    matcher = grammar.matcher.deep_copy()
    return matcher.consume_tokens(ids) and matcher.is_accepting()


TAGS = json.dumps(
    {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {
                "type": "tag",
                "begin": "<f>",
                "content": {
                    "type": "json_schema",
                    "json_schema": single_line({"type": "object", "properties": {"a": {"type": "integer"}}}),
                },
                "end": "</f>",
            }
        ],
        "at_least_one": True,
        "stop_after_first": False,
        "excludes": [],
    }
)


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("regex", "[a-z]+ [0-9]{2}", "hello 12", "hello 1"),
        ("regex", "^(yes|no)$", "yes", "yesno"),
        ("regex", "(?i)yes", "YeS", "Yess"),
        ("regex", "é+", "éé", "e"),
        ("lark", 'start: "a" start | "b"', "aab", "aa"),
        ("gbnf", 'root ::= "x" num*\nnum ::= [0-9]', "x12", "12"),
        ("structural_tag", TAGS, '<f>{"a": 1}</f> or <f>{"a": 2}</f> <', '<f>{"a": 1} </f>'),
        ("json_schema", "{}", '[1,{"a":null}]', "[1"),
        ("json_schema", '{"type": "object"}', '{"a":1}', "[]"),
        ("json_schema", '{"type": "object"}', '{"a":{"b":[1,2]}}', '{"a": \n{"b":[1,2]}}'),
        ("json_schema", '{"enum": ["a b", 3]}', '"a b"', '"a"'),
        ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 12}', "12", "13"),
    ],
)
def test_grammars_of_all_kinds(compiler, encode, kind, text, good, bad) -> None:
    grammar = compiled(compiler, kind, text)
    assert isinstance(grammar, CompiledGrammar), grammar
    assert accepts(grammar, encode(good))
    assert not accepts(grammar, encode(bad))
    bits = np.unpackbits(grammar.mask.view(np.uint8), bitorder="little")
    assert bits[encode(good)[0]]
    assert not bits[grammar.end :].any()


SPACED = (("[1,2]", True), ("[1, 2]", True), ("[\n    1,\n    2\n]", True), ("[1,\n\n2]", False))
TIGHT = (("[1,2]", True), ("[1, 2]", False), ("[ 1]", False), ("[\n1]", False))


@pytest.mark.parametrize(
    ("guidance", "cases"),
    [
        ({}, TIGHT),
        ({"x-guidance": {"item_separator": ","}}, TIGHT),
        ({"x-guidance": {"whitespace_flexible": True}}, SPACED),
        ({"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": " *"}}, (("[   1]", True),)),
    ],
    ids=["none", "other", "flexible", "own"],
)
def test_white_space_is_asked_for_and_short(compiler, encode, guidance, cases) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, **guidance}
    grammar = compiled(compiler, "json_schema", json.dumps(schema))
    assert isinstance(grammar, CompiledGrammar)
    for text, fits in cases:
        assert accepts(grammar, encode(text)) == fits, text


@pytest.mark.parametrize(("name", "kind", "text", "message"), HOSTILE, ids=[h[0] for h in HOSTILE])
def test_hostile_grammars(compiler, name, kind, text, message) -> None:
    del name
    began_s, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = compiled(compiler, kind, text)
    assert time.process_time() - began_s < LONGEST_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < GROWTH_BYTES
    if message is None:
        assert isinstance(found, CompiledGrammar), found
    else:
        assert isinstance(found, str)
        assert message in found
        assert "\n" not in found
        assert len(found) < 400


def test_a_grammar_that_kills_the_trial_leaves_the_next_one_be(compiler) -> None:
    small = GrammarCompiler(EMBEDDED, VOCAB, GrammarLimits(trial_bytes=1 << 20))
    with pytest.raises(RequestError, match="simplify it"):
        small.compile(Grammar("regex", "a"))  # not even the interpreter fits
    small.close()
    assert isinstance(compiled(compiler, "regex", "a"), CompiledGrammar)


def test_a_trial_that_the_machine_does_not_get_to_is_no_fault_of_the_grammar(compiler) -> None:
    assert isinstance(compiled(compiler, "regex", "a"), CompiledGrammar)
    sandbox = Sandbox(EMBEDDED, VOCAB, GrammarLimits(trial_wall_s=0.0), start_trial, Replacements())
    with pytest.raises(QueueTimeoutError, match="machine is busy: try again later"):
        sandbox.try_out(Grammar("regex", "a"))
    assert sandbox.worker.child is None


def test_special_tokens_and_ids_may_be_named(compiler) -> None:
    for text, token in (("start: <|end|>", 3), ("start: <[4000]>", 4000)):
        grammar = compiled(compiler, "lark", text)
        assert isinstance(grammar, CompiledGrammar), grammar
        assert np.flatnonzero(np.unpackbits(grammar.mask.view(np.uint8), bitorder="little")).tolist() == [
            token
        ]


def test_ids_beyond_the_tokenizer_are_not_allowed(encode) -> None:
    """A model whose vocabulary is padded."""
    padded = GrammarCompiler(EMBEDDED, VOCAB + 100, LIMITS)
    grammar = compiled(padded, "regex", "(.|\n)*")
    padded.close()
    assert isinstance(grammar, CompiledGrammar)
    assert grammar.end == VOCAB
    assert grammar.mask.shape == ((VOCAB + 100) // 32 + 1,)
    bits = np.unpackbits(grammar.mask.view(np.uint8), bitorder="little")
    assert bits[encode("hello")[0]]
    assert bits[grammar.end]  # the text may be empty
    assert not bits[grammar.end + 1 :].any()


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("{", "cannot be used"), ('{"model": {"type": "BPE"}}', "cannot be used")],
)
def test_a_damaged_tokenizer(tmp_path, text, message) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    compiler = GrammarCompiler(tmp_path, 100, LIMITS)
    with pytest.raises(TokenizerError, match=message):
        compiler.compile(Grammar("regex", "a"))
    compiler.close()


def test_a_tokenizer_larger_than_the_model() -> None:
    compiler = GrammarCompiler(EMBEDDED, VOCAB - 1, LIMITS)
    with pytest.raises(TokenizerError, match="4096 ids but the model's vocabulary has 4095"):
        compiler.compile(Grammar("regex", "a"))
    compiler.close()


def test_a_schema_of_many_kinds(compiler, encode) -> None:
    text = json.dumps(
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[a-f0-9]{4}$"},
                "when": {"type": "string", "format": "date"},
                "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
                "next": {"$ref": "#"},
            },
            "required": ["id"],
            "additionalProperties": False,
        }
    )
    grammar = compiled(compiler, "json_schema", text)
    assert isinstance(grammar, CompiledGrammar), grammar
    good = '{"id":"00ff","when":"2024-02-29","size":0.5,"next":{"id":"1234"}}'
    assert accepts(grammar, encode(good))
    assert not accepts(grammar, encode('{"id":"00fg"}'))
    assert not accepts(grammar, encode('{"when":"2024-02-29"}'))
