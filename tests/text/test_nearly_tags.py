"""Calls in tags that models write nearly right, however the text is cut."""

from __future__ import annotations

import json
import re

import pytest
from splitting import Joined, joined, split

from firelane.text.tools.families import named_family
from firelane.text.tools.tool import Tool

SCHEMA = {"properties": {"path": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}
KNOWN = (Tool("put", None, SCHEMA), Tool("get"))
QWEN = "<tool_call>\n<function=put>\n{}</function>\n</tool_call>"
SEED = "<seed:tool_call>\n<function=put>\n{}</function>\n</seed:tool_call>"
GLM = "<tool_call>put\n{}</tool_call>"
MINIMAX = '<minimax:tool_call>\n<invoke name="put">\n{}</invoke>\n</minimax:tool_call>'
WAYS = {
    "qwen3_coder": (QWEN, "<parameter={}>\n{}\n</parameter>\n"),
    "seed_oss": (SEED, "<parameter={}>{}</parameter>\n"),
    "glm45": (GLM, "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"),
    "minimax_m2": (MINIMAX, '<parameter name="{}">{}</parameter>\n'),
}
VALUES = {"path": "a <b>\n</c> {é", "n": "7"}
ARGUMENTS = {"path": "a <b>\n</c> {é", "n": 7}


def read(name: str, text: str) -> Joined:
    family = named_family(name)
    whole = joined(split(family.parse, [text], known=KNOWN))
    assert joined(split(family.parse, list(text), known=KNOWN)) == whole
    for place in range(len(text)):
        assert joined(split(family.parse, [text[:place], text[place:]], known=KNOWN)) == whole
    return whole


def parameters(name: str, **values: str) -> str:
    return "".join(WAYS[name][1].format(key, value) for key, value in values.items())


def close_of(name: str) -> str:
    return "</arg_value>" if name == "glm45" else "</parameter>"


def calls_of(name: str, text: str, content: str = "") -> list[dict]:
    """The arguments of calls of `put`."""
    found, _, calls = read(name, text)
    assert found == content
    assert {called for called, _ in calls} <= {"put"}
    return [json.loads(arguments) for _, arguments in calls]


@pytest.mark.parametrize("name", WAYS)
class TestOfEveryFormat:
    def test_the_last_parameter_is_not_closed(self, name):
        for values, wanted in ((VALUES, ARGUMENTS), ({"n": "7", "path": "x"}, {"n": 7, "path": "x"})):
            said = parameters(name, **values).rstrip().removesuffix(close_of(name))
            text = WAYS[name][0].format(said)
            assert calls_of(name, text) == [wanted]
            assert calls_of(name, f"{text}\n{text}") == [wanted, wanted]

    def test_neither_parameter_nor_call_are_closed(self, name):
        said = parameters(name, **VALUES).rstrip().removesuffix(close_of(name))
        text = WAYS[name][0].format(said)
        for tag in ("</function>\n", "</invoke>\n"):
            text = text.replace(tag, "")
        assert calls_of(name, text) == [ARGUMENTS]

    def test_the_first_of_two_parameters_is_not_closed(self, name):
        for values, wanted in ((VALUES, ARGUMENTS), ({"n": "7", "path": "x"}, {"n": 7, "path": "x"})):
            text = WAYS[name][0].format(parameters(name, **values).replace(close_of(name), "", 1))
            text = text.replace("\n\n", "\n")
            assert calls_of(name, text) == [wanted]

    def test_the_first_of_two_calls_is_not_closed(self, name):
        whole = WAYS[name][0].format(parameters(name, path="x"))
        for end in (len(whole), whole.index(close_of(name)) + len(close_of(name))):
            assert calls_of(name, f"{whole[:end]}\n{whole}") == [{"path": "x"}, {"path": "x"}]

    def test_a_closing_tag_of_another_form(self, name):
        said = parameters(name, **VALUES).replace(close_of(name), close_of(name)[:-1] + "/>")
        assert calls_of(name, WAYS[name][0].format(said)) == [ARGUMENTS]

    def test_tags_that_come_twice(self, name):
        whole = WAYS[name][0].format(parameters(name, **VALUES))
        for tag in dict.fromkeys(re.findall("<[^<>]*>", whole)):
            if tag not in ("<b>", "</c>", "<arg_key>", "</arg_key>", "<arg_value>"):
                for between in ("", "\n"):
                    assert calls_of(name, whole.replace(tag, f"{tag}{between}{tag}", 1)) == [ARGUMENTS], tag

    def test_tags_within_a_value(self, name):
        """A file that is about such calls."""
        inner = WAYS[name][0].format(parameters(name, path="x").replace(close_of(name), "<end>"))
        for value in (f"Write\n{inner.rpartition('</')[0]} so", f"{close_of(name)[:-2]}\n</other>"):
            text = WAYS[name][0].format(parameters(name, path=value))
            assert calls_of(name, text) == [{"path": value}]

    def test_a_key_that_is_no_parameter_or_has_come_is_a_part_of_the_value(self, name):
        for key in ("other", "n"):
            value = "x\n" + parameters(name, **{key: "y"}).partition("y")[0]
            text = WAYS[name][0].format(parameters(name, n="7", path=value))
            assert calls_of(name, text) == [{"n": 7, "path": value}]

    def test_cut_behind_a_tag_that_may_be_a_part_of_the_value(self, name):
        """Unfinished, so that no client takes it for the whole."""
        if name != "glm45":
            said = WAYS[name][0].format(parameters(name, path="x").partition(close_of(name))[0])
            text = said[: said.rindex("</")].rstrip()
            arguments = read(name, text)[2][0][1]
            with pytest.raises(ValueError, match="Unterminated"):
                json.loads(arguments)
