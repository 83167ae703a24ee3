"""Harmony: channels, recipients, and conversations as its templates take them."""

from __future__ import annotations

import random

import pytest
from family_templates import HARMONY
from splitting import cut, joined, split

from firelane.text.rendering.template import ChatTemplate
from firelane.text.tools.formats.harmony import Harmony, harmony_history

PARSE = Harmony().parse
THOUGHT = "<|channel|>analysis<|message|>I think.<|end|>"
NEXT = "<|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
ARGS = '{"a": "é <|x|> }"}'

CASES = [
    ("plain text", "plain text", "", []),
    ("  <b>", "  <b>", "", []),
    ("", "", "", []),
    ("<|channel|>final<|message|> Yes.\n", " Yes.\n", "", []),
    ("<|channel|>final<|message|>Yes.<|return|>", "Yes.", "", []),
    (f"{THOUGHT}{NEXT}<|channel|>final<|message|>Yes.", "Yes.", "I think.", []),
    (f"{THOUGHT}{NEXT}{CALL}{ARGS}<|call|>", "", "I think.", [("f", ARGS)]),
    (f"{CALL}{ARGS}", "", "", [("f", ARGS)]),
    (f" to=functions.f<|channel|>commentary json<|message|>{ARGS}<|call|>", "", "", [("f", ARGS)]),
    (f"{NEXT} to=f<|channel|>commentary<|message|>{ARGS}", "", "", [("f", ARGS)]),
    (f"{CALL}<|call|>", "", "", [("f", "{}")]),
    (f"{CALL}{ARGS}<|call|>{NEXT}{CALL}{{}}<|call|>", "", "", [("f", ARGS), ("f", "{}")]),
    (f"<|channel|>commentary<|message|>Wait.<|end|>{NEXT}{CALL}{{}}", "Wait.", "", [("f", "{}")]),
    (f"{THOUGHT}{NEXT}<|channel|>analysis<|message|> More.", "", "I think. More.", []),
    ("<|channel|>analysis to=python<|message|>1+1", "", "1+1", []),
    ("<|channel|>commentary to=python<|message|>1+1", "1+1", "", []),
    ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "b", "a", []),
    ("<|message|>b", "b", "", []),
    ("<|channel|>final", "<|channel|>final", "", []),
    ("<|channel|>final<|end|>x", "<|channel|>finalx", "", []),
    ("<|channel|><|channel|>", "<|channel|><|channel|>", "", []),
    ("a<|end|>b<|return|>", "ab", "", []),
    (f"{CALL}{{\"a\": 1", "", "", [("f", '{"a": 1')]),
    (f"{NEXT}<|channel|>fin", f"{NEXT}<|channel|>fin", "", []),
    ("to be or not", "to be or not", "", []),
    ("to=be or not", "to=be or not", "", []),
    (f"<|channel|>{'x' * 2000}<|message|>y", f"<|channel|>{'x' * 2000}<|message|>y", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "reasoning", "calls"), CASES)
def test_cases_however_they_are_cut(text, content, reasoning, calls):
    rng = random.Random(len(text))
    cuts = [cut(text, [rng.randrange(len(text) + 1) for _ in range(n)]) for n in (1, 2, 5, 20)]
    for pieces in ([text], list(text), *cuts):
        assert joined(split(PARSE, pieces)) == (content, reasoning, calls)


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_any_beginning_of_a_text(text):
    for end in range(min(len(text), 200)):
        assert joined(split(PARSE, list(text[:end]))) == joined(split(PARSE, [text[:end]]))


def test_without_tools_a_call_is_text():
    assert joined(split(PARSE, [f"{CALL}{ARGS}<|call|>"], known=())) == (ARGS, "", [])


def test_the_first_call_may_end_the_answer():
    text = f"{CALL}{{}}<|call|>{NEXT}{CALL}{{}}<|call|>"
    assert joined(split(PARSE, list(text), limit=1)) == ("", "", [("f", "{}")])


def call(call_id: str, name: str = "f") -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"a": 1}}}


def assistant(content: str = "", thought: str = "", calls: list[dict] | None = None) -> dict:
    made: dict = {"role": "assistant", "content": content}
    made |= {"reasoning_content": thought} if thought else {}
    return made | ({"tool_calls": calls} if calls else {})


USER = {"role": "user", "content": "?"}


def result(call_id: str) -> dict:
    return {"role": "tool", "content": f"r{call_id}", "tool_call_id": call_id}


def test_reasoning_is_dropped_after_an_answer():
    messages = [
        USER,
        assistant(thought="old", calls=[call("1")]),
        result("1"),
        assistant("done", thought="old too"),
        USER,
        assistant(thought="new", calls=[call("2")]),
        result("2"),
    ]
    made = harmony_history(messages)
    assert [message.get("thinking") for message in made] == [None, None, None, None, None, "new", None]
    assert not any("reasoning_content" in message for message in made)
    assert "reasoning_content" in messages[1]
    text = ChatTemplate(HARMONY, {}).render(made, {"add_generation_prompt": True})
    assert "old" not in text
    assert "<|channel|>analysis<|message|>new<|end|><|start|>assistant to=functions.f" in text


def test_content_beside_reasoning_and_a_call():
    """The templates take one of the two."""
    (made,) = harmony_history([assistant("said", thought="thought", calls=[call("1")])])
    assert (made["content"], made["thinking"]) == ("", "thought\nsaid")


def test_several_calls_of_one_message():
    messages = [
        USER,
        assistant("x", thought="t", calls=[call("1"), call("2", "g")]),
        result("2"),
        result("1"),
        USER,
    ]
    made = harmony_history(messages)
    assert [message["role"] for message in made] == ["user", "assistant", "tool", "assistant", "tool", "user"]
    assert [message.get("content") for message in made] == ["?", "", "r1", "", "r2", "?"]
    assert [m["tool_calls"][0]["function"]["name"] for m in made if m.get("tool_calls")] == ["f", "g"]
    assert made[1]["thinking"] == "t\nx"


def test_a_final_message_that_goes_on_keeps_its_reasoning():
    (made,) = harmony_history([assistant("begun", thought="t")])
    assert made["thinking"] == "t"
