"""/v1/batches from end to end in front of a scripted engine: lines, errors, idle seats, engines that die."""

from __future__ import annotations

import openai
import pytest
from batch_support import URL, hold, hurry, line, results, start, upload, wait

from firelane.engine_state import LinkState
from firelane.gateway.engines.recovery.recovery import NoRecovery, Resume
from firelane.wire.frames import EngineStats


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    hurry(monkeypatch)


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def kept(make_service, data_dir):
    return make_service(data_dir=data_dir)


def test_a_batch_from_upload_to_download(kept):
    made = start(kept, [line(f"r{i}") for i in range(30)], metadata={"night": "1"})
    assert made.status == "validating"
    assert made.metadata == {"night": "1"}
    assert made.expires_at == made.created_at + 86400
    done = wait(kept, made)
    assert done.status == "completed"
    assert done.errors is None
    assert done.error_file_id is None
    assert dict(done.request_counts) == {"total": 30, "completed": 30, "failed": 0}
    assert made.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    entries = results(kept, done.output_file_id)
    assert sorted(e["custom_id"] for e in entries) == sorted(f"r{i}" for i in range(30))
    assert len({e["id"] for e in entries}) == len({e["response"]["request_id"] for e in entries}) == 30
    for entry in entries:
        assert list(entry) == ["id", "custom_id", "response", "error"]
        assert entry["error"] is None
        assert entry["response"]["status_code"] == 200
        body = entry["response"]["body"]
        assert body["choices"][0]["text"] == "hel"
        assert body["usage"]["completion_tokens"] == 3
    assert done.usage.output_tokens == 90
    assert done.usage.total_tokens == done.usage.input_tokens + 90
    assert kept.openai.files.retrieve(done.output_file_id).purpose == "batch_output"
    assert kept.model.admission.background == 0
    assert [b.id for b in kept.openai.batches.list()] == [made.id]


def test_lines_are_background_work_of_their_tenant(kept):
    wait(kept, start(kept, [line("a")]))
    (request,) = kept.engine.submitted
    assert request.background
    kept.http.post(URL, json={"prompt": "a"})
    assert not kept.engine.submitted[1].background


def test_chat_lines(kept):
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = "/v1/chat/completions"
    done = wait(kept, start(kept, [line("c", url, **message)], url))
    (entry,) = results(kept, done.output_file_id)
    assert entry["response"]["body"]["choices"][0]["message"]["content"] == "hell"


def test_answers_that_are_errors_have_a_file_of_their_own(kept):
    bad = [line("bad", prompt=3), line("gone", prompt="a", model="other"), line("good")]
    done = wait(kept, start(kept, bad))
    assert done.status == "completed"
    assert dict(done.request_counts) == {"total": 3, "completed": 1, "failed": 2}
    assert [e["custom_id"] for e in results(kept, done.output_file_id)] == ["good"]
    errors = {e["custom_id"]: e["response"] for e in results(kept, done.error_file_id)}
    assert errors["bad"]["status_code"] == 400
    assert errors["bad"]["body"]["error"]["param"] == "prompt"
    assert errors["gone"]["status_code"] == 404


def test_bad_input_fails_with_the_lines(kept):
    made = start(kept, [line("a"), line("a"), line("b", "/v1/embeddings"), "text"])
    failed = wait(kept, made)
    assert failed.status == "failed"
    assert [(e.line, e.code) for e in failed.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "url_mismatch"),
        (4, "invalid_value"),
    ]
    assert failed.failed_at
    assert failed.output_file_id is None
    assert kept.engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"endpoint": "../../etc"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "99d"}, "completion_window"),
        ({"completion_window": "-1h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": "file-" + "0" * 24}, "input_file_id"),
        ({"input_file_id": "../lock"}, "input_file_id"),
        ({"input_file_id": "\0"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
def test_bad_request(kept, fields, param):
    body = {"input_file_id": upload(kept, [line("a")]), "endpoint": URL, "completion_window": "24h"}
    answer = kept.http.post("/v1/batches", json=body | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert kept.http.get("/v1/batches").json()["data"] == []


@pytest.mark.parametrize("batch_id", ["x", "..", "%2e%2e%2flock", "batch_" + "0" * 24, "%00", "a" * 3000])
def test_unknown_ids(kept, batch_id):
    assert kept.http.get(f"/v1/batches/{batch_id}").status_code == 404
    assert kept.http.post(f"/v1/batches/{batch_id}/cancel").status_code == 404


def test_the_output_of_a_batch_is_no_input(kept):
    done = wait(kept, start(kept, [line("a")]))
    with pytest.raises(openai.BadRequestError, match="batch_output"):
        kept.openai.batches.create(input_file_id=done.output_file_id, endpoint=URL, completion_window="24h")


def test_seats_that_clients_hold_are_not_taken(make_service, data_dir):
    """Eight seats, five of them with clients: three lines run. When the clients end, eight do."""
    service = make_service(data_dir=data_dir, max_queue=0)
    hold(service)
    asked = [service.run(_client, service) for _ in range(5)]
    service.wait_for(lambda: len(service.engine.running) == 5)
    made = start(service, [line(f"r{i}") for i in range(40)])
    service.wait_for(lambda: len(service.engine.running) == 8)
    assert service.gateway.in_flight == 5
    assert sum(r.request.background for r in service.engine.running.values()) == 3
    # Batches never make the queue look full to a client.
    asked += [service.run(_client, service) for _ in range(3)]
    service.wait_for(lambda: service.gateway.in_flight == 8)
    hold(service, held=False)
    assert wait(service, made).request_counts.completed == 40
    service.wait_for(lambda: all(client.gone for client in asked))
    assert {client.status for client in asked} == {200}


class _Client:
    """An exchange of a client, without a connection."""

    def __init__(self):
        from firelane.gateway.http.exchange import Request

        self.request = Request()
        self.request.method, self.request.path = b"POST", URL.encode()
        self.request.body = b'{"prompt": "a", "max_tokens": 2}'
        self.id, self.extra_headers, self.started, self.gone, self.on_gone = "c", b"", False, False, None
        self.error_form = None
        self.status = 0

    def respond(self, status, body, *, content_type=b"", headers=b""):  # noqa: ARG002
        self.status, self.gone = status, True


def _client(service):
    client = _Client()
    service.gateway.app.dispatch(client)
    return client


def test_a_queue_in_the_engine_keeps_lines_back(kept):
    hold(kept)
    client = kept.run(_client, kept)
    kept.wait_for(lambda: len(kept.engine.running) == 1)
    kept.run(setattr, kept.replica.load, "stats", EngineStats(waiting=50))
    made = start(kept, [line("a")])
    wait(kept, made, "in_progress")
    kept.call(_turns(20))
    assert len(kept.engine.submitted) == 1
    kept.engine.tells_aborts = False
    kept.run(client.on_gone)  # now nothing waits, and no frame says so
    assert kept.link.figures.stats.waiting == 50
    hold(kept, held=False)
    assert wait(kept, made).status == "completed"


async def _turns(count):
    import asyncio

    for _ in range(count):
        await asyncio.sleep(0)


def test_an_engine_that_dies_costs_nothing(kept):
    hold(kept)
    made = start(kept, [line(f"r{i}") for i in range(20)])
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    kept.run(kept.engine.die)
    kept.wait_for(lambda: kept.link.state is LinkState.DEAD)
    kept.run(setattr, kept.engine, "held", False)
    kept.call(kept.restart())
    done = wait(kept, made)
    assert dict(done.request_counts) == {"total": 20, "completed": 20, "failed": 0}
    ids = [e["custom_id"] for e in results(kept, done.output_file_id)]
    assert sorted(ids) == sorted(f"r{i}" for i in range(20))


@pytest.mark.parametrize(("recovery", "status"), [(Resume(), 400), (NoRecovery(), 503)])
def test_a_line_that_kills_the_engine_is_found(make_service, data_dir, recovery, status):
    """One line of ten ends each engine that takes it. The others are served all the same."""
    kept = make_service(data_dir=data_dir, recovery=recovery)
    poison = kept.ids("kill")
    real = kept.engine.step

    def step():
        if any(r.prompt[1:] == poison for r in kept.engine.running.values()):
            kept.engine.die()
        else:
            real()

    def revive():
        kept.loop.create_task(kept.restart())

    kept.run(setattr, kept.engine, "step", step)
    kept.on_down = revive
    long = [line(f"r{i}", prompt="say", max_tokens=200) for i in range(9)]
    made = start(kept, [long[0], line("bad", prompt="kill", max_tokens=3), *long[1:]])
    done = wait(kept, made)
    assert dict(done.request_counts) == {"total": 10, "completed": 9, "failed": 1}
    (error,) = results(kept, done.error_file_id)
    assert error["custom_id"] == "bad"
    assert error["response"]["status_code"] == status
    kept.on_down = lambda: None


def test_a_full_queue_is_waited_for(kept, monkeypatch):
    from firelane.errors import QueueFullError

    admission = kept.model.admission
    real, refused = admission.reserve, []

    def reserve(*args, **kwargs):
        if len(refused) < 5:
            refused.append(1)
            raise QueueFullError("full")
        return real(*args, **kwargs)

    monkeypatch.setattr(admission, "reserve", reserve)
    done = wait(kept, start(kept, [line(f"r{i}") for i in range(4)]))
    assert done.request_counts.completed == 4
    assert len(refused) == 5
