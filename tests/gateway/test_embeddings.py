"""/v1/embeddings on the scripted engine."""

from __future__ import annotations

import json
import socket

import numpy as np
import openai
import pytest
from embeddings_support import embed, prompts, unit, vectors

from firelane.wire.frames import StepFrame
from tests.text.toy_model import write_model


def test_openai_client(service):
    """The client asks for base64 where the caller leaves the form open, and unpacks it."""
    bos_hey = [0, *service.ids("hey")]
    for fields in ({}, {"encoding_format": "float"}):
        answer = service.openai.embeddings.create(model="toy", input="hey", **fields)
        assert answer.object == "list"
        assert answer.model == "toy"
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (4, 4)
        [item] = answer.data
        assert (item.object, item.index) == ("embedding", 0)
        np.testing.assert_allclose(item.embedding, unit(4, bos_hey[-1], -1, 0), rtol=1e-6)
    assert prompts(service) == [bos_hey, bos_hey]
    assert [request.pooling for request in service.engine.submitted] == ["last", "last"]


def test_answer_has_exactly_the_documented_fields(service):
    answer = embed(service, model="alias").json()
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert answer["data"][0].keys() == {"object", "index", "embedding"}
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert answer["model"] == "alias"


def test_a_name_that_looks_like_the_answer(make_service):
    service = make_service(names=('"data":[]',))
    answer = embed(service).json()
    assert answer["model"] == '"data":[]'
    assert len(answer["data"]) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([7, 8, 9], [[7, 8, 9]]),
        ([[7, 8], [9]], [[7, 8], [9]]),
    ],
)
def test_kinds_of_input(service, given, expected):
    answer = embed(service, input=given)
    ids = [[0, *service.ids(item)] if isinstance(item, str) else item for item in expected]
    assert prompts(service) == ids
    assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert [item["index"] for item in answer.json()["data"]] == list(range(len(expected)))


def test_vectors_are_in_the_order_of_the_inputs(service):
    """However the engine ends them; more inputs than it runs at a time."""
    service.engine.embed = lambda prompt, _: [1.0, prompt[-1]]
    inputs = [[5 + i] for i in range(30)]
    assert service.engine.max_num_seqs < len(inputs)
    found = vectors(embed(service, input=inputs))
    np.testing.assert_allclose(found[:, 1] / found[:, 0], range(5, 35), rtol=1e-6)


def test_a_long_list_takes_the_room_of_a_batch(make_service):
    service = make_service(max_queue=0)
    service.engine.held = True
    result = service.loop.run_in_executor(None, lambda: embed(service, input=[[5]] * 2048))
    service.wait_for(lambda: len(service.engine.submitted) >= 8)
    assert service.gateway.in_flight == 8
    assert len(service.engine.running) == 8
    assert embed(service).status_code == 429
    service.engine.held = False
    service.run(service.engine.step_on)
    answer = service.call(_await(result))
    assert len(answer.json()["data"]) == 2048
    assert service.gateway.in_flight == 0


async def _await(future):
    return await future


def test_dimensions(service):
    service.engine.embed = lambda *_: [3.0, 4.0, 12.0, 0.0]
    for count, expected in ((4, unit(3, 4, 12, 0)), (2, [0.6, 0.8]), (1, [1.0])):
        found = vectors(embed(service, dimensions=count))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    answer = service.openai.embeddings.create(model="toy", input="hey", dimensions=2)
    np.testing.assert_allclose(answer.data[0].embedding, [0.6, 0.8], rtol=1e-6)


def test_without_normalization(service):
    service.engine.embed = lambda *_: [3.0, 4.0, 12.0, 0.1]
    assert vectors(embed(service, normalize=False))[0].tolist() == [3, 4, 12, np.float32(0.1)]
    assert vectors(embed(service, normalize=False, dimensions=2))[0].tolist() == [3, 4]


def test_a_vector_of_zeros_stays_one(service):
    service.engine.embed = lambda *_: [0.0] * 4
    assert vectors(embed(service))[0].tolist() == [0.0] * 4


def test_extreme_numbers(service):
    service.engine.embed = lambda *_: [3e38, -3e38, 1e-45, 0.0]
    np.testing.assert_allclose(vectors(embed(service))[0], unit(1, -1, 0, 0), rtol=1e-6, atol=1e-30)


def test_pooling_of_the_request(service):
    for pooling in ("mean", "last"):
        embed(service, pooling=pooling)
    assert [request.pooling for request in service.engine.submitted] == ["mean", "last"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "cls"}, None),
        ({"pooling_mode_cls_token": True}, None),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, None),
        ({"word_embedding_dimension": 4}, "last"),
    ],
)
def test_pooling_of_the_model(make_service, core, tmp_path, config, expected):
    write_model(tmp_path, core)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    service = make_service(model_dir=tmp_path)
    answer = embed(service)
    if expected is None:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "pooling"
        answer = embed(service, pooling="mean")
    assert answer.status_code == 200
    assert [request.pooling for request in service.engine.submitted] == [expected or "mean"]


def test_special_tokens_and_truncation(service):
    hey = service.ids("hey")
    embed(service, add_special_tokens=False)
    embed(service, truncate_prompt_tokens=2)
    embed(service, truncate_prompt_tokens=100)
    embed(service, input="x" * 1000, truncate_prompt_tokens=-1)
    embed(service, input=[[5, 6, 7], [8]], truncate_prompt_tokens=2)
    found = prompts(service)
    assert found[:3] == [hey, hey[-2:], [0, *hey]]
    assert len(found[3]) == 512
    assert found[4:] == [[6, 7], [8]]


def test_salts(service):
    for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}):
        embed(service, **fields)
    plain, a, b, again = [request.salt for request in service.engine.submitted]
    assert len({plain, a, b}) == 3
    assert a == again


def test_reject_if_busy(service):
    options = {"rejectIfBusy": True}
    assert embed(service, input=["a"] * 20, options=options).status_code == 200
    service.engine.held = True
    result = service.loop.run_in_executor(None, lambda: embed(service))
    service.wait_for(lambda: service.gateway.in_flight == 1)
    answer = embed(service, input=["a"] * 20, options=options)
    assert answer.status_code == 429
    service.engine.held = False
    service.run(service.engine.step_on)
    assert service.call(_await(result)).status_code == 200


def test_harmless_fields(service):
    assert embed(service, user="me", priority=1, request_id="x", dimensions=None).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": ""}, "input", "empty entry"),
        ({"input": []}, "input", "empty list"),
        ({"input": ["a", ""]}, "input", "number 1"),
        ({"input": [[5], []]}, "input", "number 1"),
        ({"input": [[]]}, "input", "number 0"),
        ({"input": ["a", 5]}, "input", "mixes"),
        ({"input": [5, "a"]}, "input", "mixes"),
        ({"input": [[5], "a"]}, "input", "mixes"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": [True]}, "input", ""),
        ({"input": [-1]}, "input", ""),
        ({"input": [5.5]}, "input", ""),
        ({"input": [2**40]}, "input", ""),
        ({"input": [100_000]}, "input", "vocabulary"),
        ({"input": [[["deep"]]]}, "input", ""),
        ({"input": {"text": "a"}}, "input", ""),
        ({"input": None}, "input", ""),
        ({"input": "\ud800"}, None, "not valid JSON"),
        ({"encoding_format": "int8"}, "encoding_format", ""),
        ({"dimensions": 0}, "dimensions", ""),
        ({"dimensions": 5}, "dimensions", "have 4"),
        ({"dimensions": 2.5}, "dimensions", ""),
        ({"dimensions": "2"}, "dimensions", ""),
        ({"pooling": "cls"}, "pooling", "cls"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", ""),
        ({"normalize": "yes"}, "normalize", ""),
    ],
)
def test_bad_requests(service, fields, param, says):
    body = json.dumps({"input": "hey", **fields})
    answer = service.http.post("/v1/embeddings", content=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert param is None or str(error["param"]).startswith(param)
    assert says in error["message"]
    assert "\n" not in error["message"]
    assert not service.engine.submitted
    assert service.gateway.in_flight == 0


def test_no_input(service):
    answer = service.http.post("/v1/embeddings", json={"model": "toy"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "missing_parameter"


def test_too_long(service):
    assert embed(service, input=[5] * 512).status_code == 200  # nothing is generated: the whole context
    with pytest.raises(openai.BadRequestError) as caught:
        service.openai.embeddings.create(model="toy", input=[[5], [5] * 513])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input"
    assert "number 1 has 513 tokens" in str(caught.value)


def test_unknown_model(service):
    with pytest.raises(openai.NotFoundError):
        service.openai.embeddings.create(model="other", input="hey")


def test_engine_refuses(service):
    service.engine.reject = "no room for it"
    answer = embed(service, input=["a", "b"])
    assert answer.status_code == 400
    assert "no room" in answer.json()["error"]["message"]
    assert service.gateway.in_flight == 0


def test_engine_dies(service):
    service.engine.held = True
    result = service.loop.run_in_executor(None, lambda: embed(service, input=["a", "b"]))
    service.wait_for(lambda: len(service.engine.submitted) == 2)
    service.run(service.engine.die)
    answer = service.call(_await(result))
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert service.gateway.in_flight == 0
    assert embed(service).status_code == 503


def test_an_engine_without_embeddings(service):
    """An end without a vector is an error, not an answer."""
    service.engine.frame = lambda f: StepFrame(
        f.step, f.ids, f.tokens, f.started, f.finished, f.logprobs, f.stats, []
    )
    assert embed(service).status_code == 503
    assert service.gateway.in_flight == 0


def test_client_goes_away(service):
    service.engine.held = True
    body = b'{"input": ["a", "b"]}'
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", service.gateway.port)) as client:
        client.sendall(head + body)
        service.wait_for(lambda: len(service.engine.running) == 2)
    service.wait_for(lambda: len(service.engine.aborted) == 2)
    assert service.gateway.in_flight == 0


def test_large_texts_are_encoded_off_the_loop(service):
    texts = ["ab" * 200] * 50
    assert embed(service, input=texts).json()["usage"]["prompt_tokens"] == 50 * 401


def test_counted(service):
    embed(service, input=["a", "bc"])
    text = service.http.get("/metrics").text
    lines = {line.split(" ")[0]: line.split(" ")[-1] for line in text.splitlines() if line[0] != "#"}
    assert lines['vllm:prompt_tokens_total{model_name="toy"}'] == "5.0"
    ends = [name for name in lines if "request_success" in name and 'finished_reason="stop"' in name]
    assert [lines[name] for name in ends] == ["2.0"]


def test_in_a_batch(make_service, tmp_path):
    service = make_service(data_dir=tmp_path)
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/embeddings", "body": {"input": [5 + i, 6]}}
        for i in range(3)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = service.openai.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    batch = service.openai.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    service.wait_for(lambda: service.gateway.services.batches.records[batch.id].batch.status == "completed")
    batch = service.openai.batches.retrieve(batch.id)
    rows = [json.loads(row) for row in service.openai.files.content(batch.output_file_id).text.splitlines()]
    assert {row["custom_id"] for row in rows} == {"r0", "r1", "r2"}
    for row in rows:
        np.testing.assert_allclose(
            row["response"]["body"]["data"][0]["embedding"], unit(2, 6, -1, 0), rtol=1e-6
        )
    assert all(request.background for request in service.engine.submitted)
