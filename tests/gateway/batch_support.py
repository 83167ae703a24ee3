"""Batches in front of a scripted engine."""

from __future__ import annotations

import json

from firelane.gateway.batches import job as batch_job
from firelane.gateway.batches import service as batch_service
from firelane.gateway.batches import workflow

URL = "/v1/completions"


def hurry(monkeypatch):
    """Tests do not wait for groups and retries."""
    monkeypatch.setattr(workflow, "GROUP_S", 0.005)
    monkeypatch.setattr(workflow, "RETRY_S", 0.01)
    monkeypatch.setattr(batch_service, "RETRY_S", 0.01)
    monkeypatch.setattr(batch_service, "LOCK_S", 0.01)
    monkeypatch.setattr(batch_job, "MAX_WAIT_S", 0.001)


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
        records = service.gateway.services.batches.records
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
