"""/api/chat and /api/generate: what they take and what they answer."""

from __future__ import annotations

import json

import pytest
from ollama_support import SCHEMA, TOOL, chat, generate, lines, post, refused, timeless, user
from taught_model import CALL, prompt

from firelane.gateway.apis.ollama.types import OPTION_HINTS
from firelane.gateway.tenants.keyfile import hashed
from firelane.request_limits import MOST_DRAFTED
from tests.text.toy_model import write_model

KEY = "a-key-of-acme-0123456789"
CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "B"}}}]}


def test_an_answer_in_one_piece(service):
    assert timeless(chat(service)) == {
        "model": "toy",
        "message": {"role": "assistant", "content": "hello world"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 6,
        "eval_count": 12,
    }
    assert prompt(service) == "<|bos|><|user|>hi\n<|assistant|>"
    assert timeless(generate(service)) == {
        "model": "toy",
        "response": "hello world",
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 6,
        "eval_count": 12,
    }
    assert prompt(service) == "<|bos|><|user|>hi\n<|assistant|>"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_stream_is_the_default_and_has_a_line_for_each_piece(service, path):
    asked = {"messages": user()} if path == "/api/chat" else {"prompt": "hi"}
    made = lines(post(service, path, **asked))
    texts = [line["message"]["content"] if path == "/api/chat" else line["response"] for line in made]
    assert "".join(texts) == "hello world"
    assert [line["done"] for line in made] == [False] * (len(made) - 1) + [True]
    assert {frozenset(line) for line in made[:-1]} == {
        frozenset({"model", "created_at", "done", "message" if path == "/api/chat" else "response"})
    }
    last = timeless(made[-1])
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 6, 12)


def test_how_an_answer_ends(service):
    assert chat(service, options={"num_predict": 3})["done_reason"] == "length"
    body = chat(service, options={"stop": ["x", "o w"]})
    assert (body["message"]["content"], body["done_reason"]) == ("hell", "stop")
    service.text = "on and on " * 100
    for limit in ({}, {"num_predict": -1}, {"num_predict": 0}, {"num_predict": 10_000}):
        for ask in (chat, generate):
            assert ask(service, options=limit)["done_reason"] == "length"
            assert service.engine.submitted[-1].sampling.max_tokens == 512 - 6
    generate(service, raw=True)
    assert service.engine.submitted[-1].sampling.max_tokens == 512 - 3


def test_options(service):
    options = {"temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "seed": 3}
    options |= {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    for ask, more in ((chat, {}), (generate, {}), (generate, {"raw": True})):
        ask(service, options=options, **more)
        sampling = service.engine.submitted[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.25, 7, 0.5, 0.125)
        assert (sampling.seed, sampling.repetition_penalty) == (3, 1.5)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    chat(service, options={"seed": -1, "repeat_penalty": 1.5, "repeat_last_n": 0})
    sampling = service.engine.submitted[-1].sampling
    assert (sampling.seed >= 0, sampling.repetition_penalty) == (True, 1)


@pytest.mark.parametrize(("asked", "most"), [(None, -1), (-1, -1), (0, 0), (8, 8), (10_000, MOST_DRAFTED)])
def test_drafts_are_bounded(service, asked, most):
    for ask in (chat, generate):
        ask(service, options={} if asked is None else {"draft_num_predict": asked})
        assert service.engine.submitted[-1].most_drafted == most
    assert "draft_num_predict" in refused(
        post(service, "/api/chat", messages=user(), options={"draft_num_predict": "many"})
    )


def test_hints_are_named(service):
    answer = post(service, "/api/chat", messages=user(), keep_alive="5m", options={"num_ctx": 9}, think=False)
    names = answer.headers["x-ignored-fields"].split(", ")
    assert sorted(names) == ["options.num_ctx", "think"]
    for name in OPTION_HINTS:
        answer = post(service, "/api/generate", prompt="x", options={name: 1})
        assert answer.headers["x-ignored-fields"] == f"options.{name}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("context", [1, 2]), ("images", ["aGk="]), ("template", "{{ .Prompt }}")),
        *(("width", 8), ("height", 8), ("steps", 2)),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(service, field, value):
    assert f"`{field}` is not supported" in refused(
        post(service, "/api/generate", prompt="x", **{field: value})
    )
    assert post(service, "/api/generate", prompt="x", **{field: type(value)()}).status_code == 200


@pytest.mark.parametrize(("option", "value"), [("mirostat", 2), ("tfs_z", 0.5), ("typical_p", 0.7)])
def test_samplers_that_are_not_there_are_refused_by_name(service, option, value):
    answer = post(service, "/api/chat", messages=user(), options={option: value})
    assert f"`options.{option}` is not supported" in refused(answer)
    neutral = {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1.0, "typical_p": 1.0}
    assert chat(service, options=neutral)["done"]


def test_images_are_refused_in_the_newest_message_alone(service):
    message = {"role": "user", "content": "x", "images": ["aGk="]}
    assert "this model reads text only" in refused(post(service, "/api/chat", messages=[*user(), message]))
    answered = [message, {"role": "assistant", "content": "a"}, *user()]
    assert post(service, "/api/chat", messages=answered).status_code == 200
    assert "<|user|>[image left out: this model reads text only]\nx\n" in prompt(service)


def test_format_becomes_a_grammar(service):
    service.text = '{"city": "B"}'
    for ask, more in ((chat, {}), (generate, {}), (generate, {"raw": True})):
        ask(service, format=SCHEMA, **more)
        grammar = service.engine.submitted[-1].grammar
        assert (grammar.kind, json.loads(grammar.text)) == (
            "json_schema",
            SCHEMA | {"additionalProperties": False},
        )
        ask(service, format="json", **more)
        assert json.loads(service.engine.submitted[-1].grammar.text) == {"type": "object"}
        ask(service, format="", **more)
        assert service.engine.submitted[-1].grammar is None
    assert "`format` is 'xml'" in refused(post(service, "/api/chat", messages=user(), format="xml"))


def test_generate_has_a_system_prompt_and_a_raw_form(service):
    generate(service, system="Be brief.")
    assert prompt(service) == "<|bos|><|system|>Be brief.\n<|user|>hi\n<|assistant|>"
    generate(service, raw=True)
    assert prompt(service) == "<|bos|>hi"
    assert "`raw` has no `system`" in refused(
        post(service, "/api/generate", prompt="x", raw=True, system="Be brief.")
    )


def test_a_model_without_a_template_reads_the_prompt_as_it_is(make_service, core, tmp_path):
    service = make_service(model_dir=write_model(tmp_path, core, template=None))
    assert generate(service)["response"] == "hello world"
    assert prompt(service) == "<|bos|>hi"
    assert "no chat template" in refused(post(service, "/api/chat", messages=user()))


def test_nothing_to_answer_asks_whether_the_model_is_there(service):
    made = chat(service, messages=[])
    assert made == {
        **{"model": "toy", "created_at": made["created_at"], "done": True, "done_reason": "load"},
        "message": {"role": "assistant", "content": ""},
    }
    assert generate(service, prompt="", keep_alive=0)["done_reason"] == "load"
    assert refused(post(service, "/api/generate", model="none"), 404)
    assert service.engine.submitted == []


def test_a_last_message_of_the_assistant_is_continued(service):
    chat(service, messages=[*user(), {"role": "assistant", "content": "I say: "}])
    assert prompt(service) == "<|bos|><|user|>hi\n<|assistant|>I say: "


def test_calls_have_objects_as_arguments(taught):
    call = {"index": 0, "name": "weather", "arguments": {"city": "Zürich"}}
    made = chat(taught, tools=[TOOL])
    assert [one["function"] for one in made["message"]["tool_calls"]] == [call]
    assert (made["message"]["content"], made["done_reason"]) == ("", "stop")
    *pieces, last = lines(post(taught, "/api/chat", messages=user(), tools=[TOOL]))
    assert [one["function"] for one in pieces[-1]["message"]["tool_calls"]] == [call]
    assert "tool_calls" not in last["message"]


def test_arguments_that_were_cut_off_are_none(taught):
    made = chat(taught, tools=[TOOL], options={"num_predict": 55})
    assert made["done_reason"] == "length"
    assert [one["function"]["arguments"] for one in made["message"]["tool_calls"]] == [{}]


def test_results_answer_the_calls_of_their_names(taught):
    taught.text = "12"
    two = {"role": "assistant", "tool_calls": [*CALLED["tool_calls"], *CALLED["tool_calls"]]}
    named = {"role": "tool", "tool_name": "weather"}
    talk = [*user(), two, {**named, "content": "1"}, {**named, "content": "2"}]
    chat(taught, messages=talk)
    assert "<tool_call>call_1_0:B<tool_call>call_1_1:B" in prompt(taught)
    assert "[call_1_0]1" in prompt(taught)
    assert "[call_1_1]2" in prompt(taught)
    own = {"id": "c", "function": {"name": "weather", "arguments": '{"city": "C"}'}}
    chat(
        taught,
        messages=[
            *user(),
            {"role": "assistant", "tool_calls": [own]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
    )
    assert "<tool_call>c:C" in prompt(taught)
    assert "[c]3" in prompt(taught)


def test_thinking_is_apart(taught):
    taught.text = "<think>\nhm\n</think>\n\nyes"
    made = chat(taught, think=True)["message"]
    assert (made["thinking"], made["content"]) == ("hm\n", "yes")
    pieces = lines(post(taught, "/api/generate", prompt="hi", think=True))
    assert "".join(piece.get("thinking", "") for piece in pieces) == "hm\n"
    assert "".join(piece["response"] for piece in pieces) == "yes"
    taught.text = "yes"
    assert chat(taught, think=False)["message"] == {"role": "assistant", "content": "yes"}
    assert prompt(taught).endswith("<think>\n\n</think>\n\n")
    chat(taught, messages=[*user(), {"role": "assistant", "content": "a", "thinking": "t"}, *user()])
    assert "(t)a" in prompt(taught)


def test_logprobs(service):
    whole = chat(service, logprobs=True, top_logprobs=2)["logprobs"]
    assert "".join(entry["token"] for entry in whole) == "hello world"
    assert whole[0]["bytes"] == [ord("h")]
    assert len(whole[0]["top_logprobs"]) == 2
    made = lines(post(service, "/api/generate", prompt="hi", raw=True, logprobs=True, top_logprobs=2))
    assert [entry for piece in made[:-1] for entry in piece.get("logprobs", [])] == whole


@pytest.mark.parametrize("name", ["toy", "toy:latest", "alias", "alias:latest"])
def test_a_name_may_have_the_tag_latest(service, name):
    assert chat(service, model=name)["model"] == name
    for other in ("toy:7b", "other", ":latest"):
        assert "does not exist" in refused(post(service, "/api/chat", model=other, messages=user()), 404)


def test_a_name_that_has_the_tag_is_found_without_it(make_service):
    service = make_service(names=("toy:latest",))
    assert chat(service, model="toy")["done"]


def test_errors_are_ollamas(make_service, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenants.acme]\nkeys = ["{hashed(KEY)}"]\n')
    service = make_service(api_keys=keys)
    assert "no API key" in refused(post(service, "/api/chat", messages=user()), 401)
    service.http.headers["authorization"] = f"Bearer {KEY}"
    assert chat(service)["done"]
    assert "`model` is missing" in refused(service.http.post("/api/chat", json={"messages": user()}))
    assert "405" in str(service.http.get("/api/chat").status_code)
    assert "maximum context length" in refused(post(service, "/api/chat", messages=user("x" * 600)))


def test_a_call_is_text_where_no_tools_are_given(taught):
    assert chat(taught)["message"]["content"] == CALL
