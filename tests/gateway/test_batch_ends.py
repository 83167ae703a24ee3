"""Batches end in several ways, and a server that ends leaves its batches to the next one."""

from __future__ import annotations

from collections import Counter

import openai
import pytest
from batch_support import URL, hold, hurry, line, results, start, wait

from firelane.gateway.tenants.keyfile import hashed


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    hurry(monkeypatch)


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def kept(make_service, data_dir):
    return make_service(data_dir=data_dir)


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
    assert kept.model.admission.background == 0
    with pytest.raises(openai.BadRequestError, match="nothing to cancel"):
        kept.openai.batches.cancel(made.id)


def test_expiry(kept):
    hold(kept)
    made = start(kept, [line(f"r{i}") for i in range(10)], completion_window="1m")
    kept.wait_for(lambda: len(kept.engine.running) == 8)
    batches = kept.gateway.services.batches
    assert 55 < batches._handles[made.id].timer.when() - kept.loop.time() <= 61
    kept.run(batches._handles[made.id].cancel)
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
    assert service.gateway.services.usage.model("toy").generated_tokens.values == {"ann": 120.0, "bob": 120.0}


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


def test_latencies_are_those_of_clients(kept):
    wait(kept, start(kept, [line(f"r{i}") for i in range(5)]))
    kept.http.post(URL, json={"prompt": "a", "max_tokens": 4})
    kept.wait_for(lambda: not kept.gateway.services.batches.open)
    text = kept.http.get("/metrics").text
    for name, count in (("time_to_first_token", 1), ("inter_token_latency", 3), ("e2e_request_latency", 1)):
        assert f'vllm:{name}_seconds_count{{model_name="toy"}} {count}.0' in text
    assert 'vllm:generation_tokens_total{model_name="toy"} 19.0' in text
    assert "firelane:batches_open 0.0" in text


def test_old_batches_are_forgotten(kept, monkeypatch, data_dir):
    from firelane.gateway.batches import records

    monkeypatch.setattr(records, "MAX_ENDED", 2)
    made = [start(kept, [line("a")]) for _ in range(4)]
    wait(kept, made[-1])
    kept.wait_for(lambda: len(kept.gateway.services.batches.records._records) == 2)
    assert [b.id for b in kept.openai.batches.list()] == [made[3].id, made[2].id]
    kept.wait_for(lambda: len(list((data_dir / "batches").iterdir())) == 2)


def test_a_drain_does_not_wait_and_the_next_server_goes_on(make_service, data_dir):
    first = make_service(data_dir=data_dir)
    hold(first)
    made = start(first, [line(f"r{i}", prompt="a", max_tokens=1 if i < 8 else 4) for i in range(30)])
    first.wait_for(lambda: len(first.engine.running) == 8)
    first.run(first.engine.step)
    first.wait_for(lambda: len(first.engine.running) == 8)
    assert first.call(first.gateway.drain(60))
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
    second.wait_for(lambda: made.id in second.gateway.services.batches.records._records)
    assert wait(second, made).status == "completed"


@pytest.mark.parametrize("status", ["validating", "in_progress", "cancelling"])
def test_each_step_can_be_the_last_of_a_server(make_service, data_dir, monkeypatch, status):
    """The server stops right after the batch has reached a state; the next one carries on."""
    from firelane.gateway.batches.service import Batches

    with monkeypatch.context() as patched:
        patched.setattr(Batches, "_begin", lambda *_: None)
        first = make_service(data_dir=data_dir)
        made = start(first, [line(f"r{i}") for i in range(5)])
        records = first.gateway.services.batches.records
        if status == "cancelling":
            first.openai.batches.cancel(made.id)
        elif status == "in_progress":
            first.call(first.gateway.services.batches._workflow._validate(made.id))
        assert records[made.id].batch.status == status
        first.call(first.gateway.close())
    second = make_service(data_dir=data_dir)
    done = wait(second, made)
    assert done.status == ("cancelled" if status == "cancelling" else "completed")
    assert len(results(second, done.error_file_id) + results(second, done.output_file_id)) == 5


@pytest.mark.parametrize("step", ["describe", "publish", "save", "clear"])
def test_a_server_that_ends_while_it_finalises(make_service, data_dir, monkeypatch, step):
    """Each write of the end may be the last one; results are handed out once, whole."""
    from firelane.gateway.batches import workflow as module
    from firelane.gateway.batches.records import BatchRecords
    from firelane.gateway.files.store import TenantFiles

    fails = iter([True])

    def once(real):
        def wrapped(*args, **kwargs):
            record = args[1] if len(args) > 1 else None
            late = step != "save" or getattr(getattr(record, "batch", None), "status", "") == "completed"
            if late and next(fails, False):
                raise OSError("the server ends here")
            return real(*args, **kwargs)

        return wrapped

    target = {"describe": TenantFiles, "publish": TenantFiles, "save": BatchRecords, "clear": module}[step]
    service = make_service(data_dir=data_dir)
    hold(service)
    made = start(service, [line(f"r{i}") for i in range(5)])
    service.wait_for(lambda: len(service.engine.running) == 5)
    monkeypatch.setattr(target, step, once(getattr(target, step)))
    hold(service, held=False)
    done = wait(service, made)
    service.wait_for(lambda: not service.gateway.services.batches.open)
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
