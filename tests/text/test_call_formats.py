"""Formats of calls that are the models' own: what each text is, however it is cut."""

from __future__ import annotations

import json
import random
import re

import pytest
from splitting import cut, joined, split

from firelane.text.tools.families import named_family
from firelane.text.tools.tool import Tool

SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "o": {"$ref": "#/$defs/O"},
        "m": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "integer"}]},
        "e": {"enum": ["x", "1"]},
    },
    "$defs": {"O": {"type": "object"}},
}
F = Tool("f", None, SCHEMA)
KNOWN = (F, Tool("g"))


def tagged(name: str, **values: str) -> str:
    """A call of `name` in the tags of Qwen 3 Coder."""
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name: str, **values: str) -> str:
    inner = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items())
    return f"<tool_call>{name}\n{inner}</tool_call>"


def minimax(*calls: tuple[str, dict[str, str]]) -> str:
    made = [
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
        + "</invoke>\n"
        for name, values in calls
    ]
    return f"<minimax:tool_call>\n{''.join(made)}</minimax:tool_call>"


def dsml(section: str, *calls: tuple[str, dict[str, tuple[str, str]]]) -> str:
    made = [
        f'<｜DSML｜invoke name="{name}">\n'
        + "".join(
            f'<｜DSML｜parameter name="{k}" string="{s}">{v}</｜DSML｜parameter>\n'
            for k, (s, v) in values.items()
        )
        + "</｜DSML｜invoke>\n"
        for name, values in calls
    ]
    return f"<｜DSML｜{section}>\n{''.join(made)}</｜DSML｜{section}>"


def kimi(*calls: tuple[str, str]) -> str:
    made = [f"<|tool_call_begin|>{i}<|tool_call_argument_begin|>{a}<|tool_call_end|>" for i, a in calls]
    return f"<|tool_calls_section_begin|>{''.join(made)}<|tool_calls_section_end|>"


def kimi3(*calls: tuple[str, dict[str, str]]) -> str:
    """An answer and calls; the keys of a call's values end with their types."""
    made = [
        f'<|open|>call tool="{name}" index="{i}"<|sep|>'
        + "".join(
            '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'.format(*key.split(), value)
            for key, value in values.items()
        )
        + "<|close|>call<|sep|>"
        for i, (name, values) in enumerate(calls, 1)
    ]
    said = "<|open|>response<|sep|>Ok.<|close|>response<|sep|>"
    return f"{said}<|open|>tools<|sep|>{''.join(made)}<|close|>tools<|sep|><|close|>message<|sep|>"


def atem(name: str, **values: str) -> str:
    inner = "".join(f'<atem:parameter name="{k}">{v}</atem:parameter>\n' for k, v in values.items())
    return (
        f'<atem:function_calls>\n<atem:invoke name="{name}">\n{inner}</atem:invoke>\n</atem:function_calls>'
    )


NS = "]<]minimax[>["


def minimax3(name: str, tags: str) -> str:
    """A call with these tags, each of which gets its mark, but not the one within the text of a value."""
    inner = re.sub(r"<(?!b>)", f"{NS}<", tags)
    return f'{NS}<tool_call>\n{NS}<invoke name="{name}">{inner}{NS}</invoke>\n{NS}</tool_call>'


def v31(*calls: tuple[str, str]) -> str:
    made = [f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{a}<｜tool▁call▁end｜>" for n, a in calls]
    return f"<｜tool▁calls▁begin｜>{''.join(made)}<｜tool▁calls▁end｜>"


def v3(*calls: tuple[str, str]) -> str:
    made = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{a}\n```<｜tool▁call▁end｜>"
        for n, a in calls
    ]
    return f"<｜tool▁calls▁begin｜>{chr(10).join(made)}<｜tool▁calls▁end｜>"


ARGS = '{"s": "é🔥 } ] \\" <", "o": {"k": [1, {"x": null}]}}'
Q = '<|"|>'
VALUES = '{"s": "a\\n\\"b\\" é🔥", "n": 5, "b": true, "o": {"k": [1, "2"]}, "m": null, "e": "1"}'
RAW = {"s": 'a\n"b" é🔥', "n": "5", "b": "true", "o": '{"k": [1, "2"]}', "m": "null", "e": "1"}
TYPED = {k: ("true" if k in "se" else "false", v) for k, v in RAW.items()}

CASES = [
    # Qwen 3 Coder
    ("qwen3_coder", "plain <b>text</b>", "plain <b>text</b>", []),
    ("qwen3_coder", tagged("f", **RAW), "", [("f", VALUES)]),
    ("qwen3_coder", f"So:\n{tagged('g')}\n{tagged('f', n='1')}", "So:\n", [("g", "{}"), ("f", '{"n": 1}')]),
    ("qwen3_coder", tagged("f", s="") + " done", " done", [("f", '{"s": ""}')]),
    ("qwen3_coder", tagged("f", s="\nx\n\n"), "", [("f", '{"s": "\\nx\\n\\n"}')]),
    ("qwen3_coder", tagged("f", s="<parameter=n>\n</function>"), "",
     [("f", '{"s": "<parameter=n>\\n</function>"}')]),
    ("qwen3_coder", tagged("f", b="True", m="None"), "", [("f", '{"b": true, "m": "None"}')]),
    ("qwen3_coder", tagged("f", n="five", o="{x"), "", [("f", '{"n": "five", "o": "{x"}')]),
    ("qwen3_coder", tagged("f", m="12"), "", [("f", '{"m": 12}')]),
    ("qwen3_coder", tagged("f", m="1.5"), "", [("f", '{"m": "1.5"}')]),
    ("qwen3_coder", tagged("h", x="1", y="a", z='"q"'), "", [("h", '{"x": 1, "y": "a", "z": "\\"q\\""}')]),
    ("qwen3_coder", "<function=f><parameter=n>1</parameter></function></tool_call>", "",
     [("f", '{"n": 1}')]),
    ("qwen3_coder", "<function=h></function>", "<function=h></function>", []),
    ("qwen3_coder", "<tool_call>\n<function=f>\nNo.</function>", "\nNo.</function>", [("f", "{}")]),
    ("qwen3_coder", "<tool_call>\nnothing\n</tool_call>", "<tool_call>\nnothing\n</tool_call>", []),
    ("qwen3_coder", '<tool_call>{"name": "f"}', '<tool_call>{"name": "f"}', []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nab", "", [("f", '{"s": "ab')]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=o>\n{\"a\": 1", "", [("f", '{"o": {"a": 1')]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<param", "\n<param", [("f", "")]),
    ("qwen3_coder", "<tool_call>\n<funct", "<tool_call>\n<funct", []),
    # Seed-OSS: as Qwen, in marks of its own, values on the tag's line
    ("seed_oss",
     "<seed:tool_call><function=f>\n<parameter=s>\n1</parameter>\n</function>\n</seed:tool_call>", "",
     [("f", '{"s": "\\n1"}')]),
    # GLM
    ("glm45", glm("f", **RAW), "", [("f", VALUES)]),
    ("glm45", f"Hm.\n{glm('g')}\n{glm('f', s='x')}", "Hm.\n", [("g", "{}"), ("f", '{"s": "x"}')]),
    ("glm47", "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>", "",
     [("f", '{"n": 1}')]),
    ("glm45", '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', []),
    ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>cut", "", [("f", '{"s": "cut')]),
    ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg", "<arg_key>s</arg_key>\n<arg", [("f", "")]),
    ("glm45", "<tool_call>f\n<arg_key>s</arg_key></tool_call>", "<arg_key>s</arg_key></tool_call>",
     [("f", "")]),
    # MiniMax
    ("minimax_m2", minimax(("f", RAW)), "", [("f", VALUES)]),
    ("minimax_m2", "I see.\n" + minimax(("g", {}), ("f", {"s": "x"})), "I see.\n",
     [("g", "{}"), ("f", '{"s": "x"}')]),
    ("minimax_m2", "<minimax:tool_call>\nno\n</minimax:tool_call>",
     "<minimax:tool_call>\nno\n</minimax:tool_call>", []),
    # DeepSeek 3.2 and 4
    ("deepseek_v32", dsml("function_calls", ("f", TYPED)), "", [("f", VALUES)]),
    ("deepseek_v32", "\n\n" + dsml("tool_calls", ("g", {}), ("f", {"n": ("true", "1")})), "",
     [("g", "{}"), ("f", '{"n": "1"}')]),
    ("deepseek_v4", dsml("tool_calls", ("f", {"x": ("false", "oops")})), "", [("f", '{"x": "oops"}')]),
    ("deepseek_v32",
     '<｜DSML｜invoke name="f"><｜DSML｜parameter name="n">3</｜DSML｜parameter></｜DSML｜invoke>',
     "", [("f", '{"n": 3}')]),
    ("deepseek_v32", "<｜DSML｜function_calls>\n<｜DSML｜", "<｜DSML｜function_calls>\n<｜DSML｜", []),
    # DeepSeek V3 and V3.1
    ("deepseek_v31", v31(("f", ARGS), ("g", "{}")), "", [("f", ARGS), ("g", "{}")]),
    ("deepseek_v31", "Yes.\n" + v31(("f", ARGS)) + "\nSo.", "Yes.\n\nSo.", [("f", ARGS)]),
    ("deepseek_v31", v3(("f", ARGS)), "", [("f", ARGS)]),
    ("deepseek_v3", v3(("f", ARGS), ("g", "{}")), "", [("f", ARGS), ("g", "{}")]),
    ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "", [("f", "{}")]),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>no", "<｜tool▁calls▁begin｜>no", []),
    ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[]",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[]", []),
    ("deepseek_v31", v31(("f", '{"s": "cut')).partition("<｜tool▁call▁end")[0], "", [("f", '{"s": "cut')]),
    # Kimi K2
    ("kimi_k2", kimi(("functions.f:0", ARGS), ("functions.g:12", "{}")), "", [("f", ARGS), ("g", "{}")]),
    ("kimi_k2", "Wait. " + kimi(("f:0", "{}")) + " Then.", "Wait.  Then.", [("f", "{}")]),
    ("kimi_k2", "<|tool_call_begin|>functions.f:0 <|tool_call_argument_begin|> {}", "", [("f", "{}")]),
    ("kimi_k2", kimi(("f", "{}")), kimi(("f", "{}")), []),
    # GLM-4-0414
    ("glm4", f"f\n{ARGS}<|assistant|>g \n {{}}", "", [("f", ARGS), ("g", "{}")]),
    ("glm4", f"\nI look.\n<|assistant|>f\n{ARGS}<|assistant|>\nDone.", "\nI look.\n\nDone.",
     [("f", ARGS)]),
    ("glm4", "\nOn f\n{}", "\nOn f\n{}", []),
    ("glm4", "f {}", "f {}", []),
    ("glm4", "f\n[1]", "f\n[1]", []),
    ("glm4", "ff\n{}", "ff\n{}", []),
    # Functionary v3.1
    ("functionary_v31", f"Ok. <function=f>{ARGS}</function><function=g>{{}}</function> So.", "Ok.  So.",
     [("f", ARGS), ("g", "{}")]),
    ("functionary_v31", '<function=g>\n{"a": "</function>"}\n</function>\n<function=f>{}', "",
     [("g", '{"a": "</function>"}'), ("f", "{}")]),
    ("functionary_v31", "A tag <function=f> without {}", "A tag <function=f> without {}", []),
    ("functionary_v31", "<function=f>[1]</function>", "<function=f>[1]</function>", []),
    # Gemma 4
    ("gemma4", f'<|tool_call>call:f{{s:{Q}é "x" \\n {{,}}{Q},n:5,b:true,o:{{k:[1,{Q}2{Q}]}}}}<tool_call|>',
     "", [("f", '{"s": "é \\"x\\" \\\\n {,}", "n": 5, "b": true, "o": {"k": [1, "2"]}}')]),
    ("gemma4", "Hm.<|tool_call>call:g{}<tool_call|><|tool_call>call:f{m:None}<tool_call|>", "Hm.",
     [("g", "{}"), ("f", '{"m": null}')]),
    ("gemma4", f'<|tool_call>call:f{{ "s" : "a\\n" , {Q}n{Q}: 1, e:word,}}<tool_call|>', "",
     [("f", '{"s": "a\\n", "n": 1, "e": "word"}')]),
    ("gemma4", "<|tool_call>call:f{o:{},x:[]}<tool_call|>ok", "ok", [("f", '{"o": {}, "x": []}')]),
    ("gemma4", "<|tool_call>what<tool_call|>", "<|tool_call>what<tool_call|>", []),
    ("gemma4", f"<|tool_call>call:f{{s:{Q}cut", "", [("f", '{"s": "cut')]),
    ("gemma4", "<|tool_call>call:f{n:1", "", [("f", '{"n": 1')]),
    ("gemma4", "<|tool_call>call:f{n:1;}<tool_call|>", "", [("f", '{"n": "1;"}')]),
    ("gemma4", "<|tool_call>call:f{[1]}<tool_call|>", "[1]}<tool_call|>", [("f", "{")]),
    # Llama 4 and LFM2
    ("llama4_pythonic", "[f(s='it\\'s \"é\"', n=-5, b=True, o={'k': [1, (2,)]}, m=None), g()]", "",
     [("f", '{"s": "it\'s \\"é\\"", "n": -5, "b": true, "o": {"k": [1, [2]]}, "m": null}'), ("g", "{}")]),
    ("llama4_pythonic", "<|python_start|>[h(a=1)]<|python_end|>", "", [("h", '{"a": 1}')]),
    ("llama4_pythonic", '{"name": "f", "parameters": {"n": 1}}', "", [("f", '{"n": 1}')]),
    ("llama4_pythonic", '<|python_start|>{"name": "h", "parameters": {}}<|python_end|>', "", [("h", "{}")]),
    ("llama4_pythonic", "[h(a=1)]", "[h(a=1)]", []),
    ("llama4_pythonic", "[1, 2] and [f(1)]", "[1, 2] and [f(1)]", []),
    ("llama4_pythonic", "[f(1)]", "[f(1)]", []),
    ("llama4_pythonic", "[f(n=1, )] so", " so", [("f", '{"n": 1}')]),
    ("llama4_pythonic", "[f(n=x+1, s=r'a')]", "", [("f", '{"n": "x+1", "s": "r\'a\'"}')]),
    ("llama4_pythonic", "[f(s='cu", "", [("f", '{"s": \'cu')]),
    ("llama4_pythonic", "[f(n=1, 2)]", " 2)]", [("f", '{"n": 1}')]),
    ("llama4_pythonic", "[f(n=1, s", " s", [("f", '{"n": 1')]),
    ("lfm2", "Yes<|tool_call_start|>[f(n=.5, m=1_000, x=\"\\x41\\u00e9\")]<|tool_call_end|>No", "YesNo",
     [("f", '{"n": 0.5, "m": 1000, "x": "\\u0041\\u00e9"}')]),
    # Phi-4-mini and Granite
    ("phi4_mini_json", f'functools[{{"name": "f", "arguments": {ARGS}}}, {{"name": "g", "arguments": {{}}}}]',
     "", [("f", ARGS), ("g", "{}")]),
    ("phi4_mini_json", "import functools\nx", "import functools\nx", []),
    ("granite", f'Ok. <|tool_call|> [{{"name": "f", "arguments": {ARGS}}}]', "Ok. ", [("f", ARGS)]),
    ("nemotron_json", f'Ok. <TOOLCALL>[{{"name": "f", "arguments": {ARGS}}}]</TOOLCALL> end', "Ok.  end",
     [("f", ARGS)]),
    ("nemotron_json", '<TOOLCALL>[{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"n": 1}}]', "",
     [("g", "{}"), ("f", '{"n": 1}')]),
    ("nemotron_json", "<TOOLCALL>none</TOOLCALL>", "<TOOLCALL>none</TOOLCALL>", []),
    ("olmo3", "Sure.<function_calls>\nf(s='a)', n=2, o={'k': [1]}, b=true)\ng()\n</function_calls>!",
     "Sure.!", [("f", '{"s": "a)", "n": 2, "o": {"k": [1]}, "b": true}'), ("g", "{}")]),
    ("olmo3", "<function_calls>g()</function_calls>", "", [("g", "{}")]),
    ("olmo3", "<function_calls>\nnothing\n</function_calls>",
     "<function_calls>\nnothing\n</function_calls>", []),
    ("olmo3", "<function_calls>\nf(s=\"ab", "", [("f", '{"s": "ab')]),
    # GigaChat 3, MiniMax M1, Apriel, Apertus, MiniCPM5, Hunyuan 3
    ("gigachat3", f'Well.<|function_call|>{{"name": "f", "arguments": {ARGS}}}', "Well.", [("f", ARGS)]),
    ("minimax_m1", f'<tool_calls>\n{{"name": "f", "arguments": {ARGS}}}\n{{"name": "g", "arguments": {{}}}}\n'
     "</tool_calls>", "", [("f", ARGS), ("g", "{}")]),
    ("minimax_m1", "<tool_calls>none</tool_calls>", "<tool_calls>none</tool_calls>", []),
    ("apriel", f'<tool_calls>[{{"name": "f", "arguments": {ARGS}, "id": "1"}}]</tool_calls>', "",
     [("f", ARGS)]),
    ("apriel", "It is 4 [km].\n[END FINAL RESPONSE]", "It is 4 [km].\n", []),
    ("apertus", f'Ok.<|tools_prefix|>[{{"f": {ARGS}}}, {{"g": {{}}}}]<|tools_suffix|>', "Ok.",
     [("f", ARGS), ("g", "{}")]),
    ("apertus", "<|tools_prefix|>[]<|tools_suffix|>", "<|tools_prefix|>[]<|tools_suffix|>", []),
    ("minicpm5", '<function name="f"><param name="s"><![CDATA[<a href="/x"> </param>]]></param></function>\n'
     '<function name="g"></function>', "", [("f", '{"s": "<a href=\\"/x\\"> </param>"}'), ("g", "{}")]),
    ("minicpm5", 'As in <function name="h"><param name="s">1</param></function>.',
     'As in <function name="h"><param name="s">1</param></function>.', []),
    ("hy3", "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
     "<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>7</arg_value:opensource>\n"
     "</tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>\n"
     "</tool_calls:opensource>", "", [("f", '{"n": 7}'), ("g", "{}")]),
    ("llama3_json", '<|python_start|><|python_end|>{"name": "f", "parameters": {"n": 7}}'
     '{"name": "g", "parameters": {}}', "", [("f", '{"n": 7}'), ("g", "{}")]),
    ("llama3_json", 'Ok.<|python_start|>{"name": "f", "parameters": {}}<|python_end|>', "Ok.",
     [("f", "{}")]),
    ("llama3_json", "<|python_start|>1 + 1", "<|python_start|>1 + 1", []),
    # Kimi K3
    ("kimi_k3", "<|open|>response<|sep|>Well <b>.<|close|>response<|sep|><|close|>message<|sep|>",
     "Well <b>.", []),
    ("kimi_k3", kimi3(("f", {"s string": "<1> \n", "n number": "7", "o object": '{"k": "a"}'}),
                      ("g", {"x string": "7", "m null": "null"})),
     "Ok.", [("f", '{"s": "<1> \\n", "n": 7, "o": {"k": "a"}}'), ("g", '{"x": "7", "m": null}')]),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>json type="object"<|sep|>'
     f"{ARGS}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", "", [("f", ARGS)]),
    ("kimi_k3", "<|open|>tools<|sep|>none<|close|>tools<|sep|>",
     "<|open|>tools<|sep|>none<|close|>tools<|sep|>", []),
    # Muse Glimmer
    ("muse_glimmer", " to=user<|message|>Ok.<|eom|><|start|>assistant to=f<|message|>"
     f"{atem('f', s=' <x> ', n='7')}<|eom|><|start|>assistant to=g<|message|>{atem('g')}<|eot|>", "Ok.",
     [("f", '{"s": " <x> ", "n": 7}'), ("g", "{}")]),
    ("muse_glimmer", f" to=user<|message|>As in {atem('f', n='7')}<|eot|>", f"As in {atem('f', n='7')}", []),
    ("muse_glimmer", f" to=f<|message|>Now. {atem('f', n='7')}", "Now. ", [("f", '{"n": 7}')]),
    ("muse_glimmer", f"Plain {atem('f')}", f"Plain {atem('f')}", []),
    # MiniMax M3
    ("minimax_m3", "Ok." + minimax3("f", "<s> a <b>\n]</s><n>7</n><o><k><item>1</item><item>x</item></k>"
                                   "<z>t</z></o><e>1</e><m>null</m>"),
     "Ok.", [("f", '{"s": " a <b>\\n]", "n": 7, "o": {"k": [1, "x"], "z": "t"}, "e": "1", "m": null}')]),
    ("minimax_m3", minimax3("h", "<l><item><id>1</id></item><item></item></l><q></q>"), "",
     [("h", '{"l": [{"id": 1}, ""], "q": ""}')]),
    ("minimax_m3", minimax3("f", "<o></o>") + minimax3("g", ""), "", [("f", '{"o": {}}'), ("g", "{}")]),
    ("minimax_m3", f"{NS}<tool_call>none{NS}</tool_call>", f"{NS}<tool_call>none{NS}</tool_call>", []),
    ("minimax_m3", f'{NS}<invoke name="f">{NS}<n>7{NS}</invoke>{NS}</tool_call>So.', "So.",
     [("f", '{"n": 7}')]),
    # Cohere
    ("cohere", "<|START_TEXT|>Well <b> now.<|END_TEXT|>", "Well <b> now.", []),
    ("cohere", '<|START_RESPONSE|>Ok.<|END_RESPONSE|><|START_ACTION|>[\n    {"tool_call_id": "0", '
     f'"tool_name": "f", "parameters": {ARGS}}},\n    {{"tool_call_id": "1", "tool_name": "g", '
     '"parameters": {}}\n]<|END_ACTION|>', "Ok.", [("f", ARGS), ("g", "{}")]),
    ("cohere", '<|START_ACTION|>[{"tool_name": "f", "parameters": {"s": "<|END_TEXT|> x"}}]<|END_ACTION|>',
     "", [("f", '{"s": "<|END_TEXT|> x"}')]),
    ("cohere", '<|START_ACTION|>[{"tool_name": "f", "s": 1}]<|END_ACTION|>',
     '<|START_ACTION|>[{"tool_name": "f", "s": 1}]<|END_ACTION|>', []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_cases_however_they_are_cut(name, text, content, calls):
    family = named_family(name)
    rng = random.Random(len(text))
    cuts = [cut(text, [rng.randrange(len(text) + 1) for _ in range(n)]) for n in (1, 2, 4, 9, 30)]
    for pieces in ([text], list(text), *cuts):
        assert joined(split(family.parse, pieces, known=KNOWN)) == (content, "", calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_any_beginning_of_a_text(name, text, content, calls):
    """A text may be cut by the answer's limit: no call is lost, and no finished argument is another one."""
    family = named_family(name)
    del content
    for end in range(len(text)):
        whole = joined(split(family.parse, [text[:end]], known=KNOWN))
        assert joined(split(family.parse, list(text[:end]), known=KNOWN)) == whole
        for (called, arguments), (last, final) in zip(whole[2], calls, strict=False):
            assert called == last
            assert arguments == final or not _is_json(arguments)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_strings_stream():
    """The text of a string leaves before its end has come."""
    for name, text in (
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nlong te"),
        ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>long te"),
        ("gemma4", f"<|tool_call>call:f{{s:{Q}long te"),
        ("deepseek_v31", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"s": "long te'),
    ):
        family = named_family(name)
        assert joined(split(family.parse, [text], known=KNOWN, end=False))[2] == [("f", '{"s": "long te')]


def test_kimi_keeps_the_ids_that_the_model_gives():
    family = named_family("kimi_k2")
    found = split(family.parse, [kimi(("functions.f:3", "{}"), ("g:4", "{}"))], known=KNOWN)
    assert [delta.id for delta in found if hasattr(delta, "id")] == ["functions.f:3", "g:4"]


@pytest.mark.parametrize("name", sorted({case[0] for case in CASES}))
def test_only_so_many_calls(name):
    """The first call ends the answer."""
    text = next(text for family, text, content, calls in CASES if family == name and len(calls) > 0)
    found = joined(split(named_family(name).parse, list(text + text), known=KNOWN, limit=1))
    assert len(found[2]) == 1
