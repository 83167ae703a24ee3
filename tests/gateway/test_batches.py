"""/v1/batches from end to end in front of a scripted engine: lines, errors, idle seats, ends and restarts."""

from __future__ import annotations

import json
from collections import Counter

import openai
import pytest

from firelane.gateway.batches import run as batch_run
from firelane.gateway.batches import service as batch_service
from firelane.gateway.engine_link import LinkState
from firelane.gateway.tenants.keyfile import hashed
from firelane.wire.frames import EngineStats

URL = "/v1/completions"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Tests do not wait for groups and retries."""
    monkeypatch.setattr(batch_service, "GROUP_S", 0.005)
    monkeypatch.setattr(batch_service, "RETRY_S", 0.01)
    monkeypatch.setattr(batch_service, "LOCK_S", 0.01)
    monkeypatch.setattr(batch_run, "MAX_WAIT_S", 0.001)


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def kept(make_service, data_dir):
    return make_service(data_dir=data_dir)


def line(custom_id, url=URL, **body):
    body = body or {"prompt": f"say {custom_id}", "max_tokens": 3}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def upload(service, lines):
    text = "".join(json.dumps(x) + "\n" for x in lines)
    return service.openai.files.create(file=("in.jsonl", text.encode()), purpose="batch").id


def start(service, lines, url=URL, **fields):
    file_id = upload(service, lines)
    fields = {"completion_window": "24h", **fields}
    return service.openai.batches.create(input_file_id=file_id, endpoint=url, **fields)


def wait(service, batch, *statuses):
    box = []

    def reached():
        records = service.gateway.parts.batches.records
        box.append(records[batch.id].batch)
        return box[-1].status in (statuses or ("completed", "failed", "expired", "cancelled"))

    service.wait_for(reached)
    return service.openai.batches.retrieve(batch.id)


def results(service, file_id):
    text = service.openai.files.content(file_id).text if file_id else ""
    return [json.loads(entry) for entry in text.splitlines()]


def hold(service, held=True):
    service.run(setattr, service.engine, "held", held)
    if not held:
        service.run(service.engine.step_on)


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
    assert kept.gateway.parts.admission.background == 0
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
        ({"colour": "red"}, "colour"),
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
        from firelane.gateway.exchange import Request

        self.request = Request()
        self.request.method, self.request.path = b"POST", URL.encode()
        self.request.body = b'{"prompt": "a", "max_tokens": 2}'
        self.id, self.extra_headers, self.started, self.gone, self.on_gone = "c", b"", False, False, None
        self.status = 0

    def respond(self, status, body, *, content_type=b"", headers=b""):  # noqa: ARG002
        self.status, self.gone = status, True


def _client(service):
    client = _Client()
    service.gateway.app.handle(client)
    return client


def test_a_queue_in_the_engine_keeps_lines_back(kept):
    hold(kept)
    client = kept.run(_client, kept)
    kept.wait_for(lambda: len(kept.engine.running) == 1)
    kept.run(setattr, kept.link, "stats", EngineStats(waiting=50))
    made = start(kept, [line("a")])
    wait(kept, made, "in_progress")
    kept.call(_turns(20))
    assert len(kept.engine.submitted) == 1
    kept.run(client.on_gone)  # now nothing waits, and no frame says so
    assert kept.link.stats.waiting == 50
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


def test_a_line_that_kills_the_engine_is_found(kept):
    """One line of ten ends each engine that takes it. The others are served all the same."""
    poison = kept.ids("kill")
    real = kept.engine._submit

    def submit(frame):
        real(frame)
        if any(r.prompt[1:] == poison for r in kept.engine.running.values()):
            kept.engine.die()

    def revive(_reason):
        kept.loop.create_task(kept.restart())

    kept.run(setattr, kept.engine, "_submit", submit)
    kept.run(setattr, kept.link, "on_down", revive)
    made = start(kept, [line(f"r{i}") for i in range(9)] + [line("bad", prompt="kill", max_tokens=3)])
    done = wait(kept, made)
    assert dict(done.request_counts) == {"total": 10, "completed": 9, "failed": 1}
    (error,) = results(kept, done.error_file_id)
    assert error["custom_id"] == "bad"
    assert error["response"]["status_code"] == 503
    kept.run(setattr, kept.link, "on_down", None)


def test_a_full_queue_is_waited_for(kept, monkeypatch):
    from firelane.errors import QueueFullError

    admission = kept.gateway.parts.admission
    real, refused = admission.admit_background, []

    def admit(sequences, max_num_seqs):
        if len(refused) < 5:
            refused.append(1)
            raise QueueFullError("full")
        return real(sequences, max_num_seqs)

    monkeypatch.setattr(admission, "admit_background", admit)
    done = wait(kept, start(kept, [line(f"r{i}") for i in range(4)]))
    assert done.request_counts.completed == 4
    assert len(refused) == 5


def test_cancel_keeps_what_is_done(kept):
    hold(kept)
    made = start(kept, [line(f"r{i}", prompt="a", max_tokens=1 if i < 8 else 500) for i in range(20)])
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    kept.run(kept.engine.step)
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    answer = kept.openai.batches.cancel(made.id)
    assert answer.status == "cancelling"
    assert answer.cancelling_at
    done = wait(kept, made)
    assert done.status == "cancelled"
    assert done.cancelled_at
    assert dict(done.request_counts) == {"total": 20, "completed": 8, "failed": 0}
    assert {e["custom_id"] for e in results(kept, done.output_file_id)} == {f"r{i}" for i in range(8)}
    unrun = results(kept, done.error_file_id)
    assert {e["custom_id"] for e in unrun} == {f"r{i}" for i in range(8, 20)}
    assert {e["error"]["code"] for e in unrun} == {"batch_cancelled"}
    kept.wait_for(lambda: not kept.engine.running)
    assert kept.gateway.parts.admission.background == 0
    with pytest.raises(openai.BadRequestError, match="nothing to cancel"):
        kept.openai.batches.cancel(made.id)


def test_expiry(kept):
    hold(kept)
    made = start(kept, [line(f"r{i}") for i in range(10)], completion_window="1m")
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    batches = kept.gateway.parts.batches
    assert 55 < batches._lives[made.id].timer.when() - kept.loop.time() <= 61
    kept.run(batches._lives[made.id].halt)
    done = wait(kept, made)
    assert done.status == "expired"
    assert done.expired_at
    assert {e["error"]["code"] for e in results(kept, done.error_file_id)} == {"batch_expired"}
    assert len(results(kept, done.error_file_id)) == 10


def test_batches_of_a_tenant_run_in_order_and_a_waiting_one_can_be_cancelled(kept):
    hold(kept)
    first, second, third = (start(kept, [line(f"{name}{i}") for i in range(9)]) for name in "abc")
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    wait(kept, second, "in_progress")
    kept.openai.batches.cancel(second.id)
    assert wait(kept, second).status == "cancelled"
    hold(kept, held=False)
    assert wait(kept, first).status == wait(kept, third).status == "completed"
    prompts = [kept.core.decode(list(memoryview(r.prompt).cast("i"))) for r in kept.engine.submitted]
    assert [p.split()[1][0] for p in prompts] == ["a"] * 9 + ["c"] * 9


def test_tenants_take_turns(make_service, data_dir, tmp_path):
    keys = tmp_path / "keys.toml"
    names = {"ann": "sk-ann-000000000000000000000000", "bob": "sk-bob-000000000000000000000000"}
    keys.write_text("".join(f'[tenants.{name}]\nkeys = ["{hashed(key)}"]\n' for name, key in names.items()))
    service = make_service(data_dir=data_dir, api_keys=keys)
    hold(service)
    own = service.openai
    made = {}
    for name, key in names.items():
        service.openai = own.with_options(api_key=key)
        made[name] = start(service, [line(f"{name}{i}") for i in range(40)])
    with pytest.raises(openai.NotFoundError):
        service.openai.batches.retrieve(made["ann"].id)
    with pytest.raises(openai.NotFoundError):
        service.openai.batches.cancel(made["ann"].id)
    hold(service, held=False)
    for name, key in names.items():
        service.openai = own.with_options(api_key=key)
        assert wait(service, made[name]).status == "completed"
        assert [b.id for b in service.openai.batches.list()] == [made[name].id]
    service.openai = own
    order = [r.tenant for r in service.engine.submitted]
    assert set(Counter(order).values()) == {40}
    assert 10 < Counter(order[20:60])["ann"] < 30
    assert service.gateway.parts.ledger._generated.values == {"ann": 120.0, "bob": 120.0}


def test_too_many_batches(make_service, data_dir):
    from firelane.gateway.config import FileLimits

    service = make_service(data_dir=data_dir, files=FileLimits(tenant_batches=1))
    hold(service)
    start(service, [line("a")])
    with pytest.raises(openai.RateLimitError):
        start(service, [line("b")])
    hold(service, held=False)


def test_the_input_may_be_deleted_meanwhile(kept):
    hold(kept)
    made = start(kept, [line(f"r{i}") for i in range(20)])
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    kept.openai.files.delete(made.input_file_id)
    hold(kept, held=False)
    assert wait(kept, made).request_counts.completed == 20


def test_a_drain_does_not_wait_and_the_next_server_goes_on(make_service, data_dir):
    first = make_service(data_dir=data_dir)
    hold(first)
    made = start(first, [line(f"r{i}", prompt="a", max_tokens=1 if i < 8 else 4) for i in range(30)])
    first.wait_for(lambda: len(first.engine.running) == 8)
    first.run(first.engine.step)
    first.wait_for(lambda: len(first.engine.running) == 8)
    assert first.call(first.gateway.drain(5))
    first.wait_for(lambda: not first.engine.running)
    first.call(first.gateway.close())
    second = make_service(data_dir=data_dir)
    done = wait(second, made)
    assert dict(done.request_counts) == {"total": 30, "completed": 30, "failed": 0}
    assert len(second.engine.submitted) == 22
    ids = [e["custom_id"] for e in results(second, done.output_file_id)]
    assert sorted(ids) == sorted(f"r{i}" for i in range(30))
    assert done.in_progress_at
    assert done.usage.output_tokens == 8 + 22 * 4


def test_a_waiting_server_takes_over(make_service, data_dir):
    first, second = (make_service(data_dir=data_dir) for _ in range(2))
    hold(first)
    made = start(first, [line("a")])
    first.call(first.gateway.close())
    second.wait_for(lambda: made.id in second.gateway.parts.batches.records._records)
    assert wait(second, made).status == "completed"


@pytest.mark.parametrize("status", ["validating", "in_progress", "cancelling"])
def test_each_step_can_be_the_last_of_a_server(make_service, data_dir, monkeypatch, status):
    """The server stops right after the batch has reached a state; the next one carries on."""
    from firelane.gateway.batches.service import Batches

    with monkeypatch.context() as patched:
        patched.setattr(Batches, "_begin", lambda *_: None)
        first = make_service(data_dir=data_dir)
        made = start(first, [line(f"r{i}") for i in range(5)])
        records = first.gateway.parts.batches.records
        if status == "cancelling":
            first.openai.batches.cancel(made.id)
        elif status == "in_progress":
            first.call(first.gateway.parts.batches._validate(made.id))
        assert records[made.id].batch.status == status
        first.call(first.gateway.close())
    second = make_service(data_dir=data_dir)
    done = wait(second, made)
    assert done.status == ("cancelled" if status == "cancelling" else "completed")
    assert len(results(second, done.error_file_id) + results(second, done.output_file_id)) == 5


@pytest.mark.parametrize("step", ["describe", "publish", "save", "clear"])
def test_a_server_that_ends_while_it_finalises(make_service, data_dir, monkeypatch, step):
    """Each write of the end may be the last one; results are handed out once, whole."""
    from firelane.gateway.batches import service as module
    from firelane.gateway.batches.records import BatchRecords
    from firelane.gateway.files.store import Shelf

    fails = iter([True])

    def once(real):
        def wrapped(*args, **kwargs):
            record = args[1] if len(args) > 1 else None
            late = step != "save" or getattr(getattr(record, "batch", None), "status", "") == "completed"
            if late and next(fails, False):
                raise OSError("the server ends here")
            return real(*args, **kwargs)

        return wrapped

    target = {"describe": Shelf, "publish": Shelf, "save": BatchRecords, "clear": module}[step]
    service = make_service(data_dir=data_dir)
    hold(service)
    made = start(service, [line(f"r{i}") for i in range(5)])
    service.wait_for(lambda: len(service.engine.running) == 5)
    monkeypatch.setattr(target, step, once(getattr(target, step)))
    hold(service, held=False)
    done = wait(service, made)
    service.wait_for(lambda: not service.gateway.parts.batches.open)
    assert next(fails, None) is None
    assert done.status == "completed"
    assert len(results(service, done.output_file_id)) == 5
    assert [f.purpose for f in service.openai.files.list()] == ["batch_output", "batch"]


def test_results_wait_for_a_full_drive(kept, monkeypatch):
    from firelane.gateway.batches.results import ResultFile

    real, failed = ResultFile.append, []

    def append(self, lines):
        if len(failed) < 3:
            failed.append(1)
            raise OSError(28, "No space left on device")
        real(self, lines)

    monkeypatch.setattr(ResultFile, "append", append)
    done = wait(kept, start(kept, [line(f"r{i}") for i in range(20)]))
    assert dict(done.request_counts) == {"total": 20, "completed": 20, "failed": 0}
    assert len(kept.engine.submitted) == 20
    assert len(failed) == 3


def test_a_batch_that_nobody_was_told_of_is_removed(make_service, data_dir):
    half = data_dir / "batches" / ("batch_" + "1" * 24)
    half.mkdir(parents=True)
    (half / "input.jsonl").write_text("x")
    bad = data_dir / "batches" / ("batch_" + "2" * 24)
    bad.mkdir()
    (bad / "batch.json").write_text("{")
    (data_dir / "batches" / "other").mkdir()
    service = make_service(data_dir=data_dir)
    assert service.http.get("/v1/batches").json()["data"] == []
    assert sorted(p.name for p in (data_dir / "batches").iterdir()) == [bad.name, "other"]
    assert wait(service, start(service, [line("a")])).status == "completed"


def test_latencies_are_those_of_clients(kept):
    wait(kept, start(kept, [line(f"r{i}") for i in range(5)]))
    kept.http.post(URL, json={"prompt": "a", "max_tokens": 4})
    text = kept.http.get("/metrics").text
    for name, count in (("time_to_first_token", 1), ("inter_token_latency", 3), ("e2e_request_latency", 1)):
        assert f'vllm:{name}_seconds_count{{model_name="toy"}} {count}.0' in text
    assert 'vllm:generation_tokens_total{model_name="toy"} 19.0' in text
    assert 'firelane:batches_open{model_name="toy"} 0.0' in text


def test_old_batches_are_forgotten(kept, monkeypatch, data_dir):
    from firelane.gateway.batches import records

    monkeypatch.setattr(records, "MAX_ENDED", 2)
    made = [start(kept, [line("a")]) for _ in range(4)]
    wait(kept, made[-1])
    kept.wait_for(lambda: len(kept.gateway.parts.batches.records._records) == 2)
    assert [b.id for b in kept.openai.batches.list()] == [made[3].id, made[2].id]
    assert len(list((data_dir / "batches").iterdir())) == 2
