"""Steps that give a request several tokens: the answer is that of single tokens, in fewer events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.text.deltas import CallArguments, CallStart, Content, Reasoning, joined
from tests.text.toy_model import write_model

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TAUGHT = (
    "{%- if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TEXT = "hello wörld, and 😀 more"
CASES = {
    "text": (TEXT, {}),
    "two answers": (TEXT, {"n": 2}),
    "logprobs": (TEXT, {"logprobs": True, "top_logprobs": 2}),
    "token ids": (TEXT, {"return_token_ids": True}),
    "stop string": (TEXT, {"stop": ["and"]}),
    "stop string with logprobs": (TEXT, {"stop": ["and"], "logprobs": True}),
    "kept stop string": (TEXT, {"stop": ["and"], "include_stop_str_in_output": True}),
    "length": (TEXT, {"max_tokens": 9}),
    "reasoning": (f"<think>\nhmm, ö\n</think>\n\n{TEXT}", {}),
    "reasoning with logprobs": (f"<think>\nhmm\n</think>\n\n{TEXT}", {"logprobs": True}),
    "call": (CALL, {"tools": [TOOL]}),
    "text and two calls": (f"well {CALL}\n{CALL}", {"tools": [TOOL]}),
    "one call of two": (CALL + CALL, {"tools": [TOOL], "parallel_tool_calls": False}),
    "reasoning and a call": (f"<think>\nhmm\n</think>\n\n{CALL}", {"tools": [TOOL], "n": 2}),
}


@pytest.fixture
def taught(make_service, core, tmp_path):
    service = make_service(model_dir=write_model(tmp_path, core, template=TAUGHT))
    service.engine.run_tokens = 7
    return service


def joined_events(events) -> tuple[list, dict]:
    """The answer that a client makes of a stream: by choice, fields of the deltas and other lists joined."""
    usage = events[-1]["usage"]
    choices: dict[int, dict] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        made = choices.setdefault(choice["index"], {"calls": {}})
        for name in ("content", "reasoning_content"):
            made[name] = made.get(name, "") + (choice["delta"].get(name) or "")
        for call in choice["delta"].get("tool_calls", ()):
            entry = made["calls"].setdefault(call["index"], ["", ""])
            entry[0] += call["function"].get("name", "")
            entry[1] += call["function"].get("arguments", "")
        made["logprobs"] = made.get("logprobs", []) + ((choice["logprobs"] or {}).get("content") or [])
        made["token_ids"] = made.get("token_ids", []) + (choice.get("token_ids") or [])
        made["reason"] = choice["finish_reason"]
    return [choices[index] for index in sorted(choices)], usage


def without_drafts(usage) -> dict:
    details = dict(usage["completion_tokens_details"])
    details.pop("accepted_prediction_tokens")
    return usage | {"completion_tokens_details": details}


@pytest.mark.parametrize("case", CASES)
def test_a_stream_says_what_it_says_token_by_token(taught, case):
    taught.text, fields = CASES[case]
    body = {"messages": USER, "stream_options": {"include_usage": True}, **fields}
    plain = taught.events(CHAT, body | {"speculative": False})
    drafted = taught.events(CHAT, body)
    (expected, usage), (seen, usage_of_drafts) = joined_events(plain), joined_events(drafted)
    assert seen == expected
    assert len(expected) == fields.get("n", 1)
    assert without_drafts(usage_of_drafts) == without_drafts(usage)
    assert usage_of_drafts["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert len(drafted) < len(plain)


@pytest.mark.parametrize("case", CASES)
def test_an_answer_in_one_piece_is_the_same(taught, case):
    taught.text, fields = CASES[case]

    def answer(**more) -> list:
        made = taught.http.post(CHAT, json={"messages": USER, **fields, **more}).json()["choices"]
        for call in (call for choice in made for call in choice["message"].get("tool_calls") or ()):
            assert call.pop("id")
        return made

    assert answer() == answer(speculative=False)


def test_a_step_is_one_event(taught):
    taught.text = "0123456789" * 4
    events = taught.events(CHAT, {"messages": USER, "max_tokens": 29})
    pieces = [event["choices"][0]["delta"].get("content") for event in events]
    assert pieces == [
        "",
        "0",
        "1234567",
        "8901234",
        "5678901",
        "234567",
        "8",
        None,
    ]  # the last comes with the end


@pytest.mark.parametrize(
    "fields", [{"logprobs": 1}, {"return_token_ids": True}, {"logprobs": 0, "echo": True}]
)
def test_a_step_with_reports_is_one_event(taught, fields):
    taught.text = "0123456789" * 4
    body = {"prompt": "say", "max_tokens": 15, **fields}
    events = taught.events(COMPLETION, body)
    plain = taught.events(COMPLETION, body | {"speculative": False})

    def lists(all_events, name) -> list:
        found = [choice["logprobs"][name] for event in all_events for choice in event["choices"]]
        return list(itertools.chain.from_iterable(found))

    texts = [choice["text"] for event in events for choice in event["choices"]]
    assert texts[-3:] == ["1234567", "890123", "4"]
    if "logprobs" in fields:
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert lists(events, name) == lists(plain, name)
    assert "".join(texts) == "".join(event["choices"][0]["text"] for event in plain)
    assert len(plain) - len(events) == 11


def test_other_apis_stream_the_same_text(taught):
    taught.text = "0123456789" * 2
    bodies = {
        "/v1/messages": {"messages": USER, "max_tokens": 15, "stream": True},
        "/v1/responses": {"input": "hi", "max_output_tokens": 15, "stream": True},
        "/api/chat": {"model": "toy", "messages": USER, "options": {"num_predict": 15}},
    }
    for path, body in bodies.items():
        drafted = taught.http.post(path, json=body).text
        plain = taught.http.post(path, json=body | {"speculative": False}).text
        assert '"1234567"' in drafted, path
        assert '"1234567"' not in plain, path
        assert drafted.count('"1"') == 0


DELTAS = st.one_of(
    st.builds(Content, st.text(max_size=3)),
    st.builds(Reasoning, st.text(max_size=3)),
    st.builds(CallStart, st.integers(0, 1), st.just("id"), st.just("f")),
    st.builds(CallArguments, st.integers(0, 1), st.text(max_size=3)),
)


@given(st.lists(DELTAS))
def test_joined_pieces_say_the_same(deltas):
    made = joined(deltas)
    kinds = [(type(one), getattr(one, "index", None)) for one in made]
    assert all(a != b or a[0] is CallStart for a, b in itertools.pairwise(kinds))

    def texts(all_deltas, kind) -> list:
        return [
            (key, "".join(one.text for one in run))
            for key, run in itertools.groupby(
                (one for one in all_deltas if isinstance(one, kind)), lambda one: getattr(one, "index", 0)
            )
        ]

    for kind in (Content, Reasoning, CallArguments):
        assert texts(made, kind) == texts(deltas, kind)
    assert [one for one in made if isinstance(one, CallStart)] == [
        one for one in deltas if isinstance(one, CallStart)
    ]
    assert joined(made) == made
