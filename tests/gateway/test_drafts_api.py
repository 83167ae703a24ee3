"""Fields, events and usage of requests whose tokens are drafted, in front of an engine that gives several
tokens in a step."""

from __future__ import annotations

import array

import msgspec
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from firelane.link.framing import encode
from firelane.wire import submissions
from firelane.wire.frames import StepFrame
from firelane.wire.submissions import restored

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PATHS = {
    CHAT: {"messages": USER},
    COMPLETION: {"prompt": "say"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/api/chat": {"model": "toy", "messages": USER, "stream": False},
    "/api/generate": {"model": "toy", "prompt": "hi", "stream": False},
}
EXPECTED = {"type": "content", "content": "hello world"}


def last_request(service):
    return service.engine.submitted[-1]


def predicted(service) -> str:
    ids = array.array("i", last_request(service).prediction).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("value", "most"),
    [
        (False, 0),
        ("off", 0),
        (True, -1),
        ("auto", -1),
        (None, -1),
        ({"num_speculative_tokens": 0}, 0),
        ({"num_speculative_tokens": 7}, 7),
        ({"num_speculative_tokens": 31}, 31),
    ],
)
def test_a_request_says_how_many_tokens_are_drafted(service, path, value, most):
    answer = service.http.post(path, json=PATHS[path] | {"speculative": value})
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    assert last_request(service).most_drafted == most


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "value",
    [1, 0.5, "ngram", "", [], {}, {"num_speculative_tokens": 32}, {"num_speculative_tokens": -1}],
)
def test_what_says_nothing_about_drafts_is_refused(service, path, value):
    answer = service.http.post(path, json=PATHS[path] | {"speculative": value})
    assert answer.status_code == 400
    assert "speculative" in answer.text
    assert not service.engine.submitted


@pytest.mark.parametrize("path", PATHS)
def test_the_name_of_llama_server(service, path):
    answer = service.http.post(path, json=PATHS[path] | {"speculative.n_max": 4, "speculative.p_min": 0.5})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "speculative.p_min"
    assert last_request(service).most_drafted == 4
    both = {"speculative.n_max": 4, "speculative": {"num_speculative_tokens": 5}}
    assert service.http.post(path, json=PATHS[path] | both).status_code == 400


@pytest.mark.parametrize(
    "content", ["hello world", [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]]
)
def test_a_predicted_answer_goes_to_the_engine(service, content):
    answer = service.openai.chat.completions.with_raw_response.create(
        model="toy", messages=USER, prediction={"type": "content", "content": content}
    )
    assert "x-ignored-fields" not in answer.headers
    assert predicted(service) == "hello world"
    assert "hello" not in service.core.decode(array.array("i", last_request(service).prompt).tolist())


def test_a_prediction_has_no_special_tokens_of_its_own(service):
    service.http.post(CHAT, json={"messages": USER, "prediction": EXPECTED})
    assert array.array("i", last_request(service).prediction).tolist() == service.ids("hello world")


@pytest.mark.parametrize(
    "fields", [{"prediction": {"type": "content", "content": ""}}, {"prediction": None}, {}]
)
def test_no_prediction(service, fields):
    assert service.http.post(CHAT, json={"messages": USER, **fields}).status_code == 200
    assert last_request(service).prediction == b""


def test_a_prediction_without_drafts_is_not_tokenised(service):
    body = {"messages": USER, "prediction": EXPECTED, "speculative": False}
    assert service.http.post(CHAT, json=body).status_code == 200
    assert last_request(service).prediction == b""


@pytest.mark.parametrize(
    "prediction",
    [
        "hello",
        {},
        {"type": "content"},
        {"type": "diff", "content": "x"},
        {"type": "content", "content": 5},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"type": "content", "content": ["x"]},
    ],
)
def test_predictions_that_are_none(service, prediction):
    with pytest.raises(openai.BadRequestError) as error:
        service.openai.chat.completions.create(model="toy", messages=USER, prediction=prediction)
    assert error.value.param.startswith("prediction")
    assert error.value.code in ("invalid_value", "missing_parameter")
    assert not service.engine.submitted


@pytest.mark.parametrize("tokens", [513, 40_000, 95_000])
def test_a_prediction_longer_than_the_context_is_refused(service, tokens):
    fits = {"messages": USER, "prediction": {"type": "content", "content": "x" * 512}}
    assert service.http.post(CHAT, json=fits).status_code == 200
    assert len(last_request(service).prediction) == 4 * 512
    body = {"messages": USER, "prediction": {"type": "content", "content": "x" * tokens}}
    answer = service.http.post(CHAT, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("prediction", "context_length_exceeded")
    assert len(service.engine.submitted) == 1


def test_choices_carry_their_prediction_once(service):
    body = {"messages": USER, "n": 8, "prediction": {"type": "content", "content": "x" * 400}}
    assert service.http.post(CHAT, json=body).status_code == 200
    sent = service.engine.submitted
    assert len({request.prediction for request in sent}) == 1
    (frame,) = submissions.submissions(sent)
    assert len(encode(frame)) < 4000
    assert list(restored(frame.requests)) == sent


def test_predictions_count_in_a_frame(service, monkeypatch):
    monkeypatch.setattr(submissions, "SUBMIT_BYTES", 1000)
    service.http.post(CHAT, json={"messages": USER, "prediction": EXPECTED})
    request = msgspec.structs.replace(last_request(service), prompt=b"1234", prediction=b"")
    requests = [msgspec.structs.replace(request, prediction=bytes([i]) * 400) for i in range(4)]
    frames = list(submissions.submissions(requests))
    assert [len(frame.requests) for frame in frames] == [2, 2]
    assert [one for frame in frames for one in restored(frame.requests)] == requests


def drafts_of(usage) -> tuple[int, int]:
    details = usage["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("n", [1, 3])
def test_usage_tells_of_drafts(service, path, n):
    service.engine.run_tokens, service.engine.rejected_drafts = 4, 5
    body = PATHS[path] | {"n": n, "max_tokens": 11}
    usage = service.http.post(path, json=body).json()["usage"]
    assert usage["completion_tokens"] == 11 * n
    assert drafts_of(usage) == (7 * n, 5 * n)  # 1 with the prompt, then 4, 4, and 2
    events = service.events(path, body | {"stream_options": {"include_usage": True}})
    assert events[-1]["usage"] == usage


def test_usage_of_plain_steps(service):
    usage = service.http.post(CHAT, json={"messages": USER}).json()["usage"]
    assert drafts_of(usage) == (0, 0)


def test_usage_where_a_stop_string_ends_the_answer_in_the_middle_of_a_step(service):
    service.engine.run_tokens = 4
    body = {"messages": USER, "stop": ["o w"]}
    usage = service.http.post(CHAT, json=body).json()["usage"]
    assert (usage["completion_tokens"], drafts_of(usage)) == (7, (4, 0))  # h, ello, " w" of 4


def test_usage_so_far_counts_the_drafts_so_far(service):
    service.engine.run_tokens = 4
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = service.events(COMPLETION, {"prompt": "say", "max_tokens": 9, "stream_options": options})
    seen = [drafts_of(event["usage"])[0] for event in events if event["choices"]]
    assert seen == sorted(seen)
    assert seen[:2] == [0, 3]
    assert drafts_of(events[-1]["usage"])[0] == 6


def test_the_client_sees_them(service):
    service.engine.run_tokens, service.engine.rejected_drafts = 3, 2
    answer = service.openai.chat.completions.create(
        model="toy", messages=USER, max_tokens=7, prediction=EXPECTED
    )
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (4, 2)


def metrics(service) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label == "position")): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_tell_of_drafts(service):
    def counted(frame: StepFrame) -> StepFrame:
        stats = msgspec.structs.replace(
            frame.stats, spec_drafts=3, spec_draft_tokens=14, spec_accepted_tokens=6
        )
        return msgspec.structs.replace(frame, stats=stats)

    service.engine.frame, service.engine.run_tokens = counted, 4
    assert service.http.post(COMPLETION, json={"prompt": "a", "max_tokens": 7}).status_code == 200
    seen = metrics(service)
    assert seen["vllm:spec_decode_num_drafts_total",] == 3
    assert seen["vllm:spec_decode_num_draft_tokens_total",] == 14
    assert seen["vllm:spec_decode_num_accepted_tokens_total",] == 6
    positions = [seen["vllm:spec_decode_num_accepted_tokens_per_pos_total", str(at)] for at in range(3)]
    assert positions == [2, 1, 1]  # 1 token with the prompt, then 4, and 2
    assert ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "3") not in seen
    assert service.http.get("/stats").json()["drafts"] == {"tokens": 14, "accepted": 6}


def test_tokens_of_one_step_have_no_time_between_them(service):
    service.engine.run_tokens = 4
    assert service.http.post(COMPLETION, json={"prompt": "a", "max_tokens": 9}).status_code == 200
    seen = metrics(service)
    assert seen["vllm:inter_token_latency_seconds_count",] == 2
    assert seen["vllm:generation_tokens_total",] == 9
