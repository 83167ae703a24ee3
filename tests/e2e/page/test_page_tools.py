"""Tools and several answers: checked, sent, shown, answered, gone on with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from page_support import Open, Visit, chat_events

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def call_events(*calls: tuple[str, str]) -> list[dict[str, Any]]:
    """A stream that calls tools: each call's name in a piece, its arguments in two."""
    events = []
    for index, (name, arguments) in enumerate(calls):
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name}}
        rest = [{"index": index, "function": {"arguments": part}} for part in (arguments[:4], arguments[4:])]
        events += [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in (first, *rest)]
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


def with_tools(tab: Visit, text: str) -> Visit:
    tab.page.evaluate("document.getElementById('tools-section').open = true")
    tab.page.fill("#tools", text)
    tab.page.locator("#tools").blur()
    return tab


BAD = [
    ("{", "Not valid JSON"),
    ("{}", "a list"),
    ("[3]", 'Tool 1 needs "type"'),
    ('[{"type": "function"}]', 'needs "function"'),
    ('[{"type": "function", "function": {"name": "a b"}}]', "needs a name"),
    ('[{"type": "function", "function": {"name": "a", "parameters": []}}]', "JSON schema"),
    (json.dumps([TOOL, TOOL]), "Two tools are named add"),
]


def test_wrong_tools_are_not_sent(visit: Open) -> None:
    tab = visit().ready().set(message="Hello")
    for text, says in BAD:
        with_tools(tab, text).page.press("#message", "Enter")
        assert tab.page.evaluate("document.activeElement.id") == "tools"
        assert says in tab.page.text_content("#tools-wrong")
    assert tab.sent == []


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("", None),
        ("required", "required"),
        ("none", "none"),
        ("=add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_and_choice_are_sent(visit: Open, choice: str, sent: object) -> None:
    tab = with_tools(visit().ready(), json.dumps([TOOL]))
    tab.answer_with(chat_events("Fine."))
    tab.page.select_option("#tool_choice", choice)
    tab.send("Hello")
    assert (tab.sent[0]["tools"], tab.sent[0].get("tool_choice")) == ([TOOL], sent)
    tab.answer_with(chat_events("Fine."), "**/v1/completions")
    tab.choose("completion").send("Hello")
    assert "tools" not in tab.sent[-1]


def test_calls_are_shown_and_answered_with_the_keyboard(visit: Open) -> None:
    tab = visit().ready()
    tab.page.evaluate("document.getElementById('tools-section').open = true")
    tab.page.click("#tools-example")
    tab.answer_with(call_events(("get_weather", '{"city": "Rome"}'), ("add", "not JSON")))
    tab.send("How warm is it?")
    assert tab.texts(".call-name") == ["get_weather", "add"]
    assert tab.texts(".calls pre") == ['{\n  "city": "Rome"\n}', "not JSON"]
    assert "2 tools" in tab.page.text_content("#announce")
    tab.page.press("#message", "Shift+Enter")
    tab.set(message="Well?").page.press("#message", "Enter")  # the results come first
    assert len(tab.sent) == 1
    assert "waits for the results of its tool calls" in tab.page.locator("#held").inner_text()
    tab.answer_with(chat_events("It is warm."))
    tab.page.keyboard.type("31 degrees")
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.type("5")
    tab.page.keyboard.press("Enter")
    tab.settled()
    assert tab.answer == "It is warm."
    assert tab.page.is_hidden("#held")
    assistant, *results = tab.sent[-1]["messages"][1:]
    assert assistant["content"] is None
    assert [(call["id"], call["function"]["arguments"]) for call in assistant["tool_calls"]] == [
        ("call_0", '{"city": "Rome"}'),
        ("call_1", "not JSON"),
    ]
    assert results == [
        {"role": "tool", "tool_call_id": "call_0", "content": "31 degrees"},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"},
    ]
    assert tab.page.is_hidden(".call-results")
    tab.page.reload()
    tab.ready()
    assert tab.texts(".turn h3") == ["You", "Model", "Result of get_weather", "Result of add", "Model"]
    assert tab.texts(".call-name") == ["get_weather", "add"]


def choice_events(*texts: str) -> list[dict[str, Any]]:
    """Several answers whose pieces come in turns."""
    return [
        {"choices": [{"index": i, "delta": {"content": part}, "finish_reason": None}]}
        for halves in zip(*[(text[:2], text[2:]) for text in texts], strict=True)
        for i, part in enumerate(halves)
    ]


def test_several_answers_side_by_side(visit: Open) -> None:
    tab = visit().ready().set(n="3")
    tab.answer_with(choice_events("**One**.", "Two.", "Three."))
    tab.send("Count.")
    assert tab.sent[0]["n"] == 3
    assert tab.texts(".several .text") == ["One.", "Two.", "Three."]
    boxes = [tab.page.locator(".several .choice").nth(i).bounding_box() for i in range(3)]
    assert len({box["y"] for box in boxes}) == 1
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]

    tab.page.get_by_role("button", name="Go on with answer 2").focus()
    tab.page.keyboard.press("Enter")
    picked = tab.page.get_by_role("button", name="Go on with answer 2")
    assert picked.get_attribute("aria-pressed") == "true"
    tab.set(n="").send("And?")
    assert tab.sent[-1]["messages"][1] == {"role": "assistant", "content": "Two."}
    assert "n" not in tab.sent[-1]
    tab.page.reload()
    tab.ready()
    assert tab.page.locator(".several .picked .text").text_content() == "Two."


def test_several_answers_of_a_real_model(visit: Open) -> None:
    for mode in ("chat", "completion"):
        tab = visit().ready().choose(mode).set(n="2", max_tokens="8", seed="1")
        tab.send("def read_lines(path):")
        assert tab.page.locator(".several .choice").count() == 2
        assert all(text.strip() for text in tab.texts(".several .text"))
        assert "16 tokens" in " ".join(tab.texts(".figures li"))


def test_the_models_are_those_of_the_api(visit: Open) -> None:
    def prepare(page: Any) -> None:
        models = {"data": [{"id": "one"}, {"id": "two"}]}
        page.route("**/v1/models", lambda route: route.fulfill(json=models))

    tab = visit(prepare=prepare, expect=(404,)).ready()
    tab.page.wait_for_selector("#model option:nth-child(2)", state="attached")
    assert tab.texts("#model option") == ["one", "two"]
