"""A gateway that gives its sockets away: it takes them back, or goes on until all that it has is done."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
from service import PATIENCE_S

from firelane.gateway import server
from firelane.gateway.files.data_dir import DataDir

BODY = {"prompt": "say", "max_tokens": 4}


def test_what_was_given_is_taken_back(make_service, tmp_path: Path) -> None:
    service = make_service(data_dir=tmp_path, metrics_port=0)
    port, metrics = service.gateway.port, service.gateway.metrics.port
    sockets = service.call(service.gateway.release())
    assert [sock.getsockname()[1] for own in sockets.values() for sock in own] == [port, metrics]
    other = DataDir(tmp_path)
    assert other.acquire()
    other.release()
    with socket.create_connection(("127.0.0.1", port)):  # waits in the queue
        service.call(service.gateway.resume(sockets))
    assert service.http.post("/v1/completions", json=BODY).status_code == 200
    assert httpx.get(f"http://127.0.0.1:{metrics}/health", trust_env=False).status_code == 200
    assert service.http.get("/v1/files").status_code == 200
    assert not other.acquire()


def test_open_connections_get_their_last_answer(make_service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RETIRED_IDLE_S", 0.0)
    service = make_service()
    with socket.create_connection(("127.0.0.1", service.gateway.port), PATIENCE_S) as idle:
        assert service.http.get("/health").status_code == 200
        service.wait_for(lambda: len(service.gateway._connections) == 2)
        for own in service.call(service.gateway.release()).values():
            for sock in own:
                sock.close()
        retired = asyncio.run_coroutine_threadsafe(service.gateway.retire(), service.loop)
        service.wait_for(lambda: service.gateway._connections.closing)
        answer = service.http.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        with pytest.raises(httpx.ConnectError):
            service.http.get("/health")
        assert not retired.done()
        service.run(service.gateway._sweep)
        assert idle.recv(1) == b""
        retired.result(PATIENCE_S)
