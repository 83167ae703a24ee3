"""Chat templates that come with Firelane, against texts written out by hand after the published formats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from formats import format_of

from firelane.errors import RequestError
from firelane.text.model_files import WITHOUT_TEMPLATE, read_model_files
from firelane.text.rendering.template import ChatTemplate

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [
    {"type": "function", "function": {"name": "find", "description": "Ü", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "stop", "parameters": {}}},
]
DESCRIBED = """## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
{"name": "find", "description": "Ü", "parameters": {"type": "object"}}
{"name": "stop", "parameters": {}}
</functions>
"""  # noqa: E501 - as the model was trained with it


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(*calls: tuple[str, dict[str, Any]], content: str = "", thought: str = "") -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return {"role": "assistant", "content": content, "reasoning_content": thought, "tool_calls": made}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps({"model_type": "deepseek_v32"}))
    files = read_model_files(directory)
    assert files.template is not None
    return ChatTemplate(files.template, {}, files.template_path)


def rendered(template: ChatTemplate, *messages: dict[str, Any], **variables: Any) -> str:
    return template.render(list(messages), {"add_generation_prompt": True, **variables})


@pytest.mark.parametrize(("thinking", "mark"), [(True, "<think>"), (False, "</think>"), (None, "</think>")])
def test_one_question(template: ChatTemplate, thinking: bool | None, mark: str) -> None:
    variables = {} if thinking is None else {"thinking": thinking}
    text = rendered(template, SYSTEM, user("Hi"), **variables)
    assert text == f"{BEGIN}Be brief.<｜User｜>Hi<｜Assistant｜>{mark}"


def test_reasoning_of_earlier_turns_is_left_out(template: ChatTemplate) -> None:
    answer = {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."}
    text = rendered(template, user("Hi"), answer, user("Bye"), thinking=True)
    first = f"{BEGIN}<｜User｜>Hi<｜Assistant｜></think>Hello.{END}"
    assert text == f"{first}<｜User｜>Bye<｜Assistant｜><think>"


def test_tools_are_told_by_the_system(template: ChatTemplate) -> None:
    text = rendered(template, SYSTEM, user("Hi"), tools=TOOLS)
    assert text == f"{BEGIN}Be brief.\n\n{DESCRIBED}<｜User｜>Hi<｜Assistant｜></think>"
    assert rendered(template, user("Hi"), tools=TOOLS) == text.replace("Be brief.", "")


def test_calls_and_results(template: ChatTemplate) -> None:
    calls = called(
        ("find", {"q": 'a "b" é', "n": 3, "deep": True, "of": ["x", {"y": None}]}),
        ("stop", {}),
        content="Looking.",
        thought="Search first.",
    )
    text = rendered(template, user("Go"), calls, result("two"), result("{}"), thinking=True)
    assert text == (
        f"{BEGIN}<｜User｜>Go<｜Assistant｜><think>Search first.</think>Looking.\n\n"
        "<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="find">\n'
        '<｜DSML｜parameter name="q" string="true">a "b" é</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="deep" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="of" string="false">["x", {"y": null}]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="stop">\n'
        "\n"
        "</｜DSML｜invoke>\n"
        f"</｜DSML｜function_calls>{END}\n\n"
        "<function_results>\n<result>two</result>\n<result>{}</result>\n</function_results>\n\n<think>"
    )
    without = rendered(template, user("Go"), calls, result("two"), result("{}"))
    assert without == text.replace("<think>Search first.</think>", "</think>").removesuffix("<think>") + (
        "</think>"
    )


def test_results_of_an_earlier_turn(template: ChatTemplate) -> None:
    turn = (user("Go"), called(("stop", {})), result("ok"), {"role": "assistant", "content": "Done."})
    text = rendered(template, *turn, user("More"), thinking=True)
    assert text.endswith(f"</function_results>\n\n</think>Done.{END}<｜User｜>More<｜Assistant｜><think>")


def test_results_without_calls_are_refused(template: ChatTemplate) -> None:
    with pytest.raises(RequestError, match="no call that it answers"):
        rendered(template, user("Go"), result("two"))


def test_the_format_is_seen_in_the_template(template: ChatTemplate) -> None:
    form = format_of(template.source)
    assert form.family is not None
    assert form.family.name == "deepseek_v32"
    assert form.thinks
    assert {"tools", "thinking"} <= template.variables


def test_other_models_get_none(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "../secrets"}))
    assert read_model_files(tmp_path).template is None
    assert set(WITHOUT_TEMPLATE) == {"deepseek_v32"}
