"""The native form of Workers AI."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from firelane.api.usage import PromptTokensDetails, Usage
from firelane.engine_state import LinkState
from firelane.gateway.apis.workers_ai.chat import as_chat
from firelane.gateway.apis.workers_ai.format import PADDED_BYTES, WorkersEncoder
from firelane.gateway.apis.workers_ai.types import RunRequest
from firelane.gateway.requests.admission import HELD
from firelane.gateway.requests.formats import ChoiceResult
from firelane.gateway.tenants.keyfile import hashed
from firelane.text.deltas import CallArguments, CallStart, Reasoning, ToolCall

MODEL = "@cf/org/model"
RUN = f"/client/v4/accounts/acc/ai/run/{MODEL}"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
USAGE = Usage(
    prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details=PromptTokensDetails()
)


@pytest.fixture
def workers(make_service):
    return make_service(aliases=((MODEL, "toy"),))


def run(service: Any, path: str = RUN, **body: Any) -> Any:
    return service.http.post(path, json=body)


def prompt(service: Any) -> str:
    ids = memoryview(service.engine.submitted[-1].prompt).cast("i").tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def events(answer: Any) -> list[Any]:
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def failure(answer: Any, status: int, code: int) -> str:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["result"], body["success"], body["messages"]) == (None, False, [])
    (error,) = body["errors"]
    assert error["code"] == code
    return error["message"]


def test_messages(workers):
    body = run(workers, **ASK).json()
    usage = body["result"].pop("usage")
    assert body == {"result": {"response": "hello world"}, "success": True, "errors": [], "messages": []}
    assert usage["completion_tokens"] == 12
    assert workers.engine.submitted[0].sampling.max_tokens == 256
    assert prompt(workers) == "<|bos|><|user|>hi\n<|assistant|>"


def test_prompt(workers):
    assert run(workers, prompt="hi", max_tokens=3).json()["result"]["response"] == "hel"
    assert prompt(workers) == "<|bos|><|user|>hi\n<|assistant|>"
    assert run(workers, prompt="hi", raw=True).json()["result"]["response"] == "hello world"
    assert prompt(workers) == "<|bos|>hi"


def test_sampling_fields(workers):
    given = {"temperature": 5, "top_p": 0.5, "top_k": 3, "seed": 7, "repetition_penalty": 1.5}
    assert run(workers, **ASK, **given, frequency_penalty=1, presence_penalty=-1).status_code == 200
    sampling = workers.engine.submitted[0].sampling
    assert {name: getattr(sampling, name) for name in given} == given
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (1, -1)


def test_stream(workers):
    got = events(run(workers, **ASK, stream=True))
    assert "".join(event["response"] for event in got) == "hello world"
    assert got[-1]["usage"]["completion_tokens"] == 12
    sizes = {len(json.dumps(event["response"])) + len(event["p"]) for event in got[:-1]}
    assert sizes == {PADDED_BYTES}


def test_a_model_goes_by_its_served_name_too(workers):
    assert run(workers, RUN.replace(MODEL, "toy"), **ASK).status_code == 200
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", ASK)):
        answer = workers.http.post(path, json={"model": MODEL, **body})
        assert answer.json()["model"] == MODEL
    listed = workers.http.get("/v1/models").json()["data"]
    assert [(card["id"], card["root"]) for card in listed][-1] == (MODEL, "toy")
    assert workers.http.get(f"/v1/models/{MODEL}").json()["id"] == MODEL
    assert workers.http.get("/v1/models/@cf/other").status_code == 404


def test_cloudflares_openai_paths(workers):
    base = "/client/v4/accounts/acc/ai/v1"
    chat = workers.http.post(f"{base}/chat/completions", json={"model": MODEL, **ASK})
    assert chat.json()["choices"][0]["message"]["content"] == "hello world"
    assert workers.http.post(f"{base}/responses", json={"input": "x"}).json()["status"] == "completed"


def test_errors_have_cloudflares_form(workers):
    assert "no_such" in failure(run(workers, RUN.replace("model", "no_such"), **ASK), 400, 5007)
    assert "lora" in failure(run(workers, **ASK, lora="mine"), 405, 5005)
    assert "prompt" in failure(run(workers), 400, 5006)
    assert run(workers, **ASK, temprature=1).headers["x-ignored-fields"] == "temprature"
    failure(workers.http.post(RUN, content=b"{"), 400, 5006)
    failure(run(workers, **ASK, max_tokens=10_000), 400, 5006)
    failure(run(workers, RUN + "?rejectIfBusy=perhaps", **ASK), 400, 5006)
    workers.run(workers.engine.die)
    workers.wait_for(lambda: workers.link.state is LinkState.DEAD)
    failure(run(workers, **ASK), 503, 3043)


def test_an_engine_that_refuses_the_request(workers):
    workers.engine.reject = "too long"
    failure(run(workers, **ASK), 400, 5006)


@pytest.mark.parametrize("way", ["query", "options"])
def test_reject_if_busy(workers, way):
    workers.engine.held = True
    workers.engine.max_num_seqs = 1
    path = RUN + "?rejectIfBusy=true" if way == "query" else RUN
    body = ASK | ({"options": {"rejectIfBusy": True}} if way == "options" else {})
    workers.model.admission.record.own[HELD] = workers.link.ready.max_num_seqs
    answer = run(workers, path, **body)
    assert "rejectIfBusy" in failure(answer, 429, 3040)
    assert answer.headers["retry-after"] == "1"
    workers.model.admission.record.own[HELD] = 0
    workers.engine.held = False
    assert run(workers, path, **body).status_code == 200


def test_rejects_if_busy_at_openais_path(workers):
    workers.model.admission.record.own[HELD] = workers.link.ready.max_num_seqs
    body = ASK | {"options": {"rejectIfBusy": True}}
    answer = workers.http.post("/client/v4/accounts/acc/ai/v1/chat/completions", json=body)
    workers.model.admission.record.own[HELD] = 0
    assert answer.status_code == 429


def test_json_is_a_value(workers):
    workers.text = '{"name": "India"}'
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    for wrapped in (schema, {"name": "n", "schema": schema}):
        form = {"type": "json_schema", "json_schema": wrapped}
        answer = run(workers, **ASK, response_format=form)
        assert answer.json()["result"]["response"] == {"name": "India"}
        assert workers.engine.submitted[-1].grammar.kind == "json_schema"
        assert '"name"' in workers.engine.submitted[-1].grammar.text
    cut = run(workers, **ASK, response_format={"type": "json_object"}, max_tokens=5)
    assert cut.json()["result"]["response"] == '{"nam'


def test_calls_have_both_forms():
    form = WorkersEncoder(as_json=False)
    result = ChoiceResult(0, "", [], "tool_calls", "", [ToolCall("c1", "f", '{"x": 1}')])
    body = json.loads(form.response([result], USAGE, False))
    assert body["result"]["response"] is None
    assert body["result"]["tool_calls"] == [
        {
            "name": "f",
            "arguments": {"x": 1},
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": '{"x": 1}'},
        }
    ]


def test_a_streams_calls_come_whole_at_its_end():
    form = WorkersEncoder(as_json=False)
    written = b"".join(
        form.delta(0, delta)
        for delta in (Reasoning("hm"), CallStart(0, "c1", "f"), CallArguments(0, "{"), CallArguments(0, "}"))
    )
    assert json.loads(written[6:]) == {"response": "", "reasoning_content": "hm"}
    last = json.loads(form.closing(USAGE).split(b"\n\n")[0][6:])
    assert last["tool_calls"][0]["arguments"] == {}


def test_results_find_their_calls():
    called = [{"name": "f", "arguments": {"x": 1}}, {"name": "g"}]
    messages = [
        {"role": "assistant", "tool_calls": called},
        {"role": "tool", "name": "g", "content": "2"},
        {"role": "tool", "name": "f", "content": "1"},
    ]
    made = as_chat(msgspec.convert({"messages": messages}, RunRequest), "toy").messages
    assert [call.id for call in made[0].tool_calls] == ["call_0", "call_1"]
    assert (made[0].tool_calls[0].function.name, made[0].tool_calls[0].function.arguments) == (
        "f",
        '{"x": 1}',
    )
    assert [message.tool_call_id for message in made[1:]] == ["call_1", "call_0"]


def test_keys_and_quotas(make_service, tmp_path):
    digest = hashed("secret" * 5)
    keys = f'[tenants.acme]\nkeys = ["{digest}"]\nrequests_per_minute = 1\nmodels = ["toy"]\n'
    (tmp_path / "keys.toml").write_text(keys)
    service = make_service(api_keys=tmp_path / "keys.toml", aliases=((MODEL, "toy"), ("other", "alias")))
    failure(run(service, **ASK), 401, 10000)
    service.http.headers["authorization"] = "Bearer " + "secret" * 5
    failure(run(service, RUN.replace(MODEL, "other"), **ASK), 400, 5007)
    assert run(service, **ASK).status_code == 200
    refused = run(service, **ASK)
    failure(refused, 429, 3036)
    assert int(refused.headers["retry-after"]) > 0
    card = service.http.get("/v1/models").json()["data"]
    assert [one["id"] for one in card] == ["toy", MODEL]
