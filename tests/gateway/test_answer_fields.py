"""Fields that change what an answer holds, for completions and chat."""

from __future__ import annotations

import array
import math

import openai
import pytest

from firelane.wire.frames import StepFrame
from tests.text.toy_model import write_model

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETION])


def post(service, path, **fields):
    body = {"messages": USER} if path == CHAT else {"prompt": "say", "max_tokens": 40}
    answer = service.http.post(path, json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def prompt_ids(service) -> list[int]:
    return array.array("i", service.engine.submitted[-1].prompt).tolist()


@BOTH
def test_stop_string_in_the_output(service, path):
    assert text_of(post(service, path, stop=["wor"])["choices"][0]) == "hello "
    kept = post(service, path, stop=["wor", "xyz"], include_stop_str_in_output=True)["choices"][0]
    assert text_of(kept) == "hello wor"
    assert kept["finish_reason"] == "stop"


@BOTH
def test_special_tokens(service, path):
    service.script = lambda *_: [*service.ids("a"), 2, *service.ids("b"), 1]
    assert text_of(post(service, path)["choices"][0]) == "ab"
    assert text_of(post(service, path, skip_special_tokens=False)["choices"][0]) == "a<|user|>b"


@BOTH
def test_prompt_logprobs(service, path):
    answer = post(service, path, prompt_logprobs=2)
    entries = (answer if path == CHAT else answer["choices"][0])["prompt_logprobs"]
    assert len(entries) == answer["usage"]["prompt_tokens"]
    assert entries[0] is None
    second = prompt_ids(service)[1]
    assert entries[1][str(second)]["logprob"] == -0.5
    assert entries[1][str(second)]["rank"] == 1
    assert len(entries[1]) == 2
    assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in entries[1].values())
    assert "prompt_logprobs" not in answer["choices"][0] or path == COMPLETION


def test_prompt_logprobs_beside_echo(service):
    choice = post(service, COMPLETION, prompt_logprobs=0, echo=True, logprobs=0)["choices"][0]
    assert len(choice["prompt_logprobs"]) == 4
    assert choice["logprobs"]["tokens"][:4] == ["<|bos|>", "s", "a", "y"]
    plain = post(service, COMPLETION, prompt_logprobs=0, logprobs=0)["choices"][0]
    assert len(plain["logprobs"]["tokens"]) == len("hello world")


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_token_ids(service, path, stream):
    ids = [*service.ids("hello world"), 1]
    if not stream:
        answer = post(service, path, return_token_ids=True)
        choice = answer["choices"][0]
        prompt = (answer if path == CHAT else choice)["prompt_token_ids"]
        found = choice["token_ids"]
    else:
        body = {"messages": USER} if path == CHAT else {"prompt": "say", "max_tokens": 40}
        events = service.events(path, {**body, "return_token_ids": True})
        choices = [event["choices"][0] for event in events]
        found = [token for choice in choices for token in choice.get("token_ids", [])]
        prompts = [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice]
        assert len(prompts) == 1
        prompt = prompts[0]
    assert found == ids
    assert prompt == prompt_ids(service)


@BOTH
def test_tokens_named_by_their_ids(service, path):
    logprobs = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    found = post(service, path, return_tokens_as_token_ids=True, **logprobs)["choices"][0]["logprobs"]
    names = [entry["token"] for entry in found["content"]] if path == CHAT else found["tokens"]
    assert names == [f"token_id:{token}" for token in service.ids("hello world")]


@BOTH
def test_truncated_prompt(service, path):
    whole = post(service, path)["usage"]["prompt_tokens"]
    ids = prompt_ids(service)
    assert post(service, path, truncate_prompt_tokens=2)["usage"]["prompt_tokens"] == 2
    assert prompt_ids(service) == ids[-2:]
    post(service, path, truncate_prompt_tokens=2, truncation_side="right")
    assert prompt_ids(service) == ids[:2]
    assert post(service, path, truncate_prompt_tokens=400)["usage"]["prompt_tokens"] == whole


def test_truncated_to_what_fits(service):
    answer = post(service, COMPLETION, prompt="x" * 700, max_tokens=12, truncate_prompt_tokens=-1)
    assert answer["usage"] | {"completion_tokens_details": None} == {
        "prompt_tokens": 500,
        "completion_tokens": 12,
        "total_tokens": 512,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": None,
    }


@BOTH
def test_usage_in_every_chunk(service, path):
    body = {"messages": USER} if path == CHAT else {"prompt": "say", "max_tokens": 40}
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    events = service.events(path, {**body, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert len(set(counts)) > 8
    assert events[-1]["choices"] == []


@BOTH
def test_fingerprint_and_tier(service, path):
    answer = post(service, path, service_tier="flex")
    assert answer["system_fingerprint"].startswith("fp_")
    assert answer["service_tier"] == "default"
    assert "service_tier" not in post(service, path)
    body = {"messages": USER} if path == CHAT else {"prompt": "say"}
    events = service.events(path, body)
    assert {event["system_fingerprint"] for event in events} == {answer["system_fingerprint"]}


def continued(service, text="The answer is ", **fields):
    messages = [*USER, {"role": "assistant", "content": text}]
    return service.http.post(CHAT, json={"messages": messages, "continue_final_message": True, **fields})


def test_the_final_message_is_continued(service):
    assert continued(service).status_code == 200
    ids = prompt_ids(service)
    assert service.core.decode(ids, skip_special_tokens=False).endswith("<|assistant|>The answer is ")


def test_a_template_that_trims_or_hides_the_final_message(make_service, core, tmp_path):
    trims = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|eos|>{% endfor %}"
    service = make_service(model_dir=write_model(tmp_path, core, template=trims))
    assert continued(service).status_code == 200
    text = service.core.decode(prompt_ids(service), skip_special_tokens=False)
    assert text.endswith("<|assistant|>The answer is ")
    hides = write_model(tmp_path, core, template="{{ messages[0].content }}")
    answer = continued(make_service(model_dir=hides))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_final_message"


def test_what_cannot_be_continued(service):
    for fields in ({"add_generation_prompt": True}, {"messages": USER}):
        assert continued(service, **fields).status_code == 400


def by_seed(service):
    """Answers and logprobs by the seed that they were drawn with: the second draw is the best."""
    texts = ["bad", "good", "poor"]

    def script(_, sampling):
        return [*service.ids(texts[(sampling.seed - 7) % 3]), 1]

    def frame(step: StepFrame) -> StepFrame:
        seeds = {request.id: request.sampling.seed for request in service.engine.submitted}
        for i, entry in enumerate(step.logprobs):
            logprob = -0.1 if (seeds[entry.id] - 7) % 3 == 1 else -0.9
            step.logprobs[i] = type(entry)(entry.id, entry.position, entry.token, logprob, [], [])
        return step

    service.script, service.engine.frame = script, frame


def test_best_of(service):
    by_seed(service)
    answer = post(service, COMPLETION, best_of=3, n=1, seed=7)
    (choice,) = answer["choices"]
    assert choice["text"] == "good"
    assert choice["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == len("badgoodpoor") + 3
    answer = post(service, COMPLETION, prompt=["a", "b"], best_of=3, n=2, seed=7, logprobs=0, echo=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]][::2] == ["agood", "bgood"]
    assert math.isclose(answer["choices"][0]["logprobs"]["token_logprobs"][-1], -0.1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"best_of": 2}, "best_of"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 1.5}, "length_penalty"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"detokenize": False}, "detokenize"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
        ({"mirostat": 2}, "mirostat"),
        ({"moderation": {"model": "omni"}}, "moderation"),
        ({"watermarking": True}, "watermarking"),
    ],
)
def test_refused_by_name(service, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        service.openai.chat.completions.create(model="toy", messages=USER, extra_body=fields)
    assert error.value.param == param
    assert error.value.code == "unsupported_parameter"


HINTS = {
    "verbosity": "low",
    "web_search_options": {},
    "service_tier": "flex",
    "thinking": {"type": "disabled"},
    "keep_alive": "5m",
    "usage": {"include": True},
    "provider": {"order": ["x"]},
    "cache_prompt": True,
    "stream_interval": 8,
}


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_hints_are_taken_and_named(make_service, name, stream):
    service = make_service(unknown_fields="refuse")
    body = {"messages": USER, "stream": stream, name: HINTS[name]}
    answer = service.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == name


def test_fields_that_nobody_knows_are_named_once_in_the_log(service, caplog):
    odd = {"temprature": 1, "a b": 1, "top_p": 0.5, "stream_options": {"x": 1}, "stream": True}
    talk = [{**USER[0], "colour": 1, "content": [{"type": "text", "text": "hi"}]}, {**USER[0], "colour": 2}]
    with caplog.at_level("INFO"):
        for _ in range(2):
            answer = service.http.post(CHAT, json={"messages": talk, **odd})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-ignored-fields"] == "messages[].colour, temprature, stream_options.x"
    assert caplog.text.count("name=temprature ") == 1
    assert service.engine.submitted[-1].sampling.top_p == 0.5


def test_fields_that_nobody_knows_may_be_refused(make_service):
    service = make_service(unknown_fields="refuse")
    answer = service.http.post(CHAT, json={"messages": USER, "temprature": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temprature"


@BOTH
def test_words_and_tokens_that_an_answer_may_have(service, path):
    post(service, path, bad_words=["a/b", "\n"])
    grammar = service.engine.submitted[-1].grammar
    assert grammar.text.endswith("BAD: /(?s:.*(\\x{61}\\x{2f}\\x{62}|\\x{a}).*)/\n")
    post(service, path, allowed_token_ids=[9, 7, 8, 12])
    assert service.engine.submitted[-1].grammar.text == "start: <[7-9,12]>*\n"
    body = {"messages": USER} if path == CHAT else {"prompt": "x"}
    for wrong in ({"allowed_token_ids": []}, {"allowed_token_ids": [9999]}, {"bad_words": [""]}):
        assert service.http.post(path, json=body | wrong).status_code == 400


def test_the_continued_message_is_echoed(service):
    assert continued(service, echo=True).json()["choices"][0]["message"]["content"] == (
        "The answer is hello world"
    )
    events = service.events(CHAT, {"messages": USER, "echo": True})
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "hello world"


@BOTH
def test_names_of_llama_server(service, path):
    post(service, path, n_predict=5, max_tokens=None, repeat_penalty=1.25)
    sampling = service.engine.submitted[-1].sampling
    assert (sampling.max_tokens, sampling.repetition_penalty) == (5, 1.25)
    post(service, path, grammar='root ::= "a"')
    assert service.engine.submitted[-1].grammar.kind == "gbnf"
    post(service, path, json_schema={"type": "object"})
    assert service.engine.submitted[-1].grammar.kind == "json_schema"
    both = {"messages": USER, "prompt": "x", "grammar": 'root ::= "a"', "guided_regex": "a"}
    assert service.http.post(path, json=both).status_code == 400


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/y.png"}}, "a part of type 'image_url'"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "of type 'input_audio'"),
        ({"type": "file", "file": {"file_id": "x"}}, "a part of type 'file'"),
        ({"type": "text"}, "a part without `text`"),
    ],
)
def test_other_parts_than_text(service, part, reason):
    answer = service.http.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
