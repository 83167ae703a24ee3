"""Grammars of every format: what is drawn from them is read as calls, whose arguments hold to the schema."""

from __future__ import annotations

import json
from functools import cache

import jsonschema
import pytest
from drawing import FIRST_SPECIAL, Drawing
from splitting import joined, split

from firelane.errors import RequestError
from firelane.text.parsers import TOOL_PARSERS
from firelane.text.schemas.constraints import single_line
from firelane.text.tools.families import named_family
from firelane.text.tools.parameters import kinds_of
from firelane.text.tools.tool import Tool

PLAIN = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "maxLength": 8},
        "n": {"type": "integer", "minimum": 3, "maximum": 999},
        "e": {"enum": ["red", "blue", 7, None]},
        "c": {"const": "C"},
        "b": {"type": "boolean"},
        "u": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "d": {"type": "string", "format": "date"},
        "p": {"type": "string", "pattern": "^[a-c]{1,3}$"},
        "z": {"type": ["number", "null"], "minimum": 0, "maximum": 9},
    },
    "required": ["s", "e", "b"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {
        "point": {"$ref": "#/$defs/Point"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["point"],
    "additionalProperties": False,
    "$defs": {
        "Point": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "maximum": 99},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Point"}]},
            },
            "required": ["x", "next"],
            "additionalProperties": False,
        }
    },
}
NOTHING = {"type": "object", "additionalProperties": False}
TOOLS = {"plain": PLAIN, "nested": NESTED, "nothing": NOTHING}
KNOWN = tuple(Tool(name, None, schema, strict=True) for name, schema in TOOLS.items())
FAMILIES = tuple(name for name in TOOL_PARSERS if name not in ("auto", "none"))
CHANNELS = tuple(name for name in FAMILIES if named_family(name).reads_reasoning)
"""Families whose answers are messages, each with a head."""
THINK = ("<think>", "</think>")


@cache
def drawing(name: str, *, free: bool = False, special: bool = False, parallel: bool = True) -> Drawing:
    family = named_family(name)
    assert family is not None
    specials = tuple(dict.fromkeys((*family.delimiters, *THINK))) if special else ()
    ids = {mark: FIRST_SPECIAL + i for i, mark in enumerate(specials)}
    if free:
        return Drawing(family.free_rules(KNOWN, ids.get, THINK, parallel=parallel), specials)
    return Drawing("start: calls\n" + family.rules(KNOWN, ids.get, parallel=parallel), specials)


def read(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    content, _, calls = joined(split(named_family(name).parse, list(text), known=KNOWN))
    return content, calls


@pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FAMILIES)
def test_whatever_is_drawn_is_calls_that_hold_to_their_schemas(name, special):
    drawn = [drawing(name, special=special).draw(seed) for seed in range(6)]
    texts = [text for text in drawn if text is not None]
    assert len(texts) > 2
    for text in texts:
        content, calls = read(name, text)
        assert not content.strip()
        assert calls
        for called, arguments in calls:
            jsonschema.validate(json.loads(arguments), TOOLS[called])


CALL = {
    "hermes": '<tool_call>\n{"name": "plain", "arguments": {"s": "x", "e": "red", "b": true}}\n</tool_call>',
    "llama3_json": '{"name": "plain", "parameters": {"s": "x", "e": "red", "b": true}}',
    "mistral": '[TOOL_CALLS] [{"name": "plain", "arguments": {"s": "x", "e": "red", "b": true}}]',
    "harmony": "<|channel|>commentary to=functions.plain <|constrain|>json<|message|>"
    '{"s": "x", "e": "red", "b": true}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>plain\n```json\n"
    '{"s": "x", "e": "red", "b": true}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>plain<｜tool▁sep｜>"
    '{"s": "x", "e": "red", "b": true}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="plain">\n'
    '<｜DSML｜parameter name="s" string="true">x</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="e" string="true">red</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="b" string="false">true</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.plain:0<|tool_call_argument_begin|>"
    '{"s": "x", "e": "red", "b": true}<|tool_call_end|><|tool_calls_section_end|>',
    "qwen3_coder": "<tool_call>\n<function=plain>\n<parameter=s>\nx\n</parameter>\n<parameter=e>\nred\n"
    "</parameter>\n<parameter=b>\ntrue\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>plain\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n<arg_key>e</arg_key>\n"
    "<arg_value>red</arg_value>\n<arg_key>b</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
    "glm47": "<tool_call>plain<arg_key>s</arg_key><arg_value>x</arg_value><arg_key>e</arg_key>"
    "<arg_value>red</arg_value><arg_key>b</arg_key><arg_value>true</arg_value></tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="plain">\n<parameter name="s">x</parameter>\n'
    '<parameter name="e">red</parameter>\n<parameter name="b">true</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=plain>\n<parameter=s>x</parameter>\n<parameter=e>red"
    "</parameter>\n<parameter=b>true</parameter>\n</function>\n</seed:tool_call>",
    "gemma4": '<|tool_call>call:plain{s:<|"|>x<|"|>,e:<|"|>red<|"|>,b:true}<tool_call|>',
    "llama4_pythonic": '[plain(s="x", e="red", b=True)]',
    "lfm2": '<|tool_call_start|>[plain(s="x", e="red", b=True)]<|tool_call_end|>',
    "phi4_mini_json": 'functools[{"name": "plain", "arguments": {"s": "x", "e": "red", "b": true}}]',
    "granite": '<|tool_call|>[{"name": "plain", "arguments": {"s": "x", "e": "red", "b": true}}]',
    "nemotron_json": '<TOOLCALL>[{"name": "plain", "arguments": {"s": "x", "e": "red", "b": true}}]'
    "</TOOLCALL>",
    "olmo3": '<function_calls>\nplain(s="x", e="red", b=True)\n</function_calls>',
}
WRITTEN = (
    *("minimax_m1", "apriel", "gigachat3", "apertus", "hy3", "minicpm5", "cohere", "kimi_k3", "muse_glimmer"),
    *("minimax_m3", "functionary_v31", "glm4"),
)
CALL |= {name: named_family(name).written([("plain", {"s": "x", "e": "red", "b": True})]) for name in WRITTEN}
CALL["deepseek_v4"] = CALL["deepseek_v32"].replace("function_calls", "tool_calls")


@pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_as_the_model_writes_it(name, special):
    grammar, text = drawing(name, special=special), CALL[name]
    assert grammar.takes(text)
    assert read(name, text) == ("", [("plain", '{"s": "x", "e": "red", "b": true}')])
    assert not grammar.takes(text.replace("red", "green"))
    assert not grammar.takes(text.replace("plain", "other"))
    assert not grammar.begins(f"Well. {text}")
    assert not grammar.takes("")


@pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FAMILIES)
def test_strict_tools_in_a_free_answer(name, special):
    """Text is free, and calls in it hold to the schema."""
    grammar, text = drawing(name, free=True, special=special), CALL[name]
    plain = named_family(name).content_mark if name in CHANNELS else ""
    plain += "Hello <b> {x} [y]"
    assert grammar.takes(plain)
    assert grammar.takes(text)
    assert not grammar.takes(text.replace("red", "green"))
    if name != "glm4":  # behind another name it is text
        assert not grammar.begins(text.replace("plain", "other") + "x")
    if name not in ("llama3_json", "llama4_pythonic", "glm4", *CHANNELS):
        assert grammar.takes(f"<think>I\n</think>\n\nLet me <see>.\n{text}")


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_beside_a_format_of_the_content(name):
    """Its own JSON may begin as a call does."""
    family, ids = named_family(name), lambda _: None
    form = {"type": "object", "properties": {"name": {"type": "string"}, "q": {"type": "integer"}}}
    body = f"body: {family.content_rule(ids)} %json {json.dumps(single_line(form))}\n"
    grammar = Drawing(f"start: calls | body\n{body}{family.rules(KNOWN, ids, parallel=True)}")
    mark = family.content_mark
    assert grammar.takes(CALL[name])
    assert grammar.takes(f'{mark}{{"name": "plain", "q": 1}}')
    assert grammar.takes(f'{mark}{{"q": 1}}')
    assert not grammar.takes(f"{mark}Well.")


def test_harmony_thinks_before_a_forced_call():
    grammar = drawing("harmony", special=True)
    thought = "<|channel|>analysis<|message|>I need it<|end|><|start|>assistant"
    assert grammar.takes(thought + CALL["harmony"])
    assert grammar.takes(thought * 2 + CALL["harmony"])
    assert grammar.takes(" to=functions.nothing<|channel|>commentary json<|message|>{}")
    assert not grammar.takes("<|channel|>final<|message|>no")


@pytest.mark.parametrize("name", ["deepseek_v31", "kimi_k2", "minimax_m2", "qwen3_coder", "gemma4", "lfm2"])
def test_one_call_where_the_request_wants_no_more(name):
    several = [drawing(name, parallel=False).draw(seed) for seed in range(4)]
    assert all(len(read(name, text)[1]) == 1 for text in several if text is not None)


OPEN = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "additionalProperties": {"type": "integer"},
}
ROUND = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}


def rules(name: str, schema: dict) -> str:
    return "start: calls\n" + named_family(name).rules(
        [Tool("t", None, schema)], lambda _: None, parallel=False
    )


def test_lists_and_objects_of_minimax_m3():
    ns = "]<]minimax[>["
    tags = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
    either = {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "object"}]}
    grammar = Drawing(rules("minimax_m3", {"type": "object", "properties": {"t": tags, "u": either}}))

    def taken(inner: str) -> bool:
        inner = inner.replace("<", f"{ns}<")
        return grammar.takes(f'{ns}<tool_call>\n{ns}<invoke name="t">{inner}{ns}</invoke>\n{ns}</tool_call>')

    assert taken("<t><item>1</item><item>2</item></t><u>abc</u>")
    assert taken("")
    assert not taken("<t></t>")
    assert not taken("<t><item>x</item></t>")
    assert not taken("<t><item>1</item><item>2</item><item>3</item></t>")
    assert not taken("<u><k>1</k></u>")  # where a string may stand, all is read as one


def test_parameters_that_have_no_name_in_the_schema():
    grammar = Drawing(rules("qwen3_coder", OPEN))
    head, tail = "<tool_call>\n<function=t>\n", "</function>\n</tool_call>"
    value = "<parameter={}>\n{}\n</parameter>\n"
    assert grammar.takes(head + value.format("a", "x") + value.format("b", "1") + tail)
    assert not grammar.takes(head + value.format("b", "x") + tail)
    assert not grammar.takes(head + value.format("a", "x") * 2 + tail)


@pytest.mark.parametrize(
    ("name", "schema", "words"),
    [
        ("qwen3_coder", ROUND, "requires 'b'"),
        ("qwen3_coder", {"type": "object", "minProperties": 1}, "'minProperties'"),
        ("glm45", {"type": "object", "properties": {"a>": {}}}, "named 'a>'"),
        (
            "minimax_m2",
            {"type": "object", "properties": {"a": {"type": "string", "format": "duration"}}},
            "'duration'",
        ),
        ("gemma4", {"type": "object", "properties": {"a b": {}}}, "named 'a b'"),
        (
            "gemma4",
            {"type": "object", "properties": {"a": {"type": "array", "contains": {}}}},
            "contains",
        ),
        ("gemma4", {"type": "object", "properties": {"a": {"not": {}}}}, "not"),
        ("minimax_m3", {"type": "object", "properties": {"a/b": {}}}, "named 'a/b'"),
        ("minimax_m3", OPEN, "additionalProperties"),
        ("llama4_pythonic", {"type": "object", "properties": {"a-b": {}}}, "named 'a-b'"),
    ],
)
def test_schemas_that_have_no_form(name, schema, words):
    with pytest.raises(RequestError, match=words):
        rules(name, schema)


def test_alternatives_that_refer_to_each_other():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {}}
    schema["$defs"]["A"] = {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}
    with pytest.raises(RequestError, match="refer to each other"):
        rules("qwen3_coder", schema)


def field(**said) -> dict:
    return {"type": "object", "properties": {"a": said}}


HOSTILE = [
    {"type": "object", "properties": []},
    {"type": "object", "required": "a"},
    {"type": "object", "required": [1, None]},
    {"type": ["object"]},
    {"$ref": "#/$defs/A"},
    {"$ref": "#"},
    {"$ref": 5},
    {"type": "object", "properties": {"a": True, "b": None, "c": [], "": {}}},
    field(type={"a": 1}),
    field(type=[[], {}, 5]),
    field(type="nothing"),
    field(type="string", minLength="x"),
    field(type="string", minLength=1.5),
    field(type="string", maxLength=-1),
    field(type="string", maxLength=10**30),
    field(type="string", pattern="("),
    field(type="string", pattern="a/\n\\"),
    field(type="string", pattern=5, format=5),
    field(type="string", format="nothing"),
    field(type="array", minItems="x"),
    field(type="array", items=5, maxItems=0),
    field(type="array", items=[{}, {}]),
    field(enum=[]),
    field(enum="x"),
    field(enum=[[1], {"a": None}, "\ud800", "</parameter>", "a\nb"]),
    field(const={"a": [1]}),
    field(anyOf=5),
    field(anyOf=[], oneOf=[{}]),
    field(anyOf=[5, None, {"type": "string"}], description="x"),
    field(**{"$ref": "https://example.com/schema"}),
    field(**{"$ref": "#/properties/a"}),
    field(**{"$ref": "#/properties"}),
    {"type": "object", "properties": {'a"\n>': {}, "é": {}, "a b": {}}},
    {"type": "object", "additionalProperties": {"$ref": "#/$defs/none"}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": [1]},
]


@pytest.mark.parametrize("schema", HOSTILE, ids=str)
@pytest.mark.parametrize(
    "name", ["qwen3_coder", "deepseek_v32", "gemma4", "llama4_pythonic", "kimi_k3", "minimax_m3"]
)
def test_hostile_schemas_are_refused_in_one_line_or_held(name, schema):
    """The engine refuses what llguidance does not take."""
    message, text = "", "start: calls\n"
    try:
        text = rules(name, schema)
    except RequestError as error:
        message = str(error)
    assert len(message) < 250
    assert "\n" not in message
    assert text.startswith("start: calls\n")
    found = joined(
        split(named_family(name).parse, [CALL[name].replace("plain", "t")], known=(Tool("t", None, schema),))
    )
    assert len(found[2]) == 1


def test_schemas_that_grow_are_refused():
    defs = {
        f"D{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/D{i + 1}"}}} for i in range(200)
    }
    defs["D200"] = {"type": "string"}
    many = {f"p{i}": {"$ref": f"#/$defs/D{i}"} for i in range(120)}
    schema = {"type": "object", "properties": many, "$defs": defs}
    with pytest.raises(RequestError, match="too large"):
        rules("qwen3_coder", schema)
    wide = {"A0": {"type": "string"}} | {
        f"A{i}": {"anyOf": [{"$ref": f"#/$defs/A{i - 1}"}] * 9} for i in range(1, 12)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A11"}}, "$defs": wide}
    with pytest.raises(RequestError, match="alternatives"):
        rules("glm45", schema)
    assert kinds_of(schema, "a") == frozenset()
