"""/v1/completions on the scripted engine."""

from __future__ import annotations

import json
import threading

import pytest
from completions_support import completion, prompt_of


def test_text(service):
    answer = service.openai.completions.create(model="toy", prompt="say", max_tokens=40)
    assert answer.choices[0].text == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 4  # with BOS
    assert answer.usage.completion_tokens == 12  # with EOS
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_default_is_16_tokens(service):
    service.text = "x" * 100
    answer = completion(service, max_tokens=None)
    assert answer["choices"][0]["text"] == "x" * 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stream_of_characters_over_several_tokens(service):
    service.text = "grüße 🔥!"
    events = service.events("/v1/completions", {"prompt": "say", "max_tokens": 40})
    texts = [event["choices"][0]["text"] for event in events]
    assert "".join(texts) == "grüße 🔥!"
    assert "🔥" in texts
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]


def test_unfinished_character_at_the_end(service):
    service.text = "a🔥"
    assert completion(service, max_tokens=3)["choices"][0]["text"] == "a�"
    events = service.events("/v1/completions", {"prompt": "say", "max_tokens": 3})
    assert "".join(event["choices"][0]["text"] for event in events) == "a�"


def test_openai_stream_with_usage(service):
    chunks = list(
        service.openai.completions.create(
            model="alias", prompt="say", max_tokens=40, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "hello world"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert {chunk.model for chunk in chunks} == {"alias"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_list_of_texts(service):
    service.script = lambda prompt, _: [*prompt[1:], 1]
    answer = completion(service, prompt=["ab", "cde"])
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "cde"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["prompt_tokens"] == 3 + 4


def test_token_ids(service):
    ids = service.ids("hey")
    completion(service, prompt=ids)
    completion(service, prompt=[ids, ids[:1]])
    assert [prompt_of(request) for request in service.engine.submitted] == [ids, ids, ids[:1]]


def test_n_has_seeds_of_its_own_and_one_frame(service):
    service.script = lambda _, sampling: [*service.ids(str(sampling.seed)), 1]
    answer = completion(service, n=3, seed=7)
    assert [choice["text"] for choice in answer["choices"]] == ["7", "8", "9"]
    assert answer["usage"]["prompt_tokens"] == 4  # a prompt counts once
    assert service.engine.submit_frames == 1


def test_n_streams(service):
    service.script = lambda _, sampling: [*service.ids("choice" + str(sampling.seed)), 1]
    events = service.events("/v1/completions", {"prompt": "say", "n": 2, "seed": 0, "max_tokens": 20})
    for index in (0, 1):
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == f"choice{index}"
        assert mine[-1]["finish_reason"] == "stop"


def test_seeds(service):
    completion(service)
    completion(service)
    completion(service, seed=-1)
    first, second, third = (request.sampling.seed for request in service.engine.submitted)
    assert first != second
    assert third == 2**63 - 1


def test_sampling_fields_reach_the_engine(service):
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": -0.3, "seed": 5, "max_tokens": 9, "min_tokens": 2,
    }  # fmt: skip
    completion(service, **fields, logit_bias={"9": -100, "3": 1}, stop_token_ids=[50])
    sampling = service.engine.submitted[0].sampling
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert sampling.logit_bias == [(3, 1.0), (9, -100.0)]
    assert sampling.stop_token_ids == [1, 50]
    assert (sampling.logprobs, sampling.prompt_logprobs) == (-1, -1)


def test_ignore_eos(service):
    answer = completion(service, ignore_eos=True, max_tokens=14)
    assert answer["choices"][0]["text"] == "hello worldhe"  # EOS is a special token without text
    assert answer["choices"][0]["finish_reason"] == "length"
    assert service.engine.submitted[0].sampling.stop_token_ids == []


def test_stop_token_text_is_left_out(service):
    (o,) = service.ids("o")
    answer = completion(service, stop_token_ids=[o])
    assert answer["choices"][0]["text"] == "hell"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_echo(service):
    assert completion(service, echo=True)["choices"][0]["text"] == "sayhello world"
    assert completion(service, prompt=service.ids("ab"), echo=True)["choices"][0]["text"] == "abhello world"
    events = service.events("/v1/completions", {"prompt": "say", "echo": True, "max_tokens": 40})
    assert "".join(event["choices"][0]["text"] for event in events) == "sayhello world"


def test_echo_without_output_scores_the_prompt(service):
    answer = completion(service, echo=True, max_tokens=0, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == "say"
    assert choice["logprobs"]["tokens"] == ["<|bos|>", "s", "a", "y"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert answer["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"


def test_logprobs(service):
    service.text = "abc"
    logprobs = completion(service, logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["top_logprobs"][0] == {"a": -0.5, "b": -1.5}
    assert completion(service, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"][2] == {"c": -0.5}


def test_logprobs_with_echo(service):
    service.text = "bc"
    logprobs = completion(service, prompt="xa", echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["<|bos|>", "x", "a", "b", "c"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"][0] is None


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_logprobs_equal_whole_ones(service, echo):
    service.text = "a🔥c"
    fields = {"prompt": "p", "logprobs": 1, "echo": echo, "max_tokens": 40}
    whole = completion(service, **fields)["choices"][0]
    choices = [event["choices"][0] for event in service.events("/v1/completions", fields)]
    for key, values in whole["logprobs"].items():
        assert [v for choice in choices for v in choice["logprobs"][key]] == values, key
    assert "".join(choice["text"] for choice in choices) == whole["text"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("wor", "hello ", "stop"),
        (["zzz", "o w"], "hell", "stop"),
        (["lo w", "o"], "hell", "stop"),
        ("hello world!", "hello world", "stop"),
        ("ld", "hello wor", "stop"),
        ("h", "", "stop"),
        ("dx", "hello world", "stop"),
    ],
)
def test_stop_strings(service, stream, stop, text, reason):
    fields = {"prompt": "say", "stop": stop, "max_tokens": 40}
    if stream:
        choices = [event["choices"][0] for event in service.events("/v1/completions", fields)]
        assert "".join(choice["text"] for choice in choices) == text
    else:
        choices = completion(service, **fields)["choices"]
        assert choices[0]["text"] == text
    assert choices[-1]["finish_reason"] == reason


def test_stop_string_aborts_in_the_engine(service):
    service.text = "abc" + "d" * 400
    service.script = None
    answer = completion(service, stop="bc", max_tokens=400)
    assert answer["choices"][0]["text"] == "a"
    assert answer["usage"]["completion_tokens"] == 3
    service.wait_for(lambda: service.engine.aborted == [service.engine.submitted[0].id])


def test_stop_string_waits_for_min_tokens(service):
    service.text = "ab" * 10
    assert completion(service, stop="b", min_tokens=4)["choices"][0]["text"] == "ababa"


def test_cached_tokens(service):
    service.engine.cached_tokens = 3
    answer = completion(service, n=2)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_cached_tokens_by_tier(service):
    service.engine.cached_tokens, service.engine.restored_tokens = 7, (1, 2, 3)
    details = completion(service, n=2)["usage"]["prompt_tokens_details"]
    by_tier = {"device": 1, "host": 1, "disk": 2, "peer": 3}
    assert details == {"cached_tokens": 7, "cached_tokens_by_tier": by_tier}


def test_long_prompt_is_tokenised_off_the_loop(make_service):
    service = make_service()
    service.engine.max_model_len = 50_000
    service.call(service.restart())
    answer = completion(service, prompt="y" * 20_000)
    assert answer["usage"]["prompt_tokens"] == 20_001


def test_salt_follows_key_and_cache_salt(service):
    def salt(key: str | None, **fields) -> bytes:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        service.http.post("/v1/completions", json={"prompt": "a", **fields}, headers=headers)
        return service.engine.submitted[-1].salt

    assert salt(None) == b""
    assert salt("a") == salt("a")
    assert len({salt(None), salt("a"), salt("b"), salt(None, cache_salt="a"), salt("a", cache_salt="a")}) == 5


def test_stream_bytes_are_events(service):
    service.text = 'quote " and \n'
    with service.http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(line[6:])["object"] == "text_completion" for line in lines[:-2] if line)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["w" * 9000] * 3}),
        ("/v1/completions", {"prompt": "w" * 20_000}),
        ("/tokenize", {"prompt": "w" * 20_000}),
        ("/detokenize", {"tokens": [40]}),
    ],
    ids=["many", "long", "tokenize", "detokenize"],
)
def test_long_texts_do_not_hold_the_event_loop(service, monkeypatch, path, body):
    threads: set[int] = set()

    class Noting:
        def __init__(self, core):
            self.core = core

        def __getattr__(self, name):
            threads.add(threading.get_ident())
            return getattr(self.core, name)

    tokenizer = service.model.tokenizer
    monkeypatch.setattr(tokenizer, "_core", Noting(tokenizer.core))
    answer = service.http.post(path, json=body)
    assert answer.status_code in (200, 400), answer.text  # 400: longer than the context
    assert threads
    assert service.run(threading.get_ident) not in threads
