"""Engines that start, end and come back; clients that go; a server that ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import httpx
import openai
import pytest

from firelane.engine_state import LinkState
from firelane.errors import AddressInUseError, EngineDeadError, TokenizerError
from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.server import Gateway
from firelane.wire.frames import Beat, EngineStats, Failed, Progress, StepFrame
from tests.text.toy_model import write_model

STREAM = {"prompt": "say", "stream": True, "max_tokens": 400, "ignore_eos": True}


def open_stream(service, **fields):
    """A stream whose first event has come, with an engine that steps on demand."""
    service.run(setattr, service.engine, "held", True)
    request = service.http.build_request("POST", "/v1/completions", json={**STREAM, **fields})
    box: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: box.append(service.http.send(request, stream=True)))
    thread.start()
    service.wait_for(lambda: bool(service.engine.running))
    service.run(service.engine.step)
    thread.join()
    return box[0]


def test_health_follows_the_engine(service):
    assert service.http.get("/health").json() == {"status": "ready"}
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    answer = service.http.get("/health")
    assert answer.status_code == 503
    assert answer.json()["status"] == "down"
    assert len(service.downs) == 1


def test_health_tells_helpers_that_cannot_be_had(service):
    service.run(service.engine.send, Beat(0.0, broken={"grammar_helper": "both were killed"}))
    service.gateway.services.replaced.fails("template", "no process was started")
    broken = {"grammar_helper": "both were killed", "template": "no process was started"}
    service.wait_for(lambda: service.link.figures.children.broken != {})
    answer = service.http.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "broken": broken})
    service.gateway.services.replaced.works("template")
    service.run(service.engine.send, Beat(0.0))
    service.wait_for(lambda: service.link.figures.children.broken == {})
    assert service.http.get("/health").json() == {"status": "ready"}


def test_replaced_processes_are_a_metric_by_kind(service):
    service.run(service.engine.send, Beat(0.0, replaced={"grammar_trial": 3}))
    service.gateway.services.replaced.note("template", "was killed by SIGKILL")
    service.wait_for(lambda: service.link.figures.children.replaced != {})
    page = service.http.get("/metrics").text
    for kind, count in (("grammar_trial", 3), ("template", 1)):
        assert f'firelane:child_replacements_total{{kind="{kind}"}} {count}.0' in page


def test_health_while_loading(service):
    service.run(service.engine.die)
    sock = service.run(service.engine.connect)
    service.call(service.replica.attach(sock))
    service.run(service.engine.send, Progress("pack", 3, 10, "GB"))
    service.wait_for(lambda: service.link.figures.progress is not None)
    answer = service.http.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "loading", "reason": "pack 3 of 10 GB"}
    answer = service.http.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["error"]["code"] == "engine_unavailable"
    assert "pack 3 of 10 GB" in answer.json()["error"]["message"]


def test_engine_that_could_not_start(service):
    service.run(service.engine.send, Failed("no compiler: install g++", 1))
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    assert service.http.get("/health").json()["reason"] == "no compiler: install g++"
    assert service.replica.engine.failed.exit_code == 1


def test_engine_dies_before_headers(service):
    service.run(setattr, service.engine, "held", True)
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(service.http.post("/v1/completions", json={"prompt": "say", "n": 2}))
    )
    thread.start()
    service.wait_for(lambda: len(service.engine.running) == 2)
    service.run(service.engine.die)
    thread.join()
    assert answers[0].status_code == 503
    assert answers[0].headers["retry-after"] == "1"
    assert answers[0].json()["error"]["type"] == "service_unavailable_error"
    assert service.gateway.in_flight == 0


def test_engine_dies_in_a_stream_and_comes_back(service):
    answer = open_stream(service)
    service.run(service.engine.die)
    lines = [line for line in answer.iter_lines() if line]
    assert json.loads(lines[-1][6:])["error"]["code"] == "engine_unavailable"
    assert "data: [DONE]" not in lines
    assert service.gateway.in_flight == 0
    service.run(setattr, service.engine, "held", False)
    service.call(service.restart())
    answer = service.http.post("/v1/completions", json={"prompt": "a"})
    assert answer.json()["choices"][0]["text"] == "hello world"


def test_openai_client_sees_the_error_in_a_stream(service):
    service.run(setattr, service.engine, "held", True)
    caught: list[Exception] = []

    def read() -> None:
        try:
            for _ in service.openai.completions.create(model="toy", prompt="a", stream=True):
                pass
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    service.wait_for(lambda: bool(service.engine.running))
    service.run(service.engine.step)
    service.run(service.engine.die)
    thread.join()
    assert isinstance(caught[0], openai.APIError)


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_goes_frees_its_sequences(service, stream):
    service.run(setattr, service.engine, "held", True)
    client = socket.create_connection(("127.0.0.1", service.gateway.port))
    body = json.dumps({**STREAM, "stream": stream, "n": 2}).encode()
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    service.wait_for(lambda: len(service.engine.running) == 2)
    service.run(service.engine.step)
    client.close()
    service.wait_for(lambda: not service.engine.running)
    assert sorted(service.engine.aborted) == sorted(request.id for request in service.engine.submitted)
    assert service.gateway.in_flight == 0
    assert service.link.in_flight == 0


def test_full_queue(make_service):
    service = make_service(max_queue=1)
    answer = open_stream(service, n=8)
    open_two = {"prompt": ["a", "b"]}
    refused = service.http.post("/v1/completions", json=open_two)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "queue_full"
    answer.close()
    service.wait_for(lambda: service.gateway.in_flight == 0)
    service.run(setattr, service.engine, "held", False)
    assert service.http.post("/v1/completions", json=open_two).status_code == 200


def test_drain_lets_streams_end_and_refuses_new_ones(service):
    answer = open_stream(service, max_tokens=3)
    drained = asyncio.run_coroutine_threadsafe(service.gateway.drain(60), service.loop)
    service.wait_for(lambda: service.model.admission.draining)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/health", trust_env=False, timeout=600)
    service.run(setattr, service.engine, "held", False)
    service.run(service.engine.step_on)
    assert list(answer.iter_lines())[-2] == "data: [DONE]"
    assert drained.result(60) is True


def test_drain_waits_for_a_client_that_reads_slowly(service):
    def narrow() -> None:
        with service.gateway._listener.copies()[0] as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts inherits it

    async def end() -> None:
        await service.gateway.drain(60)
        await service.gateway.close()

    service.run(narrow)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", service.gateway.port))
        body = json.dumps(STREAM).encode()
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        service.wait_for(lambda: service.engine.generated == 400 and service.gateway.in_flight == 0)
        ended = asyncio.run_coroutine_threadsafe(end(), service.loop)
        with pytest.raises(TimeoutError):
            ended.result(0.1)
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    ended.result(60)


def test_drain_gives_up_and_close_fails_the_rest(service):
    answer = open_stream(service)
    assert service.call(service.gateway.drain(0)) is False
    service.call(service.gateway.close())
    lines = [line for line in answer.iter_lines() if line]
    assert json.loads(lines[-1][6:])["error"]["code"] == "engine_unavailable"


def test_busy_port(service, model_dir):
    config = GatewayConfig(
        models=(ModelConfig(model_dir=model_dir, names=("m",)),), port=service.gateway.port
    )

    async def start() -> None:
        await Gateway(config, [ReplicaSet()]).start()

    with pytest.raises(AddressInUseError, match="choose another --port"):
        service.call(start())


def test_tokenizer_of_another_model(service):
    errors: list[Exception] = []
    service.gateway._on_fatal = errors.append
    service.run(service.engine.send, service.engine.ready(vocab_size=100))
    service.wait_for(lambda: bool(errors))
    assert isinstance(errors[0], TokenizerError)
    assert "261 ids" in str(errors[0])


def test_tokenizer_of_another_model_is_refused_before_the_engine_is_there(service, core, tmp_path):
    write_model(tmp_path, core)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 260}))
    config = GatewayConfig(models=(ModelConfig(model_dir=tmp_path, names=("toy",)),))

    async def make() -> None:
        Gateway(config, [ReplicaSet()])

    with pytest.raises(TokenizerError, match="261 ids but the model's vocabulary has 260"):
        service.call(make())


def test_submit_to_a_dead_engine(service):
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    with pytest.raises(EngineDeadError):
        service.run(service.link.submit, None, None)


def test_garbage_from_the_engine_is_a_dead_engine(service):
    service.run(service.engine.sock.sendall, b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1")
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    assert "undecodable" in service.link.reason


def test_models_version_and_tokenize(service):
    models = service.openai.models.list().data
    assert [model.id for model in models] == ["toy", "alias"]
    card = service.http.get("/v1/models").json()["data"][0]
    assert (card["max_model_len"], card["quantization"]) == (512, "awq")
    assert service.http.get("/version").json()["version"]
    tokens = service.http.post("/tokenize", json={"prompt": "né"}).json()
    assert tokens["count"] == 4
    assert service.http.post("/detokenize", json={"tokens": tokens["tokens"][1:]}).json()["prompt"] == "né"


def test_phases_of_a_request(service):
    """The engine says that it planned the first step 1 000 s ago: no queue, and all that time in prefill."""
    service.run(setattr, service.engine, "age_s", 1000.0)
    assert service.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
    text = service.http.get("/metrics").text
    sums = {
        name: float(text.split(f'vllm:request_{name}_sum{{model_name="toy"}} ')[1].split("\n")[0])
        for name in ("queue_time_seconds", "prefill_time_seconds", "decode_time_seconds", "params_max_tokens")
    }
    assert sums["queue_time_seconds"] == 0
    assert 999 < sums["prefill_time_seconds"] < 1100
    assert 0 <= sums["decode_time_seconds"] < 100
    assert sums["params_max_tokens"] == 3
    for name in ("inference_time_seconds", "time_per_output_token_seconds"):
        assert f'vllm:request_{name}_count{{model_name="toy"}} 1.0' in text


def test_metrics(service):
    from prometheus_client.parser import text_string_to_metric_families

    service.http.post("/v1/completions", json={"prompt": "say", "max_tokens": 5, "stream": True})
    service.http.post("/v1/completions", json={"prompt": 3})
    text = service.http.get("/metrics").text
    samples = {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["vllm:prompt_tokens_total", "toy"] == 4
    assert samples["vllm:generation_tokens_total", "toy"] == 5
    assert samples["vllm:time_to_first_token_seconds_count", "toy"] == 1
    assert samples["vllm:inter_token_latency_seconds_count", "toy"] == 4
    assert samples["vllm:e2e_request_latency_seconds_count", "toy"] == 1
    assert samples["vllm:request_success_total", "length", "toy"] == 1
    assert samples["vllm:prefix_cache_queries_total", "toy"] == 50
    assert samples["vllm:prefix_cache_hits_total", "toy"] == 20
    assert samples["vllm:num_preemptions_total", "toy"] == 0
    assert samples["vllm:kv_cache_usage_perc", "toy", "0"] == 0.05
    assert samples["vllm:num_requests_running", "toy", "0"] == 0
    assert samples["firelane:http_responses_total", "400"] == 1


def test_defect_in_one_stream_does_not_end_the_others(service, monkeypatch, caplog):
    from firelane.gateway.apis.chat.handler import ChatEncoder

    def broken(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(ChatEncoder, "opening", broken)
    chat = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = service.http.post("/v1/chat/completions", json=chat)
    assert json.loads(answer.text.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "a defect" not in answer.text
    assert "request_failed" in caplog.text
    assert service.gateway.in_flight == 0
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_frame_that_makes_no_sense_is_logged_and_passed_over(service, caplog):
    frame = StepFrame(1, [1, 2], [3], [], [], [], EngineStats())
    service.run(service.engine.send, frame)
    service.wait_for(lambda: "frame_failed" in caplog.text)
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_request_that_waited_too_long_is_given_up(make_service):
    service = make_service(max_queue_age_s=1e-9)
    service.run(setattr, service.engine, "held", True)
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(service.http.post("/v1/completions", json={"prompt": "a"}))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    service.wait_for(lambda: len(service.engine.running) == 2)
    service.run(service.model.admission.sweep, service.loop.time() + 1)
    for thread in threads:
        thread.join()
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "queue_timeout"
        assert answer.headers["retry-after"] == "5"
    service.wait_for(lambda: not service.engine.running)
    assert len(service.engine.aborted) == 2
    assert service.gateway.in_flight == 0


def test_a_request_that_began_may_take_its_time(make_service):
    service = make_service(max_queue_age_s=1e-9)
    answer = open_stream(service, max_tokens=3)
    service.run(service.model.admission.sweep, service.loop.time() + 1)
    service.run(setattr, service.engine, "held", False)
    service.run(service.engine.step_on)
    assert list(answer.iter_lines())[-2] == "data: [DONE]"
